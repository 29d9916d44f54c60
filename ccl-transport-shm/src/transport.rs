//! The set-up: one object per rank and communicator.

use crate::bell;
use crate::borrowing::Borrowing;
use crate::config::ShmConfig;
use crate::fabric::Sender;
use crate::host::Host;
use crate::lending::Lending;
use crate::mailbox::{Address, Mailbox};
use crate::pace::{Looks, Pace, words_from};
use crate::passing::Passed;
use crate::pool::{Pool, Warm};
use crate::ring::{INLINE_BYTES, SHORT_BYTES};
use crate::shm::{Geometry, Incoming, Outgoing, Segment};
use crate::{park, sys};
use ccl_core::transport::{
    Capabilities, Counters, Directory, End, Exchange, LinkKey, Offers, Reach, ReceiverId, SenderId, Stretch,
    Transport, UserMemory,
};
use ccl_core::{Error, Rank, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank sleeps at most if a peer might not be able to wake it.
const NAP: Duration = Duration::from_millis(1);

/// The ends of one rank's links in shared memory.
#[derive(Debug)]
pub struct ShmTransport {
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    host: Host,
    pub(crate) geometry: Geometry,
    pub(crate) segment: Arc<Segment>,
    pub(crate) segment_id: u128,
    /// What peers must know to send us their descriptors.
    pub(crate) token: u128,
    pub(crate) mailbox: Option<Mailbox>,
    pub(crate) peers: HashMap<Rank, Peer>,
    /// Whether all who may have to wake us, and we ourselves, take part in heavy barriers.
    pub(crate) barrier: bool,
    /// Links handed out in our segment.
    pub(crate) links: u32,
    /// Whether the ranks of this host share its cores.
    is_crowded: bool,
    /// From so many bytes on pieces in slots are [copied by words](words_from).
    pub(crate) words_from: usize,
    pub(crate) pool: Pool,
    /// Slots that have passed between each rank and this one.
    pub(crate) passed: Box<[Passed]>,
    /// How far each rank is.
    pub(crate) paces: Box<[Pace]>,
    /// How many of them are far.
    pub(crate) far: u32,
    pub(crate) looks: Looks,
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) directory: Directory,
    pub(crate) senders: Vec<Sender>,
    pub(crate) lending: Lending,
    /// What each peer has lent, by [`Peer::lender`].
    pub(crate) borrowed: Vec<Borrowing>,
}

/// A rank whose segment we have mapped.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) segment: Arc<Segment>,
    /// Where it takes letters; `None` for a rank of this process, which needs none.
    pub(crate) mailbox: Option<Address>,
    /// Its place in [`ShmTransport::borrowed`].
    pub(crate) lender: u32,
}

impl ShmTransport {
    /// The transport of `rank` in a communicator of `ranks`. Makes the rank's segment, which takes no memory
    /// until links are open.
    pub fn new(rank: Rank, ranks: u32, config: &ShmConfig) -> Result<ShmTransport> {
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks}"), "ranks are 0 to n-1"));
        }
        let geometry = config.geometry(ranks)?;
        let segment_id = random()?;
        Ok(ShmTransport {
            rank,
            ranks,
            host: Host::here(config.host_id.as_deref())?,
            geometry,
            segment: Segment::create(segment_id, geometry)?,
            segment_id,
            token: random()?,
            mailbox: None,
            peers: HashMap::new(),
            barrier: sys::register_barrier(),
            links: 0,
            is_crowded: false,
            words_from: words_from(false),
            pool: Pool::new(
                Warm::of(geometry.slot_bytes, ranks, ranks, geometry.slots()),
                geometry.slot_bytes,
            ),
            passed: (0..ranks).map(|_| Passed::default()).collect(),
            paces: vec![Pace::new(); ranks as usize].into(),
            far: 0,
            looks: Looks::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            directory: Directory::new(rank, ranks),
            senders: Vec::new(),
            lending: Lending::new(ranks),
            borrowed: Vec::new(),
        })
    }

    /// Messages of one link that may be in slots at a time.
    pub(crate) fn slots_per_link(&self) -> u32 {
        self.geometry.slots_per_link(self.is_crowded)
    }

    /// Whether something has come that was not there at the last look; and what to be woken for.
    fn look(&mut self) -> bool {
        // All links are asked, so that each remembers what it has told.
        let pieces = self.incoming.iter_mut().fold(false, |news, link| link.news() | news);
        self.outgoing.iter_mut().fold(pieces, |news, link| link.news() | news)
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            slot_bytes: self.geometry.slot_bytes,
            credits: self.geometry.laps.least,
            // The same on all ranks, whose hosts may be crowded or not.
            slots: self.geometry.slots_per_link(false),
            inline_bytes: INLINE_BYTES,
            short_bytes: SHORT_BYTES,
            shared_slots: true,
            threads: true,
            one_host: true,
            offers: Offers::Written,
        }
    }

    fn set_crowd(&mut self, ranks: u32, cores: u32) {
        self.is_crowded = ranks > cores;
        self.words_from = words_from(self.is_crowded);
        self.pool.set_warm(Warm::of(self.geometry.slot_bytes, ranks, cores, self.geometry.slots()));
    }

    fn address(&self) -> Vec<u8> {
        self.host.encode()
    }

    fn probe(&self, peer: Rank, address: &[u8]) -> Result<Reach, String> {
        if peer >= self.ranks || peer == self.rank {
            return Err(format!("rank {peer} is not a peer of rank {} of {}", self.rank, self.ranks));
        }
        self.host.reaches(address)?;
        // A cache line from core to core, and a copy into and out of slots in the cache.
        Ok(Reach { latency_ns: 100.0, message_ns: 10.0, bandwidth: 15.0, by_processor: true })
    }

    fn connect(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        self.open_links(links, exchange)
    }

    fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<SenderId> {
        match self.directory.sender(peers, channel)? {
            End::Known(id) => Ok(id),
            End::New(id, links) => {
                self.senders.push(Sender { links, reserved: None, stretch: Stretch::one(0) });
                Ok(id)
            }
        }
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        self.directory.receiver(peer, channel)
    }

    /// Each piece and credit ends one call only: poll everything that you wait for before you park again.
    fn park(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let segment = Arc::clone(&self.segment);
        self.read_mail()?;
        self.tidy_loans();
        let starved = self.outgoing.iter().any(|link| link.awaits_credit());
        let news = if starved { bell::PIECE | bell::CREDIT } else { bell::PIECE };
        loop {
            if self.look() {
                break;
            }
            segment.bell().arm(news);
            let fenced = self.barrier && sys::heavy_barrier();
            let left = end.saturating_duration_since(Instant::now());
            if self.look() || left.is_zero() {
                break;
            }
            park::sleep(segment.bell(), news, if fenced { left } else { left.min(NAP) });
        }
        segment.bell().disarm();
        Ok(())
    }

    fn set_core(&mut self, core: u32) {
        self.segment.bell().set_core(core);
    }

    fn core_of(&self, peer: Rank) -> Option<u32> {
        self.peers.get(&peer)?.segment.bell().core()
    }

    fn memory(&self) -> u64 {
        let links: usize = self.outgoing.iter().map(Outgoing::memory).sum();
        links as u64 + u64::from(self.pool.touched()) * self.geometry.slot_bytes as u64
    }

    fn register(&mut self, memory: &UserMemory) -> Result<bool> {
        self.show(memory.piece)
    }

    fn withdraw(&mut self) -> Vec<Rank> {
        self.segment.ledger().withdraw();
        self.withdraw_offers()
    }

    fn counters(&self) -> Vec<(LinkKey, Counters)> {
        let sent = self.outgoing.iter().map(|link| (link.key, link.counters));
        sent.chain(self.incoming.iter().map(|link| (link.key, link.counters))).collect()
    }
}

/// A transport that is dropped in the middle of a call gives memory back to the user that peers may still read and write.
impl Drop for ShmTransport {
    fn drop(&mut self) {
        let pool = &mut self.pool;
        if !self.outgoing.iter_mut().all(|link| link.is_settled(pool).unwrap_or(false)) {
            self.segment.ledger().withdraw();
        }
        let stuck = self.withdraw_offers();
        if !stuck.is_empty() {
            tracing::error!(
                rank = self.rank,
                ?stuck,
                "ranks stand still in the middle of writing to memory of this one"
            );
        }
    }
}

/// A number that nobody else has and nobody can guess.
pub(crate) fn random() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::system("getrandom", std::io::Error::other(e.to_string()), "the kernel must give randomness")
    })?;
    Ok(u128::from_le_bytes(bytes))
}
