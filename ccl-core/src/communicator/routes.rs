//! Which transport carries a pair of ranks, and the fabric that they make together.

mod hosts;

use super::Opener;
use super::cores::Cores;
use super::table::RouteTable;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::cost::{Constants, Model};
use crate::engine::Links;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Program, Rank, Sink, Source};
use crate::simd::{Piece, PieceMut};
use crate::transport::{
    Arrival, Counters, Exchange, Fabric, LinkKey, ReceiverId, Refer, SenderId, Transport,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// With several transports none can be slept in without deafness to the others, so sleeps are short.
const NAP: Duration = Duration::from_micros(200);

/// Link ends of all transports carry the transport's index in the upper bits of their number.
const INDEX_BITS: u32 = 28;

/// What the cost function takes for granted. Ranks that priced with different constants would choose differently, so those of
/// rank 0 count for all.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Assumptions {
    constants: Constants,
}

impl Assumptions {
    /// This rank's own: its machine's profile, if there is one.
    pub(super) fn own(config: &Config) -> Result<Assumptions> {
        let tuned = config.tuned()?;
        if let Some(warning) = &tuned.warning {
            tracing::warn!("{warning}");
        }
        let profile = tuned.profile.as_ref().map_or_else(|| "built in".into(), |path| path.to_string_lossy());
        tracing::debug!(%profile, constants = ?tuned.constants, "constants of the cost function");
        Ok(Assumptions { constants: tuned.constants })
    }

    /// The model for so many ranks of a host on so many cores.
    pub(super) fn model(&self, cores: u32, local_ranks: u32) -> Model {
        Model::tuned(self.constants, cores, local_ranks)
    }
}

/// What every rank tells the others about itself at initialisation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// Name and address of each transport that the rank has opened, best first.
    pub(super) transports: Vec<(String, Vec<u8>)>,
    /// Settings that all ranks must share.
    pub(super) settings: String,
    /// What the rank may run on.
    pub(super) cores: Cores,
    /// How many threads its process may keep busy: a container's share of the processors counts too.
    pub(super) parallelism: u32,
    /// Rank 0's.
    pub(super) assumptions: Option<Assumptions>,
}

impl Introduction {
    /// That of a rank which has nobody to introduce itself to.
    pub(super) fn of_one_alone() -> Introduction {
        Introduction {
            transports: Vec::new(),
            settings: String::new(),
            cores: Cores::here(),
            parallelism: parallelism(),
            assumptions: None,
        }
    }

    /// That of `rank`, which has opened these transports.
    pub(super) fn of(rank: Rank, config: &Config, transports: &[Box<dyn Transport>]) -> Result<Introduction> {
        let algorithms = config.algorithms.iter().map(|choice| choice.to_string());
        let settings = format!(
            "version {}; algorithms [{}]; tile_bytes {}; threads {}; tcp_sockets {}; slot_bytes {}; credits {}",
            env!("CARGO_PKG_VERSION"),
            algorithms.collect::<Vec<_>>().join(","),
            config.tile_bytes.map_or("auto".to_string(), |bytes| bytes.to_string()),
            config.threads,
            config.tcp_sockets,
            config.slot_bytes,
            config.credits,
        );
        let transports = transports.iter().map(|t| (t.name().to_string(), t.address())).collect();
        let assumptions = (rank == 0).then(|| Assumptions::own(config)).transpose()?;
        let (cores, parallelism) = (Cores::here(), parallelism());
        Ok(Introduction { transports, settings, cores, parallelism, assumptions })
    }

    /// Everybody's introduction, by rank. Ranks whose settings differ would plan differently, so they
    /// are told apart here and not by a call that goes wrong.
    pub(super) fn exchange(&self, bootstrap: &mut Bootstrap) -> Result<Vec<Introduction>> {
        let encoded = serde_json::to_vec(self).map_err(|error| malformed(bootstrap.rank(), &error))?;
        let mut introductions = Vec::new();
        for (peer, bytes) in bootstrap.all_gather(&encoded)?.iter().enumerate() {
            let theirs: Introduction =
                serde_json::from_slice(bytes).map_err(|error| malformed(peer as Rank, &error))?;
            if theirs.settings != self.settings {
                return Err(Error::invalid(
                    format!(
                        "rank {peer} runs with settings {{{}}}, rank {} with {{{}}}",
                        theirs.settings,
                        bootstrap.rank(),
                        self.settings
                    ),
                    "give every rank the same RDMACCL_ variables and the same version of the library",
                ));
            }
            introductions.push(theirs);
        }
        Ok(introductions)
    }
}

fn parallelism() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
}

fn malformed(peer: Rank, cause: &dyn std::fmt::Display) -> Error {
    ErrorKind::Malformed { what: format!("introduction of rank {peer}"), cause: cause.to_string() }.into()
}

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
        let introductions = Introduction::of(rank, config, &transports)?.exchange(bootstrap)?;
        let mut routes = Routes::new(rank, transports, introductions);
        if !routes.are_on_one_host() {
            routes.transports.extend(opener.network(bootstrap)?);
            routes.introductions = Introduction::of(rank, config, &routes.transports)?.exchange(bootstrap)?;
        }
        Ok(routes)
    }

    fn are_on_one_host(&self) -> bool {
        let mut addresses = self.introductions.iter().map(|one| self.local_address(one));
        let first = addresses.next().flatten();
        first.is_some() && addresses.all(|address| address == first)
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

    /// What the ranks of one host have said, that of `rank` among them: those that a transport of one host reaches from
    /// there, so whose addresses are the same.
    fn on_the_host_of(&self, rank: Rank) -> impl Iterator<Item = &Introduction> {
        let here = self.local_address(&self.introductions[rank as usize]);
        self.introductions.iter().zip(0..).filter_map(move |(introduction, other)| {
            let is_there = other == rank || here.is_some() && self.local_address(introduction) == here;
            is_there.then_some(introduction)
        })
    }

    /// A rank's address in the transport of one host, if there is one: the same for all ranks of the host.
    fn local_address<'i>(&self, of: &'i Introduction) -> Option<&'i [u8]> {
        let local = self.transports.iter().find(|t| t.capabilities().one_host)?.name();
        of.transports.iter().find(|(name, _)| name == local).map(|(_, address)| &address[..])
    }

    /// How many ranks of the communicator are on the host of `rank`, and on how many cores they all may run. Ranks that are
    /// bound to a core each have one each, whatever a single one of them sees. All ranks get the same answer.
    pub(super) fn crowd(&self, rank: Rank) -> (u32, u32) {
        let ranks = self.on_the_host_of(rank).count() as u32;
        let cores = self.on_the_host_of(rank).fold(Cores::default(), |all, one| all.with(&one.cores));
        (ranks, cores.count())
    }

    /// Cores that each rank may keep busy, on the host where they are fewest. All ranks get the same answer.
    pub(super) fn cores_per_rank(&self) -> u32 {
        let ranks = 0..self.introductions.len() as Rank;
        let of_host = |rank| {
            let (ranks, cores) = self.crowd(rank);
            let allowed = self.on_the_host_of(rank).map(|one| one.parallelism).min().unwrap_or(1);
            cores.min(allowed) / ranks
        };
        // A rank that is on the host of a lower one has been counted.
        let first_of_host = |&rank: &Rank| {
            let address = |rank: Rank| self.local_address(&self.introductions[rank as usize]);
            !address(rank).is_some_and(|here| (0..rank).any(|other| address(other) == Some(here)))
        };
        ranks.filter(first_of_host).map(of_host).min().unwrap_or(1).max(1)
    }

    /// Opens every link that the program uses.
    pub(super) fn connect(&mut self, program: &Program, exchange: &mut dyn Exchange) -> Result<()> {
        let mut wanted: BTreeMap<usize, Vec<LinkKey>> = BTreeMap::new();
        for key in links_of(program, self.rank) {
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
    pub(super) fn park(&mut self, limit: Duration, awaited: &[Rank]) -> Result<()> {
        let mut concerned: Vec<usize> =
            awaited.iter().filter_map(|peer| self.chosen.get(peer).copied()).collect();
        for &index in &self.keeping {
            if !self.transports[index].flush()? {
                concerned.push(index);
            }
        }
        concerned.sort_unstable();
        concerned.dedup();
        let limit = if concerned.len() == 1 { limit } else { limit.min(NAP) };
        match &concerned[..] {
            [] => std::thread::sleep(limit),
            several => several.iter().try_for_each(|&index| self.transports[index].park(limit))?,
        }
        Ok(())
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

    /// The longest piece that every transport takes, and the credits that every link has for pieces of any length; `None` without
    /// transports.
    pub(super) fn limits(&self) -> Option<(usize, u32)> {
        let all = || self.transports.iter().map(|t| t.capabilities());
        Some((all().map(|c| c.slot_bytes).min()?, all().map(|c| c.credits.min(c.slots)).min()?))
    }

    /// Whether some transport shows the memory of `piece` to its peers, which are told at once.
    pub(super) fn expose(&mut self, piece: Piece) -> Result<bool> {
        self.transports.iter_mut().try_fold(false, |shared, t| Ok(t.expose(piece)? | shared))
    }

    /// A call has failed: peers must not trust what they were given by reference.
    pub(super) fn withdraw(&mut self) {
        self.transports.iter_mut().for_each(|t| t.withdraw());
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
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let (transport, id) = self.of(to.0);
        transport.publish(SenderId(id), tag)
    }

    #[inline]
    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<bool> {
        let (transport, id) = self.of(to.0);
        transport.send(SenderId(id), piece, tag)
    }

    #[inline]
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let (transport, id) = self.of(from.0);
        transport.peek(ReceiverId(id))
    }

    #[inline]
    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let (transport, id) = self.of(from.0);
        transport.release(ReceiverId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Placement;
    use crate::transport::LocalHub;

    #[test]
    fn ranks_that_are_bound_to_a_core_each_do_not_crowd_it() {
        let (here, there) = (LocalHub::new(4, 64, 2), LocalHub::new(4, 64, 2));
        let introduction = |hub: &LocalHub, rank: Rank, cores: &[usize]| {
            let transport = hub.transport(rank);
            Introduction {
                transports: vec![(transport.name().to_string(), transport.address())],
                settings: String::new(),
                cores: cores.iter().copied().collect(),
                parallelism: 2,
                assumptions: None,
            }
        };
        let introductions = vec![
            introduction(&here, 0, &[0]),
            introduction(&here, 1, &[1]),
            introduction(&there, 2, &[0]),
            introduction(&there, 3, &[0]),
        ];
        for rank in 0..2 {
            let routes = Routes::new(rank, vec![Box::new(here.transport(rank))], introductions.clone());
            assert_eq!(Some(routes.placement()), Placement::even(4, 2));
            assert_eq!([routes.crowd(0), routes.crowd(1)], [(2, 2); 2]);
            assert_eq!([routes.crowd(2), routes.crowd(3)], [(2, 1); 2]);
        }
        let apart = Routes::new(0, Vec::new(), introductions);
        assert_eq!(apart.crowd(0), (1, 1), "alone without a transport");
        assert_eq!(Some(apart.placement()), Placement::even(4, 4));
    }
}
