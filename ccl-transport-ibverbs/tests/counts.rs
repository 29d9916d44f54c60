//! What the data path costs: one test, because it counts for the whole process.

mod hosts;

use ccl_core::simd::Buffers;
use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::transport::{Fabric, Transport};
use ccl_fake_ibverbs::Fake;
use std::cell::Cell;

#[allow(unsafe_code)]
mod sys {
    use std::alloc::{GlobalAlloc, Layout, System};

    pub(super) struct Counting;

    // SAFETY: everything is passed on to the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            super::ALLOCATIONS.with(|n| n.set(n.get() + 1));
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(at, layout) }
        }
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: sys::Counting = sys::Counting;

/// The fake library has an allocator of its own, which is not counted.
#[test]
fn the_data_path_allocates_and_registers_nothing() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = hosts::transports(2, 65536, 32);
    connect(&mut t, &mesh(2, 2));
    let registered = |fake: &Fake| fake.count("reg_mr") + fake.count("reg_mr_iova2");
    let piece = vec![1; 65536];
    let before = registered(&fake);
    assert!(before > 0 && ALLOCATIONS.with(Cell::get) > 0, "the counters count");
    for channel in [0, 1] {
        let ends = (t[0].sender(&[1], channel), t[1].receiver(0, channel));
        let (to, from) = (ends.0.unwrap(), ends.1.unwrap());
        let allocated = ALLOCATIONS.with(Cell::get);
        for k in 0..1000u64 {
            for len in [8, 65536] {
                assert!(t[0].send(to, Buffers::new(&piece[..len], &mut []).input(), k).unwrap());
                assert_eq!(t[1].peek(from).unwrap().unwrap().tag, k);
                t[1].release(from).unwrap();
            }
        }
        assert_eq!(ALLOCATIONS.with(Cell::get), allocated);
    }
    assert_eq!(registered(&fake), before);
    let memory = t[0].memory();
    drop(t);
    assert!(memory > 0 && fake.live() == 0);
}
