//! What worker processes tell the runner, a line of JSON each.

use ccl::{Error, ErrorKind, Rank};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds of the clock that all processes of a host share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Something that happened in a worker. Times are [`now`]'s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Rank 0 has made the id.
    Id { id: String },
    /// It is a member.
    Joined { at: u64 },
    /// It waits for the runner's word.
    Waiting,
    /// It does its deed now.
    Fault { at: u64 },
    /// A call failed.
    Failed(Failure),
    /// A call gave a wrong result.
    Wrong { what: String },
    /// It has a communicator of these ranks of the trial.
    Shrunk { at: u64, took_ms: u64, world: Vec<Rank> },
    /// It has made all its calls.
    Done,
    /// The communicator is destroyed.
    Destroyed { took_ms: u64 },
    /// It holds something that it did not hold before.
    Left { what: String },
    /// It ends its process at once, communicator and all.
    Exiting { at: u64 },
    /// It ends.
    End,
}

/// Where a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// In joining.
    Join,
    /// In this step of the script.
    Step(usize),
    /// In this step, a split, or in a communicator that was split off; `None` after the shrink.
    Split(Option<usize>),
    /// In shrinking.
    Shrink,
    /// After the shrink.
    After,
}

impl Stage {
    /// Whether it is a split, whose ranks have numbers of their own.
    pub(crate) fn is_split(self) -> bool {
        matches!(self, Stage::Split(_))
    }
}

/// An error, as the judge wants it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    /// When the call that failed was begun, and when it returned.
    pub(crate) began: u64,
    pub(crate) at: u64,
    /// The case of [`ErrorKind`].
    pub(crate) case: Case,
    /// Whom it names, as ranks of the trial.
    pub(crate) accused: Vec<Rank>,
    pub(crate) text: String,
}

/// The cases of [`ErrorKind`] that a fault may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Case {
    PeerLost,
    Aborted,
    Revoked,
    Broke,
    Absent,
    Silent,
    Disagreement,
    Stuck,
    Unclear,
    Mismatch,
    Excluded,
    Timeout,
    OwnAbort,
    Broken,
    Bootstrap,
    Other,
}

/// Bytes of an error's text in an event; a pipe takes short lines whole.
const MOST_TEXT: usize = 3000;

impl Failure {
    /// `world[r]` is the trial's number of the communicator's rank r.
    pub(crate) fn of(error: &Error, stage: Stage, began: u64, world: &[Rank]) -> Failure {
        let at = now();
        let (case, accused) = case(error.kind());
        let of_trial = |rank: Rank| world.get(rank as usize).copied().unwrap_or(Rank::MAX);
        let mut text = error.to_string();
        if text.len() > MOST_TEXT {
            text.truncate(text.floor_char_boundary(MOST_TEXT));
        }
        Failure { stage, began, at, case, accused: accused.into_iter().map(of_trial).collect(), text }
    }
}

fn case(kind: &ErrorKind) -> (Case, Vec<Rank>) {
    match kind {
        ErrorKind::PeerLost { peer, .. } => (Case::PeerLost, vec![*peer]),
        ErrorKind::Mismatch { peer, .. } => (Case::Mismatch, vec![*peer]),
        ErrorKind::Verdict(verdict) => {
            let case = match verdict.blame {
                ccl::Blame::Absent => Case::Absent,
                ccl::Blame::Silent => Case::Silent,
                ccl::Blame::Disagreement => Case::Disagreement,
                ccl::Blame::Stuck => Case::Stuck,
                ccl::Blame::Unclear => Case::Unclear,
            };
            (case, verdict.culprits.clone())
        }
        ErrorKind::Ended { peer, how, .. } => {
            let case = match *how {
                "aborted" => Case::Aborted,
                "revoked" => Case::Revoked,
                _ => Case::Broke,
            };
            (case, vec![*peer])
        }
        ErrorKind::Excluded { .. } => (Case::Excluded, Vec::new()),
        ErrorKind::Timeout { absent, .. } => (Case::Timeout, absent.clone()),
        ErrorKind::Unreachable { peer, .. } => (Case::Other, vec![*peer]),
        ErrorKind::Transport { peer, .. } => (Case::Other, peer.iter().copied().collect()),
        ErrorKind::Bootstrap { .. } => (Case::Bootstrap, Vec::new()),
        ErrorKind::Aborted => (Case::OwnAbort, Vec::new()),
        ErrorKind::Broken(_) => (Case::Broken, Vec::new()),
        _ => (Case::Other, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_become_those_of_the_trial() {
        let error: Error = ErrorKind::Ended { peer: 1, how: "aborted", what: String::new() }.into();
        let failure = Failure::of(&error, Stage::Join, 5, &[3, 7]);
        assert_eq!((failure.case, failure.accused, failure.began), (Case::Aborted, vec![7], 5));
    }

    #[test]
    fn a_line_is_what_it_was() {
        let events = [
            Event::Id { id: "00ff".into() },
            Event::Failed(Failure::of(&ErrorKind::Aborted.into(), Stage::Step(4), 5, &[])),
            Event::End,
        ];
        for event in events {
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event, "{line}");
        }
    }
}
