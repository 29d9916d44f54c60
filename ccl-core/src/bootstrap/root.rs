//! The root service: waits for all ranks, and tells each its parent in the tree.

use super::MOST_RANKS;
use super::health::{bell, ring};
use super::key::Key;
use super::lobby::Lobby;
use super::net::{Connection, wait};
use super::session::Purpose;
use super::tree;
use super::wire::{Member, Message, Refusal};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the last words may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// Ends a root service before its time. Dropping it does not.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    bell: Arc<OwnedFd>,
    stopped: Arc<AtomicBool>,
}

impl Stop {
    pub(super) fn stop(&self) {
        // The bell orders it.
        self.stopped.store(true, Ordering::Relaxed);
        ring(&self.bell);
    }
}

/// Starts the service. Its thread ends by itself.
pub(super) fn serve(sockets: Vec<TcpListener>, key: Key, config: &Config) -> Result<Stop> {
    let patience = config.init_timeout;
    let stop = Stop { bell: Arc::new(bell()?), stopped: Arc::default() };
    let root = Root {
        stop: stop.clone(),
        lobby: Lobby::new(sockets, key, &[Purpose::Join]),
        ranks: None,
        guests: BTreeMap::new(),
        leaving: Vec::new(),
        last_word: None,
        deadline: Instant::now() + patience,
    };
    std::thread::Builder::new()
        .name("rdmaccl-root".into())
        .spawn(move || {
            if let Err(error) = root.run() {
                tracing::error!(%error, "the root service failed");
            }
        })
        .map(|_| stop)
        .map_err(|e| Error::system("starting the root service's thread", e, "check `ulimit -u`"))
}

struct Root {
    stop: Stop,
    lobby: Lobby,
    /// How many ranks the job has, once the first one has said it.
    ranks: Option<(u32, Rank)>,
    guests: BTreeMap<Rank, Guest>,
    /// Connections whose last words are on their way.
    leaving: Vec<Connection>,
    /// What ranks are told that come when it has failed.
    last_word: Option<Refusal>,
    /// The earliest of the guests' deadlines, so that every one gets its answer in time.
    deadline: Instant,
}

struct Guest {
    connection: Connection,
    member: Member,
}

impl Root {
    fn run(mut self) -> Result<()> {
        let verdict = loop {
            let guests = self.guests.values_mut().map(|g| &mut g.connection);
            let (sockets, strangers, wake) = self.lobby.watch();
            let pending = strangers.iter_mut().chain(guests).chain(&mut self.leaving);
            wait(
                sockets,
                Some(&self.stop.bell),
                pending,
                wake.map_or(self.deadline, |wake| wake.min(self.deadline)),
            )?;
            if self.stop.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            for (connection, message) in self.lobby.greet(Instant::now()) {
                self.admit(connection, message);
            }
            if let Some(refusal) = self.verdict() {
                break Some(refusal);
            }
            if self.ranks.is_some_and(|(ranks, _)| self.guests.len() == ranks as usize) {
                break None;
            }
            self.leaving.retain_mut(|c| {
                c.hear();
                !c.is_flushed()
            });
        };
        match verdict {
            None => {
                self.welcome()?;
                self.attend()?;
            }
            Some(refusal) => {
                tracing::warn!(?refusal, "initialisation failed");
                for guest in self.guests.values_mut() {
                    guest.connection.say(Message::Refusal(refusal.clone()));
                }
                if let Refusal::Left { .. } = refusal {
                    self.last_word = Some(refusal);
                }
            }
        }
        self.farewell()
    }

    /// A refusal that concerns everybody.
    fn verdict(&mut self) -> Option<Refusal> {
        for (&rank, guest) in &mut self.guests {
            // Nothing is to be said between joining and the welcome.
            let spoke = guest.connection.hear().is_some();
            if let Some(cause) = &guest.connection.closed {
                let cause = format!("{} left during initialisation: {cause}", describe(rank, &guest.member));
                self.guests.remove(&rank);
                return Some(Refusal::Left { rank, cause });
            }
            if spoke {
                let what = format!("rank {rank} spoke out of turn");
                return Some(Refusal::Conflict(what));
            }
        }
        if Instant::now() < self.deadline {
            return None;
        }
        let ranks = self.ranks.map_or(0, |(ranks, _)| ranks);
        let absent = (0..ranks).filter(|r| !self.guests.contains_key(r)).take(8192).collect();
        Some(Refusal::Absent(absent))
    }

    fn admit(&mut self, connection: Connection, message: Message) {
        let Message::Join { rank, ranks, patience_ms, member } = message else { return };
        let who = describe(rank, &member);
        // No rank of ours says this, so it must not decide what the others are measured by.
        let wrong = if rank >= ranks || ranks > MOST_RANKS {
            Some(format!("{who} says that it is one of {ranks} ranks, of which there are 1 to {MOST_RANKS}"))
        } else if member.addresses.is_empty() {
            Some(format!("{who} has announced no address"))
        } else {
            None
        };
        if let Some(text) = wrong {
            return self.refuse(connection, Refusal::Conflict(text));
        }
        tracing::debug!(rank, ranks, host = member.host, pid = member.pid, "a rank has come");
        // It may have come together with the two that do not fit each other: no job begins any more.
        if let Some(refusal) = self.last_word.clone() {
            return self.refuse(connection, refusal);
        }
        let (expected, first) = *self.ranks.get_or_insert((ranks, rank));
        if ranks != expected {
            let text = format!(
                "{who} was started as one of {ranks} ranks, rank {first} as one of {expected}; give all the same size"
            );
            let refusal = Refusal::Conflict(text);
            let guests = std::mem::take(&mut self.guests).into_values().map(|guest| guest.connection);
            for connection in std::iter::once(connection).chain(guests) {
                self.refuse(connection, refusal.clone());
            }
            self.last_word = Some(refusal);
            // Nobody is left to wait for.
            self.deadline = Instant::now();
        } else if let Some(other) = self.guests.get(&rank) {
            let text = format!(
                "{who} came, but {} is there already; give each process its own rank",
                describe(rank, &other.member)
            );
            self.refuse(connection, Refusal::Conflict(text));
        } else {
            let patience = Instant::now() + Duration::from_millis(patience_ms.min(86_400_000));
            self.deadline = if self.guests.is_empty() { patience } else { self.deadline.min(patience) };
            self.guests.insert(rank, Guest { connection, member });
        }
    }

    /// Says why this one cannot take part, and lets it go once it has heard.
    fn refuse(&mut self, mut connection: Connection, refusal: Refusal) {
        connection.say(Message::Refusal(refusal));
        self.leaving.push(connection);
    }

    fn welcome(&mut self) -> Result<()> {
        let session = Key::random()?.0;
        let members: BTreeMap<Rank, Member> =
            self.guests.iter().map(|(rank, guest)| (*rank, guest.member.clone())).collect();
        tracing::info!(ranks = members.len(), "all ranks have come");
        for (rank, guest) in &mut self.guests {
            let parent = tree::parent(*rank).map(|parent| members[&parent].clone());
            guest.connection.say(Message::Welcome { session, parent });
        }
        Ok(())
    }

    /// Waits until all have connected to their neighbours. Who dies before that is missed by nobody but the root.
    fn attend(&mut self) -> Result<()> {
        while !self.guests.is_empty() && Instant::now() < self.deadline {
            let connections = self.guests.values_mut().map(|guest| &mut guest.connection);
            wait(&[], Some(&self.stop.bell), connections, self.deadline)?;
            if self.stop.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            let mut left = None;
            self.guests.retain(|&rank, guest| {
                let grown = guest.connection.hear() == Some(Message::Grown);
                if !grown && let Some(cause) = &guest.connection.closed {
                    let who = describe(rank, &guest.member);
                    left = Some((rank, format!("{who} left during initialisation: {cause}")));
                }
                !grown && guest.connection.closed.is_none()
            });
            let Some((rank, cause)) = left else { continue };
            for guest in self.guests.values_mut() {
                guest.connection.say(Message::Refusal(Refusal::Left { rank, cause: cause.clone() }));
            }
            return Ok(());
        }
        Ok(())
    }

    /// Waits until the last words have left and the others have closed. Ranks that come only now hear them too.
    fn farewell(mut self) -> Result<()> {
        let end = Instant::now() + FAREWELL;
        self.leaving.extend(std::mem::take(&mut self.guests).into_values().map(|g| g.connection));
        let ranks = self.ranks.map_or(0, |(ranks, _)| ranks as usize);
        // The one who has left is not waited for.
        let left = usize::from(matches!(self.last_word, Some(Refusal::Left { .. })));
        let mut told = self.leaving.len() + left;
        while Instant::now() < end {
            let last_word = self.last_word.clone().filter(|_| told < ranks);
            if self.leaving.is_empty() && last_word.is_none() {
                break;
            }
            let (sockets, strangers, _) = self.lobby.watch();
            // Nobody else is listened to any more.
            let (sockets, strangers) =
                if last_word.is_some() { (sockets, strangers) } else { (&[][..], &mut [][..]) };
            wait(sockets, Some(&self.stop.bell), strangers.iter_mut().chain(&mut self.leaving), end)?;
            if self.stop.stopped.load(Ordering::Relaxed) {
                break;
            }
            if let Some(last_word) = last_word {
                for (connection, _) in self.lobby.greet(Instant::now()) {
                    self.refuse(connection, last_word.clone());
                    told += 1;
                }
            }
            self.leaving.retain_mut(|c| {
                c.hear();
                c.closed.is_none()
            });
        }
        Ok(())
    }
}

fn describe(rank: Rank, member: &Member) -> String {
    format!("rank {rank} (host {}, process {})", member.host, member.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn who_comes_together_with_ranks_that_disagree_is_refused_as_they_are() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let key = Key::from_seed(b"k");
        let mut root = Root {
            stop: Stop { bell: Arc::new(bell().unwrap()), stopped: Arc::default() },
            lobby: Lobby::new(Vec::new(), key, &[Purpose::Join]),
            ranks: None,
            guests: BTreeMap::new(),
            leaving: Vec::new(),
            last_word: None,
            deadline: Instant::now() + Duration::from_secs(60),
        };
        // As one look at the lobby may find them.
        for (rank, ranks) in [(0, 3), (2, 4), (1, 3)] {
            let _end = TcpStream::connect(address).unwrap();
            let connection = Connection::accept(socket.accept().unwrap().0, key, &[Purpose::Join]).unwrap();
            let member = Member { host: "host".into(), pid: 1, addresses: vec![address] };
            root.admit(connection, Message::Join { rank, ranks, patience_ms: 60_000, member });
        }
        assert_eq!((root.guests.len(), root.leaving.len()), (0, 3));
        assert!(root.verdict().is_some(), "nobody is waited for");
    }
}
