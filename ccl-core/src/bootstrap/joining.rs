//! Joining: from an id to a rank that is connected to its neighbours and has a control thread.

use super::dial::Dialer;
use super::driver::Driver;
use super::health::{self, Health};
use super::key::Key;
use super::lobby::Lobby;
use super::net::{Connection, bootstrap_error, wait};
use super::session::Purpose;
use super::talk::Caller;
use super::wire::{Member, Message, Refusal};
use super::{Bootstrap, GRACE, MOST_RANKS, UniqueId, listen, tree};
use crate::config::Config;
use crate::control::{self as node, End, EndKind, Loss};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::RankState;
use crate::plan::Rank;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a rank that still connects tells those who have connected to it that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_millis(200);

/// How long a rank that failed to join tries to tell its neighbours why.
const EXCUSE: Duration = Duration::from_millis(100);

/// How long a root service that listened before may refuse to be called before it counts as gone.
const NOBODY: Duration = Duration::from_millis(500);

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
        let mut lobby =
            Lobby::new(listeners.sockets, session, &[Purpose::Tree, Purpose::Swap, Purpose::Stream]);
        let neighbours = self.grow(root, parent, session, &mut lobby)?;
        let driver = Driver::new(&self, session, lobby, neighbours);
        let thread = spawn("ccl-control", Box::new(move || driver.run())).map_err(|e| {
            Error::system("starting the control thread", e, "raise the limit of threads (ulimit -u)")
        })?;
        let (thread, patience) = (Some(thread), config.init_timeout);
        let several_interfaces = config.socket_ifname.is_some();
        let mut joined = Bootstrap {
            rank,
            ranks,
            session,
            health: Arc::clone(health),
            thread,
            failed: None,
            patience,
            several_interfaces,
        };
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
            Err(error) => {
                // The parent may have let this rank in by now; what it said of that was not heard yet.
                let dialled = tree::parent(self.rank).zip(dialer.filter(Dialer::is_up));
                joined.extend(dialled.map(|(parent, dialer)| (parent, dialer.connection)));
                self.excuse(error, &mut joined)?;
            }
        }
        grown.map(|()| joined)
    }

    /// Tells neighbours that are further why this rank will not come, or they would take it for dead.
    fn excuse(&self, error: &Error, joined: &mut [(Rank, Connection)]) -> Result<()> {
        let why = match (self.health.untold_end(), error.kind()) {
            (Some(end), _) => node::Fact::Ended(End { by: self.rank, ..end }),
            (None, ErrorKind::PeerLost { peer, cause, .. }) => {
                node::Fact::Lost(Loss { rank: *peer, cause: cause.clone(), state: Vec::new() })
            }
            (None, _) => {
                node::Fact::Ended(End { by: self.rank, kind: EndKind::Failed, text: error.to_string() })
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
                let Some(caller) = Caller::of(&connection, &message) else { continue };
                match caller {
                    Caller::Neighbour(caller) if missing.contains(&caller) => {
                        missing.retain(|child| *child != caller);
                        connection.say(Message::Control(node::Message::Ping { state: Vec::new() }));
                        joined.push((caller, connection));
                    }
                    Caller::Neighbour(_) => {}
                    Caller::Peer(peer, talk) => self.health.receive_caller(rank, (peer, talk), connection),
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

fn own_member(addresses: Vec<SocketAddr>, config: &Config) -> Member {
    let host = config
        .host_id
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    Member { host, pid: std::process::id(), addresses }
}
