//! Calls by kernels that go wrong: no kernel waits for ever, and errors name who.

use crate::common::*;
use crate::cuda::*;
use crate::world::*;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// Ranks whose calls may take so long.
pub(crate) fn within<const N: usize>(gpus: &Gpus, milliseconds: c_int) -> [Comm; N] {
    on_devices_with(gpus, &Config { timeout_ms: milliseconds, ..CONFIG })
}

/// What the communicator says when it has ended.
pub(crate) fn ended(comm: Comm) -> String {
    wait_for("the end of a communicator", || async_error(comm) != SUCCESS);
    last_error(comm)
}

#[test]
fn ranks_that_differ_in_their_arguments_are_told_at_once() {
    let gpus = gpus(1, "");
    // The operator, the count, the type; by packets, which carry the tag, and by plans, whose pieces do.
    let cases: [(usize, c_int, c_int, usize, c_int, c_int, &str); 4] = [
        (50, FLOAT32, SUM, 50, FLOAT32, 1, "the operator"),
        (50, FLOAT32, SUM, 60, FLOAT32, SUM, "the count"),
        (500, INT32, SUM, 400, INT32, SUM, "the count"),
        (500, INT32, SUM, 500, INT32, MAX, "the operator"),
    ];
    for (count, dtype, op, other, their_dtype, their_op, what) in cases {
        let comms = within::<2>(&gpus, 60_000);
        let begin = Instant::now();
        on_threads(&comms, |rank, comm| {
            let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 4000]));
            let (n, t, o) = if rank == 0 { (count, dtype, op) } else { (other, their_dtype, their_op) };
            ok(cclAllReduce(at.send(), at.recv(), n, t, o, comm, queue.handle));
            let text = ended(comm);
            queue.finish();
            assert!(text.contains("all_reduce #0") && text.contains(what), "{what}: {text}");
            let refused = cclAllReduce(at.send(), at.recv(), n, t, o, comm, queue.handle);
            assert_ne!(refused, SUCCESS);
        });
        assert!(begin.elapsed() < Duration::from_secs(50), "not by the deadline");
        destroy_all(&comms);
    }
}

#[test]
fn other_calls_and_absent_ranks_are_named_after_the_deadline() {
    let gpus = gpus(1, "");
    // Rank 1 is in another collective; or in none, after the first call.
    for is_absent in [false, true] {
        let (comms, order) = (within::<3>(&gpus, 60_000), Order::default());
        on_threads(&comms, |rank, comm| {
            let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 4000]));
            ok(cclAllReduce(at.send(), at.recv(), 50, FLOAT32, SUM, comm, queue.handle));
            queue.finish();
            if rank == 0 {
                // Whose deadline it is: all calls that there will be are made.
                order.after(if is_absent { 1 } else { 2 });
                ok(cclCommSetTimeout(comm, 5000));
            }
            match (rank, is_absent) {
                (1, true) => {}
                (1, false) => {
                    ok(cclBroadcast(at.send(), at.recv(), 50, FLOAT32, 1, comm, queue.handle));
                    order.done();
                }
                _ => {
                    ok(cclAllReduce(at.send(), at.recv(), 51, FLOAT32, SUM, comm, queue.handle));
                    order.done();
                }
            }
            let text = ended(comm);
            queue.finish();
            let words = if is_absent {
                "rank 1 never entered all_reduce #1"
            } else {
                "rank 1 asked for broadcast #1"
            };
            assert!(text.contains(words), "{text}");
        });
        destroy_all(&comms);
    }
}

#[test]
fn a_rank_on_host_memory_is_told_apart() {
    let gpus = gpus(1, "");
    let (comms, order) = (within::<3>(&gpus, 60_000), Order::default());
    on_threads(&comms, |rank, comm| {
        let words = "rank 1 waits in all_reduce #0 (50 x float, sum";
        if rank == 1 {
            assert_ne!(all_reduce(&mut [1.0; 50], comm, 0), SUCCESS);
            let text = last_error(0);
            assert!(text.contains(words) && text.contains("on host memory"), "{text}");
            return;
        }
        let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 4000]));
        if rank == 0 {
            // Whose deadline it is: the others are in their calls.
            order.after(1);
            wait_for("rank 1's call", || running(comms[1]).is_some());
            ok(cclCommSetTimeout(comm, 5000));
        }
        ok(cclAllReduce(at.send(), at.recv(), 50, FLOAT32, SUM, comm, queue.handle));
        order.done();
        let text = ended(comm);
        queue.finish();
        assert!(text.contains(words) && text.contains("ranks 0, 2 in all_reduce #0"), "{text}");
    });
    destroy_all(&comms);
}

/// One of three ranks aborts while the others wait in these calls, each on a buffer of so many bytes.
pub(crate) fn an_abort_ends(bytes: usize, calls: impl Fn(usize, Comm, &Buffer<'_>, Stream) + Sync) {
    let gpus = gpus(1, "");
    let (comms, order) = (within::<3>(&gpus, 60_000), Order::default());
    let begin = Instant::now();
    on_threads(&comms, |rank, comm| {
        if rank == 2 {
            order.after(2);
            // Mostly after their kernels have begun to wait for it.
            std::thread::sleep(Duration::from_millis(200));
            ok(cclCommAbort(comm));
            return;
        }
        let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; bytes]));
        calls(rank, comm, &at, queue.handle);
        order.done();
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("rank 2") && text.contains("abort"), "{text}");
        assert_eq!(async_error(comm), REMOTE_ERROR);
        ok(cclCommDestroy(comm));
    });
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_abort_ends_the_kernels_of_all() {
    an_abort_ends(4000, |_, comm, at, queue| {
        (0..3).for_each(|_| ok(cclAllReduce(at.send(), at.recv(), 50, FLOAT32, SUM, comm, queue)));
    });
}

#[test]
fn replays_count_too() {
    let gpus = gpus(1, "");
    let (comms, order) = (within::<2>(&gpus, 60_000), Order::default());
    on_threads(&comms, |rank, comm| {
        let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 4000]));
        if rank == 0 {
            // Whose deadline it is: what the other replays is on its stream.
            ok(cclCommSetTimeout(comm, 5000));
            order.after(1);
        }
        let graph = queue.capture(|| {
            ok(cclAllReduce(at.send(), at.recv(), 50, FLOAT32, SUM, comm, queue.handle));
        });
        for _ in 0..5 - rank {
            graph.replay();
        }
        order.done();
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("rank 1 never entered all_reduce #4"), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn what_cannot_be_is_refused() {
    let gpus = gpus(2, "");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let device = rank as u32;
        let (queue, other) = (gpus.queue(device), gpus.queue(1 - device));
        let (at, there) = (gpus.buffer(device, &[0; 64]), gpus.buffer(1 - device, &[0; 64]));
        let code = cclAllReduce(there.send(), there.recv(), 4, FLOAT32, SUM, comm, other.handle);
        refused(code, INVALID_ARGUMENT, "in a communicator where it is on device");
        let code = cclSend(at.send(), 4, FLOAT32, rank as c_int, comm, queue.handle);
        refused(code, INVALID_ARGUMENT, "sends itself 1 times and receives 0 times");
        // Nothing of all that has begun.
        ok(cclAllReduce(at.send(), at.recv(), 4, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

#[test]
fn ranks_without_a_device_or_without_memory_do_without_kernels() {
    for script in ["", "fail cuMemAlloc code=2"] {
        let gpus = gpus(1, "");
        let comms = if script.is_empty() {
            // Rank 1 joins from a thread without a device.
            let (id, mut comms) = (id(), [0; 2]);
            std::thread::scope(|scope| {
                for (rank, comm) in (0..).zip(&mut comms) {
                    let gpus = &gpus;
                    scope.spawn(move || {
                        if rank == 0 {
                            gpus.fake.set_device(0);
                        }
                        ok(cclCommInitRank(comm, 2, id, rank));
                        if rank == 0 {
                            gpus.fake.leave_device();
                        }
                    });
                }
            });
            comms
        } else {
            gpus.fake.run(script);
            on_devices(&gpus)
        };
        let before = launches(&gpus);
        on_threads(&comms, |rank, comm| {
            let queue = gpus.queue(0);
            let at = gpus.buffer(0, &(rank as u64 + 1).to_le_bytes());
            ok(cclAllReduce(at.send(), at.recv(), 1, UINT64, SUM, comm, queue.handle));
            queue.finish();
            assert_eq!(at.bytes(), 3u64.to_le_bytes());
        });
        assert_eq!(launches(&gpus), before, "'{script}'");
        destroy_all(&comms);
    }
}
