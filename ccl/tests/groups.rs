//! Groups, transfers, uneven blocks and splits, between threads and driven by one thread.

use ccl::{Blocks, Buffers, Communicator, DataType, ErrorKind, Operation, ReduceOp, run_together};
use std::ops::Range;

/// Runs `work` on `size` ranks, each on a thread of its own.
fn on_ranks<T: Send>(size: u32, work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local(size).expect("local ranks");
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            ranks.into_iter().map(|mut comm| scope.spawn(move || work(&mut comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// What rank `from` sends to rank `to` in round `round`.
fn message(from: u32, to: u32, round: u32, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|i| u64::from(from) << 48 | u64::from(to) << 32 | u64::from(round) << 24 | i)
        .collect()
}

#[test]
fn everybody_sends_to_everybody_in_a_group_that_would_deadlock_one_by_one() {
    // 3 MiB to each: more than the slots of a link hold.
    const LEN: usize = 400_000;
    on_ranks(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for round in 0..3 {
            let sent: Vec<_> = (0..size).map(|to| message(rank, to, round, LEN)).collect();
            let mut received = vec![vec![0u64; LEN]; size as usize];
            let mut batch = comm.batch();
            for (to, data) in (0..).zip(&sent) {
                batch = batch.send(data, to);
            }
            for (from, data) in (0..).zip(&mut received) {
                batch = batch.receive(data, from);
            }
            batch.run().expect("transfers");
            for (from, data) in (0..).zip(&received) {
                assert!(*data == message(from, rank, round, LEN), "rank {rank} from {from}, round {round}");
            }
        }
    });
}

#[test]
fn transfers_with_one_peer_keep_their_order_beside_collectives() {
    on_ranks(2, |comm| {
        let peer = 1 - comm.rank();
        let rank = comm.rank();
        let sent: Vec<Vec<u64>> = (0..20).map(|i| message(rank, peer, i, i as usize * 100)).collect();
        let mut received: Vec<Vec<u64>> = (0..20).map(|i| vec![0; i * 100]).collect();
        let (ones, mut sums) = ([1i32; 1000], [0i32; 1000]);
        let mut batch = comm.batch();
        for (i, (data, into)) in sent.iter().zip(&mut received).enumerate() {
            // The two kinds in different orders on the two ranks: only the order on each link counts.
            batch = match (i + rank as usize).is_multiple_of(2) {
                true => batch.send(data, peer).receive(into, peer),
                false => batch.receive(into, peer).send(data, peer),
            };
        }
        batch.all_reduce(&ones, &mut sums, ReduceOp::Sum).run().expect("a group");
        assert_eq!(sums, [2; 1000]);
        for (i, data) in (0..).zip(&received) {
            assert_eq!(*data, message(peer, rank, i, i as usize * 100));
        }
        let mut word = [7u8];
        comm.broadcast(&mut word, 1).expect("the communicator goes on");
    });
}

#[test]
fn groups_of_the_same_transfers_again_and_again_keep_their_order() {
    // Short ones are over as soon as their pieces are there; long ones are not.
    for len in [2, 50_000] {
        on_ranks(3, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
            for round in 0..20 {
                let sent = [0, 1].map(|i| message(rank, next, 2 * round + i, len));
                let mut received = [vec![0u64; len], vec![0; len]];
                let [first, second] = &mut received;
                let batch = comm.batch().receive(first, previous).send(&sent[0], next);
                batch.send(&sent[1], next).receive(second, previous).run().expect("transfers");
                for (i, data) in (0..).zip(&received) {
                    assert_eq!(*data, message(previous, rank, 2 * round + i, len), "{rank} in round {round}");
                }
            }
            // One that is wrong is found before any begins: the ranks agree on what comes next.
            let (data, mut short) = (message(rank, next, 0, len), [0u8; 8]);
            let wrong = [
                Operation::send(next, DataType::U64, len, Buffers::new(bytemuck::cast_slice(&data), &mut [])),
                Operation::receive(previous, DataType::U64, len, Buffers::new(&[], &mut short)),
            ];
            let error = comm.run_all(&wrong).expect_err("a buffer is too short");
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            let mut received = vec![0u64; len];
            comm.batch().send(&data, next).receive(&mut received, previous).run().expect("transfers");
            assert_eq!(received, message(previous, rank, 0, len));
        });
    }
}

#[test]
fn one_by_one_transfers_work_where_somebody_receives() {
    let seen = on_ranks(4, |comm| {
        let mut token = [0u32];
        if comm.rank() == 0 {
            comm.send(&[1u32], 1).expect("send");
            comm.receive(&mut token, 3).expect("receive");
        } else {
            comm.receive(&mut token, comm.rank() - 1).expect("receive");
            comm.send(&[token[0] * 2], (comm.rank() + 1) % 4).expect("send");
        }
        token[0]
    });
    assert_eq!(seen, [8, 1, 2, 4]);
}

#[test]
fn transfers_alone_and_in_groups_take_their_turns_on_a_link() {
    const LENGTHS: [usize; 3] = [1, 3000, 100_000];
    on_ranks(2, |comm| {
        let rank = comm.rank();
        for (round, len) in (0..30).zip(LENGTHS.iter().cycle()) {
            let sent: Vec<_> = (0..4).map(|i| message(0, 1, 4 * round + i, *len)).collect();
            let mut received = vec![vec![0u64; *len]; 4];
            match rank {
                0 => {
                    comm.send(&sent[0], 1).expect("a send");
                    comm.send(&sent[1], 1).expect("the same again");
                    comm.batch().send(&sent[2], 1).send(&sent[3], 1).run().expect("two together");
                }
                _ => {
                    // Cut otherwise than the sends: what counts is the order.
                    let [a, b, c, d] = &mut received[..] else { unreachable!() };
                    comm.receive(a, 0).expect("a receive");
                    comm.batch().receive(b, 0).receive(c, 0).run().expect("two together");
                    comm.receive(d, 0).expect("the last");
                    assert!(received == sent, "round {round}");
                }
            }
        }
        // What went before says nothing of what comes.
        let error = match rank {
            0 => comm.send(&[1u64; LENGTHS[2]], 1).and_then(|()| comm.send(&[1u64; 2], 1)).err(),
            _ => {
                comm.receive(&mut [0u64; LENGTHS[2]], 0).and_then(|()| comm.receive(&mut [0u64; 1], 0)).err()
            }
        };
        assert!(rank == 0 || error.is_some(), "another length");
    });
}

#[test]
fn a_receive_that_does_not_fit_its_send_is_an_error() {
    let errors = on_ranks(2, |comm| match comm.rank() {
        0 => comm.send(&[1.0f32; 8], 1),
        _ => comm.receive(&mut [0.0f64; 4], 0),
    });
    let error = errors[1].as_ref().expect_err("another type");
    // The sender may be gone by then, and cannot be asked.
    assert!(matches!(error.kind(), ErrorKind::Mismatch { .. } | ErrorKind::Verdict(_)), "{error}");
}

#[test]
fn what_cannot_be_is_refused_and_harms_nothing() {
    on_ranks(2, |comm| {
        let (own, mut two) = (comm.rank(), [0u8; 2]);
        for (what, result) in [
            ("no such rank", comm.batch().send(&[1u8], 5).run()),
            ("a send to itself without receive", comm.batch().send(&[1u8], own).run()),
            ("another length", comm.batch().send(&[1u8], own).receive(&mut two, own).run()),
        ] {
            let error = result.expect_err(what);
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{what}: {error}");
        }
        comm.batch().receive(&mut two, own).send(&[3u8, 4], own).run().expect("a send to itself");
        assert_eq!(two, [3, 4]);
        comm.barrier().expect("the communicator goes on");
    });
}

#[test]
fn one_thread_drives_all_ranks_of_several_jobs() {
    let (mut a, mut b) = (Communicator::local(5).expect("five"), Communicator::local(3).expect("three"));
    for round in 0..50u32 {
        let sent: Vec<[u32; 2]> = (0..8).map(|i| [i + round, i * round]).collect();
        let mut sums = [[0u32; 2]; 8];
        let mut passed = [[0u32; 2]; 8];
        let mut batches = Vec::new();
        for (((comm, data), sum), pass) in
            a.iter_mut().chain(&mut b).zip(&sent).zip(&mut sums).zip(&mut passed)
        {
            let (next, previous) =
                ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
            let batch = comm.batch().all_reduce(data, sum, ReduceOp::Sum);
            batches.push(batch.receive(pass, previous).send(data, next));
        }
        run_together(batches).expect("eight ranks on one thread");
        assert_eq!(sums[..5], [[10 + 5 * round, 10 * round]; 5]);
        assert_eq!(sums[5..], [[18 + 3 * round, 18 * round]; 3]);
        assert_eq!((passed[0], passed[1], passed[5]), (sent[4], sent[0], sent[7]));
    }
}

/// A length for a pair of ranks; some are nothing, some are more than a tile.
fn length(from: u32, to: u32) -> usize {
    match (from * 7 + to * 3) % 5 {
        0 => 0,
        1 => 70_000,
        more => more as usize * 11,
    }
}

/// Blocks of these lengths with a gap before each.
fn gaps(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut at = 0;
    let next = |len| {
        at += 3;
        let block = at..at + len;
        at += len;
        block
    };
    lengths.map(next).collect()
}

#[test]
fn blocks_of_any_lengths_arrive_and_gaps_stay() {
    for size in [1, 2, 3, 6] {
        on_ranks(size, |comm| {
            let (rank, root) = (comm.rank(), size / 2);
            let all = || 0..size;
            let sends = gaps(all().map(|to| length(rank, to)));
            let receives = gaps(all().map(|from| length(from, rank)));
            let mut send = vec![9u64; sends.last().map_or(0, |b| b.end)];
            for (to, block) in (0..).zip(&sends) {
                send[block.clone()].copy_from_slice(&message(rank, to, 0, block.len()));
            }
            let mut wanted = vec![5u64; receives.last().map_or(0, |b| b.end)];
            for (from, block) in (0..).zip(&receives) {
                wanted[block.clone()].copy_from_slice(&message(from, rank, 0, block.len()));
            }
            let mut recv = vec![5u64; wanted.len()];
            comm.all_to_all_v(&send, &sends, &mut recv, &receives).expect("all_to_all_v");
            assert!(recv == wanted, "all_to_all_v on rank {rank} of {size}");

            let gathered = gaps(all().map(|from| length(from, 0)));
            let own = message(rank, 0, 1, length(rank, 0));
            let mut wanted = vec![5u64; gathered.last().map_or(0, |b| b.end)];
            for (from, block) in (0..).zip(&gathered) {
                wanted[block.clone()].copy_from_slice(&message(from, 0, 1, block.len()));
            }
            let mut recv = vec![5u64; wanted.len()];
            comm.all_gather_v(&own, &mut recv, &gathered).expect("all_gather_v");
            assert!(recv == wanted, "all_gather_v on rank {rank} of {size}");
            let mut recv = vec![5u64; if rank == root { wanted.len() } else { 0 }];
            comm.gather_v(&own, &mut recv, &gathered, root).expect("gather_v");
            assert!(rank != root || recv == wanted, "gather_v on rank {rank} of {size}");

            let mut back = vec![0u64; own.len()];
            comm.scatter_v(&recv, &gathered, &mut back, root).expect("scatter_v");
            assert!(back == own, "scatter_v on rank {rank} of {size}");

            let terms: Vec<u32> = vec![rank + 1; gathered.last().map_or(0, |b| b.end)];
            let mut sums = vec![0u32; length(rank, 0)];
            comm.reduce_scatter_v(&terms, &gathered, &mut sums, ReduceOp::Sum).expect("reduce_scatter_v");
            assert!(sums.iter().all(|sum| *sum == size * (size + 1) / 2), "reduce_scatter_v");
        });
    }
}

#[test]
fn pairs_that_disagree_on_a_length_get_an_error() {
    let errors = on_ranks(2, |comm| {
        let receives = if comm.rank() == 0 { [3, 4] } else { [4, 5] };
        let sends = if comm.rank() == 0 { [3, 5] } else { [4, 5] };
        let (send, mut recv) = ([0u8; 9], [0u8; 9]);
        let blocks = Blocks { input: Blocks::packed(&sends), output: Blocks::packed(&receives) };
        comm.all_to_all_v(&send, &blocks.input, &mut recv, &blocks.output)
    });
    assert!(errors[1].is_err(), "rank 0 sends 5, rank 1 receives 4");
}

#[test]
fn a_split_numbers_by_key_and_leaves_out_who_has_no_colour() {
    let seen = on_ranks(7, |comm| {
        let rank = comm.rank();
        let color = (rank != 3).then_some(rank % 2);
        let part = comm.split(color, -(rank as i32)).expect("a split");
        comm.barrier().expect("the parent goes on");
        part.map(|mut part| {
            let mut members = vec![0; part.size() as usize];
            part.all_gather(&[rank], &mut members).expect("all_gather");
            let mut again = part.split(Some(part.rank()), 0).expect("a split of a split").expect("one alone");
            again.barrier().expect("barrier");
            (part.rank(), members)
        })
    });
    let even = vec![6, 4, 2, 0];
    let odd = vec![5, 1];
    let wanted = [
        Some((3, even.clone())),
        Some((1, odd.clone())),
        Some((2, even.clone())),
        None,
        Some((1, even.clone())),
        Some((0, odd)),
        Some((0, even)),
    ];
    assert_eq!(seen, wanted);
}

#[test]
fn an_abort_ends_a_call_that_nobody_joins() {
    let mut ranks = Communicator::local(2).expect("two");
    let mut other = ranks.pop().expect("rank 1");
    let mut comm = ranks.pop().expect("rank 0");
    let handle = comm.abort_handle();
    let (begins, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            // Both links are open after the first call; the second waits for a rank that does not come.
            comm.barrier().expect("both are there");
            begins.send(()).expect("it is waited for");
            let first = comm.barrier().expect_err("aborted");
            (first, comm.barrier().expect_err("still aborted"))
        });
        other.barrier().expect("both are there");
        begun.recv().expect("no panic");
        handle.abort();
        handle.abort();
        let (first, second) = waiting.join().expect("no panic");
        assert!(matches!(first.kind(), ErrorKind::Aborted), "{first}");
        assert!(matches!(second.kind(), ErrorKind::Broken(_) | ErrorKind::Aborted), "{second}");
    });
}

#[test]
fn a_description_names_every_peer() {
    on_ranks(3, |comm| {
        comm.barrier().expect("barrier");
        let described = comm.describe();
        assert_eq!((described.rank, described.size, described.calls), (comm.rank(), 3, 1));
        assert_eq!(described.routes.len(), 2);
        assert!(
            described.routes.iter().all(|r| r.transport == Some("shm") && r.why.contains("on this host"))
        );
        assert!(described.memory_bytes > 0);
    });
}
