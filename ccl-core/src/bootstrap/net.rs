//! Connections that never block, and waiting for several of them.

use super::key::Key;
use super::session::{Broken, Purpose, Session};
use super::wire::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{ErrorKind as Io, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Silence after which a peer's host is asked whether it is there.
const IDLE: Duration = Duration::from_secs(10);

/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(5);

/// Questions without an answer after which the host is gone.
const PROBES: u32 = 3;

/// Most bytes that one connection is read before the others have their turn.
const READ_AT_ONCE: usize = 64 * 1024;

/// A connection and the conversation on it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    pub(super) session: Session,
    connecting: bool,
    /// When it was opened; handshakes have a deadline of their own.
    pub(super) since: Instant,
    /// Why nothing more can come.
    pub(super) closed: Option<String>,
    /// Whether nothing more can go: the other end has closed. What it said before that may still be on its way.
    mute: bool,
    /// Whether the other end has said what cannot be: nothing that follows is of use, nor a better reason.
    broken: bool,
    /// Whether the other end turned this one away for good.
    pub(super) refused: bool,
    /// Whether nobody listens where it was to go.
    pub(super) nobody: bool,
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
            Err(e) => Some(e),
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
        closed: Option<Errno>,
    ) -> Result<Connection> {
        let nobody = closed == Some(Errno::CONNREFUSED);
        let closed = closed.map(|e| e.to_string());
        let set_up = |e: std::io::Error| Error::system("setting up a connection", e, "check the network");
        stream.set_nonblocking(true).map_err(set_up)?;
        stream.set_nodelay(true).map_err(set_up)?;
        watch_peer(&stream).map_err(|e| set_up(e.into()))?;
        Ok(Connection {
            stream,
            session,
            connecting,
            since: Instant::now(),
            closed,
            mute: false,
            broken: false,
            refused: false,
            nobody,
        })
    }

    /// Whether both ends have proved that they belong together.
    pub(super) fn is_open(&self) -> bool {
        self.session.purpose().is_some()
    }

    /// What a poll should look for.
    pub(super) fn interest(&mut self) -> PollFlags {
        if !self.mute && (self.connecting || !self.session.outgoing().is_empty()) {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Whether everything that was said has left.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.closed.is_some() || self.mute || (self.is_open() && self.session.outgoing().is_empty())
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
        if !self.broken
            && let Err(broken) = self.session.shake_hands()
        {
            self.fail(&broken);
        }
        self.write();
    }

    fn fail(&mut self, broken: &Broken) {
        self.write();
        self.broken = true;
        self.refused = matches!(broken, Broken::Version(_) | Broken::OtherJob);
        self.closed = Some(broken.to_string());
    }

    fn parse(&mut self) -> Option<Message> {
        if self.broken {
            return None;
        }
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
                Err(e) => {
                    self.nobody = e.kind() == Io::ConnectionRefused;
                    self.closed = Some(e.to_string());
                }
            }
        }
    }

    fn write(&mut self) {
        while self.closed.is_none() && !self.mute && !self.session.outgoing().is_empty() {
            match self.stream.write(self.session.outgoing()) {
                Ok(len) => {
                    self.connecting = false;
                    self.session.outgoing().drain(..len);
                }
                Err(e) if e.kind() == Io::WouldBlock => return,
                Err(e) if e.kind() == Io::NotConnected && self.connecting => return,
                Err(e) if e.kind() == Io::Interrupted => {}
                Err(e) if matches!(e.kind(), Io::BrokenPipe | Io::ConnectionReset) => self.mute = true,
                Err(e) => {
                    self.nobody = e.kind() == Io::ConnectionRefused;
                    self.closed = Some(e.to_string());
                }
            }
        }
    }

    /// The bare socket, for a transport; the conversation is over, and nobody has said more than belongs to it.
    pub(super) fn into_stream(self, peer: Rank) -> Result<TcpStream> {
        if self.session.held() > 0 {
            return Err(bootstrap_error(format!(
                "rank {peer} sent on a stream before both were done opening it"
            )));
        }
        if let Some(cause) = self.closed {
            return Err(Error::lost(peer, format!("while connecting: {cause}")));
        }
        // A peer that computes for long takes nothing meanwhile, and is well; who is not, the control plane finds out.
        sockopt::set_tcp_user_timeout(&self.stream, 0)
            .map_err(|e| Error::system("setting up a stream", e, "check the network"))?;
        Ok(self.stream)
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

/// Lets the kernel find out that a peer's host is gone: [`IDLE`] after its last sign of life it is asked,
/// and given up after [`PROBES`] questions without an answer or when what was sent stays unacknowledged as long.
fn watch_peer(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, (IDLE + INTERVAL * PROBES).as_millis() as u32)
}

/// Sleeps until one of these may have something to do, or the bell was rung, or until the deadline.
pub(super) fn wait<'a>(
    listeners: &'a [TcpListener],
    bell: Option<&'a OwnedFd>,
    connections: impl Iterator<Item = &'a mut Connection>,
    until: Instant,
) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    fds.extend(listeners.iter().map(|l| PollFd::from_borrowed_fd(l.as_fd(), PollFlags::IN)));
    fds.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_host_is_noticed_within_half_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let key = Key::from_seed(b"k");
        let dialled = Connection::dial(address, key, Purpose::Tree).unwrap();
        let accepted = Connection::accept(listener.accept().unwrap().0, key, &[Purpose::Tree]).unwrap();
        for connection in [dialled, accepted] {
            assert!(sockopt::socket_keepalive(&connection).unwrap());
            let probing =
                sockopt::tcp_keepintvl(&connection).unwrap() * sockopt::tcp_keepcnt(&connection).unwrap();
            assert!(sockopt::tcp_keepidle(&connection).unwrap() + probing < Duration::from_secs(30));
        }
    }
}
