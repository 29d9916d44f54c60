//! After warm-up a small collective allocates nothing, on any rank, nor does a transfer or a group of them, also where a rank
//! goes to sleep until its peers come, and where others want the cores so that ranks look for a better one.

use bytemuck::{bytes_of, bytes_of_mut};
use ccl::{Buffers, Communicator, DataType, Operation, ReduceOp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Counts what each thread asks for. The control threads do, now and then.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_small_call_allocates_nothing() {
    const RANKS: u32 = 3;
    /// The others go to sleep in their transports, and look who has left.
    const LATE: Duration = Duration::from_millis(200);
    let work = |mut comm: Communicator| {
        let send = [comm.rank() as f32; 2];
        let mut sum = [0.0; 2];
        let mut all = [0.0; 2 * RANKS as usize];
        let (mut passed, mut neighbours) = ([0f32; 2], [0f32; 2]);
        let mut calls = |comm: &mut Communicator, times: u32| {
            for _ in 0..times {
                comm.all_reduce(&send, &mut sum, ReduceOp::Sum).unwrap();
                comm.all_gather(&send, &mut all).unwrap();
                comm.broadcast(&mut sum, 1).unwrap();
                comm.barrier().unwrap();
                let (next, previous) = ((comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
                if comm.rank() == 0 {
                    comm.send(&send, next).unwrap();
                }
                comm.receive(&mut passed, previous).unwrap();
                if comm.rank() > 0 {
                    comm.send(&passed, next).unwrap();
                }
                let (from, into) = (
                    Buffers::new(bytes_of(&send), &mut []),
                    Buffers::new(&[], bytes_of_mut(&mut neighbours)),
                );
                let exchange = [
                    Operation::receive(previous, DataType::F32, 2, into),
                    Operation::send(next, DataType::F32, 2, from),
                ];
                comm.run_all(&exchange).unwrap();
            }
        };
        calls(&mut comm, 20);
        let before = ALLOCATIONS.get();
        for late in 0..RANKS {
            calls(&mut comm, 100);
            if comm.rank() == late {
                thread::sleep(LATE);
            }
        }
        calls(&mut comm, 100);
        let allocated = ALLOCATIONS.get() - before;
        assert_eq!((sum, passed), ([3.0; 2], [0.0; 2]));
        assert_eq!(neighbours, [((comm.rank() + RANKS - 1) % RANKS) as f32; 2]);
        allocated
    };
    let ranks = Communicator::local(RANKS).unwrap();
    let done = AtomicBool::new(false);
    let others = thread::available_parallelism().unwrap().get();
    let allocated: Vec<_> = thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    spin_loop()
                }
            });
        }
        let handles: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        let allocated: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        done.store(true, Relaxed);
        allocated.into_iter().map(Result::unwrap).collect()
    });
    assert_eq!(allocated, [0; RANKS as usize], "allocations of each rank");
}
