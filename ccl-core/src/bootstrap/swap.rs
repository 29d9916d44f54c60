//! Swapping blobs between pairs of ranks, and opening streams between them, over their listeners.

use super::Bootstrap;
use super::health::{LAST_WORDS, hush};
use super::net::{Connection, wait};
use super::talk::{Pair, Talk};
use super::wire::MAX_BLOB;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use crate::transport::{Exchange, MOST_STREAMS};
use std::collections::HashSet;
use std::net::TcpStream;
use std::time::Instant;

/// [`Exchange`] over a [`Bootstrap`]; what [`Bootstrap::exchange`] gives.
#[derive(Debug)]
pub struct Swapper<'a> {
    bootstrap: &'a mut Bootstrap,
    deadline: Instant,
}

impl<'a> Swapper<'a> {
    pub(super) fn new(bootstrap: &'a mut Bootstrap, deadline: Instant) -> Swapper<'a> {
        Swapper { bootstrap, deadline }
    }

    fn validate(&self, blobs: &[(Rank, Vec<u8>)]) -> Result<()> {
        let mut named = HashSet::new();
        for (peer, blob) in blobs {
            let what = if *peer == self.bootstrap.rank {
                format!("rank {peer} swaps with itself")
            } else if *peer >= self.bootstrap.ranks {
                format!("a swap names rank {peer} of {}", self.bootstrap.ranks)
            } else if !named.insert(*peer) {
                format!("a swap names rank {peer} twice")
            } else if blob.len() > MAX_BLOB {
                format!("a blob of {} bytes for rank {peer}", blob.len())
            } else {
                continue;
            };
            return Err(Error::invalid(
                what,
                format!("name each other rank once, with at most {MAX_BLOB} bytes"),
            ));
        }
        Ok(())
    }
}

impl Exchange for Swapper<'_> {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        self.validate(blobs)?;
        self.bootstrap.in_step()?;
        let talks: Vec<_> = blobs.iter().map(|(peer, blob)| (*peer, Talk::Swap, &blob[..])).collect();
        // A peer may still answer what was given up here, so the next swap could get the wrong blob.
        let ends = self.hold(&talks).inspect_err(|error| self.bootstrap.fail(error))?;
        Ok(ends.into_iter().map(|(_, answer)| answer).collect())
    }

    fn streams(&mut self, wanted: &[(Rank, u16)]) -> Result<Vec<Vec<TcpStream>>> {
        self.validate(&wanted.iter().map(|(peer, _)| (*peer, Vec::new())).collect::<Vec<_>>())?;
        self.bootstrap.in_step()?;
        if let Some((peer, count)) = wanted.iter().find(|(_, count)| *count > MOST_STREAMS) {
            let what = format!("{count} streams to rank {peer}");
            return Err(Error::invalid(what, format!("at most {MOST_STREAMS}")));
        }
        let numbers = |&(peer, count)| (0..count).map(move |index| (peer, Talk::Stream(index), &[][..]));
        let talks: Vec<_> = wanted.iter().flat_map(numbers).collect();
        let open = |this: &Self| {
            let ends = this.hold(&talks)?.into_iter().zip(&talks);
            let streams = ends.filter_map(|((connection, _), (peer, ..))| Some((connection?, *peer)));
            streams.map(|(connection, peer)| connection.into_stream(peer)).collect::<Result<Vec<_>>>()
        };
        let mut streams = open(self).inspect_err(|error| self.bootstrap.fail(error))?.into_iter();
        Ok(wanted.iter().map(|(_, count)| streams.by_ref().take((*count).into()).collect()).collect())
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn check(&self) -> Result<()> {
        self.bootstrap.check()
    }
}

/// Peers that are called at the same time: hundreds of ranks that all call each other at once would use up the descriptors.
const MOST_CALLS: usize = 32;

impl Swapper<'_> {
    /// What the control plane knows of a peer that has hung up.
    fn explain(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::PeerLost { peer, cause, .. } => {
                let health = &self.bootstrap.health;
                health.explanation(Some(*peer)).unwrap_or_else(|| health.lost_to(*peer, cause.as_str()))
            }
            _ => error,
        }
    }

    /// Holds one talk with each of these until all are over: the connections of those about streams, and what the peers said.
    fn hold(&self, talks: &[(Rank, Talk, &[u8])]) -> Result<Vec<(Option<Connection>, Vec<u8>)>> {
        let start = Instant::now();
        let pair = |&(peer, talk, blob): &(Rank, Talk, _)| Pair::new(self.bootstrap, peer, talk, blob);
        let mut pairs: Vec<_> = talks.iter().map(pair).collect();
        loop {
            for pair in &mut pairs {
                pair.step(self.bootstrap).map_err(|error| self.explain(error))?;
            }
            let calling = pairs.iter().filter(|pair| pair.is_calling()).count();
            for pair in pairs.iter_mut().filter(|pair| pair.is_due()).take(MOST_CALLS - calling) {
                pair.call(self.bootstrap)?;
            }
            if pairs.iter().all(Pair::is_done) {
                let ends = pairs.into_iter().map(|mut pair| {
                    let answer = std::mem::take(&mut pair.answer);
                    (pair.into_connection(), answer)
                });
                return Ok(ends.collect());
            }
            self.bootstrap.check()?;
            let now = Instant::now();
            // Nothing is known of those that nobody has called.
            let pending =
                || pairs.iter().filter(|pair| !pair.is_done() && !pair.is_due()).map(|pair| pair.peer);
            if now - start >= LAST_WORDS
                && let Some(rank) = self.bootstrap.health.who_left(pending())
            {
                return Err(self
                    .bootstrap
                    .health
                    .lost_to(rank, "it closed its communicator before this call"));
            }
            if now >= self.deadline {
                return Err(ErrorKind::Timeout {
                    phase: "swapping connection data".into(),
                    waited: start.elapsed(),
                    absent: pending().collect(),
                    remedy: "all ranks of a call must connect at the same time; look at the logs of these"
                        .into(),
                }
                .into());
            }
            let mut until = self.deadline.min(start.max(now - LAST_WORDS / 2) + LAST_WORDS);
            for dialer in pairs.iter().filter_map(Pair::dialer) {
                until = until.min(dialer.wake());
            }
            let own = pairs.iter_mut().filter_map(Pair::connection);
            let bell = self.bootstrap.health.caller_bell();
            wait(&[], bell, own, until)?;
            if let Some(bell) = bell {
                hush(bell);
            }
        }
    }
}
