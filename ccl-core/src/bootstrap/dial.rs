//! Connecting to a peer, at whichever of its addresses answers.

use super::key::Key;
use super::net::{Connection, bootstrap_error};
use super::session::Purpose;
use super::wire::Message;
use crate::error::Result;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Keeps connecting to a peer that may not listen yet, at whichever of its addresses answers.
#[derive(Debug)]
pub(super) struct Dialer {
    addresses: Vec<SocketAddr>,
    key: Key,
    purpose: Purpose,
    words: Vec<Message>,
    attempts: usize,
    /// How long an address may leave a call unanswered before the next one is tried.
    patience: Duration,
    /// When the next attempt starts.
    retry_at: Instant,
    /// What became of the latest attempt at each address.
    failures: Vec<Failure>,
    pub(super) connection: Connection,
    /// Whether the conversation has begun; from then on its end is the peer's.
    up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// None yet, or the attempt is under way.
    Untried,
    /// It came to nothing, which may change.
    Passing(String),
    /// Nobody listens there.
    Nobody(String),
    /// Another job or another version answered.
    Final(String),
}

/// The most that an address may leave a call unanswered before the next one is tried.
const ATTEMPT: Duration = Duration::from_secs(3);

impl Dialer {
    /// Starts to connect, to say `words` as soon as both ends have proved themselves.
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        key: Key,
        purpose: Purpose,
        words: Vec<Message>,
    ) -> Result<Dialer> {
        let first = *addresses.first().ok_or_else(|| bootstrap_error("a peer announced no address"))?;
        let mut connection = Connection::dial(first, key, purpose)?;
        words.iter().cloned().for_each(|word| connection.say(word));
        let failures = vec![Failure::Untried; addresses.len()];
        let (patience, retry_at) = (ATTEMPT, Instant::now() + ATTEMPT);
        let (attempts, up) = (0, false);
        Ok(Dialer { addresses, key, purpose, words, attempts, patience, retry_at, failures, connection, up })
    }

    /// For a call that is of use for so long only: each address gets its turn before that.
    pub(super) fn within(mut self, time: Duration) -> Dialer {
        self.patience = self.patience.min(time / (self.addresses.len() as u32 + 1));
        self.retry_at = self.retry_at.min(self.connection.since + self.patience);
        self
    }

    /// The next message from the other end. Dials again where an attempt came to nothing.
    pub(super) fn hear(&mut self) -> Result<Option<Message>> {
        if self.connect()? { Ok(self.connection.hear()) } else { Ok(None) }
    }

    /// Goes on connecting; true once both ends have proved themselves.
    pub(super) fn connect(&mut self) -> Result<bool> {
        if self.up {
            return Ok(true);
        }
        self.connection.shake();
        // A rank that was stopped for a while may find an answer and, behind it, that it was given up.
        self.up = self.connection.is_open() && self.connection.closed.is_none();
        if self.up {
            return Ok(true);
        }
        let now = Instant::now();
        let pause = self.pause();
        let failure = &mut self.failures[self.attempts % self.addresses.len()];
        if let Some(cause) = &self.connection.closed {
            *failure = match self.connection.refused {
                true => Failure::Final(cause.clone()),
                false if self.connection.nobody => Failure::Nobody(cause.clone()),
                false => Failure::Passing(cause.clone()),
            };
            self.retry_at = self.retry_at.min(self.connection.since + pause);
        }
        if now >= self.retry_at {
            if self.connection.closed.is_none() {
                *failure = Failure::Passing("no answer".to_string());
            }
            self.attempts += 1;
            let address = self.addresses[self.attempts % self.addresses.len()];
            self.connection = Connection::dial(address, self.key, self.purpose)?;
            self.words.iter().cloned().for_each(|word| self.connection.say(word));
            self.retry_at = now + self.patience;
        }
        Ok(false)
    }

    /// Whether the other end has closed a conversation that had begun.
    pub(super) fn has_hung_up(&self) -> bool {
        self.up && self.connection.closed.is_some()
    }

    /// Starts anew.
    pub(super) fn again(self) -> Result<Dialer> {
        Dialer::new(self.addresses, self.key, self.purpose, self.words)
    }

    /// Whether both ends have proved themselves.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// When `hear` has something to do even if nothing arrives.
    pub(super) fn wake(&self) -> Instant {
        match self.connection.closed {
            Some(_) => self.retry_at.min(self.connection.since + self.pause()),
            None => self.retry_at,
        }
    }

    /// Whether some address has refused for good, and no other gives hope.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failures.iter().all(|failure| *failure != Failure::Untried)
            && self.failures.iter().any(|failure| matches!(failure, Failure::Final(_)))
    }

    /// Once every address has failed: how, and whether nobody of this job listens at any of them.
    pub(super) fn has_failed(&self) -> Option<(String, bool)> {
        let gone = |failure: &Failure| matches!(failure, Failure::Nobody(_) | Failure::Final(_));
        let tried = self.failures.iter().all(|failure| *failure != Failure::Untried);
        tried.then(|| (self.failures(), self.failures.iter().all(gone)))
    }

    /// What became of each address.
    pub(super) fn failures(&self) -> String {
        let each = self.addresses.iter().zip(&self.failures).map(|(address, failure)| match failure {
            Failure::Untried => format!("{address}: no answer"),
            Failure::Passing(cause) | Failure::Nobody(cause) | Failure::Final(cause) => {
                format!("{address}: {cause}")
            }
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// From 2 ms to a quarter of a second between rounds; the addresses of one round follow at once.
    fn pause(&self) -> Duration {
        let round = self.attempts / self.addresses.len();
        Duration::from_millis((2 << round.min(7)) as u64)
    }
}
