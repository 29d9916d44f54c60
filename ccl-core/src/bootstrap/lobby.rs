//! Listening sockets, and those who knocked and have not yet said who they are.
//!
//! Nobody in here can hold up the ranks of the job: each turn takes in a bounded number of newcomers and reads
//! a bounded number of bytes from each; whoever has not proved itself in time is dropped, however it spends the
//! time; and when the table is full, those go first who have shown the least.

use super::key::Key;
use super::net::Connection;
use super::session::{Purpose, Standing};
use super::wire::Message;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// How long a stranger may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Strangers that are listened to at a time.
const MOST_STRANGERS: usize = 256;

/// Newcomers in one turn.
const MOST_NEWCOMERS: usize = 64;

/// How long nobody is let in when the process or the system has no descriptor left. Meanwhile callers wait
/// in the kernel, and what held the descriptors gets time to end.
const BREATHER: Duration = Duration::from_millis(100);

/// A listener's front room.
#[derive(Debug)]
pub(super) struct Lobby {
    sockets: Vec<TcpListener>,
    key: Key,
    allowed: &'static [Purpose],
    strangers: Vec<Connection>,
    /// Set while nobody is let in.
    closed_until: Option<Instant>,
}

impl Lobby {
    pub(super) fn new(sockets: Vec<TcpListener>, key: Key, allowed: &'static [Purpose]) -> Lobby {
        Lobby { sockets, key, allowed, strangers: Vec::new(), closed_until: None }
    }

    /// Those who have proved themselves, each with its first message. Never waits.
    pub(super) fn greet(&mut self, now: Instant) -> Vec<(Connection, Message)> {
        self.closed_until = self.closed_until.filter(|until| now < *until);
        if self.closed_until.is_none() {
            self.let_in(now);
        }
        let mut known = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            if let Some(message) = stranger.hear() {
                known.push((stranger, message));
            } else if let Some(cause) = &stranger.closed {
                tracing::debug!(peer = stranger.peer(), cause, "a connection was turned away");
            } else if now.saturating_duration_since(stranger.since) < HANDSHAKE {
                self.strangers.push(stranger);
            }
        }
        self.make_room();
        known
    }

    /// What to wait for: sockets, strangers, and when `greet` has something to do even if nothing comes.
    pub(super) fn watch(&mut self) -> (&[TcpListener], &mut [Connection], Option<Instant>) {
        let sockets = if self.closed_until.is_some() { &[] } else { &self.sockets[..] };
        let oldest = self.strangers.iter().map(|s| s.since + HANDSHAKE).min();
        (sockets, &mut self.strangers, oldest.into_iter().chain(self.closed_until).min())
    }

    fn let_in(&mut self, now: Instant) {
        let mut newcomers = 0;
        for socket in &self.sockets {
            while newcomers < MOST_NEWCOMERS {
                match socket.accept() {
                    Ok((stream, _)) => {
                        newcomers += 1;
                        // A socket that died in between is no business of ours.
                        if let Ok(connection) = Connection::accept(stream, self.key, self.allowed) {
                            self.strangers.push(connection);
                        }
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                    // The caller gave up while it waited.
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => newcomers += 1,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections for now; check `ulimit -n`");
                        self.closed_until = Some(now + BREATHER);
                        return;
                    }
                }
            }
        }
    }

    /// Drops strangers from a table that is too full: first the silent, then those who know the job's mark,
    /// the oldest first. Those who have proved themselves stay: only who knows the secret can be one.
    fn make_room(&mut self) {
        for standing in [Standing::Silent, Standing::Named] {
            let mut surplus = self.strangers.len().saturating_sub(MOST_STRANGERS);
            self.strangers.retain(|stranger| {
                let goes = surplus > 0 && stranger.session.standing() == standing;
                surplus -= usize::from(goes);
                !goes
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Session;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    fn key() -> Key {
        Key::from_seed(b"k")
    }

    fn lobby() -> (Lobby, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        (Lobby::new(vec![socket], key(), &[Purpose::Tree]), address)
    }

    fn hello() -> (Session, Vec<u8>) {
        let mut session = Session::dial(key(), Purpose::Tree).unwrap();
        let bytes = std::mem::take(session.outgoing());
        (session, bytes)
    }

    /// Greets until the table holds as many strangers as this.
    fn fill(lobby: &mut Lobby, strangers: usize) {
        let end = Instant::now() + Duration::from_secs(30);
        while lobby.strangers.len() < strangers {
            lobby.greet(Instant::now());
            assert!(Instant::now() < end, "{} of {strangers}", lobby.strangers.len());
        }
    }

    #[test]
    fn whoever_drips_bytes_is_dropped_at_the_same_deadline() {
        let (mut lobby, address) = lobby();
        let mut client = TcpStream::connect(address).unwrap();
        for byte in &hello().1[..20] {
            client.write_all(&[*byte]).unwrap();
            fill(&mut lobby, 1);
            assert!(lobby.greet(Instant::now()).is_empty());
        }
        let opened = lobby.strangers[0].since;
        assert_eq!(lobby.watch().2, Some(opened + HANDSHAKE));
        client.write_all(&[0]).unwrap();
        lobby.greet(opened + HANDSHAKE);
        assert!(lobby.strangers.is_empty());
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    }

    #[test]
    fn a_full_table_keeps_those_who_have_shown_most() {
        let (mut lobby, address) = lobby();
        // The clock stands, so that a slow machine drops nobody.
        let start = Instant::now();
        let mut proved = TcpStream::connect(address).unwrap();
        let (mut session, hello_bytes) = hello();
        proved.write_all(&hello_bytes).unwrap();
        fill(&mut lobby, 1);
        let end = Instant::now() + Duration::from_secs(30);
        while lobby.strangers[0].session.standing() != Standing::Named {
            lobby.greet(start);
            assert!(Instant::now() < end);
        }
        // The proof, without a first message, which is still under way.
        let mut answer = [0; 256];
        let len = proved.read(&mut answer).unwrap();
        session.feed(&answer[..len]);
        session.shake_hands().unwrap();
        proved.write_all(session.outgoing()).unwrap();
        while lobby.strangers[0].session.standing() != Standing::Proved {
            lobby.greet(start);
            assert!(Instant::now() < end);
        }
        let mut named = TcpStream::connect(address).unwrap();
        named.write_all(&hello().1).unwrap();
        while lobby.strangers.iter().all(|s| s.session.standing() != Standing::Named) {
            lobby.greet(start);
            assert!(Instant::now() < end);
        }
        let mut crowd = Vec::new();
        while crowd.len() < MOST_STRANGERS + MOST_NEWCOMERS {
            crowd.extend((0..MOST_NEWCOMERS).map(|_| TcpStream::connect(address).unwrap()));
            lobby.greet(start);
            assert!(lobby.strangers.len() <= MOST_STRANGERS);
        }
        while lobby.strangers.len() < MOST_STRANGERS {
            lobby.greet(start);
            assert!(Instant::now() < end);
        }
        assert_eq!(lobby.strangers.len(), MOST_STRANGERS);
        let standings: Vec<Standing> = lobby.strangers.iter().map(|s| s.session.standing()).collect();
        assert_eq!(standings[..3], [Standing::Proved, Standing::Named, Standing::Silent]);
    }
}
