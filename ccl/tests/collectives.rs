//! Every collective between threads, over shared memory and over sockets, against a plain reference.

use ccl::config::Network;
use ccl::{Buffers, Call, Collective, Communicator, Config, DataType, Factor, ReduceOp, UniqueId};
use proptest::prelude::*;

/// What rank `rank` sends: values that differ by rank and place, small enough to sum exactly.
fn input(rank: u32, len: usize) -> Vec<u64> {
    (0..len).map(|i| u64::from(rank + 1) * 1_000_003 + i as u64 * 7).collect()
}

/// The operator as `rank` gives it: with a factor of its own, where there is one.
fn on_rank(op: ReduceOp, rank: u32) -> ReduceOp {
    match op {
        ReduceOp::PreMulSum(_) => pre_mul_sum(i64::from(rank) + 1),
        op => op,
    }
}

fn pre_mul_sum(factor: i64) -> ReduceOp {
    ReduceOp::PreMulSum(Factor::integer(DataType::U64, factor).expect("an integer type"))
}

fn combine(op: ReduceOp, values: impl Iterator<Item = u64>, ranks: u64) -> u64 {
    match op {
        ReduceOp::Sum => values.fold(0, u64::wrapping_add),
        ReduceOp::Prod => values.fold(1, u64::wrapping_mul),
        ReduceOp::Max => values.fold(0, u64::max),
        ReduceOp::Min => values.fold(u64::MAX, u64::min),
        ReduceOp::Avg => values.fold(0, u64::wrapping_add) / ranks,
        ReduceOp::Band => values.fold(u64::MAX, |a, b| a & b),
        ReduceOp::Bor => values.fold(0, |a, b| a | b),
        ReduceOp::Bxor => values.fold(0, |a, b| a ^ b),
        ReduceOp::PreMulSum(_) => values.zip(1..).fold(0, |sum, (v, n)| v.wrapping_mul(n).wrapping_add(sum)),
    }
}

/// The receive buffer of `rank` by the definition of each collective; `None` where it is not written.
fn expected(call: &Call, rank: u32, ranks: u32) -> Option<Vec<u64>> {
    let Call { collective, count, op, root, .. } = *call;
    let length = |r: u32| count * collective.input_blocks(ranks, r, root) as usize;
    let all: Vec<_> = (0..ranks).map(|r| input(r, length(r))).collect();
    let sent = |r: u32| all[r as usize].clone();
    let reduced = |at: usize| {
        let column = |i: usize| all.iter().map(move |words| words[at + i]);
        (0..count).map(|i| combine(op, column(i), u64::from(ranks))).collect::<Vec<_>>()
    };
    let block = |r: u32, b: u32| all[r as usize][b as usize * count..][..count].to_vec();
    Some(match collective {
        Collective::AllReduce => reduced(0),
        Collective::Reduce if rank == root => reduced(0),
        Collective::Broadcast => sent(root),
        Collective::AllGather => (0..ranks).flat_map(sent).collect(),
        Collective::ReduceScatter => reduced(rank as usize * count),
        Collective::AllToAll => (0..ranks).flat_map(|r| block(r, rank)).collect(),
        Collective::Gather if rank == root => (0..ranks).flat_map(sent).collect(),
        Collective::Scatter => block(root, rank),
        Collective::Reduce | Collective::Gather | Collective::SendRecv => return None,
    })
}

/// Makes the call on one rank and compares.
fn check(comm: &mut Communicator, call: &Call, in_place: bool) -> Result<(), String> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let call = Call { op: on_rank(call.op, rank), ..*call };
    let blocks_in = call.collective.input_blocks(ranks, rank, call.root) as usize;
    let blocks_out = call.collective.output_blocks(ranks, rank, call.root) as usize;
    let send = input(rank, call.count * blocks_in);
    let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    let (block, own) = (call.count * 8, rank as usize * call.count * 8);
    let got = if in_place && blocks_in > 0 && blocks_out > 0 {
        let mut buffer = vec![0xee_u8; block * blocks_in.max(blocks_out)];
        let (at, to) = match call.collective {
            Collective::AllGather | Collective::Gather => (own, 0),
            Collective::ReduceScatter | Collective::Scatter => (0, own),
            _ => (0, 0),
        };
        buffer[at..][..block * blocks_in].copy_from_slice(&bytes(&send));
        let (from, into) = (at..at + block * blocks_in, to..to + block * blocks_out);
        comm.run(&call, Buffers::in_place(&mut buffer, from, into.clone())).map_err(|e| e.to_string())?;
        buffer[into].to_vec()
    } else {
        let mut recv = vec![0xee_u8; block * blocks_out];
        comm.run(&call, Buffers::new(&bytes(&send), &mut recv)).map_err(|e| e.to_string())?;
        recv
    };
    match expected(&call, rank, ranks) {
        Some(words) if got != bytes(&words) => Err(format!("rank {rank}: wrong result of {call:?}")),
        _ => Ok(()),
    }
}

/// Communicators that pretend to be on so many hosts, the ranks dealt in turn.
fn on_hosts(ranks: u32, hosts: u32) -> Result<Vec<Communicator>, String> {
    let config = Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())])
        .map_err(|e| e.to_string())?;
    let id = UniqueId::create(&config).map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let join = |rank: u32| {
            let mut config = config.clone();
            (config.host_id, config.net) = (Some(format!("host-{}", rank % hosts)), Network::Tcp);
            let builder = Communicator::builder().rank(rank).size(ranks).unique_id(id).config(config);
            scope.spawn(move || builder.build().map_err(|e| e.to_string()))
        };
        let threads: Vec<_> = (0..ranks).map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs `calls` on `ranks` threads, the same on each.
fn on_threads(ranks: u32, algorithm: Option<&'static str>, calls: &[(Call, bool)]) -> Result<(), String> {
    make_calls(Communicator::local(ranks).map_err(|e| e.to_string())?, algorithm, calls)
}

fn make_calls(
    communicators: Vec<Communicator>,
    algorithm: Option<&'static str>,
    calls: &[(Call, bool)],
) -> Result<(), String> {
    std::thread::scope(|scope| {
        let run = |mut comm: Communicator| {
            move || {
                comm.set_algorithm(algorithm).map_err(|e| e.to_string())?;
                for (call, in_place) in calls {
                    check(&mut comm, call, *in_place)?;
                }
                Ok(())
            }
        };
        let threads: Vec<_> = communicators.into_iter().map(|comm| scope.spawn(run(comm))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn calls(ranks: u32) -> impl Strategy<Value = Vec<(Call, bool)>> {
    let count = prop_oneof![Just(0), 1..40_usize, 100..3_000_usize, 20_000..30_000_usize];
    let call = (0..Collective::ALL.len(), count, 0..=ReduceOp::ALL.len(), 0..ranks, any::<bool>());
    let call = call.prop_map(|(collective, count, op, root, in_place)| {
        let collective = Collective::ALL[collective];
        let root = if collective.rooted() { root } else { 0 };
        let op = ReduceOp::ALL.get(op).copied().unwrap_or(pre_mul_sum(1));
        (Call { collective, count, dtype: DataType::U64, op, root }, in_place)
    });
    proptest::collection::vec(call, 1..30)
}

/// ThreadSanitizer looks at the accesses, of which the first sequences make all kinds.
const SEQUENCES: u32 = if cfg!(tsan) { 12 } else { 48 };

/// How many ranks every algorithm has. What the sanitizer looks for, fewer have as well.
const RANKS: &[u32] = if cfg!(tsan) { &[2, 3, 4] } else { &[1, 2, 3, 4, 5, 8] };

proptest! {
    #![proptest_config(ProptestConfig { cases: SEQUENCES, ..ProptestConfig::default() })]

    /// Any sequence of calls, of any kind, with the algorithms that the cost function chooses.
    #[test]
    fn any_sequence_of_calls((ranks, calls) in (1..=8_u32).prop_flat_map(|n| (Just(n), calls(n)))) {
        on_threads(ranks, None, &calls).map_err(TestCaseError::fail)?;
    }
}

/// Every algorithm that does a collective in place does it right out of place and in place, at sizes that
/// divide and do not.
#[test]
fn every_algorithm_at_every_small_size() {
    for &ranks in RANKS {
        for algorithm in ccl::algorithm_names() {
            let mut made = Vec::new();
            for collective in Collective::ALL {
                for count in [1, 7, 64, 1_000, 20_001] {
                    let root = if collective.rooted() { ranks - 1 } else { 0 };
                    let call = Call { collective, count, dtype: DataType::U64, op: ReduceOp::Sum, root };
                    made.extend([(call, false), (call, true)]);
                }
            }
            // The name counts for collectives that the algorithm does; in place, where it is not safe, the
            // library says so.
            let made: Vec<_> = made
                .into_iter()
                .filter(|(call, in_place)| ccl::algorithm_does(algorithm, call.collective, ranks, *in_place))
                .collect();
            on_threads(ranks, Some(algorithm), &made).unwrap_or_else(|e| panic!("{algorithm}, {ranks}: {e}"));
        }
    }
}

/// The same algorithms, over sockets alone and over sockets and shared memory at once.
#[test]
fn every_algorithm_between_hosts() {
    for (ranks, hosts) in [(2, 2), (3, 3), (4, 2), (5, 2)] {
        for algorithm in ccl::algorithm_names() {
            let counts = [1, 77, 20_001].iter();
            let made = counts.flat_map(|&count| {
                let call = move |collective: Collective| {
                    let root = if collective.rooted() { ranks - 1 } else { 0 };
                    Call { collective, count, dtype: DataType::U64, op: ReduceOp::Sum, root }
                };
                Collective::ALL.into_iter().map(call).flat_map(|call| [(call, false), (call, true)])
            });
            let made: Vec<_> = made
                .filter(|(call, in_place)| ccl::algorithm_does(algorithm, call.collective, ranks, *in_place))
                .collect();
            let made = on_hosts(ranks, hosts).and_then(|comms| make_calls(comms, Some(algorithm), &made));
            made.unwrap_or_else(|e| panic!("{algorithm}, {ranks} on {hosts}: {e}"));
        }
    }
}
