//! Bringing ranks together: from a [`UniqueId`] to a control plane with a deadline on every step.
//!
//! 1. Rank 0 makes a [`UniqueId`], which starts the root service; the user gives the id to all ranks.
//! 2. Every rank [joins](Bootstrap::join): it opens a listener, tells the root who and where it is, and waits.
//!    When all have come, the root gives each its parent's address and a fresh session key, and ends.
//! 3. Each rank connects to its parent. From then on its control thread keeps the ranks connected, whoever goes, and
//!    knows how each of them is; it runs a [control node](crate::control). What it knows lies in the rank's [`Health`].
//!    [`all_gather`](Bootstrap::all_gather), [`barrier`](Bootstrap::barrier) and [`agree`](Bootstrap::agree) run over it in
//!    O(log n) rounds.
//! 4. Transports connect through [`exchange`](Bootstrap::exchange), which swaps blobs between pairs, and opens streams between
//!    them for transports that need some: one door per rank, and one proof, for whatever comes over the network.
//!
//! It promises that every wait ends, at a deadline, with the list of absent ranks; that no message from
//! somebody who does not know the secret has an effect, and none is longer than 64 KiB; and that strangers who
//! connect and say nothing, or nonsense, delay nobody. It does not hide the messages: they carry addresses
//! and names, no user data.

use crate::config::Config;
use crate::control::{Agreement, Command, GatherFailed};
use crate::error::{Error, ErrorKind, Result};
use crate::flight;
use crate::plan::Rank;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod dial;
mod driver;
pub(crate) mod fuzzing;
mod health;
mod id;
mod interfaces;
mod joining;
mod key;
pub mod launch;
mod listen;
mod lobby;
mod net;
mod root;
mod session;
mod swap;
mod talk;
#[cfg(test)]
mod tests;
mod tree;
mod wire;

pub use health::{Health, Observer};
pub use id::{Meeting, UNIQUE_ID_BYTES, UniqueId};
pub use joining::{Joining, Spawn, Testimony, Witness};
pub use swap::Swapper;

use key::Key;
use wire::Member;

/// How much longer than its deadline a rank waits for the root's word on who is absent.
const GRACE: Duration = Duration::from_secs(1);

/// Ranks of a job at most: what one root service and the lists in its messages hold.
pub const MOST_RANKS: u32 = 8192;

/// One rank's place among the others.
#[derive(Debug)]
pub struct Bootstrap {
    rank: Rank,
    ranks: u32,
    session: Key,
    health: Arc<Health>,
    /// The control thread, until this rank leaves.
    thread: Option<JoinHandle<()>>,
    /// Why this rank may be out of step with the others: the first exchange that failed.
    failed: Option<String>,
    patience: Duration,
    /// Whether the user has named interfaces, so that streams are spread over them.
    several_interfaces: bool,
}

/// Where a rank lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of its host, or `RDMACCL_HOSTID`.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its preferred address in the bootstrap.
    pub address: SocketAddr,
}

impl Bootstrap {
    /// Joins the job of this id as one of `ranks`, with a control thread like any other and nobody to abort it.
    pub fn join(
        id: &UniqueId,
        rank: Rank,
        ranks: u32,
        config: &Config,
        deadline: Instant,
    ) -> Result<Bootstrap> {
        let spawn: Spawn = |name, body| std::thread::Builder::new().name(name.into()).spawn(body);
        let (health, witness) = (Arc::default(), (|_, _, _| None) as Witness);
        Joining { id, rank, ranks, config, deadline, health, spawn, witness }.join()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// A number that all ranks of this job have in common, and no other job has.
    pub fn identity(&self) -> u64 {
        identity_of(&self.session)
    }

    /// Where each rank lives, by rank.
    pub fn peers(&self) -> Vec<Peer> {
        let peer = |m: &Member| Peer { host: m.host.clone(), pid: m.pid, address: m.addresses[0] };
        self.health.members().iter().map(peer).collect()
    }

    /// Where this rank listens, best first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.health.members()[self.rank as usize].addresses.clone()
    }

    /// How this rank is.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Everybody's bytes, by rank; at most 4096 of each. Waits for `RDMACCL_INIT_TIMEOUT` at most.
    ///
    /// After an all-gather or a swap that failed, the ranks no longer agree on what comes next: every later one
    /// gives [`ErrorKind::Broken`], or [`ErrorKind::PeerLost`] where a rank is dead.
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_until(bytes, Instant::now() + self.patience)
    }

    /// [`all_gather`](Bootstrap::all_gather) with a deadline of its own.
    pub fn all_gather_until(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        if bytes.len() > wire::MAX_BLOB {
            let what = format!("{} bytes in an all-gather of the bootstrap", bytes.len());
            return Err(Error::invalid(what, format!("give at most {}", wire::MAX_BLOB)));
        }
        self.in_step()?;
        self.gather(bytes, deadline).inspect_err(|error| self.fail(error))
    }

    fn gather(&self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let start = Instant::now();
        let timeout = |absent: Vec<Rank>| -> Error {
            ErrorKind::Timeout {
                phase: format!("the all-gather among {} ranks", self.ranks),
                waited: start.elapsed(),
                absent,
                remedy: "look at their logs, or raise RDMACCL_INIT_TIMEOUT".into(),
            }
            .into()
        };
        self.health.state.lock().gathered = None;
        let limit = deadline.saturating_duration_since(start);
        self.health.command(Command::Gather { bytes: bytes.to_vec(), deadline: limit });
        let patience = deadline + 2 * GRACE;
        let gathered = self.health.wait(patience, |state| state.gathered.take(), |_, state| state.error())?;
        match gathered {
            Some(Ok(all)) => Ok(all),
            Some(Err(GatherFailed { absent, left: true })) => {
                let rank = absent.first().copied().unwrap_or_default();
                Err(self.health.lost_to(rank, "it closed its communicator before this call"))
            }
            Some(Err(GatherFailed { absent, left: false })) => Err(timeout(absent)),
            None => {
                self.health.command(Command::GiveUp);
                Err(timeout(Vec::new()))
            }
        }
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Agrees with all ranks that are not gone: everyone gets the and of all flags, the blob of the lowest rank that
    /// gave one (at most 256 bytes), and who is gone. Also when ranks die meanwhile, and after the communicator has ended.
    pub fn agree(&self, flags: u64, blob: &[u8], deadline: Instant) -> Result<Agreement> {
        let start = Instant::now();
        self.health.state.lock().agreed = None;
        self.health.command(Command::Agree { flags, blob: blob.to_vec() });
        let hopeless = |health: &Health, state: &health::State| {
            let excluded = state.error().filter(|e| matches!(e.kind(), ErrorKind::Excluded { .. }));
            excluded.or_else(|| health.is_aborted().then(|| ErrorKind::Aborted.into()))
        };
        if let Some(agreed) = self.health.wait(deadline, |state| state.agreed.take(), hopeless)? {
            return Ok(agreed);
        }
        self.health.state.lock().unagreed = None;
        self.health.command(Command::GiveUp);
        // An agreement that has come just now is one all the same.
        let last = |state: &mut health::State| {
            let absent = state.unagreed.take();
            state.agreed.take().map(Ok).or_else(|| absent.map(Err))
        };
        let last = self.health.wait(deadline + GRACE, last, hopeless)?;
        last.unwrap_or_else(|| Err(Vec::new())).map_err(|absent| {
            ErrorKind::Timeout {
                phase: "an agreement among the ranks that are left".into(),
                waited: start.elapsed(),
                absent,
                remedy: "all of them must call it, at the same place among their agreements".into(),
            }
            .into()
        })
    }

    /// Asks for an inquest and waits for its verdict: the error with which the communicator has ended, which may also
    /// be another; `None` if there is none within a few seconds.
    pub fn inquire(&self, reason: &flight::Reason) -> Option<Error> {
        self.health.inquire(reason)
    }

    /// Declares ranks lost.
    pub fn exclude(&self, ranks: &[Rank]) {
        let cause = format!("rank {} has excluded it", self.rank);
        self.health.command(Command::Exclude { ranks: ranks.to_vec(), cause });
    }

    /// Swaps blobs between pairs of ranks until the deadline.
    pub fn exchange(&mut self, deadline: Instant) -> Swapper<'_> {
        Swapper::new(self, deadline)
    }

    /// Looks without waiting: an error where calls cannot go on, because a rank is dead, say.
    pub fn check(&self) -> Result<()> {
        self.health.check()
    }

    /// [`ErrorKind::Broken`] after an exchange that failed: the ranks no longer agree on what comes next.
    fn in_step(&self) -> Result<()> {
        self.check()?;
        self.failed.as_ref().map_or(Ok(()), |cause| Err(ErrorKind::Broken(cause.clone()).into()))
    }

    /// Remembers that an exchange failed.
    fn fail(&mut self, error: &Error) {
        self.failed.get_or_insert_with(|| error.to_string());
    }
}

/// Leaves in order. What else there is to say, of a panic or an abort, must have been said.
impl Drop for Bootstrap {
    fn drop(&mut self) {
        self.health.command(Command::Leave);
        if let Some(thread) = self.thread.take() {
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

fn identity_of(session: &Key) -> u64 {
    u64::from_le_bytes(*session.derive(&[b"identity"]).0.first_chunk().expect("a key has 32 bytes"))
}
