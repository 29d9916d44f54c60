//! Ranks that a node wants to be connected to and is not.

use crate::plan::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two refusals that mean that a rank is lost. In between the word may come that it has left.
const SECOND_LOOK: Duration = Duration::from_millis(250);

/// Between two dials of a rank that does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// After that long a dial is slow: others are dialled beside it.
const SLOW: Duration = Duration::from_millis(100);

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
    /// When it will be slow, if it is not yet.
    slow: Option<Duration>,
    refused: bool,
    /// How it came to nothing last.
    cause: Option<String>,
}

impl Dials {
    /// Plans to dial `peer` at a time. What was dialled already keeps its own times.
    pub(super) fn plan(&mut self, peer: Rank, at: Duration) {
        let dial = self.dials.entry(peer).or_insert(Dial {
            next: Some(at),
            since: None,
            slow: None,
            refused: false,
            cause: None,
        });
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

    /// Whether a dial was refused or is slow: that rank may be gone, and whoever comes after it may know.
    pub(super) fn is_suspect(&self, peer: Rank) -> bool {
        self.dials
            .get(&peer)
            .is_some_and(|dial| dial.refused || (dial.since.is_some() && dial.slow.is_none()))
    }

    /// Ranks that have refused.
    pub(super) fn refusals(&self) -> usize {
        self.dials.values().filter(|dial| dial.refused).count()
    }

    pub(super) fn has_suspects(&self) -> bool {
        self.dials.keys().any(|peer| self.is_suspect(*peer))
    }

    /// Whether some dial has become slow.
    pub(super) fn look(&mut self, now: Duration) -> bool {
        let slow = self.dials.values_mut().filter_map(|dial| dial.slow.take_if(|time| *time <= now));
        slow.count() > 0
    }

    /// Whom to dial now.
    pub(super) fn due(&mut self, now: Duration) -> Vec<Rank> {
        let mut due = Vec::new();
        for (peer, dial) in &mut self.dials {
            if dial.next.is_some_and(|next| next <= now) {
                dial.next = None;
                if dial.since.is_none() {
                    (dial.since, dial.slow) = (Some(now), Some(now + SLOW));
                }
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

    /// A dial came to nothing, which may change.
    pub(super) fn unanswered(&mut self, peer: Rank, cause: String, now: Duration) {
        if let Some(dial) = self.dials.get_mut(&peer) {
            dial.next = Some(now + RETRY);
            dial.cause = Some(cause);
        }
    }

    /// Ranks that have not answered for that long, however often they were dialled; for how long, and what came of it last.
    pub(super) fn silent(&self, freeze: Duration, now: Duration) -> Vec<(Rank, Duration, String)> {
        let silent = self.dials.iter().filter_map(|(peer, dial)| {
            let silence = now.saturating_sub(dial.since?);
            let cause = || dial.cause.clone().unwrap_or_else(|| "no answer".into());
            (silence >= freeze).then(|| (*peer, silence, cause()))
        });
        silent.collect()
    }

    /// When the first rank will not have answered for that long.
    pub(super) fn next_silence(&self, freeze: Duration) -> Option<Duration> {
        self.dials.values().filter_map(|dial| dial.since).min().map(|since| since + freeze)
    }

    /// Takes off time for which this node is to blame.
    pub(super) fn forgive(&mut self, late: Duration, now: Duration) {
        for dial in self.dials.values_mut() {
            dial.since = dial.since.map(|since| (since + late).min(now));
            dial.slow = dial.slow.map(|slow| (slow + late).min(now + SLOW));
        }
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        self.dials.values().flat_map(|dial| dial.next.into_iter().chain(dial.slow)).min()
    }
}
