//! Calls on shared memory: the same results, and no byte through slots where the proof allows it.

use ccl::{Buffers, Call, Collective, Communicator, DataType, ReduceOp, SharedMemory};
use std::thread;

/// Elements of a block: several tiles, and a length that does not divide.
const COUNT: usize = 50_001;
/// So many that memory which a call writes is referred to as well.
const LONG: usize = 530_001;

/// Runs `work` on each of `ranks` ranks.
fn on_ranks<T: Send>(ranks: u32, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let communicators = Communicator::local(ranks).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = communicators.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Pieces and bytes that this rank has sent by reference or straight to the peers' memory, and bytes that it has sent otherwise.
fn sent(comm: &Communicator) -> (u64, u64, u64) {
    let own = comm.counters().into_iter().filter(|(link, _)| link.from == comm.rank());
    own.fold((0, 0, 0), |(pieces, lent, copied), (_, counters)| {
        let kept = counters.referenced_bytes + counters.direct_bytes;
        (pieces + counters.referenced + counters.direct, lent + kept, copied + counters.bytes - kept)
    })
}

fn fill(bytes: &mut [u8], rank: u32) {
    let values = bytes.chunks_exact_mut(4).zip(0u32..);
    values.for_each(|(bytes, i)| bytes.copy_from_slice(&((i ^ (rank * 7)) % 1000).to_le_bytes()));
}

/// Every collective and operator, apart and in place, on shared and on private memory: the same bits.
#[test]
fn results_are_those_of_private_memory() {
    for (ranks, count) in [(2, COUNT), (3, COUNT), (3, LONG), (4, COUNT)] {
        let lent = on_ranks(ranks, |mut comm| {
            let rank = comm.rank();
            let mut shared = [(); 2].map(|()| SharedMemory::alloc(count * 4 * ranks as usize).unwrap());
            comm.register(&shared[0].memory()).unwrap();
            for collective in Collective::ALL {
                for (op, dtype) in [
                    (ReduceOp::Sum, DataType::U32),
                    (ReduceOp::Avg, DataType::U32),
                    (ReduceOp::Avg, DataType::F32),
                ] {
                    let call = Call { collective, count, dtype, op, root: 0 };
                    let blocks =
                        (collective.input_blocks(ranks, rank, 0), collective.output_blocks(ranks, rank, 0));
                    let (input, output) = (blocks.0 as usize * count * 4, blocks.1 as usize * count * 4);
                    let mut private = [(); 2].map(|()| vec![0u8; count * 4 * ranks as usize]);
                    fill(&mut private[0], rank);
                    fill(&mut shared[0], rank);
                    let before = sent(&comm);
                    let [from, into] = &mut private;
                    comm.run(&call, Buffers::new(&from[..input], &mut into[..output])).unwrap();
                    assert_eq!(sent(&comm).0, before.0, "private memory by reference");
                    let [from, into_shared] = &mut shared;
                    comm.run(&call, Buffers::new(&from[..input], &mut into_shared[..output])).unwrap();
                    assert!(into[..output] == into_shared[..output], "{call:?}");

                    if !matches!(collective, Collective::AllReduce | Collective::AllToAll) {
                        continue;
                    }
                    fill(into, rank);
                    fill(into_shared, rank);
                    comm.run(&call, Buffers::in_place(into, 0..input, 0..output)).unwrap();
                    comm.run(&call, Buffers::in_place(into_shared, 0..input, 0..output)).unwrap();
                    assert!(into[..output] == into_shared[..output], "in place: {call:?}");
                }
            }
            sent(&comm).0
        });
        // How many there are depends on the algorithms that the machine's constants choose.
        assert!(lent.iter().all(|lent| *lent > 20), "{lent:?}");
    }
}

/// Whoever sends its input only, or what it has written for good, sends no byte through a slot; in place it does
/// where it must.
#[test]
fn what_is_mapped_is_not_copied() {
    on_ranks(3, |mut comm| {
        let rank = comm.rank();
        let mut shared = [(); 2].map(|()| SharedMemory::alloc(LONG * 4 * 3).unwrap());
        let cases = [
            ("twoshot", Collective::AllReduce),
            ("oneshot", Collective::AllReduce),
            ("oneshot", Collective::AllGather),
            ("ring", Collective::AllGather),
            ("oneshot", Collective::ReduceScatter),
            ("oneshot", Collective::AllToAll),
            ("pairwise", Collective::AllToAll),
            ("oneshot", Collective::Broadcast),
            ("chain", Collective::Broadcast),
        ];
        for (algorithm, collective) in cases {
            comm.set_algorithm(Some(algorithm)).unwrap();
            let call = Call { collective, count: LONG, dtype: DataType::U32, op: ReduceOp::Sum, root: 0 };
            let input = collective.input_blocks(3, rank, 0) as usize * LONG * 4;
            let output = collective.output_blocks(3, rank, 0) as usize * LONG * 4;
            let before = sent(&comm);
            let [from, into] = &mut shared;
            comm.run(&call, Buffers::new(&from[..input], &mut into[..output])).unwrap();
            let after = sent(&comm);
            // The last piece of a part is short, and goes through a slot: to two peers, of three parts.
            assert!(after.2 - before.2 < 6 * 8192, "{algorithm} {collective}: {before:?} {after:?}");
            let sends = collective != Collective::Broadcast || rank == 0;
            assert!(!sends || after.1 - before.1 > 500_000, "{algorithm} {collective}: {before:?} {after:?}");
        }
        comm.set_algorithm(Some("oneshot")).unwrap();
        let call = Call {
            collective: Collective::AllReduce,
            count: LONG,
            dtype: DataType::U32,
            op: ReduceOp::Sum,
            root: 0,
        };
        let before = sent(&comm);
        comm.run(&call, Buffers::in_place(&mut shared[0], 0..LONG * 4, 0..LONG * 4)).unwrap();
        assert_eq!(sent(&comm).0, before.0, "an input that is overwritten without waiting for its readers");
    });
}

/// A two-shot all-reduce in mapped memory: inputs go by reference, results straight to the peers, apart and in place.
#[test]
fn results_are_written_to_the_peers() {
    on_ranks(3, |mut comm| {
        comm.set_algorithm(Some("twoshot")).unwrap();
        let mut shared = [(); 2].map(|()| SharedMemory::alloc(LONG * 4).unwrap());
        for in_place in [false, true] {
            fill(&mut shared[0], comm.rank());
            let [from, into] = &mut shared;
            let buffers = match in_place {
                true => Buffers::in_place(from, 0..LONG * 4, 0..LONG * 4),
                false => Buffers::new(from, into),
            };
            let call = Call {
                collective: Collective::AllReduce,
                count: LONG,
                dtype: DataType::U32,
                op: ReduceOp::Sum,
                root: 0,
            };
            let before = direct(&comm);
            comm.run(&call, buffers).unwrap();
            // This rank's third, which ends at a cache line, to two peers, but for a last piece that may be short.
            let sent = direct(&comm) - before;
            let third = LONG as u64 * 4 / 3;
            assert!((2 * (third - 8192)..=2 * (third + 64)).contains(&sent), "{sent}");
            let result = if in_place { &shared[0] } else { &shared[1] };
            let sum = |i: u32| (0..3).map(|rank| (i ^ (rank * 7)) % 1000).sum::<u32>();
            let right = result.chunks_exact(4).zip(0u32..).all(|(bytes, i)| bytes == sum(i).to_le_bytes());
            assert!(right, "in place: {in_place}");
        }
    });
}

/// Bytes that this rank has written to its peers' memory.
fn direct(comm: &Communicator) -> u64 {
    let own = comm.counters().into_iter().filter(|(link, _)| link.from == comm.rank());
    own.map(|(_, counters)| counters.direct_bytes).sum()
}

/// Elements of a buffer with many pieces, of which the first two may be referred to before the receiver has begun.
const LONGER: usize = 4 << 20;

/// Whether this rank has written its share to the peer, and whether it should, if both ranks have a core of their own.
fn shares(comm: &Communicator, before: u64, only_sends: bool) -> bool {
    let spare = thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    let (wrote, all) = (direct(comm) - before, LONGER as u64 * 4);
    if spare && only_sends { (all / 4..=all / 2).contains(&wrote) } else { wrote == 0 }
}

/// The root of a broadcast writes every other piece itself, whichever way the call goes through the buffer, unless it has an output of its own to write.
#[test]
fn a_root_writes_its_share() {
    on_ranks(2, |mut comm| {
        let (count, bytes) = (LONGER, LONGER * 4);
        let call = Call {
            collective: Collective::Broadcast,
            count,
            dtype: DataType::U32,
            op: ReduceOp::Sum,
            root: 0,
        };
        let mut shared = [(); 2].map(|()| SharedMemory::alloc(bytes).unwrap());
        let mut expected = vec![0; bytes];
        for round in 0..4 {
            let (is_root, in_place) = (comm.rank() == 0, round < 2);
            fill(&mut expected, 5 + round);
            let [from, into] = &mut shared;
            fill(from, if is_root { 5 + round } else { 90 });
            let before = direct(&comm);
            let buffers = match (is_root, in_place) {
                (true, true) => Buffers::in_place(from, 0..bytes, 0..bytes),
                (true, false) => Buffers::new(from, into),
                (false, _) => Buffers::new(&[], from),
            };
            comm.run(&call, buffers).unwrap();
            assert!(from[..] == expected[..], "round {round}");
            assert!(shares(&comm, before, is_root && in_place), "round {round}: {}", direct(&comm) - before);
        }
    });
}

/// So does who sends to one rank, if that has mapped memory.
#[test]
fn a_send_writes_its_share() {
    on_ranks(2, |mut comm| {
        let mut memory = SharedMemory::alloc(LONGER * 4).unwrap();
        let (mut expected, mut private) = (vec![0; LONGER * 4], vec![0; LONGER * 4]);
        for round in 0..6 {
            let (sends, is_private) = (comm.rank() == 0, round > 3);
            fill(&mut expected, round);
            let before = direct(&comm);
            if sends {
                memory.copy_from_slice(&expected);
                comm.send(&memory, 1).unwrap();
            } else {
                let into = if is_private { &mut private } else { &mut memory[..] };
                comm.receive(into, 0).unwrap();
                assert!(into[..] == expected[..], "round {round}");
            }
            assert!(shares(&comm, before, sends && !is_private), "round {round}: {}", direct(&comm) - before);
        }
    });
}

/// Memory may be freed between calls, and other memory come to lie where it was.
#[test]
fn memory_comes_and_goes() {
    on_ranks(2, |mut comm| {
        for round in 0..300u32 {
            let mut send = SharedMemory::alloc(COUNT).unwrap();
            let mut receive = SharedMemory::alloc(2 * COUNT).unwrap();
            send.fill((round + comm.rank()) as u8);
            comm.all_gather(&send, &mut receive).unwrap();
            assert!(receive[..COUNT].iter().all(|byte| *byte == round as u8), "round {round}");
            assert!(receive[COUNT..].iter().all(|byte| *byte == (round + 1) as u8), "round {round}");
        }
        assert!(sent(&comm).0 >= 300);
    });
}

/// The caller may write to its buffer as soon as the call has returned.
#[test]
fn the_buffer_is_free_after_the_call() {
    on_ranks(2, |mut comm| {
        let (mut send, mut receive) = (SharedMemory::alloc(COUNT).unwrap(), vec![0; 2 * COUNT]);
        for round in 0..200u8 {
            send.fill(round);
            comm.all_gather(&send, &mut receive).unwrap();
            send.fill(!round);
            assert!(receive.iter().all(|byte| *byte == round), "round {round}");
        }
    });
}
