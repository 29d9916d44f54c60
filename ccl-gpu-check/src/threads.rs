//! Ranks as threads: a launch each, on a stream of its own.

use crate::bench::{Bench, check, fill, verdict};
use crate::case::Case;
use crate::graphs::calls;
use crate::outcome::Outcome;
use ccl_transport_cuda::gang::{Gang, GangError};
use serde_json::json;
use std::time::Duration;

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let (mut cases, mut launches) = (0, 0);
    for ranks in 2..=bench.scale(8, 3) {
        for case in calls(bench, ranks).iter().filter(|case| bench.wants(&case.name())) {
            cases += 1;
            match play(bench, case)? {
                Ok(done) => launches += done,
                // Ranks that wait for each other in vain end by their limit; more of them would only need more time.
                Err(what) => outcome.fail(format!("{} as threads: {what}", case.name())),
            }
        }
        outcome.put("threads", json!({"ranks": ranks, "cases": cases, "launches": launches}));
    }
    outcome.say(format!("{cases} cases, {launches} launches on streams of their own, results right"));
    Ok(())
}

fn play(bench: &Bench, case: &Case) -> Result<Result<usize, String>, GangError> {
    let mut case = case.clone();
    case.shape.limit = Duration::from_secs(5);
    let mut gang = case.gang(bench)?;
    let inputs = case.inputs(1)?;
    // As a gang first: nothing is left that the driver would load at a launch.
    if let Some(what) = check(&mut gang, &inputs, &case.right(&inputs)?)? {
        return Ok(Err(what));
    }
    let (mut done, rounds) = (0, bench.scale(4, 2));
    for round in 0..rounds {
        let inputs = case.inputs(2 + round)?;
        let right = case.right(&inputs)?;
        fill(&mut gang, &inputs)?;
        let behind = bench.scale(50, 3);
        launch(&gang, behind)?;
        done += behind * gang.ranks();
        if let Some(what) = verdict(&gang, &right)? {
            return Ok(Err(what));
        }
    }
    Ok(Ok(done))
}

/// So many launches of each rank, one behind the other.
fn launch(gang: &Gang, behind: usize) -> Result<(), GangError> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..gang.ranks()).map(|rank| gang.member(rank)).collect();
        let run = ranks.into_iter().map(|member| {
            scope.spawn(move || {
                (0..behind).try_for_each(|_| member.launch())?;
                member.wait()
            })
        });
        let run: Vec<_> = run.collect();
        run.into_iter().try_for_each(|thread| Ok(thread.join().expect("a thread that does not panic")?))
    })
}
