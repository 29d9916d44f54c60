//! How long everything takes. Nothing here is asserted but that results are right.

use crate::bench::{Bench, median};
use crate::case::Case;
use crate::outcome::Outcome;
use crate::{large, pairs, short};
use ccl_core::{DataType, ReduceOp};
use ccl_transport_cuda::Event;
use ccl_transport_cuda::gang::{Gang, GangError, TeamKernel};
use serde_json::json;

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let bandwidth = copies(bench, outcome)?;
    flags(bench, outcome)?;
    short::run(bench, outcome)?;
    large::middle(bench, outcome, bandwidth)?;
    pairs::time(bench, outcome)?;
    large::run(bench, outcome, bandwidth)
}

/// Microseconds of what `act` puts on the gang's stream, by the device's clock: the median of so many times. What is timed is `row` of
/// them behind one that is not, so the device is busy while the host brings the rest.
pub(crate) fn microseconds(
    gang: &Gang,
    bench: &Bench,
    (times, row): (usize, usize),
    act: impl Fn() -> ccl_core::Result<()>,
) -> Result<f64, GangError> {
    let (from, to) = (Event::timed(&bench.primary)?, Event::timed(&bench.primary)?);
    let mut all = Vec::new();
    for _ in 0..times {
        act()?;
        from.record(gang.stream())?;
        (0..row).try_for_each(|_| act())?;
        to.record(gang.stream())?;
        gang.wait()?;
        all.push(f64::from(from.until(&to)?) * 1e3 / row as f64);
    }
    Ok(median(all))
}

/// Bytes a second of a device's copy of its own memory: each byte is read and written, and counts twice.
fn copies(bench: &Bench, outcome: &mut Outcome) -> Result<f64, GangError> {
    let bytes = bench.scale(1 << 30, 1 << 16);
    let gang = Case::team(TeamKernel::TwoShot, 1, bytes / 4, DataType::F32, ReduceOp::Sum).gang(bench)?;
    let time = microseconds(&gang, bench, bench.scale((11, 3), (3, 1)), || gang.copy(0))?;
    let bandwidth = 2.0 * bytes as f64 / time * 1e6;
    outcome.say(format!("device copy of {} MiB: {:.0} GB/s read and written", bytes >> 20, bandwidth / 1e9));
    outcome.put("copy", json!({"bytes": bytes, "us": time, "bytes_per_second": bandwidth}));
    Ok(bandwidth)
}

/// A barrier of all ranks, and a flag's way from rank to rank.
fn flags(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let turns = bench.scale(10_000, 5);
    let (mut said, mut all) = (Vec::new(), Vec::new());
    for &ranks in bench.scale(&[2, 4, 8][..], &[2]) {
        for kernel in [TeamKernel::Meet, TeamKernel::Ping] {
            let mut case = Case::team(kernel, ranks, turns, DataType::F32, ReduceOp::Sum);
            (case.shape.blocks, case.shape.threads) = (1, bench.scale(32, 2));
            let gang = case.gang(bench)?;
            // There and back is two hops.
            let hops = turns * if kernel == TeamKernel::Ping { 2 } else { 1 };
            let time =
                microseconds(&gang, bench, bench.scale((5, 1), (1, 1)), || gang.launch())? / hops as f64;
            if let Some(blame) = gang.failures().first() {
                outcome.fail(format!("{} of {ranks}: {blame}", case.kernel_name()));
            }
            all.push(json!({"kernel": case.kernel_name(), "ranks": ranks, "us": time}));
            if kernel == TeamKernel::Meet || ranks == 2 {
                let what =
                    if kernel == TeamKernel::Meet { format!("barrier of {ranks}") } else { "hop".into() };
                said.push(format!("{what} {time:.2} us"));
            }
        }
    }
    // What is left of a call that has nothing to do: it is launched, begins, meets once and ends.
    let mut case = Case::team(TeamKernel::Meet, 2, 1, DataType::F32, ReduceOp::Sum);
    (case.shape.blocks, case.shape.threads) = (1, bench.scale(128, 2));
    let mut gang = case.gang(bench)?;
    gang.record(bench.scale(short::IN_A_GRAPH, 2))?;
    let calls = bench.scale(short::IN_A_GRAPH, 2) as f64;
    let time = microseconds(&gang, bench, bench.scale((21, 1), (1, 1)), || gang.replay())? / calls;
    said.push(format!("a launch in a graph with one barrier of 2 {time:.2} us"));
    all.push(json!({"kernel": "meet in a graph", "ranks": 2, "us": time}));
    outcome.say(said.join(", "));
    outcome.put("flags", json!(all));
    Ok(())
}
