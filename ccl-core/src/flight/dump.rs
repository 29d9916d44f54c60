//! A record as a file: what a rank leaves behind, and what those of all ranks say together.

use super::{CallState, RankState, Reason, Recorded, Verdict, judge};
use crate::error::{ErrorKind, Result};
use crate::plan::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format's name and version.
const FORMAT: &str = "rdmaccl-flight-1";

/// One rank's record at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    format: String,
    /// The time of day at `state.now_ns`, in nanoseconds since 1970: it relates the clocks of hosts.
    pub wall_ns: u64,
    /// Why the communicator broke, in full.
    pub cause: Option<String>,
    /// What the rank does.
    pub state: RankState,
    /// What it did, oldest first; transfers after collectives.
    pub calls: Vec<Recorded>,
}

impl Dump {
    /// A dump of this moment.
    pub fn new(wall_ns: u64, cause: Option<String>, state: RankState, calls: Vec<Recorded>) -> Dump {
        Dump { format: FORMAT.to_string(), wall_ns, cause, state, calls }
    }

    /// As a file has it.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// What a file has.
    pub fn from_json(text: &str) -> Result<Dump> {
        let malformed = |cause: String| ErrorKind::Malformed { what: "flight record".into(), cause };
        let dump: Dump = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        if dump.format != FORMAT {
            return Err(malformed(format!("its format is '{}', not '{FORMAT}'", dump.format)).into());
        }
        let RankState { rank, ranks, .. } = dump.state;
        if rank >= ranks {
            return Err(malformed(format!("it is of rank {rank} of {ranks}")).into());
        }
        Ok(dump)
    }

    /// Its file's name.
    pub fn file_name(&self) -> String {
        let RankState { rank, pid, communicator, .. } = self.state;
        format!("rdmaccl-flight-{rank}-{pid}-{communicator:016x}.json")
    }

    /// Nanoseconds from this rank's monotonic clock to the time of day.
    pub fn clock_offset(&self) -> i128 {
        i128::from(self.wall_ns) - i128::from(self.state.now_ns)
    }
}

/// Who is to blame, from the dumps of one communicator's ranks. They remember more than the states of an inquest: the lowest
/// number under which they made different calls, however long ago.
pub fn judge_dumps(dumps: &[Dump]) -> Verdict {
    let ranks = dumps.iter().map(|dump| dump.state.ranks).max().unwrap_or(0);
    let mut numbers: BTreeMap<u64, BTreeMap<Rank, &CallState>> = BTreeMap::new();
    for dump in dumps {
        let calls = dump.calls.iter().map(|recorded| &recorded.call);
        for call in calls.filter(|call| call.peer.is_none()) {
            numbers.entry(call.sequence).or_default().insert(dump.state.rank, call);
        }
    }
    let differ = |calls: &BTreeMap<Rank, &CallState>| {
        let mut fingerprints = calls.values().map(|call| call.fingerprint);
        let first = fingerprints.next();
        fingerprints.any(|other| Some(other) != first)
    };
    let states: Vec<(Rank, Option<RankState>)> = match numbers.values().find(|calls| differ(calls)) {
        Some(calls) => {
            let state = |call: &CallState| RankState { running: vec![call.clone()], ..RankState::default() };
            calls.iter().map(|(rank, call)| (*rank, Some(state(call)))).collect()
        }
        // What broke the communicator is the consequence here, and not the cause.
        None => {
            let state = |dump: &Dump| RankState { broken: None, ..dump.state.clone() };
            dumps.iter().map(|dump| (dump.state.rank, Some(state(dump)))).collect()
        }
    };
    judge(ranks, &Reason::Asked, &states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::{About, Blame, Identity, Memory, Recorder, lines_for};
    use crate::{Collective, DataType, ReduceOp};

    fn dump(rank: Rank, counts: &[usize]) -> Dump {
        let who = Identity { communicator: 5, rank, ranks: 3, host: "node".into(), pid: 100 + rank };
        let record = Recorder::new(Memory::heap(lines_for(16)), &who, 16);
        for (sequence, count) in (0..).zip(counts) {
            let call = (Collective::AllReduce, 0);
            let about =
                About::collective(call, (*count, DataType::F32, ReduceOp::Sum), "ring", 4, *count as u64);
            let entry = record.begin(&about, sequence, Some(10));
            if *count > 0 {
                record.end(entry, || 20);
            }
        }
        record.broken("a test", 30);
        Dump::new(1030, Some("a test".into()), record.state(30), record.calls())
    }

    #[test]
    fn a_dump_comes_back_and_has_a_name() {
        let one = dump(2, &[4, 0]);
        assert_eq!(one.file_name(), "rdmaccl-flight-2-102-0000000000000005.json");
        assert_eq!(one.clock_offset(), 1000);
        let json = one.to_json();
        assert_eq!(Dump::from_json(&json).expect("whole"), one);
        for (wrong, why) in [
            (json[..json.len() / 2].to_string(), "EOF"),
            (json.replace("flight-1", "flight-9"), "its format is 'rdmaccl-flight-9'"),
            (json.replace("\"ranks\": 3", "\"ranks\": 2"), "rank 2 of 2"),
            ("{}".to_string(), "missing field"),
        ] {
            let error = Dump::from_json(&wrong).expect_err("refused").to_string();
            assert!(error.starts_with("malformed flight record: ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn dumps_remember_where_the_calls_parted() {
        let verdict = judge_dumps(&[dump(0, &[4, 4, 8, 0]), dump(1, &[4, 5, 8, 0]), dump(2, &[4, 4, 8, 0])]);
        assert_eq!(
            (verdict.blame, verdict.culprits, verdict.sequence),
            (Blame::Disagreement, vec![1], Some(1))
        );
    }

    #[test]
    fn of_dumps_that_agree_the_states_are_judged() {
        let verdict = judge_dumps(&[dump(0, &[4, 0]), dump(1, &[4]), dump(2, &[4, 0])]);
        assert_eq!((verdict.blame, verdict.culprits, verdict.sequence), (Blame::Absent, vec![1], Some(1)));
        assert!(verdict.text.contains("its last was all_reduce #0"), "{}", verdict.text);
        assert_eq!(judge_dumps(&[]).blame, Blame::Unclear);
    }
}
