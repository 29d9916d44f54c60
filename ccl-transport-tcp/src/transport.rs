//! The set-up: one object per rank and communicator.

use crate::address::Place;
use crate::config::{Limits, TcpConfig};
use crate::fabric::Sender;
use crate::slots::Slots;
use crate::socket::{Ends, Socket, SystemCalls};
use crate::sys;
use ccl_core::error::RankList;
use ccl_core::transport::{
    Capabilities, Counters, Directory, End, Exchange, LinkKey, Offers, Reach, ReceiverId, SenderId, Transport,
};
use ccl_core::{Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a rank that leaves in order waits for peers that live to take what it has sent. A peer that computes takes
/// nothing before its next call.
const FAREWELL: Duration = Duration::from_secs(60);

/// When it says so.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Two ranks on two cores of a virtual machine (EPYC, Linux 6.18) over loopback, both ways at once: an exchange of 8 bytes took 7 µs,
/// one of 16 MiB 8 ms. A network adds its own delay and has its own rate.
const REACH: Reach = Reach { latency_ns: 7000.0, message_ns: 3000.0, bandwidth: 2.0, by_processor: true };

/// Time between two looks whether they have.
const GLANCE: Duration = Duration::from_millis(1);

/// The ends of one rank's links over sockets.
#[derive(Debug)]
pub struct TcpTransport {
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    pub(crate) config: TcpConfig,
    pub(crate) limits: Limits,
    pub(crate) place: Place,
    /// Where a peer's sockets begin among ours.
    pub(crate) peers: BTreeMap<Rank, u32>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) ends: Ends,
    pub(crate) directory: Directory,
    pub(crate) senders: Vec<Sender>,
    /// Whether something has come since the last sleep.
    pub(crate) news: bool,
    /// A call has failed: nobody waits for what was sent.
    failed: bool,
    polls: u64,
}

impl TcpTransport {
    /// The transport of `rank` in a communicator of `ranks`. Opens nothing.
    pub fn new(rank: Rank, ranks: u32, config: &TcpConfig) -> Result<TcpTransport> {
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks}"), "ranks are 0 to n-1"));
        }
        config.check()?;
        let limits = config.limits(None);
        let slot_bytes = limits.slot_bytes;
        Ok(TcpTransport {
            rank,
            ranks,
            config: config.clone(),
            limits,
            place: Place::here(&config.host, &config.addresses)?,
            peers: BTreeMap::new(),
            sockets: Vec::new(),
            ends: Ends {
                outgoing: Vec::new(),
                incoming: Vec::new(),
                slots: Slots::new(slot_bytes),
                slot_bytes,
            },
            directory: Directory::new(rank, ranks),
            senders: Vec::new(),
            news: false,
            failed: false,
            polls: 0,
        })
    }

    /// What this rank has asked of the system so far.
    pub fn system_calls(&self) -> SystemCalls {
        let all = SystemCalls { polls: self.polls, ..SystemCalls::default() };
        self.sockets.iter().map(|socket| socket.calls).fold(all, |all, one| SystemCalls {
            reads: all.reads + one.reads,
            empty_reads: all.empty_reads + one.empty_reads,
            writes: all.writes + one.writes,
            short_writes: all.short_writes + one.short_writes,
            polls: all.polls,
            credit_frames: all.credit_frames + one.credit_frames,
        })
    }

    fn sockets_to(&self, peer: Rank) -> &[Socket] {
        let first = self.peers.get(&peer).map(|first| *first as usize);
        first.map_or(&[], |first| &self.sockets[first..first + usize::from(self.limits.sockets)])
    }

    /// Sleeps until a socket has something to read, or takes something again. Which ones have something to read.
    fn sleep(&mut self, limit: Duration) -> Result<Vec<u32>> {
        self.polls += 1;
        let open = || (0..).zip(&self.sockets).filter(|(_, socket)| socket.ended.is_none());
        let mut fds: Vec<PollFd<'_>> = open()
            .map(|(_, socket)| {
                let writes = if socket.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::from_borrowed_fd(socket.stream.as_fd(), PollFlags::IN | writes)
            })
            .collect();
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(e) => return Err(Error::system("poll", e, "check `ulimit -n`")),
        }
        let has_some = |fd: &PollFd<'_>| fd.revents().intersects(!PollFlags::OUT);
        Ok(open().zip(&fds).filter(|(_, fd)| has_some(fd)).map(|((socket, _), _)| socket).collect())
    }

    /// Gives what was sent to the other machines, as far as they take it, before the sockets are closed: one that is closed while
    /// something unread lies in it forgets what it has not sent.
    fn take_leave(&mut self) {
        let (start, mut said) = (Instant::now(), false);
        loop {
            let flushed = self.flush().unwrap_or(true);
            for socket in 0..self.sockets.len() as u32 {
                while self.read(socket).unwrap_or(false) {}
            }
            let waiting = |s: &Socket| s.ended.is_none() && sys::unconfirmed(&s.stream) > 0;
            if (flushed && !self.sockets.iter().any(waiting)) || start.elapsed() >= FAREWELL {
                return;
            }
            if start.elapsed() >= SAID_AFTER && !std::mem::replace(&mut said, true) {
                let slow = |s: &&Socket| waiting(s) || !s.is_flushed();
                let peers: Vec<Rank> = self.sockets.iter().filter(slow).map(|s| s.peer).collect();
                tracing::warn!(
                    rank = self.rank,
                    "leaving: ranks {} have not yet taken what was sent",
                    RankList(&peers)
                );
            }
            let _ = self.sleep(GLANCE);
        }
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            slot_bytes: self.limits.slot_bytes,
            credits: self.limits.credits,
            slots: self.limits.credits,
            inline_bytes: 0,
            short_bytes: 0,
            shared_slots: true,
            threads: true,
            one_host: false,
            offers: Offers::None,
        }
    }

    fn address(&self) -> Vec<u8> {
        self.place.encode()
    }

    fn meet(&mut self, _: &[&[u8]], most: Option<usize>) {
        self.limits = self.config.limits(most);
        (self.ends.slots, self.ends.slot_bytes) =
            (Slots::new(self.limits.slot_bytes), self.limits.slot_bytes);
    }

    fn probe(&self, peer: Rank, address: &[u8]) -> Result<Reach, String> {
        if peer >= self.ranks || peer == self.rank {
            return Err(format!("rank {peer} is not a peer of rank {} of {}", self.rank, self.ranks));
        }
        let place = Place::decode(address).ok_or("its address is not one of this transport")?;
        self.place.reaches(&place)?;
        Ok(REACH)
    }

    fn connect(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        self.open_links(links, exchange)
    }

    fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<SenderId> {
        match self.directory.sender(peers, channel)? {
            End::Known(id) => Ok(id),
            End::New(id, links) => {
                self.senders.push(Sender { links, reserved: None });
                Ok(id)
            }
        }
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        self.directory.receiver(peer, channel)
    }

    fn flush(&mut self) -> Result<bool> {
        let mut flushed = true;
        for socket in self.sockets.iter_mut().filter(|socket| !socket.is_flushed()) {
            socket.flush_pieces(&mut self.ends.slots)?;
            flushed &= socket.is_flushed();
        }
        Ok(flushed)
    }

    fn park(&mut self, limit: Duration) -> Result<()> {
        self.flush()?;
        if !self.news {
            for socket in self.sleep(limit)? {
                while self.read(socket)? {}
            }
        }
        self.news = false;
        Ok(())
    }

    fn describe(&self, peer: Rank) -> String {
        let sockets = self.sockets_to(peer);
        let mut ways: Vec<String> = Vec::new();
        for socket in sockets {
            let own = socket.stream.local_addr().map_or_else(|_| "?".to_string(), |own| own.ip().to_string());
            let way = format!("from {own} to {}", socket.name);
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        if ways.is_empty() { String::new() } else { format!("{} sockets {}", sockets.len(), ways.join(", ")) }
    }

    fn withdraw(&mut self) -> Vec<Rank> {
        self.failed = true;
        for socket in self.sockets.iter().filter(|socket| socket.borrows()) {
            // What is left of it lies in memory that the user may change now, so the peer must not get it.
            let _ = socket.stream.shutdown(Shutdown::Both);
        }
        Vec::new()
    }

    fn counters(&self) -> Vec<(LinkKey, Counters)> {
        let sent = self.ends.outgoing.iter().map(|link| (link.key, link.counters));
        sent.chain(self.ends.incoming.iter().map(|link| (link.key, link.counters))).collect()
    }

    fn memory(&self) -> u64 {
        self.ends.slots.memory()
    }
}

/// Who leaves in order has done its part, and the peers must get it.
impl Drop for TcpTransport {
    fn drop(&mut self) {
        if !self.failed && !std::thread::panicking() {
            self.take_leave();
        }
    }
}
