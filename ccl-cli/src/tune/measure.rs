//! Calls of ranks that are threads of this process, and how long they take.

use super::fit::Sample;
use ccl::cost::{Candidates, Model};
use ccl::{Buffers, Call, Collective, Communicator, Config, DataType, ReduceOp, Result, UniqueId};
use std::sync::Arc;
use std::time::Instant;

/// Calls that differ in how many steps, messages and bytes they have.
const CALLS: [(Collective, &str); 7] = [
    (Collective::AllReduce, "oneshot"),
    (Collective::AllReduce, "twoshot"),
    (Collective::AllReduce, "ring"),
    (Collective::AllGather, "oneshot"),
    (Collective::ReduceScatter, "oneshot"),
    (Collective::AllToAll, "oneshot"),
    (Collective::AllReduce, "tree"),
];
/// Bytes of one block, of calls of two ranks.
const BLOCKS: [usize; 8] = [8, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The same, of calls of more ranks than there are cores.
const CROWDED_BLOCKS: [usize; 3] = [8, 8 << 10, 128 << 10];
/// Times that all calls are made one after the other; what a call took least counts, as nothing makes it shorter than it is.
const PASSES: usize = 3;
/// Times that a call has its turn in each; the median counts.
const TURNS: usize = 5;
/// Nanoseconds that a turn should last.
const TURN_NS: f64 = 2e6;
/// Most ranks that are started.
const MOST_RANKS: u32 = 32;

/// Everything: two ranks, and twice as many as there are cores, which tell what a change of the core costs.
pub(super) fn all(config: &Config) -> Result<Vec<Sample>> {
    // The ranks are to make the calls that they are told to, whatever the environment says.
    let mut config = config.clone();
    (config.algorithms, config.tile_bytes, config.profile) = (Vec::new(), None, Some("none".to_string()));
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    let mut samples = of(2, &BLOCKS, &config, cores)?;
    if 2 * cores <= MOST_RANKS {
        samples.extend(of(2 * cores, &CROWDED_BLOCKS, &config, cores)?);
    }
    Ok(samples)
}

/// All calls of so many ranks.
fn of(ranks: u32, blocks: &[usize], config: &Config, cores: u32) -> Result<Vec<Sample>> {
    let id = UniqueId::create(config)?;
    let rank = |rank: u32| {
        let builder = Communicator::builder().rank(rank).size(ranks).unique_id(id).config(config.clone());
        measure(builder.build()?, blocks, cores)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|r| scope.spawn(move || rank(r))).collect();
        let mut first = None;
        for thread in threads {
            let samples = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            first.get_or_insert(samples);
        }
        Ok(first.unwrap_or_default())
    })
}

/// One rank's part of it; the times are those of the slowest rank, so all ranks have the same.
fn measure(mut comm: Communicator, blocks: &[usize], cores: u32) -> Result<Vec<Sample>> {
    let longest = blocks.iter().max().copied().unwrap_or(0) * comm.size() as usize;
    let (input, mut output) = (vec![1u8; longest], vec![1u8; longest]);
    let mut samples = pass(&mut comm, blocks, cores, &input, &mut output)?;
    for _ in 1..PASSES {
        let again = pass(&mut comm, blocks, cores, &input, &mut output)?;
        samples.iter_mut().zip(again).for_each(|(sample, again)| sample.ns = sample.ns.min(again.ns));
    }
    Ok(samples)
}

/// All calls once.
fn pass(
    comm: &mut Communicator,
    blocks: &[usize],
    cores: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<Vec<Sample>> {
    let ranks = comm.size();
    let mut samples = Vec::new();
    for (collective, algorithm) in CALLS {
        let candidates = Arc::new(Candidates::new(collective, ranks, 0)?);
        comm.set_algorithm(Some(algorithm))?;
        for &block_bytes in blocks {
            let (dtype, op) = (DataType::F32, ReduceOp::Sum);
            let call = Call { collective, count: block_bytes / dtype.size(), dtype, op, root: 0 };
            let tile_bytes = comm.explain(&call, false)?.tile_bytes;
            let sent = block_bytes * collective.input_blocks(ranks, comm.rank(), 0) as usize;
            let received = block_bytes * collective.output_blocks(ranks, comm.rank(), 0) as usize;
            let (input, output) = (&input[..sent], &mut output[..received]);
            let ns = median(comm, |comm| comm.run(&call, Buffers::new(input, output)))?;
            let model = Model::shared_memory(cores, ranks);
            let candidates = candidates.clone();
            samples.push(Sample { candidates, algorithm, model, block_bytes, tile_bytes, ns });
        }
    }
    Ok(samples)
}

/// Nanoseconds of a call on the slowest rank.
fn median(comm: &mut Communicator, mut call: impl FnMut(&mut Communicator) -> Result<()>) -> Result<f64> {
    call(comm)?;
    let mut times = Vec::with_capacity(TURNS);
    let mut calls = 1;
    for turn in 0..=TURNS {
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            call(comm)?;
        }
        let own = start.elapsed().as_nanos() as f64 / f64::from(calls);
        let mut slowest = [own];
        comm.all_reduce_in_place(&mut slowest, ReduceOp::Max)?;
        if turn == 0 {
            // One call alone says how many make a turn.
            calls = (TURN_NS / slowest[0]).clamp(1.0, 10_000.0) as u32;
        } else {
            times.push(slowest[0]);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TURNS / 2])
}
