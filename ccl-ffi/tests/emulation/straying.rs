//! Sends, receives and uneven blocks that do not fit together, or that nobody answers: who it was is said, and no kernel waits for ever.

use crate::common::*;
use crate::failures::{an_abort_ends, ended, within};
use crate::world::*;
use std::ffi::c_int;
use std::ptr::null;
use std::time::{Duration, Instant};

#[test]
fn the_two_ends_of_a_transfer_that_differ_are_named_at_once() {
    let gpus = gpus(1, "");
    // The count of short ones; the count of long ones, of which whole pieces are equal; and the type.
    let cases: [(usize, c_int, usize, c_int, &str); 4] = [
        (5, FLOAT32, 6, FLOAT32, "rank 0 sends 5 x float to rank 1, which receives 6 x float"),
        (0, FLOAT32, 6, FLOAT32, "rank 0 sends 0 x float to rank 1, which receives 6 x float"),
        (
            49_152,
            FLOAT32,
            32_768,
            FLOAT32,
            "rank 0 sends 49152 x float to rank 1, which receives 32768 x float",
        ),
        (8, FLOAT32, 4, FLOAT64, "they differ in the count and the type"),
    ];
    for (count, dtype, other, their_dtype, words) in cases {
        let comms = within::<2>(&gpus, 60_000);
        let begin = Instant::now();
        on_threads(&comms, |rank, comm| {
            let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 200_000]));
            // A transfer before it, and a collective, do not matter.
            ok(cclAllReduce(at.send(), at.recv(), 5, FLOAT32, SUM, comm, queue.handle));
            match rank {
                0 => ok(cclSend(at.send(), count, dtype, 1, comm, queue.handle)),
                _ => ok(cclRecv(at.recv(), other, their_dtype, 0, comm, queue.handle)),
            }
            let text = ended(comm);
            queue.finish();
            assert!(text.contains(words), "{text}");
        });
        assert!(begin.elapsed() < Duration::from_secs(50), "not by the deadline");
        destroy_all(&comms);
    }
}

#[test]
fn two_ranks_that_give_other_lengths_to_a_block_are_named_at_once() {
    let gpus = gpus(1, "");
    let comms = within::<3>(&gpus, 60_000);
    on_threads(&comms, |rank, comm| {
        let (queue, from, into) = (gpus.queue(0), gpus.buffer(0, &[1; 4000]), gpus.buffer(0, &[1; 4000]));
        let sent = [10, 10, 10];
        // Rank 2 believes that rank 1 has 11 for it.
        let received = [10, if rank == 2 { 11 } else { 10 }, 10];
        let (s, r) = (sent.as_ptr(), received.as_ptr());
        ok(cclAlltoAllv(from.send(), s, null(), into.recv(), r, null(), FLOAT32, comm, queue.handle));
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("rank 2 in all_to_all #0") && text.contains("from rank 1"), "{text}");
    });
    destroy_all(&comms);
    // Where all ranks know all lengths it is the call that differs.
    let comms = within::<2>(&gpus, 60_000);
    on_threads(&comms, |rank, comm| {
        let (queue, from, into) = (gpus.queue(0), gpus.buffer(0, &[1; 4000]), gpus.buffer(0, &[1; 4000]));
        let counts = [7, if rank == 0 { 8 } else { 9 }];
        let own = counts[rank];
        ok(cclAllGatherV(
            from.send(),
            own,
            into.recv(),
            counts.as_ptr(),
            null(),
            FLOAT32,
            comm,
            queue.handle,
        ));
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("all_gather #0") && text.contains("the lengths of blocks"), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn who_is_absent_from_a_transfer_or_an_exchange_is_named_after_the_deadline() {
    let gpus = gpus(1, "");
    let (comms, order) = (within::<3>(&gpus, 60_000), Order::default());
    // Rank 2 never sends. What rank 1 has not received is short, and rank 0 does not wait for it.
    on_threads(&comms, |rank, comm| {
        let (queue, at, into) = (gpus.queue(0), gpus.buffer(0, &[1; 4000]), gpus.buffer(0, &[1; 4000]));
        match rank {
            0 => {
                // Whose deadline it is: the other one is in its call.
                order.after(1);
                ok(cclCommSetTimeout(comm, 5000));
                ok(cclGroupStart());
                ok(cclSend(at.send(), 900, FLOAT32, 1, comm, queue.handle));
                ok(cclRecv(into.recv(), 900, FLOAT32, 2, comm, queue.handle));
                ok(cclGroupEnd());
            }
            1 => {
                ok(cclRecv(into.recv(), 900, FLOAT32, 0, comm, queue.handle));
                order.done();
            }
            _ => {}
        }
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("rank 2 is not in the send to rank 0"), "{text}");
    });
    destroy_all(&comms);
    // The first block of an exchange waits for nobody: the others' waits count.
    let (comms, order) = (within::<3>(&gpus, 60_000), Order::default());
    on_threads(&comms, |rank, comm| {
        let (queue, at, into) = (gpus.queue(0), gpus.buffer(0, &[1; 4000]), gpus.buffer(0, &[1; 4000]));
        if rank == 0 {
            // Whose deadline it is: the other one is in its call.
            order.after(1);
            ok(cclCommSetTimeout(comm, 5000));
        }
        if rank != 2 {
            ok(cclAlltoAll(at.send(), into.recv(), 100, FLOAT32, comm, queue.handle));
            order.done();
        }
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("rank 2 never entered all_to_all #0"), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn a_transfer_with_host_memory_is_told_apart() {
    // More than fits between the two.
    const COUNT: usize = 300_000;
    let gpus = gpus(1, "");
    let comms = within::<2>(&gpus, 60_000);
    on_threads(&comms, |rank, comm| {
        let text = if rank == 0 {
            let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![1; 4 * COUNT]));
            // Whose deadline it is: the other one is in its call.
            wait_for("rank 1's call", || running(comms[1]).is_some());
            ok(cclCommSetTimeout(comm, 5000));
            ok(cclSend(at.send(), COUNT, FLOAT32, 1, comm, queue.handle));
            let text = ended(comm);
            queue.finish();
            text
        } else {
            let mut room = vec![0f32; COUNT];
            assert_ne!(cclRecv(room.as_mut_ptr().cast(), COUNT, FLOAT32, 0, comm, 0), SUCCESS);
            last_error(0)
        };
        assert!(
            text.contains("rank 1 waits in receive #0 (300000 x float, peer 0) on host memory"),
            "{text}"
        );
        assert!(text.contains("kernels of rank 0 in send #0"), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn an_abort_ends_transfers() {
    // More than fits between them, and what nobody sends.
    an_abort_ends(4_000_000, |rank, comm, at, queue| match rank {
        0 => ok(cclSend(at.send(), 1_000_000, FLOAT32, 2, comm, queue)),
        _ => ok(cclRecv(at.recv(), 1000, FLOAT32, 0, comm, queue)),
    });
}
