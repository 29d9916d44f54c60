//! Bringing ranks together: from a [`UniqueId`] to a tree of connections with a deadline on every step.
//!
//! 1. Rank 0 makes a [`UniqueId`], which starts the root service; the user gives the id to all ranks.
//! 2. Every rank calls [`Bootstrap::join`]: it opens a listener, tells the root who and where it is, and waits.
//!    When all have come, the root gives each its parent's address and a fresh session key, and ends.
//! 3. Each rank connects to its parent. The tree stays: [`all_gather`](Bootstrap::all_gather) and
//!    [`barrier`](Bootstrap::barrier) run over it in O(log n) rounds, and [`check`](Bootstrap::check) sees deaths on it.
//! 4. Transports connect through [`exchange`](Bootstrap::exchange), which swaps blobs between pairs.
//!
//! It promises that every wait ends, at a deadline, with the list of absent ranks; that no message from
//! somebody who does not know the secret has an effect, and none is longer than 64 KiB; and that strangers who
//! connect and say nothing, or nonsense, delay nobody. It does not hide the messages: they carry addresses
//! and names, no user data.

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

mod dial;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod id;
mod interfaces;
mod key;
pub mod launch;
mod listen;
mod lobby;
mod net;
mod root;
mod session;
mod swap;
#[cfg(test)]
mod tests;
mod tree;
mod wire;

pub use id::{UNIQUE_ID_BYTES, UniqueId};
pub use swap::Swapper;

use dial::Dialer;
use key::Key;
use lobby::Lobby;
use net::{Connection, bootstrap_error, wait};
use session::Purpose;
use tree::Tree;
use wire::{Member, Message, Refusal};

/// How much longer than its deadline a rank waits for the root's word on who is absent.
const GRACE: std::time::Duration = std::time::Duration::from_secs(1);

/// Ranks of a job at most: what one root service and the lists in its messages hold.
pub const MOST_RANKS: u32 = 8192;

/// One rank's place among the others.
#[derive(Debug)]
pub struct Bootstrap {
    rank: Rank,
    ranks: u32,
    session: Key,
    lobby: Lobby,
    /// Peers that called for a swap before this rank named them; one connection each at most.
    callers: BTreeMap<Rank, Connection>,
    tree: Tree,
    members: Vec<Member>,
    patience: std::time::Duration,
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
    /// Joins the job of this id as one of `ranks`; returns when this rank and its neighbours in the tree and
    /// everybody else has joined, or at the deadline with the list of those who have not.
    pub fn join(
        id: &UniqueId,
        rank: Rank,
        ranks: u32,
        config: &Config,
        deadline: Instant,
    ) -> Result<Bootstrap> {
        if ranks == 0 || ranks > MOST_RANKS || rank >= ranks {
            return Err(Error::invalid(
                format!("rank {rank} of {ranks}"),
                format!("ranks go from 0 to size - 1, the size from 1 to {MOST_RANKS}"),
            ));
        }
        let start = Instant::now();
        if id.is_rendezvous() && rank == 0 {
            id.serve_rendezvous(config)?;
        }
        let listeners = listen::listen(config)?;
        let own = own_member(listeners.addresses, config);
        let (session, parent) = ask_root(id, rank, ranks, own.clone(), deadline)?;
        tracing::debug!(rank, ranks, elapsed = ?start.elapsed(), "the root has seen all ranks");
        let mut lobby = Lobby::new(listeners.sockets, session, &[Purpose::Tree, Purpose::Swap]);
        let mut callers = BTreeMap::new();
        let tree = grow(rank, ranks, parent, session, &mut lobby, &mut callers, deadline)?;
        let patience = config.init_timeout;
        let mut joined =
            Bootstrap { rank, ranks, session, lobby, callers, tree, members: Vec::new(), patience };
        let members = joined.tree.all_gather(&own.to_bytes(), deadline)?;
        joined.members = members
            .iter()
            .map(|bytes| Member::from_bytes(bytes).ok().filter(|m| !m.addresses.is_empty()))
            .collect::<Option<_>>()
            .ok_or_else(|| bootstrap_error("a rank announced itself with something else than an address"))?;
        tracing::info!(rank, ranks, elapsed = ?start.elapsed(), "joined");
        Ok(joined)
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Where each rank lives, by rank.
    pub fn peers(&self) -> Vec<Peer> {
        let peer = |m: &Member| Peer { host: m.host.clone(), pid: m.pid, address: m.addresses[0] };
        self.members.iter().map(peer).collect()
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
        self.tree.all_gather(bytes, deadline)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Swaps blobs between pairs of ranks until the deadline.
    pub fn exchange(&mut self, deadline: Instant) -> Swapper<'_> {
        Swapper::new(self, deadline)
    }

    /// Looks at the tree without waiting: [`ErrorKind::PeerLost`] where a rank is dead. A few system calls;
    /// also passes on what others have told, so call it every few milliseconds while waiting for peers.
    pub fn check(&mut self) -> Result<()> {
        self.tree.check()
    }

    /// What ends this rank's waits here with [`ErrorKind::Aborted`], from any thread, when it is set.
    pub fn aborted(&self) -> Arc<AtomicBool> {
        self.tree.aborted()
    }

    /// Leaves in order. Dropping a `Bootstrap` instead is death in the eyes of the others.
    pub fn close(self) {
        self.tree.close();
    }

    /// Lets in whoever has called, without waiting.
    fn receive_callers(&mut self) {
        for (connection, message) in self.lobby.greet(Instant::now()) {
            // A newer call of a peer replaces one that came to nothing.
            if let (Message::Caller { rank }, Some(Purpose::Swap)) = (message, connection.session.purpose())
                && rank < self.rank
            {
                self.callers.insert(rank, connection);
            }
        }
    }
}

fn own_member(addresses: Vec<SocketAddr>, config: &Config) -> Member {
    let host = config
        .host_id
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    Member { host, pid: std::process::id(), addresses }
}

/// Reports to the root and waits until it has seen everybody.
fn ask_root(
    id: &UniqueId,
    rank: Rank,
    ranks: u32,
    member: Member,
    deadline: Instant,
) -> Result<(Key, Option<Member>)> {
    let start = Instant::now();
    let patience_ms = deadline.saturating_duration_since(start).as_millis() as u64;
    let words = vec![Message::Join { rank, ranks, patience_ms, member }];
    let mut dialer = Dialer::new(id.addresses(), id.key(), Purpose::Join, words)?;
    let timeout = |absent: Vec<Rank>, remedy: String| -> Error {
        let phase = format!("initialisation of rank {rank} of {ranks}");
        ErrorKind::Timeout { phase, waited: start.elapsed(), absent, remedy }.into()
    };
    loop {
        match dialer.hear()? {
            Some(Message::Welcome { session, parent }) => return Ok((Key(session), parent)),
            Some(Message::Refusal(Refusal::Absent(absent))) => {
                let remedy = "check that they were started, with this run's id, and can connect to this host";
                return Err(timeout(absent, remedy.to_string()));
            }
            Some(Message::Refusal(Refusal::Conflict(text))) => return Err(bootstrap_error(text)),
            Some(Message::Refusal(Refusal::Left { rank, cause })) => {
                return Err(Error::lost(rank, cause));
            }
            Some(_) => return Err(bootstrap_error("the root answered with something else")),
            None => {}
        }
        let is_up = dialer.is_up();
        if let (true, Some(cause)) = (is_up, &dialer.connection.closed) {
            return Err(bootstrap_error(format!("rank 0's root service went away: {cause}")));
        }
        if !id.is_rendezvous() && dialer.is_hopeless() {
            return Err(bootstrap_error(format!("no root service takes this rank: {}", dialer.failures())));
        }
        let now = Instant::now();
        if !is_up && now >= deadline {
            let remedy = format!("rank 0's root service was not reached ({})", dialer.failures());
            return Err(timeout(vec![0], remedy));
        }
        if now >= deadline + GRACE {
            return Err(timeout(vec![0], "rank 0's root service is silent; look at its host".to_string()));
        }
        let until = if is_up { deadline + GRACE } else { deadline.min(dialer.wake()) };
        wait(&[], std::iter::once(&mut dialer.connection), until)?;
    }
}

/// Connects to the parent and lets the children in.
fn grow(
    rank: Rank,
    ranks: u32,
    parent: Option<Member>,
    session: Key,
    lobby: &mut Lobby,
    callers: &mut BTreeMap<Rank, Connection>,
    deadline: Instant,
) -> Result<Tree> {
    let start = Instant::now();
    let mut missing: Vec<Rank> = tree::children(rank, ranks).collect();
    let mut joined: Vec<(Rank, Connection)> = Vec::new();
    let words = vec![Message::Caller { rank }];
    let mut dialer = parent.map(|p| Dialer::new(p.addresses, session, Purpose::Tree, words)).transpose()?;
    let parent = tree::parent(rank);
    loop {
        for (connection, message) in lobby.greet(Instant::now()) {
            let Message::Caller { rank: caller } = message else { continue };
            match connection.session.purpose() {
                Some(Purpose::Tree) if missing.contains(&caller) => {
                    missing.retain(|child| *child != caller);
                    joined.push((caller, connection));
                }
                Some(Purpose::Swap) if caller < rank => drop(callers.insert(caller, connection)),
                _ => {}
            }
        }
        let is_up = dialer.as_mut().map_or(Ok(false), Dialer::connect)?;
        if let (true, Some(parent), Some(dialling)) = (is_up, parent, dialer.take_if(|_| is_up)) {
            joined.push((parent, dialling.connection));
        }
        if missing.is_empty() && dialer.is_none() {
            return Ok(Tree::new(rank, ranks, joined));
        }
        if Instant::now() >= deadline {
            missing.extend(dialer.is_some().then_some(parent).flatten());
            return Err(ErrorKind::Timeout {
                phase: "connecting the control tree".into(),
                waited: start.elapsed(),
                absent: missing,
                remedy: "check that these hosts reach each other, and RDMACCL_SOCKET_IFNAME".into(),
            }
            .into());
        }
        let until = dialer.as_ref().map_or(deadline, |d| d.wake().min(deadline));
        let own = dialer.iter_mut().map(|d| &mut d.connection);
        let (sockets, strangers, wake) = lobby.watch();
        wait(sockets, own.chain(strangers), wake.map_or(until, |wake| wake.min(until)))?;
    }
}
