//! Which transport carries a pair of ranks, and the fabric that they make together.

mod hosts;
mod introduction;

pub(super) use introduction::Introduction;
use introduction::{Assumptions, malformed};

use super::Opener;
use super::table::RouteTable;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::engine::Links;
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{Direction, Merge, Piece, PieceMut};
use crate::plan::{Program, Rank, Sink, Source};
use crate::transport::{
    Arrival, Counters, Exchange, Fabric, Lent, LinkKey, Offer, Offers, ReceiverId, Refer, SenderId, Sent,
    Stretch, Taken, Transport, UserMemory, Window,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// With several transports none can be slept in without deafness to the others, so sleeps are short.
const NAP: Duration = Duration::from_micros(200);

/// Link ends of all transports carry the transport's index in the upper bits of their number.
const INDEX_BITS: u32 = 28;

/// How a rank reaches a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The peer.
    pub peer: Rank,
    /// The transport's name; `None` where no transport reaches the peer.
    pub transport: Option<&'static str>,
    /// Why this one, or why none.
    pub why: String,
}

/// The transports of one rank, and who is reached by which.
pub(super) struct Routes {
    rank: Rank,
    transports: Vec<Box<dyn Transport>>,
    introductions: Vec<Introduction>,
    chosen: BTreeMap<Rank, usize>,
    /// Those with open links that may keep what was published until it is flushed: all but those of one host.
    keeping: Vec<usize>,
    /// Peers whose routes were logged.
    told: BTreeSet<Rank>,
}

impl Routes {
    pub(super) fn new(
        rank: Rank,
        transports: Vec<Box<dyn Transport>>,
        introductions: Vec<Introduction>,
    ) -> Routes {
        Routes {
            rank,
            transports,
            introductions,
            chosen: BTreeMap::new(),
            keeping: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Opens this rank's transports and hears of the others': those between hosts only where the first ones show that there
    /// are several, which all ranks find alike.
    pub(super) fn open(config: &Config, bootstrap: &mut Bootstrap, opener: &dyn Opener) -> Result<Routes> {
        let rank = bootstrap.rank();
        let transports = opener.local(bootstrap)?;
        let introductions = Introduction::of(rank, config, &transports, opener)?.exchange(bootstrap)?;
        let mut routes = Routes::new(rank, transports, introductions);
        if routes.placement().hosts > 1 {
            routes.transports.extend(opener.network(bootstrap)?);
            let own = Introduction::of(rank, config, &routes.transports, opener)?;
            routes.introductions = own.exchange(bootstrap)?;
            routes.meet();
        }
        let (ranks, cores) = routes.crowd(rank);
        routes.transports.iter_mut().for_each(|transport| transport.set_crowd(ranks, cores));
        Ok(routes)
    }

    /// What the cost function takes for granted on every rank, as it came over the wire: also rank 0 uses what it has sent.
    pub(super) fn assumptions(&self) -> Result<Assumptions> {
        let assumptions = self.introductions.first().and_then(|first| first.assumptions);
        let assumptions =
            assumptions.ok_or_else(|| malformed(0, &"it has no constants of the cost function"))?;
        match assumptions.constants.fault() {
            Some(why) => Err(malformed(0, &why)),
            None => Ok(assumptions),
        }
    }

    /// Whether some rank's process may have device buffers: all ranks say the same.
    pub(super) fn have_devices(&self) -> bool {
        self.introductions.iter().any(|introduction| introduction.devices)
    }

    /// What each rank's opener has said of the device that it is on.
    pub(super) fn places(&self) -> Vec<Vec<u8>> {
        self.introductions.iter().map(|introduction| introduction.place.clone()).collect()
    }

    /// Whose they are.
    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// The transport for a peer: the first of ours that the peer has too and that reaches it.
    fn choose(&mut self, peer: Rank) -> Result<usize> {
        if let Some(&index) = self.chosen.get(&peer) {
            return Ok(index);
        }
        let theirs = &self.introductions[peer as usize].transports;
        let mut reasons = Vec::new();
        for (index, transport) in self.transports.iter().enumerate() {
            let Some((_, address)) = theirs.iter().find(|(name, _)| name == transport.name()) else {
                reasons.push(format!("{}: the peer does not have it", transport.name()));
                continue;
            };
            match transport.probe(peer, address) {
                Ok(reach) => {
                    tracing::debug!(peer, transport = transport.name(), ?reach, "route chosen");
                    self.chosen.insert(peer, index);
                    return Ok(index);
                }
                Err(why) => reasons.push(format!("{}: {why}", transport.name())),
            }
        }
        if reasons.is_empty() {
            reasons.push("this rank has opened no transport".to_string());
        }
        Err(ErrorKind::Unreachable { peer, reasons: reasons.join("; ") }.into())
    }

    /// Opens every link that the program uses.
    pub(super) fn connect(&mut self, program: &Program, exchange: &mut dyn Exchange) -> Result<()> {
        self.open_links(links_of(program, self.rank), exchange)
    }

    /// Opens these links.
    pub(super) fn open_links(
        &mut self,
        links: impl IntoIterator<Item = LinkKey>,
        exchange: &mut dyn Exchange,
    ) -> Result<()> {
        let mut wanted: BTreeMap<usize, Vec<LinkKey>> = BTreeMap::new();
        for key in links {
            let peer = if key.from == self.rank { key.to } else { key.from };
            wanted.entry(self.choose(peer)?).or_default().push(key);
        }
        let mut fresh: Vec<Rank> = Vec::new();
        for (index, keys) in wanted {
            fresh.extend(keys.iter().map(|key| if key.from == self.rank { key.to } else { key.from }));
            let transport = &mut self.transports[index];
            transport.connect(&keys, exchange)?;
            if !transport.capabilities().one_host && !self.keeping.contains(&index) {
                self.keeping.push(index);
            }
        }
        fresh.sort_unstable();
        fresh.dedup();
        self.tell(&fresh);
        Ok(())
    }

    /// The ends of the first links to and from a peer.
    pub(super) fn ends_of(&mut self, peer: Rank) -> Result<(SenderId, ReceiverId)> {
        let index = self.choose(peer)?;
        let sender = self.transports[index].sender(&[peer], 0)?;
        Ok((SenderId(global(index, sender.0)?), self.receiver(peer, 0)?))
    }

    /// Logs how these peers are reached, once for each: the table that `RDMACCL_DEBUG=net` shows.
    fn tell(&mut self, peers: &[Rank]) {
        if !tracing::enabled!(target: "net", tracing::Level::INFO) {
            return;
        }
        let new: Vec<Rank> = peers.iter().copied().filter(|peer| self.told.insert(*peer)).collect();
        if !new.is_empty() {
            let routes: Vec<Route> = new.into_iter().map(|peer| self.route(peer)).collect();
            tracing::info!(target: "net", "links of rank {}:\n{}", self.rank, RouteTable(&routes));
        }
    }

    /// Whether what was published may be kept until it is flushed.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        !self.keeping.is_empty()
    }

    /// Hands on what was published and is still here. True once there is nothing left.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<bool> {
        let mut flushed = true;
        for &index in &self.keeping {
            flushed &= self.transports[index].flush()?;
        }
        Ok(flushed)
    }

    /// Sleeps until something may have come from one of the ranks that are waited for, or what is still here can go. Where
    /// several transports are to be listened to, the sleep in each is short.
    pub(super) fn park(&mut self, limit: Duration, awaited: impl Iterator<Item = Rank>) -> Result<()> {
        // By index, each a bit.
        let mut concerned: u16 = 0;
        for peer in awaited {
            concerned |= self.chosen.get(&peer).map_or(0, |index| 1 << index);
        }
        for &index in &self.keeping {
            if !self.transports[index].flush()? {
                concerned |= 1 << index;
            }
        }
        let limit = if concerned.count_ones() == 1 { limit } else { limit.min(NAP) };
        if concerned == 0 {
            std::thread::sleep(limit);
        }
        let all = self.transports.iter_mut().enumerate();
        let mut listened_to = all.filter(|(index, _)| concerned >> index & 1 != 0);
        listened_to.try_for_each(|(_, transport)| transport.park(limit))
    }

    /// Tells the peers of this host on which core this rank runs.
    pub(super) fn set_core(&mut self, core: u32) {
        self.transports.iter_mut().for_each(|t| t.set_core(core));
    }

    /// The core on which a peer of this host last ran, where that is known.
    pub(super) fn core_of(&self, peer: Rank) -> Option<u32> {
        self.transports.iter().find_map(|t| t.core_of(peer))
    }

    /// How a peer is reached, in words.
    pub(super) fn route(&mut self, peer: Rank) -> Route {
        let chosen = self.choose(peer).map(|index| {
            let transport = self.transports[index].name();
            let how = self.reach(index, peer).map_or_else(String::new, |reach| {
                format!(", about {:.1} us and {:.0} GB/s", reach.latency_ns / 1e3, reach.bandwidth)
            });
            let scope = match self.transports[index].capabilities().one_host {
                true => "the peer is on this host",
                false => "it reaches the peer",
            };
            let detail = self.transports[index].describe(peer);
            let detail = if detail.is_empty() { detail } else { format!("; {detail}") };
            (transport, format!("{scope}{how}; the first of {}{detail}", self.names()))
        });
        match chosen {
            Ok((transport, why)) => Route { peer, transport: Some(transport), why },
            Err(error) => Route { peer, transport: None, why: error.to_string() },
        }
    }

    fn names(&self) -> String {
        self.transports.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
    }

    /// Bytes that the links take.
    pub(super) fn memory(&self) -> u64 {
        self.transports.iter().map(|t| t.memory()).sum()
    }

    /// Lets the transports between hosts settle how long their pieces get.
    fn meet(&mut self) {
        let local =
            self.transports.iter().map(|t| t.capabilities()).filter(|c| c.one_host && !self.are_all_apart());
        let most = local.map(|c| c.slot_bytes).min();
        let Routes { transports, introductions, .. } = self;
        for transport in transports.iter_mut().filter(|t| !t.capabilities().one_host) {
            let all = introductions.iter().flat_map(|one| &one.transports);
            let addresses = all.filter(|(name, _)| name == transport.name()).map(|(_, address)| &address[..]);
            transport.meet(&addresses.collect::<Vec<_>>(), most);
        }
    }

    /// The longest piece that every transport takes by which pieces may go, and the credits that every link of these has for
    /// pieces of any length; `None` without such transports. All ranks get the same answer.
    pub(super) fn limits(&self) -> Option<(usize, u32)> {
        let apart = self.are_all_apart();
        let all = || self.transports.iter().map(|t| t.capabilities()).filter(|c| !(apart && c.one_host));
        Some((all().map(|c| c.slot_bytes).min()?, all().map(|c| c.credits.min(c.slots)).min()?))
    }

    /// Which offers some transport takes.
    pub(super) fn offers(&self) -> Offers {
        self.transports.iter().map(|t| t.capabilities().offers).max().unwrap_or(Offers::None)
    }

    /// Whether some transport gains from knowing this memory.
    pub(super) fn register(&mut self, memory: &UserMemory) -> Result<bool> {
        self.transports.iter_mut().try_fold(false, |gained, t| Ok(t.register(memory)? | gained))
    }

    pub(super) fn deregister(&mut self, piece: Piece) -> Result<()> {
        self.transports.iter_mut().try_for_each(|t| t.deregister(piece))
    }

    /// A call has failed: peers must not trust what they were given by reference, nor write to what they were offered; which of
    /// them may do so nevertheless.
    pub(super) fn withdraw(&mut self) -> Vec<Rank> {
        self.transports.iter_mut().flat_map(|t| t.withdraw()).collect()
    }

    /// See [`Transport::admit`].
    pub(super) fn admit(&mut self, from: ReceiverId, target: &Window) -> Result<Vec<u8>> {
        let (transport, id) = self.of(from.0);
        transport.admit(ReceiverId(id), target)
    }

    /// See [`Transport::dismiss`].
    pub(super) fn dismiss(&mut self, from: ReceiverId) {
        let (transport, id) = self.of(from.0);
        transport.dismiss(ReceiverId(id));
    }

    /// See [`Transport::aim`].
    pub(super) fn aim(&mut self, to: SenderId, source: &Window, target: &[u8]) -> Result<()> {
        let (transport, id) = self.of(to.0);
        transport.aim(SenderId(id), source, target)
    }

    /// The network devices of the way to a peer whose links are open.
    pub(super) fn devices(&self, peer: Rank) -> Vec<String> {
        self.chosen.get(&peer).map_or_else(Vec::new, |index| self.transports[*index].devices(peer))
    }

    pub(super) fn counters(&self) -> Vec<(LinkKey, Counters)> {
        self.transports.iter().flat_map(|t| t.counters()).collect()
    }

    #[inline(always)]
    fn of(&mut self, id: u32) -> (&mut dyn Transport, u32) {
        (self.transports[(id >> INDEX_BITS) as usize].as_mut(), id & ((1 << INDEX_BITS) - 1))
    }
}

/// Every link that a program uses, each once.
pub(super) fn links_of(program: &Program, rank: Rank) -> Vec<LinkKey> {
    let mut keys = Vec::new();
    for mv in program.lanes.iter().flat_map(|lane| &lane.moves) {
        for source in &mv.from {
            if let Source::Link(link) = source {
                keys.push(LinkKey { from: link.peer, to: rank, channel: link.channel });
            }
        }
        for sink in &mv.into {
            if let Sink::Links(links) = sink {
                let channel = links.channel;
                keys.extend(links.peers.iter().map(|&to| LinkKey { from: rank, to, channel }));
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn global(index: usize, id: u32) -> Result<u32> {
    if id >> INDEX_BITS != 0 {
        return Err(Error::unsupported(
            format!("link end {id} of one transport"),
            "a communicator has at most 2^28 of them",
        ));
    }
    Ok((index as u32) << INDEX_BITS | id)
}

impl Links for Routes {
    fn senders(&mut self, peers: &[Rank], channel: u16) -> Result<Vec<SenderId>> {
        let mut by_transport: BTreeMap<usize, Vec<Rank>> = BTreeMap::new();
        for &peer in peers {
            by_transport.entry(self.choose(peer)?).or_default().push(peer);
        }
        let ends = by_transport.into_iter().map(|(index, peers)| {
            Ok(SenderId(global(index, self.transports[index].sender(&peers, channel)?.0)?))
        });
        ends.collect()
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        let index = self.choose(peer)?;
        Ok(ReceiverId(global(index, self.transports[index].receiver(peer, channel)?.0)?))
    }
}

impl Fabric for Routes {
    #[inline]
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let (transport, id) = self.of(to.0);
        transport.reserve(SenderId(id), len)
    }

    #[inline]
    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let (transport, id) = self.of(to.0);
        transport.refer(SenderId(id), piece)
    }

    #[inline]
    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let (transport, id) = self.of(to.0);
        transport.settled(SenderId(id))
    }

    #[inline]
    fn reserve_offered(
        &mut self,
        to: SenderId,
        stretch: Stretch,
        tag: u64,
        sinks: &mut [PieceMut],
    ) -> Result<usize> {
        let (transport, id) = self.of(to.0);
        transport.reserve_offered(SenderId(id), stretch, tag, sinks)
    }

    #[inline]
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let (transport, id) = self.of(to.0);
        transport.publish(SenderId(id), tag)
    }

    #[inline(always)]
    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        let (transport, id) = self.of(to.0);
        transport.send(SenderId(id), piece, tag)
    }

    #[inline(always)]
    fn lend(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Lent> {
        let (transport, id) = self.of(to.0);
        transport.lend(SenderId(id), piece, tag)
    }

    fn put(&mut self, to: SenderId, bytes: Range<usize>, word: Piece, tag: u64) -> Result<bool> {
        let (transport, id) = self.of(to.0);
        transport.put(SenderId(id), bytes, word, tag)
    }

    fn puts_over(&mut self, to: SenderId) -> Result<u64> {
        let (transport, id) = self.of(to.0);
        transport.puts_over(SenderId(id))
    }

    #[inline]
    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        let (transport, id) = self.of(from.0);
        transport.offer(ReceiverId(id), offer)
    }

    #[inline(always)]
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let (transport, id) = self.of(from.0);
        transport.peek(ReceiverId(id))
    }

    #[inline]
    fn peek_stretch(
        &mut self,
        from: ReceiverId,
        most: usize,
        direction: Direction,
    ) -> Result<Option<(Arrival, usize)>> {
        let (transport, id) = self.of(from.0);
        transport.peek_stretch(ReceiverId(id), most, direction)
    }

    #[inline]
    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let (transport, id) = self.of(from.0);
        transport.release(ReceiverId(id))
    }

    #[inline(always)]
    fn take(&mut self, from: ReceiverId, tag: u64, merge: &Merge<'_>) -> Result<Taken> {
        let (transport, id) = self.of(from.0);
        transport.take(ReceiverId(id), tag, merge)
    }
}
