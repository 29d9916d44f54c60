//! Calls as Chrome's trace format has them: one row per rank for collectives, one for transfers.

use ccl::flight::{Dump, Recorded, Status};
use serde_json::{Value, json};

/// How long a call without stamps is shown where nothing bounds it, in nanoseconds.
const UNKNOWN: i128 = 1_000;

/// A begin or an end, as far as it is known.
type Moment = Option<i128>;

/// The trace of all these ranks on one time axis, which begins with the first call.
pub(crate) fn chrome<'a>(dumps: impl Iterator<Item = &'a Dump>) -> String {
    let mut spans = Vec::new();
    let mut names = Vec::new();
    for dump in dumps {
        let state = &dump.state;
        let (transfers, collectives): (Vec<_>, Vec<_>) =
            dump.calls.iter().partition(|recorded| recorded.call.peer.is_some());
        let process = state.communicator & 0xffff_ffff;
        for (kind, calls) in [("collective", collectives), ("transfer", transfers)] {
            if calls.is_empty() {
                continue;
            }
            let row = 2 * u64::from(state.rank) + u64::from(kind == "transfer");
            let name = format!("rank {} {kind}s ({}, pid {})", state.rank, state.host, state.pid);
            names.push(
                json!({"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": {"name": name}}),
            );
            names.push(json!({"ph": "M", "name": "thread_sort_index", "pid": process, "tid": row, "args": {"sort_index": row}}));
            let offset = dump.clock_offset();
            for ((from, to), recorded) in place(&calls, i128::from(state.now_ns)).into_iter().zip(&calls) {
                spans.push((from + offset, to + offset, process, row, kind, *recorded));
            }
        }
    }
    let origin = spans.iter().map(|(from, ..)| *from).min().unwrap_or(0);
    let events = spans.iter().map(|(from, to, process, row, kind, recorded)| {
        let call = &recorded.call;
        json!({
            "ph": "X",
            "name": format!("{} #{}", call.name, call.sequence),
            "cat": kind,
            "ts": micros(from - origin),
            "dur": micros(to - from),
            "pid": process,
            "tid": row,
            "args": {
                "call": call.to_string(),
                "bytes": call.bytes,
                "status": recorded.status,
                "stamped": call.started_ns.is_some(),
            },
        })
    });
    let all: Vec<Value> = names.iter().cloned().chain(events).collect();
    json!({"displayTimeUnit": "ns", "traceEvents": all}).to_string()
}

fn micros(ns: i128) -> f64 {
    ns as f64 / 1e3
}

/// Begin and end of each call, in order. What has no stamp lies evenly between its neighbours.
fn place(calls: &[&Recorded], now: i128) -> Vec<(i128, i128)> {
    let mut moments: Vec<Moment> = Vec::new();
    for Recorded { call, status } in calls.iter().copied() {
        let ended = match status {
            Status::Running => Some(now),
            Status::Done | Status::Failed => call.ended_ns.map(i128::from),
        };
        moments.extend([call.started_ns.map(i128::from), ended]);
    }
    // A ring that others write to may say anything: time does not go back.
    let mut latest = i128::MIN;
    for moment in moments.iter_mut().flatten() {
        latest = latest.max(*moment);
        *moment = latest;
    }
    fill(&mut moments, now);
    let known: Vec<i128> = moments.into_iter().flatten().collect();
    known.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Gives the unknown moments a place between the known ones.
fn fill(moments: &mut [Moment], now: i128) {
    let mut at = 0;
    while at < moments.len() {
        if moments[at].is_some() {
            at += 1;
            continue;
        }
        let gap = moments[at..].iter().take_while(|moment| moment.is_none()).count();
        let steps = gap as i128 + 1;
        let before = at.checked_sub(1).and_then(|before| moments[before]);
        let after = moments.get(at + gap).copied().flatten();
        let (from, to) = match (before, after) {
            (Some(from), Some(to)) => (from, to),
            (Some(from), None) => (from, from + steps * UNKNOWN),
            (None, Some(to)) => (to - steps * UNKNOWN, to),
            (None, None) => (now - steps * UNKNOWN, now),
        };
        for (step, moment) in (1..).zip(&mut moments[at..at + gap]) {
            *moment = Some(from + (to - from) * step / steps);
        }
        at += gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::flight::CallState;

    fn call(started_ns: Option<u64>, ended_ns: Option<u64>) -> Recorded {
        Recorded { call: CallState { started_ns, ended_ns, ..CallState::default() }, status: Status::Done }
    }

    fn placed(calls: &[Recorded]) -> Vec<(i128, i128)> {
        place(&calls.iter().collect::<Vec<_>>(), 10_000)
    }

    #[test]
    fn calls_without_stamps_lie_between_their_neighbours() {
        let (known, unknown) = (call(Some(100), Some(200)), call(None, None));
        let later = call(Some(700), Some(800));
        assert_eq!(
            placed(&[known.clone(), unknown.clone(), unknown.clone(), later.clone()]),
            [(100, 200), (300, 400), (500, 600), (700, 800)]
        );
        assert_eq!(placed(&[unknown.clone(), known.clone()]), [(-1900, -900), (100, 200)]);
        assert_eq!(placed(&[known, unknown.clone()]), [(100, 200), (1200, 2200)]);
        assert_eq!(placed(&[unknown]), [(8000, 9000)]);
        let running = Recorded { status: Status::Running, ..call(Some(900), None) };
        assert_eq!(placed(&[later, running]), [(700, 800), (900, 10_000)]);
        assert_eq!(placed(&[]), []);
    }

    #[test]
    fn time_does_not_go_back() {
        assert_eq!(
            placed(&[call(Some(500), Some(100)), call(Some(50), Some(600))]),
            [(500, 500), (500, 600)]
        );
    }
}
