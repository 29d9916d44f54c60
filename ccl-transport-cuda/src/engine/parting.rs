//! The end of an engine: memory goes when no kernel uses it any more, and none of a peer.

use super::arena::Arena;
use super::{Engine, Parts};
use crate::sys::{Primary, Stream, Words};
use ccl_core::Result;
use ccl_core::plan::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is left of an engine. Somebody steps it until it is over; dropped before, it frees its memory all the same.
pub struct Parting {
    primary: Arc<Primary>,
    rank: Rank,
    /// Those of its host, itself among them: nobody else has its memory.
    here: Vec<Rank>,
    base: u64,
    /// Its peers' words for this rank's goodbye, as this rank's device reaches them.
    told: Vec<u64>,
    arena: Arena,
    stage: Stage,
    parts: Parts,
}

/// How far it is.
enum Stage {
    /// Kernels of this rank may use its memory, and that of its peers.
    Waiting,
    /// Peers' kernels may use its memory.
    Told { stream: Stream, words: Words },
    /// No kernel uses it. Peers may not have closed it yet, which they do right after they have said goodbye.
    Used { since: Instant },
}

/// How long other processes may take to close what they have said to use no more. Whoever frees memory that another process has open
/// is in a place that the driver's manual leaves undefined, and no word can be left there when it is closed.
const GRACE: Duration = Duration::from_secs(1);

impl Parting {
    pub(super) fn new(engine: &Engine, parts: Parts) -> Parting {
        let (rank, arena, hosts) = (engine.terms.rank, engine.terms.arena, &engine.hosts);
        let own = hosts.own();
        let told = parts.peers.iter().map(|(_, mapped)| mapped.address() as u64 + arena.goodbye(own));
        let (primary, told) = (Arc::clone(&engine.primary), told.collect());
        Parting {
            primary,
            rank,
            here: hosts.here().collect(),
            base: engine.base(),
            told,
            arena,
            stage: Stage::Waiting,
            parts,
        }
    }

    /// Ends all waits of this rank's kernels.
    pub fn alarm(&self) {
        self.parts.watch.alarm();
    }

    /// Whether this rank's kernels are over.
    pub fn is_idle(&self) -> Result<bool> {
        Ok(self.parts.over.is_done()? && self.parts.watch.is_quiet())
    }

    /// Does what can be done without waiting for peers: true when all have said goodbye but those that are `gone`.
    pub fn step(&mut self, gone: &[Rank]) -> Result<bool> {
        if let Stage::Waiting = self.stage {
            if !self.is_idle()? {
                return Ok(false);
            }
            // Whoever has this rank's goodbye knows that nothing registered is open here.
            self.parts.registered.iter().for_each(|registered| registered.close());
            let stream = Stream::new(&self.primary)?;
            let words = Words::new(&self.primary, Arena::GOODBYES)?;
            words.store(0, 1);
            for at in &self.told {
                stream.copy_words(words.address(0), *at, 1)?;
            }
            stream.synchronize()?;
            self.parts.peers.clear();
            self.stage = Stage::Told { stream, words };
        }
        if let Stage::Used { since } = &self.stage {
            return Ok(since.elapsed() >= GRACE);
        }
        let Stage::Told { stream, words } = &self.stage else { return Ok(false) };
        let count = self.told.len() + 1;
        stream.copy_words(self.base + self.arena.goodbye(0), words.address(0), count)?;
        stream.synchronize()?;
        let has_gone = |(place, rank): (usize, &Rank)| {
            *rank == self.rank || gone.contains(rank) || words.load(place) != 0
        };
        if self.here.iter().enumerate().all(has_gone) {
            self.stage = Stage::Used { since: Instant::now() };
        }
        Ok(matches!(self.stage, Stage::Used { .. }) && !self.parts.has_strangers)
    }
}
