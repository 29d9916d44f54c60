//! Sends and receives by kernels: what arrives, in which order, and that nobody waits for whom he need not.

use crate::calls::{TYPES, elements};
use crate::common::*;
use crate::cuda::*;
use crate::world::*;
use std::ffi::c_int;

const RANKS: usize = 3;

/// Who sends whom how much of what.
#[derive(Clone, Copy)]
struct Transfer {
    from: usize,
    to: usize,
    count: usize,
    of: (c_int, usize, u8),
}

impl Transfer {
    fn bytes(&self, number: usize) -> Vec<u8> {
        elements(self.count, self.of, number)
    }
}

/// Those of a round among so many ranks, by chance; some from a rank to itself, and several from one to another.
fn pattern(round: usize, ranks: usize) -> Vec<Transfer> {
    let mut state = round as u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let transfer = |_| Transfer {
        from: below(ranks),
        to: below(ranks),
        count: [0, below(5), below(300), 5000 + below(9000)][below(4)],
        of: TYPES[below(TYPES.len())],
    };
    (0..1 + round % 9).map(transfer).collect()
}

/// A rank's part of a round, in one group.
pub(crate) fn exchange(
    gpus: &Gpus,
    (rank, ranks): (usize, usize),
    comm: Comm,
    queue: &Queue<'_>,
    round: usize,
) {
    let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
    ok(cclGroupStart());
    for (number, transfer) in pattern(round, ranks).into_iter().enumerate() {
        let Transfer { from, to, count, of } = transfer;
        let bytes = transfer.bytes(number);
        if from == rank {
            let buffer = gpus.buffer(0, &bytes);
            ok(cclSend(buffer.send(), count, of.0, to as c_int, comm, queue.handle));
            sent.push(buffer);
        }
        if to == rank {
            let buffer = gpus.buffer(0, &noise(bytes.len(), 77));
            ok(cclRecv(buffer.recv(), count, of.0, from as c_int, comm, queue.handle));
            arrivals.push((number, bytes, buffer));
        }
    }
    ok(cclGroupEnd());
    queue.finish();
    for (number, bytes, buffer) in arrivals {
        assert!(buffer.bytes() == bytes, "transfer {number} of round {round}: {}", last_error(comm));
    }
}

#[test]
fn any_pattern_of_transfers_in_groups() {
    let gpus = gpus(1, "delay 5 200");
    let comms = on_devices::<RANKS>(&gpus);
    let staged = gpus.fake.count("cuStreamWaitValue32");
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for round in 0..40 {
            exchange(&gpus, (rank, RANKS), comm, &queue, round);
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert_eq!(gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
}

/// Of a group none waits for another one, whatever the peers make together; those on one link keep their order.
#[test]
fn ranks_need_not_make_the_same_groups() {
    const LONG: usize = 600_000;
    let gpus = gpus(1, "");
    let comms = on_devices::<RANKS>(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let buffer = |seed| gpus.buffer(0, &noise(LONG, seed));
        let (x, y) = (buffer(1), buffer(2));
        let (a, b, c) = (buffer(90), buffer(91), buffer(92));
        let send = |from: &Buffer<'_>, to| ok(cclSend(from.send(), LONG, 0, to, comm, queue.handle));
        let receive = |into: &Buffer<'_>, from| ok(cclRecv(into.recv(), LONG, 0, from, comm, queue.handle));
        match rank {
            // What it receives is sent only when both of its own have arrived, one after the other.
            0 => {
                ok(cclGroupStart());
                send(&x, 1);
                send(&y, 1);
                receive(&c, 2);
                ok(cclGroupEnd());
            }
            1 => {
                receive(&a, 0);
                receive(&b, 0);
                send(&b, 2);
            }
            _ => {
                receive(&c, 1);
                send(&c, 0);
            }
        }
        queue.finish();
        match rank {
            0 => assert!(c.bytes() == noise(LONG, 2)),
            1 => assert!(a.bytes() == noise(LONG, 1) && b.bytes() == noise(LONG, 2)),
            _ => assert!(c.bytes() == noise(LONG, 2)),
        }
    });
    destroy_all(&comms);
}

/// Ranks that are not in a transfer make no launch for it, and collectives go on between them.
#[test]
fn only_the_two_ranks_of_a_transfer_take_part() {
    let gpus = gpus(1, "");
    let comms = on_devices::<RANKS>(&gpus);
    let before = launches(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &noise(100, rank)), gpus.buffer(0, &noise(300, 9)));
        for round in 0..10 {
            let (sender, receiver) = (round % RANKS, (round + 1) % RANKS);
            if rank == sender {
                ok(cclSend(from.send(), 100, 0, receiver as c_int, comm, queue.handle));
            } else if rank == receiver {
                ok(cclRecv(into.recv(), 100, 0, sender as c_int, comm, queue.handle));
            }
            ok(cclAllGather(from.send(), into.recv(), 100, 0, comm, queue.handle));
        }
        queue.finish();
        assert!(into.bytes() == [noise(100, 0), noise(100, 1), noise(100, 2)].concat());
    });
    assert_eq!(launches(&gpus) - before, 10 * (2 + RANKS as u64));
    destroy_all(&comms);
}

#[test]
fn transfers_and_uneven_blocks_are_captured_and_replayed() {
    let gpus = gpus(1, "delay 8 200");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (a, b) = (gpus.buffer(0, &[0; 4000]), gpus.buffer(0, &[0; 4000]));
        let (c, peer) = (gpus.buffer(0, &[0; 4000]), 1 - rank as c_int);
        let (own, theirs) = ([1000 * rank, 700], [2000 * rank, 700]);
        let (counts, received) = if rank == 0 { ([300, 500], [300, 40]) } else { ([40, 900], [500, 900]) };
        let graph = queue.capture(|| {
            ok(cclGroupStart());
            ok(cclSend(a.send(), 4000, 0, peer, comm, queue.handle));
            ok(cclRecv(b.recv(), 4000, 0, peer, comm, queue.handle));
            ok(cclGroupEnd());
            let (n, m) = (counts.as_ptr(), received.as_ptr());
            ok(cclAlltoAllv(b.send(), n, own.as_ptr(), c.recv(), m, theirs.as_ptr(), 0, comm, queue.handle));
        });
        for round in 0..20 {
            gpus.fake.write(a.at, &noise(4000, 2 * round + rank));
            graph.replay();
            queue.finish();
            let (mine, other) = (noise(4000, 2 * round + rank), noise(4000, 2 * round + 1 - rank));
            assert!(b.bytes() == other, "round {round}");
            // What the peer has of this rank went on from there.
            let got = c.bytes();
            let from_peer = if rank == 0 { &mine[1000..1040] } else { &mine[700..1200] };
            let at = if rank == 0 { 700 } else { 2000 };
            assert!(got[at..at + from_peer.len()] == *from_peer, "round {round} on rank {rank}");
            if round % 4 == 1 {
                // Between replays come others, on the same links.
                ok(cclGroupStart());
                ok(cclSend(a.send(), 70, 0, peer, comm, queue.handle));
                ok(cclRecv(b.recv(), 70, 0, peer, comm, queue.handle));
                ok(cclGroupEnd());
                queue.finish();
                assert!(b.bytes()[..70] == other[..70]);
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

/// Each address is another program: more than fit into the memory for them, one behind the other.
#[test]
fn more_transfers_than_a_chunk_of_programs_holds() {
    const ITEMS: usize = 300;
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let (queue, peer) = (gpus.queue(0), 1 - rank as c_int);
        let bytes = noise(2 * ITEMS, 3);
        let at = gpus.buffer(0, &(if rank == 0 { bytes.clone() } else { vec![0; 2 * ITEMS] }));
        for round in 0..130 {
            ok(cclGroupStart());
            // Item by item, from and to another place each round.
            for item in (0..ITEMS).map(|item| item + round) {
                match rank {
                    0 => ok(cclSend(at.offset(item).cast_const(), 1, 0, peer, comm, queue.handle)),
                    _ => ok(cclRecv(at.offset(item), 1, 0, peer, comm, queue.handle)),
                }
            }
            ok(cclGroupEnd());
            if round % 20 == 9 {
                queue.finish();
                assert!(at.bytes()[..ITEMS + round] == bytes[..ITEMS + round], "round {round}");
            }
        }
        queue.finish();
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

/// One thread drives all ranks, as pipelines in one process do.
#[test]
fn one_thread_sends_and_receives_for_all_ranks() {
    let gpus = gpus(2, "");
    let comms = on_devices::<2>(&gpus);
    let queues = [gpus.queue(0), gpus.queue(1)];
    let from = [gpus.buffer(0, &noise(4000, 0)), gpus.buffer(1, &noise(4000, 1))];
    let into = [gpus.buffer(0, &[0; 4000]), gpus.buffer(1, &[0; 4000])];
    for _ in 0..3 {
        ok(cclGroupStart());
        for rank in 0..2 {
            let (peer, queue) = (1 - rank as c_int, queues[rank].handle);
            ok(cclSend(from[rank].send(), 4000, 0, peer, comms[rank], queue));
            ok(cclRecv(into[rank].recv(), 4000, 0, peer, comms[rank], queue));
            ok(cclBroadcast(from[rank].send(), from[rank].recv(), 4000, 0, 1, comms[rank], queue));
        }
        ok(cclGroupEnd());
    }
    queues.iter().for_each(Queue::finish);
    assert!(into[1].bytes() == noise(4000, 1) && into[0].bytes() == noise(4000, 1));
    destroy_all(&comms);
}
