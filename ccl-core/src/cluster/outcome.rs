//! What became of the ranks.

use crate::error::Error;
use crate::plan::Rank;
use std::collections::BTreeSet;

/// What became of a cluster.
#[derive(Debug)]
pub struct Outcome {
    /// When nothing could happen any more, in nanoseconds of virtual time.
    pub time: u64,
    /// Every rank.
    pub ranks: Vec<RankOutcome>,
}

/// What became of a rank.
#[derive(Debug)]
pub struct RankOutcome {
    /// How it ended.
    pub state: State,
    /// Its receive buffer; the result where it finished.
    pub output: Vec<u8>,
    /// How often it stepped.
    pub steps: u64,
}

/// How far a rank is.
#[derive(Debug)]
pub enum State {
    /// It has something to do.
    Running,
    /// It waits for others.
    Blocked(Vec<Waiting>),
    /// Its call is complete.
    Finished,
    /// It stopped for ever.
    Dead,
    /// Its call ended with an error.
    Failed(Error),
}

/// What one lane of a rank waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The lane.
    pub lane: usize,
    /// The move in the lane.
    pub mv: usize,
    /// The tile.
    pub tile: usize,
    /// Who could end it: whoever sends the piece, or those who hold the credits.
    pub peers: Vec<Rank>,
}

impl Outcome {
    /// Whether every rank has its result.
    pub fn finished(&self) -> bool {
        self.ranks.iter().all(|r| matches!(r.state, State::Finished))
    }

    /// The rank that the others wait for in the end, if it is one: found by following who waits for whom,
    /// from those that are blocked to those that are neither blocked nor finished. A deadlock has no
    /// culprit.
    pub fn culprit(&self) -> Option<Rank> {
        let mut seen = BTreeSet::new();
        let mut culprits = BTreeSet::new();
        let blocked = |rank: &RankOutcome| matches!(rank.state, State::Blocked(_));
        let mut follow: Vec<Rank> =
            (0..).zip(&self.ranks).filter(|(_, state)| blocked(state)).map(|(rank, _)| rank).collect();
        while let Some(rank) = follow.pop() {
            if !seen.insert(rank) {
                continue;
            }
            match &self.ranks[rank as usize].state {
                State::Blocked(waits) => follow.extend(waits.iter().flat_map(|w| &w.peers)),
                State::Finished => {}
                State::Running | State::Dead | State::Failed(_) => {
                    culprits.insert(rank);
                }
            }
        }
        if culprits.len() == 1 { culprits.first().copied() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(states: Vec<State>) -> Outcome {
        let rank = |state| RankOutcome { state, output: Vec::new(), steps: 0 };
        Outcome { time: 0, ranks: states.into_iter().map(rank).collect() }
    }

    fn on(peers: &[Rank]) -> State {
        State::Blocked(vec![Waiting { lane: 0, mv: 0, tile: 0, peers: peers.to_vec() }])
    }

    #[test]
    fn the_blame_goes_along_the_waits() {
        let states = vec![on(&[1]), on(&[2, 3]), State::Dead, State::Finished, on(&[0])];
        assert_eq!(outcome(states).culprit(), Some(2));
    }

    #[test]
    fn a_deadlock_and_two_dead_have_no_culprit() {
        assert_eq!(outcome(vec![on(&[1]), on(&[0])]).culprit(), None);
        assert_eq!(outcome(vec![on(&[1, 2]), State::Dead, State::Dead]).culprit(), None);
    }
}
