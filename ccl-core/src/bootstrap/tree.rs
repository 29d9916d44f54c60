//! The control tree: which ranks hold connections to each other, and what goes over them.
//!
//! Rank `r`'s parent is `(r - 1) / 4`. The connections stay open as long as the communicator: a process that
//! dies closes its own, its neighbours tell theirs, and so death is known to all by name.

use super::net::{Connection, wait};
use super::wire::{MAX_PAYLOAD, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Children of a rank: 256 ranks are four levels, and no rank holds more than five connections.
const ARITY: u32 = 4;

/// How much longer than its deadline a rank waits for its parent's word on who is absent.
const GRACE: Duration = Duration::from_secs(1);

/// How often a rank that waits looks whether somebody aborted, and for deaths.
pub(super) const GLANCE: Duration = Duration::from_millis(50);

/// The parent of `rank`; rank 0 has none.
pub(super) fn parent(rank: Rank) -> Option<Rank> {
    Some(rank.checked_sub(1)? / ARITY)
}

/// The children of `rank`.
pub(super) fn children(rank: Rank, ranks: u32) -> impl Iterator<Item = Rank> {
    let first = u64::from(rank) * u64::from(ARITY) + 1;
    (first..first + u64::from(ARITY)).take_while(move |c| *c < u64::from(ranks)).map(|c| c as Rank)
}

/// Whether `rank` is `above` or below it.
fn is_under(mut rank: Rank, above: Rank) -> bool {
    while rank > above {
        rank = parent(rank).expect("a rank above another is not 0");
    }
    rank == above
}

/// This rank's connections in the tree.
#[derive(Debug)]
pub(super) struct Tree {
    rank: Rank,
    ranks: u32,
    neighbours: Vec<Neighbour>,
    /// The first death that was noticed or told.
    lost: Option<(Rank, String)>,
    /// Why this rank may be out of step with the others: the first exchange that failed.
    failed: Option<String>,
    /// Number of the next all-gather.
    sequence: u64,
    /// Set by another thread to end this one's waits.
    aborted: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Neighbour {
    rank: Rank,
    connection: Connection,
    /// What it said ahead of this rank; at most one all-gather's worth.
    inbox: VecDeque<Message>,
    /// It said goodbye.
    left: bool,
}

impl Tree {
    pub(super) fn new(rank: Rank, ranks: u32, connections: Vec<(Rank, Connection)>) -> Tree {
        let neighbour =
            |(rank, connection)| Neighbour { rank, connection, inbox: VecDeque::new(), left: false };
        Tree {
            rank,
            ranks,
            neighbours: connections.into_iter().map(neighbour).collect(),
            lost: None,
            failed: None,
            sequence: 0,
            aborted: Arc::default(),
        }
    }

    pub(super) fn aborted(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.aborted)
    }

    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.neighbours.iter_mut().map(|n| &mut n.connection)
    }

    /// Takes in what has come, without waiting; an error where somebody is dead, or has aborted this rank.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.aborted.load(Ordering::Relaxed) {
            return Err(ErrorKind::Aborted.into());
        }
        let most = 2 * self.ranks as usize + 16;
        let mut news = Vec::new();
        for neighbour in &mut self.neighbours {
            while let Some(message) = neighbour.connection.hear() {
                match message {
                    Message::Goodbye => neighbour.left = true,
                    Message::Lost { rank, cause } => news.push((neighbour.rank, rank, cause)),
                    message if neighbour.inbox.len() < most => neighbour.inbox.push_back(message),
                    _ => neighbour.connection.closed = Some("it sent more than a call can need".into()),
                }
            }
            match &neighbour.connection.closed {
                Some(cause) if !neighbour.left => news.push((neighbour.rank, neighbour.rank, cause.clone())),
                _ => {}
            }
        }
        for (teller, rank, cause) in news {
            if self.lost.is_none() {
                tracing::warn!(rank, cause, "a rank is lost");
                self.tell(&Message::Lost { rank, cause: cause.clone() }, Some(teller));
                self.lost = Some((rank, cause));
            }
        }
        match &self.lost {
            Some((peer, cause)) => Err(Error::lost(*peer, cause.clone())),
            None => Ok(()),
        }
    }

    /// [`ErrorKind::Broken`] after an exchange that failed: the ranks no longer agree on what comes next.
    pub(super) fn in_step(&self) -> Result<()> {
        match (&self.lost, &self.failed) {
            (None, Some(cause)) => Err(ErrorKind::Broken(cause.clone()).into()),
            _ => Ok(()),
        }
    }

    /// Remembers that an exchange failed.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failed.get_or_insert_with(|| error.to_string());
    }

    /// Everybody's bytes, by rank.
    pub(super) fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.in_step()?;
        self.gather(bytes, deadline).inspect_err(|error| self.fail(error))
    }

    fn gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let start = Instant::now();
        let mut round = Round {
            sequence: self.sequence,
            arrived: vec![None; self.ranks as usize],
            reported: vec![false; self.ranks as usize],
            missing: self.ranks as usize,
        };
        self.sequence += 1;
        self.upward(&mut round, vec![(self.rank, bytes.to_vec())]);
        loop {
            let lost = self.check();
            let absent = self.advance(&mut round);
            if round.missing == 0 && self.connections().all(|c| c.is_flushed()) {
                return Ok(round.arrived.into_iter().flatten().collect());
            }
            let now = Instant::now();
            let patience = if self.rank == 0 { Duration::ZERO } else { GRACE };
            let absent = match absent {
                None if now >= deadline + patience => {
                    let absent = self.absent(&round);
                    self.tell(&Message::Absent { sequence: round.sequence, absent: absent.clone() }, None);
                    Some(absent)
                }
                other => other,
            };
            if let Some(absent) = absent {
                return Err(ErrorKind::Timeout {
                    phase: format!("the all-gather among {} ranks", self.ranks),
                    waited: start.elapsed(),
                    absent,
                    remedy: "look at their logs, or raise RDMACCL_INIT_TIMEOUT".into(),
                }
                .into());
            }
            lost?;
            self.still_needed(&round)?;
            wait(&[], self.connections(), (deadline + patience).min(now + GLANCE))?;
        }
    }

    /// Says goodbye, so that closing is not taken for death.
    pub(super) fn close(mut self) {
        // Whoever is dead by now does not matter to one who leaves.
        let _ = self.check();
        self.tell(&Message::Goodbye, None);
        let end = Instant::now() + GRACE;
        while !self.connections().all(|c| c.is_flushed()) && Instant::now() < end {
            if wait(&[], self.connections(), end).is_err() || self.check().is_err() {
                return;
            }
        }
    }

    fn advance(&mut self, round: &mut Round) -> Option<Vec<Rank>> {
        for index in 0..self.neighbours.len() {
            let from = self.neighbours[index].rank;
            while let Some(message) = self.neighbours[index].inbox.pop_front() {
                match message {
                    Message::Gather { sequence, entries } if sequence == round.sequence => {
                        if from > self.rank {
                            self.upward(round, entries);
                        } else {
                            self.downward(round, entries);
                        }
                    }
                    Message::Absent { sequence, absent } if sequence == round.sequence => {
                        self.tell(&Message::Absent { sequence, absent: absent.clone() }, Some(from));
                        return Some(absent);
                    }
                    Message::Gather { sequence, .. } | Message::Absent { sequence, .. }
                        if sequence > round.sequence =>
                    {
                        self.neighbours[index].inbox.push_front(message);
                        break;
                    }
                    // What is left of a round that failed.
                    _ => {}
                }
            }
        }
        None
    }

    /// Entries on their way to rank 0, which turns them round when all have come.
    fn upward(&mut self, round: &mut Round, entries: Vec<(Rank, Vec<u8>)>) {
        for (rank, _) in &entries {
            if let Some(reported) = round.reported.get_mut(*rank as usize) {
                *reported = true;
            }
        }
        if self.rank != 0 {
            self.send(parent(self.rank), Message::Gather { sequence: round.sequence, entries });
            return;
        }
        let complete = round.missing == 0;
        round.store(&entries);
        if round.missing == 0 && !complete {
            let sequence = round.sequence;
            for entries in round.batches() {
                self.tell(&Message::Gather { sequence, entries }, None);
            }
        }
    }

    /// Entries on their way to everybody.
    fn downward(&mut self, round: &mut Round, entries: Vec<(Rank, Vec<u8>)>) {
        round.store(&entries);
        self.tell(&Message::Gather { sequence: round.sequence, entries }, parent(self.rank));
    }

    /// An error where a rank has left that this round still needs. The others are told, as of a death: they
    /// wait for it too.
    fn still_needed(&mut self, round: &Round) -> Result<()> {
        let ranks = 0..self.ranks;
        let needed = |n: &Neighbour| {
            if n.rank < self.rank {
                round.missing > 0
            } else {
                ranks.clone().any(|r| !round.reported[r as usize] && is_under(r, n.rank))
            }
        };
        let gone = self.neighbours.iter().find(|n| n.left && n.inbox.is_empty() && needed(n));
        let Some(rank) = gone.map(|n| n.rank) else { return Ok(()) };
        let cause = "it closed its communicator before this call".to_string();
        self.tell(&Message::Lost { rank, cause: cause.clone() }, None);
        self.lost = Some((rank, cause.clone()));
        Err(Error::lost(rank, cause))
    }

    /// Who did not come, as far as this rank can know: ranks below it, or else its parent.
    fn absent(&self, round: &Round) -> Vec<Rank> {
        let silent = |r: &Rank| !round.reported[*r as usize] && is_under(*r, self.rank);
        let below: Vec<Rank> = (0..self.ranks).filter(silent).take(8192).collect();
        if below.is_empty() { parent(self.rank).into_iter().collect() } else { below }
    }

    fn send(&mut self, to: Option<Rank>, message: Message) {
        for neighbour in self.neighbours.iter_mut().filter(|n| Some(n.rank) == to) {
            neighbour.connection.say(message.clone());
        }
    }

    fn tell(&mut self, message: &Message, except: Option<Rank>) {
        for neighbour in self.neighbours.iter_mut().filter(|n| Some(n.rank) != except && !n.left) {
            neighbour.connection.say(message.clone());
        }
    }
}

/// One all-gather under way.
struct Round {
    sequence: u64,
    arrived: Vec<Option<Vec<u8>>>,
    /// Ranks whose entry passed here on its way up.
    reported: Vec<bool>,
    missing: usize,
}

impl Round {
    fn store(&mut self, entries: &[(Rank, Vec<u8>)]) {
        for (rank, bytes) in entries {
            if let Some(slot @ None) = self.arrived.get_mut(*rank as usize) {
                *slot = Some(bytes.clone());
                self.missing -= 1;
            }
        }
    }

    /// All entries, in lists that fit a frame.
    fn batches(&self) -> Vec<Vec<(Rank, Vec<u8>)>> {
        let mut batches = vec![Vec::new()];
        let mut bytes_in_last = 0;
        for (rank, bytes) in self.arrived.iter().enumerate() {
            let bytes = bytes.clone().unwrap_or_default();
            if bytes_in_last + bytes.len() + 8 > MAX_PAYLOAD / 2 {
                batches.push(Vec::new());
                bytes_in_last = 0;
            }
            bytes_in_last += bytes.len() + 8;
            batches.last_mut().expect("there is one from the start").push((rank as Rank, bytes));
        }
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for ranks in 1..200 {
            for rank in 0..ranks {
                assert!(children(rank, ranks).all(|c| parent(c) == Some(rank) && is_under(c, rank)));
                let claimed = (0..ranks).filter(|r| children(*r, ranks).any(|c| c == rank)).count();
                assert_eq!(claimed, usize::from(rank > 0));
            }
        }
        assert_eq!(children(u32::MAX, u32::MAX).count(), 0);
        assert!(is_under(21, 1) && !is_under(21, 2));
    }
}
