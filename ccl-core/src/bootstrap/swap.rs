//! Swapping blobs between pairs of ranks, over their listeners.

use super::Bootstrap;
use super::dial::Dialer;
use super::health::hush;
use super::net::{Connection, bootstrap_error, wait};
use super::session::Purpose;
use super::wire::{MAX_BLOB, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use crate::transport::Exchange;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// [`Exchange`] over a [`Bootstrap`]; what [`Bootstrap::exchange`] gives.
#[derive(Debug)]
pub struct Swapper<'a> {
    bootstrap: &'a mut Bootstrap,
    deadline: Instant,
}

/// One pair's swap under way.
enum Side {
    /// This rank has the lower number and connects.
    Dialling(Dialer),
    /// This rank has the higher number and waits to be called.
    Called(Option<Connection>),
    /// The answer is on its way out.
    Leaving(Connection),
    Done,
}

impl<'a> Swapper<'a> {
    pub(super) fn new(bootstrap: &'a mut Bootstrap, deadline: Instant) -> Swapper<'a> {
        Swapper { bootstrap, deadline }
    }

    fn begin(&self, peer: Rank, blob: &[u8]) -> Result<Side> {
        let own = self.bootstrap.rank;
        if peer < own {
            return Ok(Side::Called(None));
        }
        let words = vec![Message::Caller { rank: own }, Message::Blob(blob.to_vec())];
        let addresses = self.bootstrap.health.members()[peer as usize].addresses.clone();
        Ok(Side::Dialling(Dialer::new(addresses, self.bootstrap.session, Purpose::Swap, words)?))
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
        // A peer may still answer what was given up here, so the next swap could get the wrong blob.
        self.run(blobs).inspect_err(|error| self.bootstrap.fail(error))
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn check(&self) -> Result<()> {
        self.bootstrap.check()
    }
}

/// What a peer that has left has said before may still be on its way; for so long it is waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long the control plane may take to know why a peer has hung up.
const EXPLANATION: Duration = Duration::from_millis(500);

impl Swapper<'_> {
    /// What the control plane knows of a peer that has hung up.
    fn explain(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::PeerLost { peer, cause, .. } => {
                let health = &self.bootstrap.health;
                health.wait_for_error(EXPLANATION).unwrap_or_else(|| health.lost_to(*peer, cause.as_str()))
            }
            _ => error,
        }
    }

    fn run(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let start = Instant::now();
        let mut sides: Vec<Side> =
            blobs.iter().map(|(peer, blob)| self.begin(*peer, blob)).collect::<Result<_>>()?;
        let mut answers = vec![None; blobs.len()];
        loop {
            for ((side, answer), (peer, blob)) in sides.iter_mut().zip(&mut answers).zip(blobs) {
                side.step(*peer, blob, answer, self.bootstrap).map_err(|error| self.explain(error))?;
            }
            if sides.iter().all(|side| matches!(side, Side::Done)) {
                return Ok(answers.into_iter().flatten().collect());
            }
            self.bootstrap.check()?;
            let now = Instant::now();
            let pending = || sides.iter().zip(blobs).filter(|(side, _)| !matches!(side, Side::Done));
            if now - start >= LAST_WORDS
                && let Some(rank) = self.bootstrap.health.who_left(pending().map(|(_, (peer, _))| *peer))
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
                    absent: pending().map(|(_, (peer, _))| *peer).collect(),
                    remedy: "all ranks of a call must connect at the same time; look at the logs of these"
                        .into(),
                }
                .into());
            }
            let mut until = self.deadline.min(start.max(now - LAST_WORDS / 2) + LAST_WORDS);
            for side in &sides {
                if let Side::Dialling(dialer) = side
                    && !dialer.is_up()
                {
                    until = until.min(dialer.wake());
                }
            }
            let own = sides.iter_mut().filter_map(Side::connection);
            let bell = self.bootstrap.health.caller_bell();
            wait(&[], bell, own, until)?;
            if let Some(bell) = bell {
                hush(bell);
            }
        }
    }
}

impl Side {
    fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Side::Dialling(dialer) => Some(&mut dialer.connection),
            Side::Called(connection) => connection.as_mut(),
            Side::Leaving(connection) => Some(connection),
            Side::Done => None,
        }
    }

    /// Goes as far as it can without waiting.
    fn step(
        &mut self,
        peer: Rank,
        blob: &[u8],
        answer: &mut Option<Vec<u8>>,
        bootstrap: &Bootstrap,
    ) -> Result<()> {
        match self {
            Side::Dialling(dialer) => match dialer.hear()? {
                Some(Message::Blob(bytes)) => {
                    *answer = Some(bytes);
                    *self = Side::Done;
                }
                Some(_) => {
                    return Err(bootstrap_error(format!("rank {peer} answered a swap with something else")));
                }
                None if dialer.is_up() => lost(peer, &dialer.connection)?,
                None => {}
            },
            Side::Called(waiting) => {
                if waiting.is_none() {
                    *waiting = bootstrap.health.take_caller(peer);
                }
                let Some(connection) = waiting else { return Ok(()) };
                match connection.hear() {
                    Some(Message::Blob(bytes)) => {
                        *answer = Some(bytes);
                        connection.say(Message::Blob(blob.to_vec()));
                        if let Some(connection) = waiting.take() {
                            *self = Side::Leaving(connection);
                            return self.step(peer, blob, answer, bootstrap);
                        }
                    }
                    Some(_) => {
                        return Err(bootstrap_error(format!("rank {peer} began a swap with something else")));
                    }
                    None => lost(peer, connection)?,
                }
            }
            Side::Leaving(connection) => {
                connection.hear();
                if connection.is_flushed() {
                    *self = Side::Done;
                }
            }
            Side::Done => {}
        }
        Ok(())
    }
}

/// An error where a conversation that had begun is over.
fn lost(peer: Rank, connection: &Connection) -> Result<()> {
    match &connection.closed {
        Some(cause) => Err(Error::lost(peer, format!("while swapping connection data: {cause}"))),
        None => Ok(()),
    }
}
