//! Ranks that a node wants to be connected to and is not.

use crate::plan::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two refusals that mean that a rank is lost. In between the word may come that it has left.
const SECOND_LOOK: Duration = Duration::from_millis(250);

/// Between two dials of a rank that does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// All dials, planned and under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Dials {
    dials: BTreeMap<Rank, Dial>,
}

#[derive(Clone, Debug)]
struct Dial {
    /// When to dial; `None` while that is under way.
    next: Option<Duration>,
    /// When it was dialled first.
    since: Option<Duration>,
    refused: bool,
}

impl Dials {
    /// Plans to dial `peer` at a time. What was dialled already keeps its own times.
    pub(super) fn plan(&mut self, peer: Rank, at: Duration) {
        let dial = self.dials.entry(peer).or_insert(Dial { next: Some(at), since: None, refused: false });
        if dial.since.is_none() {
            dial.next = dial.next.map(|next| next.min(at));
        }
    }

    /// There is nothing to dial `peer` for any more.
    pub(super) fn remove(&mut self, peer: Rank) {
        self.dials.remove(&peer);
    }

    pub(super) fn clear(&mut self) {
        self.dials.clear();
    }

    /// Whether a dial was refused: that rank has left or is lost, and this node will soon know.
    pub(super) fn is_suspect(&self, peer: Rank) -> bool {
        self.dials.get(&peer).is_some_and(|dial| dial.refused)
    }

    pub(super) fn has_suspects(&self) -> bool {
        self.dials.values().any(|dial| dial.refused)
    }

    /// Whom to dial now.
    pub(super) fn due(&mut self, now: Duration) -> Vec<Rank> {
        let mut due = Vec::new();
        for (peer, dial) in &mut self.dials {
            if dial.next.is_some_and(|next| next <= now) {
                dial.next = None;
                dial.since.get_or_insert(now);
                due.push(*peer);
            }
        }
        due
    }

    /// A dial was refused; whether that was the second time.
    pub(super) fn refused(&mut self, peer: Rank, now: Duration) -> bool {
        self.plan(peer, now);
        let Some(dial) = self.dials.get_mut(&peer) else { return false };
        dial.next = Some(now + SECOND_LOOK);
        std::mem::replace(&mut dial.refused, true)
    }

    /// A dial came to nothing; for how long that has been so.
    pub(super) fn unanswered(&mut self, peer: Rank, now: Duration) -> Duration {
        let Some(dial) = self.dials.get_mut(&peer) else { return Duration::ZERO };
        dial.next = Some(now + RETRY);
        now.saturating_sub(dial.since.unwrap_or(now))
    }

    /// This node was stopped itself: what happened meanwhile proves nothing.
    pub(super) fn restart_clocks(&mut self, now: Duration) {
        for dial in self.dials.values_mut() {
            dial.since = dial.since.map(|_| now);
        }
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        self.dials.values().filter_map(|dial| dial.next).min()
    }
}
