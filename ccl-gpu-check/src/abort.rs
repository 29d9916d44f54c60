//! Waits for a rank that never comes: they end, soon, and say for whom they were.

use crate::bench::{Bench, check};
use crate::case::Case;
use crate::graphs::calls;
use crate::outcome::Outcome;
use ccl_transport_cuda::gang::{Gang, GangError};
use ccl_transport_cuda::program::Failure;
use serde_json::json;
use std::time::{Duration, Instant};

/// A wait that goes on for longer after its alarm, or its deadline, has failed. Many times what is expected: this is no measurement.
const BOUND: Duration = Duration::from_secs(5);

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let mut times = Vec::new();
    let (mut waits, mut example) = (0, None);
    for case in calls(bench, 3).iter().filter(|case| bench.wants(&case.name())) {
        for limit in [Duration::from_secs(20), Duration::from_millis(100)] {
            let by_alarm = limit > BOUND;
            let mut case = case.clone();
            case.shape.limit = limit;
            let mut gang = case.gang(bench)?;
            waits += 1;
            match wait(&gang, by_alarm)? {
                Ok(time) if by_alarm => times.push(time.as_secs_f64() * 1e3),
                Ok(_) => {}
                Err(what) => {
                    outcome.fail(format!("{}: {what}", case.name()));
                    // It may still run: it ends by its own limit when the gang is dropped.
                    continue;
                }
            }
            let wanted = if by_alarm { Failure::Aborted } else { Failure::Late };
            let all = gang.failures();
            if let Some(other) = all.iter().find(|blame| blame.report.failure != wanted) {
                outcome.fail(format!("{}: {wanted:?} was to be said: {other}", case.name()));
            }
            // Rank 0 is the one that did not come, so somebody waited for it.
            match all.iter().find(|blame| blame.peer == Some(0) && blame.rank != 0) {
                Some(blame) => example = example.or(Some(blame.to_string())),
                None => outcome.fail(format!("{}: nobody says that rank 0 is missing: {all:?}", case.name())),
            }
            afterwards(&case, &mut gang, outcome)?;
        }
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    outcome.say(format!("{waits} waits without end have ended, the alarm's within {worst:.2} ms"));
    example.iter().for_each(|text| outcome.say(format!("such as: {text}")));
    outcome.put("abort", json!({"waits": waits, "alarm_ms": times, "example": example}));
    Ok(())
}

/// Launches all ranks but the first; how long they needed to end when they were told to.
fn wait(gang: &Gang, by_alarm: bool) -> Result<Result<Duration, String>, GangError> {
    gang.launch_without(1)?;
    if by_alarm {
        std::thread::sleep(Duration::from_millis(50));
        if gang.is_done()? {
            return Ok(Err("it has ended without the rank that is missing".into()));
        }
        gang.alarm();
    }
    let begin = Instant::now();
    while !gang.is_done()? {
        if begin.elapsed() > BOUND {
            return Ok(Err(format!("it has not ended within {BOUND:?}")));
        }
        std::thread::yield_now();
    }
    Ok(Ok(begin.elapsed()))
}

/// After a new beginning the same memory makes right calls again.
fn afterwards(case: &Case, gang: &mut Gang, outcome: &mut Outcome) -> Result<(), GangError> {
    gang.reset()?;
    // A limit of milliseconds is for waits without end.
    if case.shape.limit < BOUND {
        return Ok(());
    }
    let inputs = case.inputs(1)?;
    if let Some(what) = check(gang, &inputs, &case.right(&inputs)?)? {
        outcome.fail(format!("{}: after an abort: {what}", case.name()));
    }
    Ok(())
}
