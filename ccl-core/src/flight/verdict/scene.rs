//! The states of the ranks, put in order.

use super::words;
use crate::flight::{CallState, RankState, WaitState};
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// What all ranks that were asked have said.
pub(super) struct Scene<'a> {
    /// How many ranks there are.
    pub(super) ranks: u32,
    /// Those that answered.
    pub(super) states: BTreeMap<Rank, &'a RankState>,
    /// Those that did not.
    pub(super) silent: Vec<Rank>,
}

/// Where a rank is in the order of the collectives.
#[derive(Clone, Copy, Debug)]
pub(super) enum At<'a> {
    /// In this one, or it was when it failed.
    In(&'a CallState),
    /// In none, and it has begun so many.
    Before(u64),
}

impl At<'_> {
    /// The number of the call that is not over, or not begun.
    pub(super) fn number(&self) -> u64 {
        match self {
            At::In(call) => call.sequence,
            At::Before(number) => *number,
        }
    }
}

impl<'a> Scene<'a> {
    pub(super) fn new(ranks: u32, states: &'a [(Rank, Option<RankState>)]) -> Scene<'a> {
        let mut known: BTreeMap<Rank, Option<&RankState>> = BTreeMap::new();
        for (rank, state) in states.iter().filter(|(rank, _)| *rank < ranks) {
            let best = known.entry(*rank).or_default();
            // Of two answers the later one counts; any rule does that does not depend on the order.
            let age = |state: &RankState| (state.now_ns, state.calls, state.to_bytes());
            *best = [*best, state.as_ref()].into_iter().flatten().max_by_key(|state| age(state));
        }
        let silent = known.iter().filter(|(_, state)| state.is_none()).map(|(rank, _)| *rank).collect();
        let states = known.into_iter().filter_map(|(rank, state)| Some((rank, state?))).collect();
        Scene { ranks, states, silent }
    }

    pub(super) fn at(state: &RankState) -> At<'_> {
        let running = state.running.iter().find(|call| call.peer.is_none());
        // A call that failed is one that the rank has not finished.
        let failed = || state.last.as_ref().filter(|last| last.failed);
        running.or_else(failed).map_or(At::Before(state.calls), At::In)
    }

    /// Where each rank is that answered.
    pub(super) fn places(&self) -> impl Iterator<Item = (Rank, At<'a>)> {
        self.states.iter().map(|(rank, state)| (*rank, Scene::at(state)))
    }

    /// The transfers that run on a rank.
    pub(super) fn transfers(&self, rank: Rank) -> impl Iterator<Item = (Rank, &'a CallState)> {
        let state = self.states.get(&rank).copied();
        let running = state.into_iter().flat_map(|state| &state.running);
        running.filter_map(|call| Some((call.peer?, call)))
    }

    /// Those, and the last that ended on it: a short send ends before its receive begins.
    pub(super) fn known_transfers(&self, rank: Rank) -> impl Iterator<Item = (Rank, &'a CallState)> {
        let state = self.states.get(&rank).copied();
        let ended = state.into_iter().flat_map(|state| &state.transfers);
        self.transfers(rank).chain(ended.filter_map(|call| Some((call.peer?, call))))
    }

    pub(super) fn waits(&self, rank: Rank) -> &'a [WaitState] {
        self.states.get(&rank).map_or(&[], |state| &state.waits)
    }

    /// For whom a rank waits: what its waits say, or else who is at the other ends of its transfers.
    pub(super) fn waits_for(&self, rank: Rank) -> Vec<Rank> {
        let waits = self.waits(rank).iter().flat_map(|wait| wait.peers.iter().copied());
        let mut peers: Vec<Rank> = waits.filter(|peer| *peer < self.ranks && *peer != rank).collect();
        if peers.is_empty() {
            peers.extend(self.transfers(rank).map(|(peer, _)| peer).filter(|peer| *peer < self.ranks));
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// How long a rank's waits have lasted; without waits, how long its call runs.
    pub(super) fn waited(&self, rank: Rank) -> Option<Duration> {
        let state = self.states.get(&rank)?;
        let waits = state.waits.iter().map(|wait| wait.since_ns);
        let since = waits.min().or_else(|| state.running.iter().filter_map(|call| call.started_ns).min());
        since.map(|since| words::between(since, state.now_ns))
    }

    /// The longest that any of these ranks has waited.
    pub(super) fn longest(&self, ranks: &[Rank]) -> Option<Duration> {
        ranks.iter().filter_map(|rank| self.waited(*rank)).max()
    }
}
