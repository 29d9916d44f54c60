//! The set-up: one object per rank and communicator.

use super::adapter::{Adapter, Port};
use super::brief::Brief;
use super::connect::random;
use super::connection::Connection;
use super::fabric::Sender;
use super::group::{Group, SMALL};
use super::incoming::Incoming;
use super::lane::{self, Lane, Window};
use super::outgoing::Outgoing;
use super::pool::Pool;
use super::proposal::{MOST_RAILS, Proposal};
use super::puts::Admitted;
use super::recovery::Word;
use super::registered::Registered;
use super::wire::INLINE_BYTES;
use super::work::Work;
use super::{failure, survey};
use crate::choice::pairing::Offer;
use crate::choice::{nearness, paths, rails, window};
use crate::config::IbConfig;
use crate::verbs::{Completion, Context};
use ccl_core::config::Ib;
use ccl_core::kernels::Piece;
use ccl_core::transport::{
    Capabilities, Counters, Directory, End, Exchange, KnownMemory, LinkKey, Offers, Reach, ReceiverId,
    SenderId, Transport, UserMemory, Window as Shown,
};
use ccl_core::{Error, Rank, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Calls of `flush` between two looks for words.
const LOOK: u32 = 16;

/// Nanoseconds between two looks at what the devices say by themselves. A rank that never sleeps looks as well, else a rail
/// that is back would stay idle for as long as the others keep the rank busy.
const NEWS: u64 = 10_000_000;

/// Completions that are taken at a time.
pub(super) const POLLED: usize = 32;

/// The ends of one rank's links over queue pairs.
#[derive(Debug)]
pub struct IbTransport {
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    /// The slots' bytes, if the user has named them.
    named: Option<usize>,
    pub(super) slot_bytes: usize,
    /// Bytes of a piece that never has a choice of lanes.
    pub(super) stays_home: usize,
    /// That every link has at least.
    credits: u32,
    pub(super) settings: Ib,
    /// How long a connection that failed is tried.
    pub(super) recovery: Duration,
    brief: Brief,
    /// What every peer is told first.
    pub(super) proposal: Proposal,
    pub(super) ports: Vec<Port>,
    pub(super) connections: BTreeMap<Rank, Connection>,
    /// Before the adapters, since devices must let go of memory and queues first.
    pub(super) lanes: Vec<Lane>,
    pub(super) groups: Vec<Group>,
    pub(super) outgoing: Vec<Outgoing>,
    pub(super) incoming: Vec<Incoming>,
    pub(super) directory: Directory,
    pub(super) senders: Vec<Sender>,
    pub(super) pool: Pool,
    /// Memory of users that the devices may use.
    pub(super) registered: Registered,
    /// Memory into which peers put.
    pub(super) admitted: Vec<Admitted>,
    /// Bytes of lines and rings.
    pub(super) link_bytes: u64,
    pub(super) adapters: Vec<Adapter>,
    /// What datagrams to this rank must show.
    pub(super) session: u64,
    /// Whether there is something to do besides the completions: one of the next five.
    pub(super) chores: bool,
    /// Whether credits wait for room in a queue.
    pub(super) owing: bool,
    /// Whether messages wait for a lane.
    pub(super) unsent: bool,
    /// Lanes whose queue pairs have failed and are to be replaced.
    pub(super) repairing: u32,
    /// Words of peers about them.
    pub(super) heard: Vec<Word>,
    /// The error of a lane that was given up with messages that its receiver has not got.
    pub(super) lost: Option<Error>,
    /// Calls of `flush` until it looks for words once more.
    pub(super) until_look: u32,
    /// Why connecting failed once.
    pub(super) failed: Option<Error>,
    /// Whether a call has failed, so that nobody waits for what was sent.
    pub(super) abandoned: bool,
    /// Completions and events of devices so far, and how many of them the last sleep knew.
    pub(super) events: u64,
    pub(super) told: u64,
    pub(super) completions: Box<[Completion; POLLED]>,
    /// When the rank began, from which times are counted; and the time of the poll whose completions are looked at.
    pub(super) began: Instant,
    pub(super) polled: u64,
    /// When the devices' events were last read, on the same clock.
    pub(super) listened: u64,
    pub(super) work: Work,
}

impl IbTransport {
    /// The transport of `rank` in a communicator of `ranks`: finds the devices and chooses the rails. An error says why
    /// this machine cannot use RDMA.
    pub fn new(rank: Rank, ranks: u32, config: &IbConfig) -> Result<IbTransport> {
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks}"), "ranks are 0 to n-1"));
        }
        config.check()?;
        let contexts = survey::open(config.ib.library.as_deref())?;
        let mut survey = survey::take(&contexts)?;
        survey.host = config.host_id.clone().unwrap_or(survey.host);
        let chosen = rails::choose(&survey, &config.ib)?;
        tracing::debug!(target: "net", host = survey.host, rails = %listed(&chosen.value), why = chosen.why, "rails");
        let mut rails = chosen.value;
        rails.truncate(MOST_RAILS);
        let first = nearness::first(&rails, survey::numa_here(), config.local_rank);
        let queue_pairs = rails.iter().map(|rail| paths::queue_pairs(rail, &config.ib).value).max();
        let relaxed = paths::relaxed_ordering(&config.ib).value;
        let brief = Brief::of(&survey.host, &rails);
        let offer = Offer::of(&survey.host, &rails, first.value);
        let (adapters, ports) = adapt(&contexts, rails, relaxed)?;
        let slot_bytes = config.slot_bytes.unwrap_or(window::SLOT);
        let credits = config.credits.unwrap_or(window::FEWEST);
        let work_requests = work_requests(&adapters, credits)?;
        let transport = IbTransport {
            rank,
            ranks,
            named: config.slot_bytes,
            slot_bytes,
            stays_home: SMALL.min(slot_bytes),
            credits,
            settings: config.ib.clone(),
            recovery: config.recovery,
            brief,
            proposal: Proposal {
                rank,
                slot_bytes: slot_bytes as u32,
                credits: config.credits.unwrap_or(0),
                queue_pairs: queue_pairs.unwrap_or(1),
                work_requests,
                mtu: config.ib.mtu.unwrap_or(0),
                offer,
            },
            ports,
            connections: BTreeMap::new(),
            lanes: Vec::new(),
            groups: Vec::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            directory: Directory::new(rank, ranks),
            senders: Vec::new(),
            pool: Pool::new(slot_bytes),
            registered: Registered::default(),
            admitted: Vec::new(),
            link_bytes: 0,
            adapters,
            session: random(),
            chores: false,
            owing: false,
            unsent: false,
            repairing: 0,
            heard: Vec::new(),
            lost: None,
            until_look: 0,
            failed: None,
            abandoned: false,
            events: 0,
            told: 0,
            completions: Box::new([Completion::default(); POLLED]),
            began: Instant::now(),
            polled: 0,
            listened: 0,
            work: Work::default(),
        };
        if config.credits.is_some() {
            transport.warn_of_small_windows();
        }
        Ok(transport)
    }

    /// Devices may use this memory, as long as it is there.
    pub fn know(&mut self, memory: KnownMemory) {
        self.registered.know(memory);
    }

    /// Before anything is looked up in memory of users.
    #[inline]
    pub(super) fn catch_up_with_memory(&mut self) {
        if self.registered.is_behind() {
            for gone in self.registered.catch_up() {
                self.incoming.iter_mut().for_each(|link| link.lapse_in(gone));
            }
        }
    }

    #[cold]
    fn flush_now(&mut self) -> Result<bool> {
        self.until_look = LOOK;
        if self.now().saturating_sub(self.listened) > NEWS {
            self.read_events()?;
            self.ask_after_rails();
        }
        self.progress_all()?;
        match self.lost.clone() {
            Some(error) => Err(error),
            None => Ok(!self.owing && !self.unsent_are_near() && !self.is_behind()),
        }
    }

    /// Each rail, and how many bytes of pieces went out by it.
    pub fn shares(&self) -> Vec<(String, u64)> {
        let by_rail = |at: usize| {
            let lanes = self.lanes.iter().filter(|lane| lane.seat.rail == at);
            self.ports[at].sent + lanes.map(|lane| lane.seat.sent).sum::<u64>()
        };
        self.ports.iter().enumerate().map(|(at, port)| (port.rail.to_string(), by_rail(at))).collect()
    }

    /// What the devices were given to do so far, on all links together.
    pub fn work(&self) -> Work {
        let mut work = self.work;
        for lane in &self.lanes {
            work.add(lane.work);
            work.doorbells += lane.work.sends - lane.work.puts;
        }
        self.adapters.iter().for_each(|adapter| work.add(adapter.work));
        work
    }

    /// Says what the devices have done, when the links end.
    pub(super) fn tell_work(&self) {
        let sum = |of: fn(&Counters) -> u64| self.outgoing.iter().map(|link| of(&link.counters)).sum::<u64>();
        let (pieces, inline, referenced) = (sum(|c| c.pieces), sum(|c| c.inline), sum(|c| c.referenced));
        if pieces > 0 {
            let Work { sends, credits, offers, receives, doorbells, polls, completions, .. } = self.work();
            let (rank, bytes, direct) = (self.rank, sum(|c| c.bytes), sum(|c| c.direct));
            let (puts, put_bytes) = (sum(|c| c.puts), sum(|c| c.put_bytes));
            let slots = pieces - inline - referenced;
            let shares: Vec<_> =
                self.shares().iter().map(|(rail, bytes)| format!("{rail} {bytes}")).collect();
            let rails = shares.join(", ");
            tracing::info!(
                target: "net", rank, pieces, inline, slots, referenced, direct, bytes, puts, put_bytes, sends, credits, offers, receives,
                doorbells, polls, completions, rails, "links end"
            );
        }
    }

    fn warn_of_small_windows(&self) {
        for Port { rail, .. } in &self.ports {
            let wanted = window::slots(rail.gbps, window::DELAY_NS, self.slot_bytes, u32::MAX);
            if wanted.value > self.credits {
                let told = window::slots(rail.gbps, window::DELAY_NS, self.slot_bytes, self.credits).why;
                tracing::warn!(target: "net", %rail, window = told, "a link cannot keep this port busy");
            }
        }
    }
}

/// The devices of the rails, each once.
fn adapt(contexts: &[Context], rails: Vec<rails::Rail>, relaxed: bool) -> Result<(Vec<Adapter>, Vec<Port>)> {
    let mut adapters: Vec<Adapter> = Vec::new();
    let mut ports = Vec::new();
    for rail in rails {
        let known = adapters.iter().position(|adapter| adapter.context.name() == rail.device);
        let adapter = match known {
            Some(adapter) => adapter,
            None => {
                let context = contexts.iter().find(|context| context.name() == rail.device);
                let context = context.expect("rails are chosen among the open devices");
                adapters.push(Adapter::new(context.clone(), rail.software, relaxed)?);
                adapters.len() - 1
            }
        };
        ports.push(Port { rail, adapter, active: true, missing: Vec::new(), control: None, sent: 0 });
    }
    Ok((adapters, ports))
}

/// Work requests that a queue pair of each of the devices can hold; enough for one link, at least.
fn work_requests(adapters: &[Adapter], credits: u32) -> Result<u32> {
    let fewest = adapters.iter().map(|adapter| adapter.context.limits().work_requests).min().unwrap_or(0);
    match lane::links(fewest, Window::of(credits)) {
        0 => Err(Error::unsupported(
            format!("ib: {credits} credits per link where a queue holds {fewest} work requests"),
            "set fewer credits (RDMACCL_CREDITS)",
        )),
        _ => Ok(fewest),
    }
}

fn listed(rails: &[rails::Rail]) -> String {
    let rail = |rail: &rails::Rail| format!("{rail} with {} ({})", rail.gids[0], rail.gid_why);
    rails.iter().map(rail).collect::<Vec<_>>().join(", ")
}

impl Transport for IbTransport {
    fn name(&self) -> &'static str {
        failure::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            slot_bytes: self.slot_bytes,
            credits: self.credits,
            slots: self.credits,
            inline_bytes: INLINE_BYTES,
            short_bytes: INLINE_BYTES,
            shared_slots: true,
            threads: true,
            one_host: false,
            offers: Offers::All,
        }
    }

    fn address(&self) -> Vec<u8> {
        self.brief.encode()
    }

    fn meet(&mut self, addresses: &[&[u8]], most: Option<usize>) {
        let usual = Brief::slot_bytes(addresses.iter().map(|address| Brief::decode(address)));
        let slot_bytes = self.named.unwrap_or(most.map_or(usual, |most| most.min(usual)));
        (self.slot_bytes, self.stays_home) = (slot_bytes, SMALL.min(slot_bytes));
        self.proposal.slot_bytes = slot_bytes as u32;
        self.pool = Pool::new(slot_bytes);
    }

    fn probe(&self, peer: Rank, address: &[u8]) -> Result<Reach, String> {
        if peer >= self.ranks || peer == self.rank {
            return Err(format!("rank {peer} is not a peer of rank {} of {}", self.rank, self.ranks));
        }
        let brief = Brief::decode(address).ok_or("its address is of another version of the library")?;
        self.brief.reach(&brief)
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

    /// Devices send by themselves; what waits here are credits for room in a queue, and messages whose queue pair failed.
    /// A rank that waits for others than its peers here looks for their words now and then.
    #[inline]
    fn flush(&mut self) -> Result<bool> {
        self.until_look = self.until_look.wrapping_sub(1);
        if self.chores || self.until_look >= LOOK { self.flush_now() } else { Ok(true) }
    }

    fn park(&mut self, limit: Duration) -> Result<()> {
        self.sleep(limit)
    }

    fn register(&mut self, memory: &UserMemory) -> Result<bool> {
        self.registered.add(memory);
        Ok(true)
    }

    fn deregister(&mut self, piece: Piece) -> Result<()> {
        self.registered.remove(piece);
        // What they say is not looked at any more: that memory may go.
        self.incoming.iter_mut().for_each(Incoming::lapse);
        Ok(())
    }

    fn admit(&mut self, from: ReceiverId, target: &Shown) -> Result<Vec<u8>> {
        self.admit_puts(from, target)
    }

    fn dismiss(&mut self, from: ReceiverId) {
        self.dismiss_puts(from);
    }

    fn aim(&mut self, to: SenderId, source: &Shown, target: &[u8]) -> Result<()> {
        self.aim_puts(to, source, target)
    }

    fn devices(&self, peer: Rank) -> Vec<String> {
        let Some(connection) = self.connections.get(&peer) else { return Vec::new() };
        let device = |pair: usize| self.ports[connection.rail(pair)].rail.device.clone();
        let mut devices: Vec<_> = (0..connection.pairs.len()).map(device).collect();
        devices.sort();
        devices.dedup();
        devices
    }

    /// Without its registrations no device touches the users' memory. Windows stay: they are not calls' memory.
    fn withdraw(&mut self) -> Vec<Rank> {
        self.abandoned = true;
        self.registered.clear();
        self.incoming.iter_mut().for_each(Incoming::lapse);
        Vec::new()
    }

    fn describe(&self, peer: Rank) -> String {
        if self.connections.contains_key(&peer) { self.ways_to(peer).to_string() } else { String::new() }
    }

    fn memory(&self) -> u64 {
        self.link_bytes + self.pool.bytes()
    }

    fn counters(&self) -> Vec<(LinkKey, Counters)> {
        let sent = self.outgoing.iter().map(|link| (link.key, link.counters));
        sent.chain(self.incoming.iter().map(|link| (link.key, link.counters))).collect()
    }
}
