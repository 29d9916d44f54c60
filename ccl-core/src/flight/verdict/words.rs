//! How verdicts speak.

use crate::error::RankList;
use crate::flight::{CallState, WaitFor, WaitState};
use crate::plan::Rank;
use std::fmt::Write as _;
use std::time::Duration;

/// Runs of ranks that are written out; more are counted.
const MOST_RUNS: usize = 12;

/// `rank 5`, `ranks 0-4, 6-7`, with so many runs at most.
pub(super) fn ranks(list: &[Rank]) -> String {
    match list {
        [] => "no rank".to_string(),
        [one] => format!("rank {one}"),
        many => {
            let mut shown = 0;
            let runs = many.chunk_by(|a, b| a + 1 == *b).take(MOST_RUNS);
            runs.for_each(|run| shown += run.len());
            let mut text = format!("ranks {}", RankList(&many[..shown]));
            if shown < many.len() {
                let _ = write!(text, " and {} more", many.len() - shown);
            }
            text
        }
    }
}

/// The form of a verb that fits so many.
pub(super) fn verb<'a>(list: &[Rank], one: &'a str, many: &'a str) -> &'a str {
    if list.len() == 1 { one } else { many }
}

/// `31 s`, `1.5 s`, `20 ms`.
pub(super) fn span(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 9.95 => format!("{seconds:.0} s"),
        seconds if seconds >= 0.0995 => format!("{seconds:.1} s"),
        seconds => format!("{:.0} ms", seconds * 1e3),
    }
}

/// The time between two stamps of one clock.
pub(super) fn between(from_ns: u64, to_ns: u64) -> Duration {
    Duration::from_nanos(to_ns.saturating_sub(from_ns))
}

/// `waits for a piece from rank 3 on channel 0, lane 1, move 3, tile 17`.
pub(super) fn wait(wait: &WaitState) -> String {
    let WaitState { lane, mv, tile, channel, .. } = wait;
    let peers = ranks(&wait.peers);
    let what = match wait.on {
        WaitFor::Piece => format!("a piece from {peers}"),
        WaitFor::Credit => format!("{peers} to take a piece"),
    };
    format!("waits for {what} on channel {channel}, lane {lane}, move {mv}, tile {tile}")
}

/// In what two calls differ, as far as can be seen: `the type and the count`.
pub(super) fn differences(one: &CallState, other: &CallState) -> String {
    let pairs = [
        ("the collective", one.name != other.name),
        ("the count", one.count != other.count),
        ("the type", one.dtype != other.dtype),
        ("the operator", one.op != other.op),
        ("the root", one.root != other.root),
        ("the algorithm", one.algorithm != other.algorithm),
    ];
    let differ: Vec<&str> = pairs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    match differ.as_slice() {
        [] => "the lengths of blocks, or RDMACCL_TILE_BYTES".to_string(),
        [one] => (*one).to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
