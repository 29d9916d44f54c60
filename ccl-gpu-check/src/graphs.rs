//! Calls that are recorded once and launched many times: their numbers live in device memory.

use crate::bench::{Bench, fill, verdict};
use crate::case::{Case, plan};
use crate::outcome::Outcome;
use ccl_core::{DataType, ReduceOp};
use ccl_transport_cuda::gang::{Gang, GangError, Residency, TeamKernel};
use serde_json::json;

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let (mut graphs, mut replays, mut plain) = (0, 0, 0);
    for &ranks in bench.scale(&[2, 4, 8][..], &[3]) {
        for case in calls(bench, ranks).iter().filter(|case| bench.wants(&case.name())) {
            let mut gang = case.gang(bench)?;
            for calls in [1, 3] {
                plain += usize::from(gang.record(calls)? == Residency::Any);
                graphs += 1;
                match replay(bench, case, &mut gang)? {
                    Ok(done) => replays += done,
                    Err(what) => {
                        outcome.fail(format!("{}: {calls} in a graph: {what}", case.name()));
                        break;
                    }
                }
            }
        }
    }
    let how = match plain {
        0 => "cooperative launches".to_string(),
        _ => format!("{plain} of them plain launches, as the driver records no cooperative ones"),
    };
    outcome.say(format!("{graphs} graphs, {replays} replays with results that were right; {how}"));
    outcome.put("graphs", json!({"graphs": graphs, "replays": replays, "plain": plain}));
    Ok(())
}

/// The same call of all kernels; of odd length.
pub(crate) fn calls(bench: &Bench, ranks: u32) -> Vec<Case> {
    let count = bench.scale(3001, 61);
    let team = |kernel| Case::team(kernel, ranks, count, DataType::F32, ReduceOp::Sum);
    let plan = |name| Case::plan(plan(name, ranks), count, DataType::F32, ReduceOp::Sum);
    let mut cases = vec![
        team(TeamKernel::Packets),
        team(TeamKernel::Staged),
        team(TeamKernel::OneShot),
        team(TeamKernel::TwoShot),
        plan("oneshot"),
        plan("twoshot"),
        plan("ring"),
    ];
    cases.iter_mut().for_each(|case| case.shape.threads = bench.scale(128, 3));
    cases
}

/// Replays, with inputs that change; how many, or what was wrong.
fn replay(bench: &Bench, case: &Case, gang: &mut Gang) -> Result<Result<usize, String>, GangError> {
    let sets = (0..3).map(|seed| {
        let inputs = case.inputs(seed)?;
        let right = case.right(&inputs)?;
        Ok((inputs, right))
    });
    let sets: Vec<_> = sets.collect::<Result<_, GangError>>()?;
    let times = bench.scale(1000, 6);
    for time in 0..times {
        let (inputs, right) = &sets[time % sets.len()];
        fill(gang, inputs)?;
        gang.replay()?;
        gang.wait()?;
        if let Some(what) = verdict(gang, right)? {
            return Ok(Err(format!("replay {time}: {what}")));
        }
    }
    Ok(Ok(times))
}
