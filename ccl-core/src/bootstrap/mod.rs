//! Bringing ranks together: from a [`UniqueId`] to a control plane with a deadline on every step.
//!
//! 1. Rank 0 makes a [`UniqueId`], which starts the root service; the user gives the id to all ranks.
//! 2. Every rank [joins](Bootstrap::join): it opens a listener, tells the root who and where it is, and waits.
//!    When all have come, the root gives each its parent's address and a fresh session key, and ends.
//! 3. Each rank connects to its parent. From then on its control thread keeps the ranks connected, whoever goes, and
//!    knows how each of them is; it runs a [control node](crate::control). What it knows lies in the rank's [`Health`].
//!    [`all_gather`](Bootstrap::all_gather), [`barrier`](Bootstrap::barrier) and [`agree`](Bootstrap::agree) run over it in
//!    O(log n) rounds.
//! 4. Transports connect through [`exchange`](Bootstrap::exchange), which swaps blobs between pairs.
//!
//! It promises that every wait ends, at a deadline, with the list of absent ranks; that no message from
//! somebody who does not know the secret has an effect, and none is longer than 64 KiB; and that strangers who
//! connect and say nothing, or nonsense, delay nobody. It does not hide the messages: they carry addresses
//! and names, no user data.

use crate::config::Config;
use crate::control::{self as node, Agreement, Command, End, EndKind, GatherFailed, Loss};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::{self, RankState};
use crate::plan::Rank;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod dial;
mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod health;
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

pub use health::{Health, Observer};
pub use id::{Meeting, UNIQUE_ID_BYTES, UniqueId};
pub use swap::Swapper;

use dial::Dialer;
use driver::Driver;
use key::Key;
use lobby::Lobby;
use net::{Connection, bootstrap_error, wait};
use session::Purpose;
use wire::{Member, Message, Refusal};

/// How much longer than its deadline a rank waits for the root's word on who is absent.
const GRACE: Duration = Duration::from_secs(1);

/// How long a root service that listened before may refuse to be called before it counts as gone.
const NOBODY: Duration = Duration::from_millis(500);

/// How often a rank that still connects tells those who have connected to it that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_millis(200);

/// How long a rank that failed to join tries to tell its neighbours why.
const EXCUSE: Duration = Duration::from_millis(100);

/// How long a rank waits for a verdict: an inquest, and the ways there and back.
const PATIENCE: Duration = Duration::from_millis(2500);

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

/// How a thread is started: with its name and what it does.
pub type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

/// Finds what a rank of a communicator, in this process of this host, says of itself also when it is dead: given the
/// process, the communicator and the rank.
pub type Witness = fn(u32, u64, Rank) -> Option<Testimony>;

/// What a [`Witness`] has found.
pub type Testimony = Box<dyn Fn() -> Option<RankState> + Send>;

/// What joining needs; [`Bootstrap::join`] for the common case.
#[derive(Debug)]
pub struct Joining<'a> {
    /// The job.
    pub id: &'a UniqueId,
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: u32,
    /// The settings.
    pub config: &'a Config,
    /// When to give up.
    pub deadline: Instant,
    /// Where it shall be told how this rank is; aborting it ends the joining too.
    pub health: Arc<Health>,
    /// What starts the control thread.
    pub spawn: Spawn,
    /// Who knows the last words of neighbours on this host.
    pub witness: Witness,
}

impl Joining<'_> {
    /// Joins the job; returns when this rank and its neighbours in the tree and everybody else has joined, or at
    /// the deadline with the list of those who have not.
    pub fn join(self) -> Result<Bootstrap> {
        let Joining { id, rank, ranks, config, deadline, ref health, spawn, .. } = self;
        if ranks == 0 || ranks > MOST_RANKS || rank >= ranks {
            return Err(Error::invalid(
                format!("rank {rank} of {ranks}"),
                format!("ranks go from 0 to size - 1, the size from 1 to {MOST_RANKS}"),
            ));
        }
        let start = Instant::now();
        health.attach(rank)?;
        if id.is_rendezvous() && rank == 0 {
            id.serve_rendezvous(config)?;
        }
        let listeners = listen::listen(config)?;
        let own = own_member(listeners.addresses, config);
        let (root, session, parent) = self.ask_root(own.clone())?;
        tracing::debug!(rank, ranks, elapsed = ?start.elapsed(), "the root has seen all ranks");
        let mut lobby = Lobby::new(listeners.sockets, session, &[Purpose::Tree, Purpose::Swap]);
        let neighbours = self.grow(root, parent, session, &mut lobby)?;
        let driver = Driver::new(&self, session, lobby, neighbours);
        let thread = spawn("ccl-control", Box::new(move || driver.run())).map_err(|e| {
            Error::system("starting the control thread", e, "raise the limit of threads (ulimit -u)")
        })?;
        let (thread, patience) = (Some(thread), config.init_timeout);
        let mut joined =
            Bootstrap { rank, ranks, session, health: Arc::clone(health), thread, failed: None, patience };
        let members = joined.all_gather_until(&own.to_bytes(), deadline)?;
        let members = members
            .iter()
            .map(|bytes| Member::from_bytes(bytes).ok().filter(|m| !m.addresses.is_empty()))
            .collect::<Option<_>>()
            .ok_or_else(|| bootstrap_error("a rank announced itself with something else than an address"))?;
        health.set_members(members);
        tracing::info!(rank, ranks, elapsed = ?start.elapsed(), "joined");
        Ok(joined)
    }

    /// Reports to the root and waits until it has seen everybody.
    fn ask_root(&self, member: Member) -> Result<(Connection, Key, Option<Member>)> {
        let &Joining { id, rank, ranks, deadline, .. } = self;
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
                Some(Message::Welcome { session, parent }) => {
                    return Ok((dialer.connection, Key(session), parent));
                }
                Some(Message::Refusal(Refusal::Absent(absent))) => {
                    let remedy =
                        "check that they were started, with this run's id, and can connect to this host";
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
                return Err(bootstrap_error(format!(
                    "no root service takes this rank: {}",
                    dialer.failures()
                )));
            }
            // The root listens from before there is an id until all have joined, or somebody has failed to.
            if !id.is_rendezvous()
                && start.elapsed() > NOBODY
                && let Some((cause, true)) = dialer.has_failed()
            {
                let what = "no root service any more: rank 0, or whoever made the id, is dead, or the others have failed to join";
                return Err(bootstrap_error(format!("{what} ({cause})")));
            }
            let now = Instant::now();
            if !is_up && now >= deadline {
                let remedy = format!("rank 0's root service was not reached ({})", dialer.failures());
                return Err(timeout(vec![0], remedy));
            }
            if now >= deadline + GRACE {
                return Err(timeout(
                    vec![0],
                    "rank 0's root service is silent; look at its host".to_string(),
                ));
            }
            self.health.check()?;
            let until = if is_up { deadline + GRACE } else { deadline.min(dialer.wake()) };
            self.sleep(&[], std::iter::once(&mut dialer.connection), until)?;
        }
    }

    /// Connects to the parent and lets the children in.
    fn grow(
        &self,
        mut root: Connection,
        parent: Option<Member>,
        session: Key,
        lobby: &mut Lobby,
    ) -> Result<Vec<(Rank, Connection)>> {
        let words = vec![Message::Caller { rank: self.rank }];
        let mut dialer =
            parent.map(|p| Dialer::new(p.addresses, session, Purpose::Tree, words)).transpose()?;
        let mut joined: Vec<(Rank, Connection)> = Vec::new();
        let grown = self.grow_until(&mut root, &mut dialer, lobby, &mut joined);
        match &grown {
            Ok(()) => {
                root.say(Message::Grown);
                let end = Instant::now() + GRACE;
                while !root.is_flushed() && Instant::now() < end {
                    wait(&[], None, std::iter::once(&mut root), end)?;
                    root.hear();
                }
            }
            Err(error) => self.excuse(error, &mut joined)?,
        }
        grown.map(|()| joined)
    }

    /// Tells neighbours that are further why this rank will not come, or they would take it for dead.
    fn excuse(&self, error: &Error, joined: &mut [(Rank, Connection)]) -> Result<()> {
        let why = match error.kind() {
            ErrorKind::PeerLost { peer, cause, .. } => {
                node::Fact::Lost(Loss { rank: *peer, cause: cause.clone(), state: Vec::new() })
            }
            kind => {
                let aborted = matches!(kind, ErrorKind::Aborted);
                let kind = if aborted { EndKind::Aborted } else { EndKind::Failed };
                node::Fact::Ended(End { by: self.rank, kind, text: error.to_string() })
            }
        };
        for fact in [why, node::Fact::Left(self.rank)] {
            let message = Message::Control(node::Message::Fact(fact));
            joined.iter_mut().for_each(|(_, connection)| connection.say(message.clone()));
        }
        let end = Instant::now() + EXCUSE;
        while !joined.iter_mut().all(|(_, connection)| connection.is_flushed()) && Instant::now() < end {
            wait(&[], None, joined.iter_mut().map(|(_, connection)| connection), end)?;
            joined.iter_mut().for_each(|(_, connection)| drop(connection.hear()));
        }
        Ok(())
    }

    fn grow_until(
        &self,
        root: &mut Connection,
        dialer: &mut Option<Dialer>,
        lobby: &mut Lobby,
        joined: &mut Vec<(Rank, Connection)>,
    ) -> Result<()> {
        let &Joining { rank, ranks, deadline, .. } = self;
        let start = Instant::now();
        let mut missing: Vec<Rank> = tree::children(rank, ranks).collect();
        let parent = tree::parent(rank);
        loop {
            for (mut connection, message) in lobby.greet(Instant::now()) {
                let Message::Caller { rank: caller } = message else { continue };
                match connection.session.purpose() {
                    Some(Purpose::Tree) if missing.contains(&caller) => {
                        missing.retain(|child| *child != caller);
                        connection.say(Message::Control(node::Message::Ping { state: Vec::new() }));
                        joined.push((caller, connection));
                    }
                    Some(Purpose::Swap) if caller < rank => self.health.receive_caller(caller, connection),
                    _ => {}
                }
            }
            // Until the parent has said something it may not have let this rank in.
            let heard = dialer.as_mut().map_or(Ok(None), Dialer::hear)?;
            match (parent, heard, dialer.take()) {
                (Some(parent), Some(Message::Control(_)), Some(dialled)) => {
                    joined.push((parent, dialled.connection));
                }
                // The root says why, or the parent comes back.
                (_, _, Some(hung_up)) if hung_up.has_hung_up() => *dialer = Some(hung_up.again()?),
                (_, _, waiting) => *dialer = waiting,
            }
            if missing.is_empty() && dialer.is_none() {
                return Ok(());
            }
            if let Some(Message::Refusal(Refusal::Left { rank, cause })) = root.hear() {
                return Err(Error::lost(rank, cause));
            }
            if let Some(cause) = &root.closed {
                return Err(Error::lost(0, format!("its root service went away: {cause}")));
            }
            let now = Instant::now();
            if now >= deadline {
                missing.extend(dialer.is_some().then_some(parent).flatten());
                return Err(ErrorKind::Timeout {
                    phase: "connecting the control tree".into(),
                    waited: start.elapsed(),
                    absent: missing,
                    remedy: "check that these hosts reach each other, and RDMACCL_SOCKET_IFNAME".into(),
                }
                .into());
            }
            self.health.check()?;
            // Those who have come may count the time since this rank's last word already.
            for (_, connection) in joined.iter_mut() {
                connection.say(Message::Control(node::Message::Ping { state: Vec::new() }));
            }
            let until = dialer.as_ref().map_or(deadline, |d| d.wake().min(deadline)).min(now + SIGN_OF_LIFE);
            let own = dialer.iter_mut().map(|d| &mut d.connection).chain([&mut *root]);
            let (sockets, strangers, wake) = lobby.watch();
            self.sleep(sockets, own.chain(strangers), wake.map_or(until, |wake| wake.min(until)))?;
        }
    }

    /// Sleeps as [`wait`] does, and wakes for an abort.
    fn sleep<'a>(
        &'a self,
        listeners: &'a [TcpListener],
        connections: impl Iterator<Item = &'a mut Connection>,
        until: Instant,
    ) -> Result<()> {
        let bell = self.health.caller_bell();
        wait(listeners, bell, connections, until)?;
        if let Some(bell) = bell {
            health::hush(bell);
        }
        Ok(())
    }
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
        let agreed = self.health.wait(deadline, |state| state.agreed.take(), hopeless)?;
        agreed.ok_or_else(|| {
            self.health.command(Command::GiveUp);
            ErrorKind::Timeout {
                phase: "an agreement among the ranks that are left".into(),
                waited: start.elapsed(),
                absent: Vec::new(),
                remedy: "all of them must call it, at the same place among their agreements".into(),
            }
            .into()
        })
    }

    /// Asks for an inquest and waits for its verdict: the error with which the communicator has ended, which may also
    /// be another; `None` if there is none within a few seconds.
    pub fn inquire(&self, reason: &flight::Reason) -> Option<Error> {
        self.health.command(Command::Inquire { reason: reason.to_bytes() });
        self.health.wait_for_error(PATIENCE)
    }

    /// Ends the communicator for all ranks.
    pub fn end(&self, kind: EndKind, text: impl Into<String>) {
        self.health.command(Command::End(End { by: self.rank, kind, text: text.into() }));
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

fn own_member(addresses: Vec<SocketAddr>, config: &Config) -> Member {
    let host = config
        .host_id
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    Member { host, pid: std::process::id(), addresses }
}
