//! Opening links: swap words, pass descriptors, map.

use crate::blob::Blob;
use crate::borrowing::Borrowing;
use crate::mailbox::{Address, Letter, Mailbox};
use crate::shm::{Incoming, Outgoing, Segment};
use crate::sys;
use crate::transport::{Peer, ShmTransport, random};
use ccl_core::error::ErrorKind;
use ccl_core::transport::{Exchange, LinkKey, NewLinks};
use ccl_core::{Error, Rank, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait before a full mailbox is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How often a rank that waits for a peer looks whether there is still hope.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);

impl ShmTransport {
    pub(crate) fn open_links(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        let new = self.directory.missing(links)?;
        if new.is_empty() {
            return Ok(());
        }
        let firsts = self.allot(&new)?;
        if self.mailbox.is_none() {
            self.mailbox = Some(Mailbox::open(self.segment_id, self.token)?);
        }
        let process = this_process()?;
        let blobs: Vec<_> = new
            .iter()
            .map(|(&peer, links)| (peer, self.word_to(peer, links, firsts[&peer], process).encode()))
            .collect();
        let answers = exchange.swap(&blobs)?;
        let mut words = BTreeMap::new();
        for ((&peer, links), answer) in new.iter().zip(&answers) {
            let word = Blob::decode(answer).ok_or_else(|| broken(peer, "its version does not fit ours"))?;
            self.check(peer, links, &word)?;
            words.insert(peer, word);
        }
        self.attach(&words, process, exchange)?;
        for (&peer, links) in &new {
            self.add(peer, links, firsts[&peer], &words[&peer])?;
        }
        tracing::debug!(
            rank = self.rank,
            peers = new.len(),
            links = links.len(),
            "links open in shared memory"
        );
        Ok(())
    }

    /// Gives each new outgoing link its place in our segment; where those to each peer begin.
    fn allot(&mut self, new: &BTreeMap<Rank, NewLinks>) -> Result<BTreeMap<Rank, u32>> {
        let wanted: usize = new.values().map(|links| links.to.len()).sum();
        if wanted > (self.geometry.max_links - self.links) as usize {
            return Err(Error::invalid(
                format!("{} links to send on", self.links as usize + wanted),
                format!(
                    "at most {}, or a greater `ShmConfig::max_links` on all ranks",
                    self.geometry.max_links
                ),
            ));
        }
        let mut firsts = BTreeMap::new();
        for (&peer, links) in new {
            firsts.insert(peer, self.links);
            for _ in &links.to {
                self.segment.populate_link(self.links)?;
                self.links += 1;
            }
        }
        Ok(firsts)
    }

    fn word_to(&self, peer: Rank, new: &NewLinks, first: u32, process: u128) -> Blob {
        let (to_peer, from_peer) = new.rows();
        Blob {
            rank: self.rank,
            process,
            segment: self.segment_id,
            token: self.token,
            geometry: self.geometry,
            wants_descriptor: !self.peers.contains_key(&peer),
            barrier: sys::register_barrier(),
            first,
            to_peer,
            from_peer,
        }
    }

    fn check(&self, peer: Rank, new: &NewLinks, word: &Blob) -> Result<()> {
        if word.rank != peer {
            return Err(broken(peer, format!("the word of rank {} came in its place", word.rank)));
        }
        if word.geometry != self.geometry {
            let what =
                format!("it uses {:?}, this rank {:?}; settings must agree", word.geometry, self.geometry);
            return Err(broken(peer, what));
        }
        if let Some(why) = new.differ_from((word.to_peer, word.from_peer)) {
            return Err(broken(peer, why));
        }
        let ends = word.first.checked_add(word.to_peer.count);
        if ends.is_none_or(|end| end > self.geometry.max_links) {
            return Err(broken(peer, "its links lie outside its memory"));
        }
        Ok(())
    }

    /// Maps the segments of all peers that are new.
    fn attach(&mut self, words: &BTreeMap<Rank, Blob>, process: u128, exchange: &dyn Exchange) -> Result<()> {
        let (here, there): (Vec<_>, Vec<_>) = words.iter().partition(|(_, word)| word.process == process);
        for &(&peer, word) in &here {
            if !self.peers.contains_key(&peer) {
                let segment = Segment::of_this_process(word.segment, self.segment_id)
                    .ok_or_else(|| broken(peer, "its transport was dropped while connecting"))?;
                self.meet(peer, segment, None);
            }
        }
        let mut to_send: BTreeMap<_, _> =
            there.iter().filter(|(_, word)| word.wants_descriptor).map(|&(p, w)| (*p, w)).collect();
        let mut to_come: BTreeMap<_, _> =
            there.iter().filter(|(peer, _)| !self.peers.contains_key(peer)).map(|&(p, w)| (*p, w)).collect();
        let start = Instant::now();
        while !(to_send.is_empty() && to_come.is_empty()) {
            let mailbox = self.mailbox.as_ref().expect("opened before the words were swapped");
            let mut failed = None;
            to_send.retain(|&peer, word| {
                let sent = mailbox.post(self.rank, None, self.segment.fd(), word.mailbox());
                sent.map(|sent| !sent).unwrap_or_else(|e| {
                    failed = Some((peer, e));
                    true
                })
            });
            if let Some((peer, e)) = failed {
                return Err(system(peer, "passing the descriptor of the links' memory", e));
            }
            while let Some(letter) = self.letter()? {
                let Letter { from: peer, number: None, fd } = letter else {
                    self.borrow_from(letter)?;
                    continue;
                };
                let Some(word) = to_come.remove(&peer) else { continue };
                let segment = Segment::attach(word.segment, fd, self.geometry);
                self.meet(peer, segment.map_err(|what| broken(peer, what))?, Some(word.mailbox()));
            }
            exchange.check()?;
            let left = exchange.deadline().saturating_duration_since(Instant::now());
            if left.is_zero() && !(to_send.is_empty() && to_come.is_empty()) {
                let mut absent: Vec<_> = to_send.into_keys().chain(to_come.into_keys()).collect();
                absent.sort_unstable();
                absent.dedup();
                return Err(absent_ranks(absent, start.elapsed()));
            }
            if !to_come.is_empty() || !to_send.is_empty() {
                let mailbox = self.mailbox.as_ref().expect("opened before the words were swapped");
                mailbox.wait(left.min(if to_send.is_empty() { GLANCE } else { RETRY }));
            }
        }
        let mut absent = Vec::new();
        for (peer, word) in here.iter().filter(|(_, word)| word.wants_descriptor) {
            if !self.segment.wait_until_taken(word.segment, exchange)? {
                absent.push(**peer);
            }
        }
        if absent.is_empty() { Ok(()) } else { Err(absent_ranks(absent, start.elapsed())) }
    }

    /// Keeps the segment of a peer.
    fn meet(&mut self, peer: Rank, segment: Arc<Segment>, mailbox: Option<Address>) {
        let lender = self.borrowed.len() as u32;
        self.borrowed.push(Borrowing::default());
        self.passed[peer as usize].prepare();
        self.peers.insert(peer, Peer { segment, mailbox, lender });
    }

    /// Registers the links of a row at both ends, and gets the memory of the warm slots of both, so that
    /// the first calls do not.
    fn add(&mut self, peer: Rank, new: &NewLinks, first: u32, word: &Blob) -> Result<()> {
        let Peer { segment, lender, .. } = &self.peers[&peer];
        self.barrier &= word.barrier;
        let slots = self.slots_per_link();
        for (link, &channel) in (first..).zip(&new.to) {
            let key = LinkKey { from: self.rank, to: peer, channel };
            self.directory.add_outgoing(peer, channel, self.outgoing.len() as u32);
            let (own, theirs) = (Arc::clone(&self.segment), Arc::clone(segment));
            self.outgoing.push(Outgoing::new(key, own, link, theirs, slots));
            self.segment.populate_slots(self.pool.grow(slots))?;
        }
        if !new.from.is_empty() {
            // They are as many at the peer. Those of its other links come in as they are read.
            let warm = self.pool.warm().min(slots);
            segment.populate_slots(0..warm)?;
        }
        for (link, &channel) in (word.first..).zip(&new.from) {
            let key = LinkKey { from: peer, to: self.rank, channel };
            self.directory.add_incoming(peer, channel, self.incoming.len() as u32);
            self.incoming.push(Incoming::new(
                key,
                Arc::clone(&self.segment),
                Arc::clone(segment),
                link,
                *lender,
            ));
        }
        Ok(())
    }
}

/// Names this process, also after a fork.
fn this_process() -> Result<u128> {
    static PROCESS: Mutex<Option<(u32, u128)>> = Mutex::new(None);
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    match *process {
        Some((pid, name)) if pid == std::process::id() => Ok(name),
        _ => {
            let name = random()?;
            *process = Some((std::process::id(), name));
            Ok(name)
        }
    }
}

pub(crate) fn broken(peer: Rank, what: impl Into<String>) -> Error {
    ErrorKind::Transport { transport: "shm", peer: Some(peer), what: what.into(), source: None }.into()
}

pub(crate) fn system(peer: Rank, what: &str, e: rustix::io::Errno) -> Error {
    let what = format!("{what}: {e}");
    ErrorKind::Transport { transport: "shm", peer: Some(peer), what, source: Some(e.into()) }.into()
}

fn absent_ranks(absent: Vec<Rank>, waited: Duration) -> Error {
    ErrorKind::Timeout {
        phase: "passing the descriptors of shared memory".to_string(),
        waited,
        absent,
        remedy: "see whether these ranks run, and in the same network namespace".to_string(),
    }
    .into()
}
