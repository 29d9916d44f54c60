//! Sockets: listeners, connections that never block, and waiting for several of them.

use super::key::Key;
use super::session::{Broken, Purpose, Session};
use super::wire::Message;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{ErrorKind as Io, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Connections that may wait in the kernel: a whole job arrives at once.
const BACKLOG: i32 = 4096;

/// Most bytes that one connection is read before the others have their turn.
const READ_AT_ONCE: usize = 64 * 1024;

/// Listens on all addresses of this machine, on a free port or one of the configured range.
pub(super) fn listen(config: &Config) -> Result<TcpListener> {
    match &config.port_range {
        None => listen_on(0, config).map_err(|e| Error::system("listen", e, "check the limits on sockets")),
        Some(range) => range.clone().find_map(|port| listen_on(port, config).ok()).ok_or_else(|| {
            bootstrap_error(format!(
                "no free port in {}-{}; widen RDMACCL_PORT_RANGE, each rank needs one port and rank 0 two",
                range.start(),
                range.end()
            ))
        }),
    }
}

/// Listens on this port of all addresses.
pub(super) fn listen_on(port: u16, config: &Config) -> rustix::io::Result<TcpListener> {
    let v6 = || bind(AddressFamily::INET6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let v4 = || bind(AddressFamily::INET, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    if config.socket_family.allows_v6() {
        match v6() {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if config.socket_family.allows_v4() => v4(),
            other => other,
        }
    } else {
        v4()
    }
}

fn bind(family: AddressFamily, address: SocketAddr) -> rustix::io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// A connection and the conversation on it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    pub(super) session: Session,
    connecting: bool,
    /// When it was opened; handshakes have a deadline of their own.
    pub(super) since: Instant,
    /// Why nothing more can come or go.
    pub(super) closed: Option<String>,
    /// Whether the other end turned this one away for good.
    refused: bool,
}

impl Connection {
    /// Starts to connect. Failing at once and failing later look the same.
    pub(super) fn dial(address: SocketAddr, key: Key, purpose: Purpose) -> Result<Connection> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|e| Error::system("socket", e, "check `ulimit -n`"))?;
        let closed = match net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => None,
            Err(e) => Some(e.to_string()),
        };
        Connection::new(TcpStream::from(socket), Session::dial(key, purpose)?, true, closed)
    }

    /// Takes over an accepted socket.
    pub(super) fn accept(stream: TcpStream, key: Key, allowed: &'static [Purpose]) -> Result<Connection> {
        Connection::new(stream, Session::accept(key, allowed)?, false, None)
    }

    fn new(
        stream: TcpStream,
        session: Session,
        connecting: bool,
        closed: Option<String>,
    ) -> Result<Connection> {
        let set_up = |e: std::io::Error| Error::system("setting up a connection", e, "check the network");
        stream.set_nonblocking(true).map_err(set_up)?;
        stream.set_nodelay(true).map_err(set_up)?;
        sockopt::set_socket_keepalive(&stream, true).map_err(|e| set_up(e.into()))?;
        Ok(Connection { stream, session, connecting, since: Instant::now(), closed, refused: false })
    }

    /// Whether both ends have proved that they belong together.
    pub(super) fn is_open(&self) -> bool {
        self.session.purpose().is_some()
    }

    /// What a poll should look for.
    pub(super) fn interest(&mut self) -> PollFlags {
        if self.connecting || !self.session.outgoing().is_empty() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Whether everything that was said has left.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.closed.is_some() || (self.is_open() && self.session.outgoing().is_empty())
    }

    /// Says something and sends what goes without waiting.
    pub(super) fn say(&mut self, message: Message) {
        self.session.say(message);
        self.write();
    }

    /// The next message, after moving what can be moved without waiting. A closed connection still
    /// gives the messages that came before its end.
    pub(super) fn hear(&mut self) -> Option<Message> {
        if let Some(message) = self.parse() {
            return Some(message);
        }
        self.read();
        let message = self.parse();
        self.write();
        message
    }

    /// Goes on with the handshake, without taking a message.
    pub(super) fn shake(&mut self) {
        self.read();
        if let Err(broken) = self.session.shake_hands() {
            self.fail(&broken);
        }
        self.write();
    }

    fn fail(&mut self, broken: &Broken) {
        self.write();
        self.refused = matches!(broken, Broken::Version(_) | Broken::OtherJob);
        self.closed = Some(broken.to_string());
    }

    fn parse(&mut self) -> Option<Message> {
        match self.session.hear() {
            Ok(message) => message,
            Err(broken) => {
                self.fail(&broken);
                None
            }
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 8192];
        let mut total = 0;
        while self.closed.is_none() && total < READ_AT_ONCE {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = Some("the connection was closed".to_string()),
                Ok(len) => {
                    self.connecting = false;
                    total += len;
                    self.session.feed(&buffer[..len]);
                }
                Err(e) if e.kind() == Io::WouldBlock => return,
                Err(e) if e.kind() == Io::NotConnected && self.connecting => return,
                Err(e) if e.kind() == Io::Interrupted => {}
                Err(e) => self.closed = Some(e.to_string()),
            }
        }
    }

    fn write(&mut self) {
        while self.closed.is_none() && !self.session.outgoing().is_empty() {
            match self.stream.write(self.session.outgoing()) {
                Ok(len) => {
                    self.connecting = false;
                    self.session.outgoing().drain(..len);
                }
                Err(e) if e.kind() == Io::WouldBlock => return,
                Err(e) if e.kind() == Io::NotConnected && self.connecting => return,
                Err(e) if e.kind() == Io::Interrupted => {}
                Err(e) => self.closed = Some(e.to_string()),
            }
        }
    }

    pub(super) fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|_| "a closed socket".to_string(), |a| plain(a).to_string())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sleeps until one of these may have something to do, or until the deadline.
pub(super) fn wait<'a>(
    listener: Option<&'a TcpListener>,
    connections: impl Iterator<Item = &'a mut Connection>,
    until: Instant,
) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    if let Some(listener) = listener {
        fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
    }
    for connection in connections.filter(|c| c.closed.is_none()) {
        let interest = connection.interest();
        let connection: &'a Connection = connection;
        fds.push(PollFd::from_borrowed_fd(connection.as_fd(), interest));
    }
    let limit = until.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(Error::system("poll", e, "check `ulimit -n`")),
    }
}

/// An IPv4 address that came through a listener for both families, written as itself.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether it is of use to other hosts.
pub(super) fn is_remote(ip: &IpAddr) -> bool {
    !ip.is_loopback()
}

pub(super) fn bootstrap_error(what: impl Into<String>) -> Error {
    ErrorKind::Bootstrap { what: what.into(), source: None }.into()
}

/// How long a stranger may take to prove itself.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Strangers that are listened to at a time; the oldest makes room for a newcomer.
const MOST_STRANGERS: usize = 512;

/// A listener and those who knocked and have not yet said who they are.
#[derive(Debug)]
pub(super) struct Lobby {
    pub(super) listener: TcpListener,
    key: Key,
    allowed: &'static [Purpose],
    pub(super) strangers: Vec<Connection>,
}

impl Lobby {
    pub(super) fn new(listener: TcpListener, key: Key, allowed: &'static [Purpose]) -> Lobby {
        Lobby { listener, key, allowed, strangers: Vec::new() }
    }

    /// Those who have proved themselves, each with its first message. Never waits; whoever is slow, wrong
    /// or silent is dropped without keeping the others.
    pub(super) fn greet(&mut self) -> Result<Vec<(Connection, Message)>> {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.strangers.len() == MOST_STRANGERS {
                self.strangers.remove(0);
            }
            // A socket that died in between is no business of ours.
            if let Ok(connection) = Connection::accept(stream, self.key, self.allowed) {
                self.strangers.push(connection);
            }
        }
        let mut known = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            if let Some(message) = stranger.hear() {
                known.push((stranger, message));
            } else if let Some(cause) = &stranger.closed {
                tracing::debug!(peer = stranger.peer(), cause, "a connection was turned away");
            } else if stranger.since.elapsed() < HANDSHAKE {
                self.strangers.push(stranger);
            }
        }
        Ok(known)
    }
}

/// Keeps connecting to a peer that may not listen yet, at whichever of its addresses answers.
#[derive(Debug)]
pub(super) struct Dialer {
    addresses: Vec<SocketAddr>,
    key: Key,
    purpose: Purpose,
    words: Vec<Message>,
    attempts: usize,
    /// When the next attempt starts.
    retry_at: Instant,
    /// Why the latest attempt at each address failed, and whether the other end refused for good.
    failures: Vec<(String, bool)>,
    pub(super) connection: Connection,
}

/// How long an address may leave a call unanswered before the next one is tried.
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
        let failures = vec![("no answer".to_string(), false); addresses.len()];
        let retry_at = Instant::now() + ATTEMPT;
        Ok(Dialer { addresses, key, purpose, words, attempts: 0, retry_at, failures, connection })
    }

    /// The next message from the other end. Dials again where an attempt came to nothing.
    pub(super) fn hear(&mut self) -> Result<Option<Message>> {
        if self.connection.is_open() {
            return Ok(self.connection.hear());
        }
        if self.connect()? { Ok(self.connection.hear()) } else { Ok(None) }
    }

    /// Goes on connecting; true once both ends have proved themselves.
    pub(super) fn connect(&mut self) -> Result<bool> {
        self.connection.shake();
        if self.connection.is_open() {
            return Ok(true);
        }
        let now = Instant::now();
        if let Some(cause) = &self.connection.closed {
            let failure = &mut self.failures[self.attempts % self.addresses.len()];
            if failure.0 != *cause {
                *failure = (cause.clone(), self.connection.refused);
            }
            self.retry_at = self.retry_at.min(self.connection.since + self.pause());
        }
        if now >= self.retry_at {
            self.attempts += 1;
            let address = self.addresses[self.attempts % self.addresses.len()];
            self.connection = Connection::dial(address, self.key, self.purpose)?;
            self.words.iter().cloned().for_each(|word| self.connection.say(word));
            self.retry_at = now + ATTEMPT;
        }
        Ok(false)
    }

    /// When `hear` has something to do even if nothing arrives.
    pub(super) fn wake(&self) -> Instant {
        match self.connection.closed {
            Some(_) => self.retry_at.min(self.connection.since + self.pause()),
            None => self.retry_at,
        }
    }

    /// Whether every address has refused for good.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failures.iter().all(|(_, refused)| *refused)
    }

    /// What became of each address.
    pub(super) fn failures(&self) -> String {
        let each = self.addresses.iter().zip(&self.failures).map(|(a, (cause, _))| format!("{a}: {cause}"));
        each.collect::<Vec<_>>().join("; ")
    }

    /// From 2 ms to a quarter of a second between rounds; the addresses of one round follow at once.
    fn pause(&self) -> Duration {
        let round = self.attempts / self.addresses.len();
        Duration::from_millis((2 << round.min(7)) as u64)
    }
}
