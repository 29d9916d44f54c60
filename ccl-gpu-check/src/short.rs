//! Short all-reduces in graphs.

use crate::bench::{Bench, fill, verdict};
use crate::case::{Case, plan};
use crate::outcome::Outcome;
use crate::time::microseconds;
use ccl_core::{DataType, ReduceOp};
use ccl_transport_cuda::gang::{GangError, TeamKernel};
use ccl_transport_cuda::program::Geometry;
use serde_json::{Value, json};

/// Calls of a graph, one behind the other: what a call takes there, without what a launch of the graph takes.
pub(crate) const IN_A_GRAPH: usize = 100;

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let mut all = Vec::new();
    let sizes = bench.scale(&[8, 512, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10][..], &[8, 512]);
    for &ranks in bench.scale(&[2, 4, 8][..], &[2]) {
        outcome.say(format!(
            "all_reduce of {ranks} in a graph, us: packets, one-shot, two-shot, staged two-shot, plan oneshot, plan twoshot"
        ));
        let mut slowest = Slowest::default();
        for &bytes in sizes {
            let mut times = Vec::new();
            for kernel in 0..6 {
                let tries = tries(bench, ranks, bytes, kernel, outcome)?;
                times.push(tries.iter().map(|(time, _)| *time).min_by(f64::total_cmp));
                all.extend(tries.into_iter().map(|(_, told)| told));
            }
            slowest.take(bytes, &times);
            let said = times.iter().map(|time| time.map_or("-".into(), |time| format!("{time:.2}")));
            outcome.say(format!("{bytes:>7} B  {}", said.collect::<Vec<_>>().join("  ")));
            outcome.put("short", json!(all));
        }
        slowest.say(outcome);
    }
    Ok(())
}

/// What is wanted of short calls, and the worst of them.
#[derive(Default)]
struct Slowest {
    time: f64,
    interpreter: f64,
}

impl Slowest {
    /// Up to here.
    const BYTES: usize = 16 << 10;

    /// A line: four kernels, and two plans by the interpreter.
    fn take(&mut self, bytes: usize, times: &[Option<f64>]) {
        let least = |times: &[Option<f64>]| times.iter().flatten().copied().min_by(f64::total_cmp);
        if bytes > Slowest::BYTES {
            return;
        }
        if let Some(best) = least(times) {
            self.time = self.time.max(best);
        }
        if let Some((kernel, plan)) = least(&times[..4]).zip(least(&times[4..])) {
            self.interpreter = self.interpreter.max(plan / kernel);
        }
    }

    fn say(&self, outcome: &mut Outcome) {
        outcome.say(format!(
            "up to 16 KiB: {:.2} us by the best way at most (6 are wanted), {:.2} of a kernel's time by the interpreter (1.15)",
            self.time, self.interpreter
        ));
    }
}

/// The kernel with several numbers of blocks and threads: its times, and what is told of them.
fn tries(
    bench: &Bench,
    ranks: u32,
    bytes: usize,
    kernel: usize,
    outcome: &mut Outcome,
) -> Result<Vec<(f64, Value)>, GangError> {
    let mut tries = Vec::new();
    for &(blocks, threads) in
        bench.scale(&[(1, 128), (1, 512), (4, 256), (8, 512), (16, 512), (32, 512)][..], &[(1, 2)])
    {
        // No block without bytes.
        if blocks > 1 && bytes < 64 * blocks as usize {
            continue;
        }
        let case = case(ranks, bytes, kernel, blocks, threads);
        if !bench.wants(&case.name()) {
            continue;
        }
        let mut gang = match case.gang(bench) {
            Err(GangError::TooLarge { .. }) => continue,
            made => made?,
        };
        let inputs = case.inputs(1)?;
        fill(&mut gang, &inputs)?;
        gang.record(bench.scale(IN_A_GRAPH, 2))?;
        let calls = bench.scale(IN_A_GRAPH, 2) as f64;
        let time = microseconds(&gang, bench, bench.scale((21, 1), (1, 1)), || gang.replay())? / calls;
        if let Some(what) = verdict(&gang, &case.right(&inputs)?)? {
            outcome.fail(format!("{}: {what}", case.name()));
            return Ok(Vec::new());
        }
        let told = json!({
            "kernel": case.kernel_name(), "algorithm": case.plan.algorithm, "ranks": ranks, "bytes": bytes,
            "us": time, "blocks": gang.blocks(), "threads": threads,
        });
        tries.push((time, told));
    }
    Ok(tries)
}

fn case(ranks: u32, bytes: usize, kernel: usize, blocks: u32, threads: u32) -> Case {
    let (count, dtype, op) = (bytes / 4, DataType::F32, ReduceOp::Sum);
    let mut case = match kernel {
        0 => Case::team(TeamKernel::Packets, ranks, count, dtype, op),
        1 => Case::team(TeamKernel::OneShot, ranks, count, dtype, op),
        2 => Case::team(TeamKernel::TwoShot, ranks, count, dtype, op),
        3 => Case::team(TeamKernel::Staged, ranks, count, dtype, op),
        4 => Case::plan(plan("oneshot", ranks), count, dtype, op),
        _ => Case::plan(plan("twoshot", ranks), count, dtype, op),
    };
    // As many tiles as there are blocks for a lane, and no longer than the library's.
    let tile_bytes = (bytes / blocks as usize).next_multiple_of(64).clamp(64, 128 << 10);
    case.geometry = Geometry { slot_bytes: tile_bytes, shares: blocks, ..case.geometry };
    case.tile_bytes = tile_bytes;
    (case.shape.blocks, case.shape.threads) = (blocks, threads);
    case
}
