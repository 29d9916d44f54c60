//! Which ranks share a host, and what it takes to reach another one.

use super::Routes;
use super::introduction::{Introduction, malformed};
use crate::bootstrap::Bootstrap;
use crate::communicator::cores::Cores;
use crate::cost::Net;
use crate::error::Result;
use crate::plan::{Placement, Rank};
use crate::transport::Reach;
use std::collections::BTreeMap;

impl Routes {
    /// How the ranks lie on hosts. All ranks get the same answer.
    pub(in crate::communicator) fn placement(&self) -> Placement {
        let hosts: Vec<_> = self.hosts().collect();
        Placement::of(&hosts)
    }

    /// The host of each rank, by the number of the first rank there. All ranks get the same answer.
    pub(in crate::communicator) fn numbered_hosts(&self) -> Vec<Rank> {
        let hosts: Vec<_> = self.hosts().collect();
        let first = |host| hosts.iter().position(|other| other == host).unwrap_or_default() as Rank;
        hosts.iter().map(first).collect()
    }

    /// Whether each rank has a host of its own, so that no pieces stay on one. All ranks get the same answer.
    pub(in crate::communicator) fn are_all_apart(&self) -> bool {
        self.numbered_hosts().into_iter().eq(0..self.introductions.len() as Rank)
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
    pub(in crate::communicator) fn crowd(&self, rank: Rank) -> (u32, u32) {
        let ranks = self.on_the_host_of(rank).count() as u32;
        let cores = self.on_the_host_of(rank).fold(Cores::default(), |all, one| all.with(&one.cores));
        (ranks, cores.count())
    }

    /// Cores that each rank may keep busy, on the host where they are fewest. All ranks get the same answer.
    pub(in crate::communicator) fn cores_per_rank(&self) -> u32 {
        let mut hosts: BTreeMap<_, (u32, Cores, u32)> = BTreeMap::new();
        for (host, one) in self.hosts().zip(&self.introductions) {
            let (ranks, cores, allowed) = hosts.entry(host).or_insert((0, Cores::default(), u32::MAX));
            *ranks += 1;
            *cores = std::mem::take(cores).with(&one.cores);
            *allowed = one.parallelism.min(*allowed);
        }
        let each = hosts.into_values().map(|(ranks, cores, allowed)| cores.count().min(allowed) / ranks);
        each.min().unwrap_or(1).max(1)
    }

    /// The host of each rank, by name: that of the transport of one host, or the rank's number where it has none and so
    /// its host for itself.
    fn hosts(&self) -> impl Iterator<Item = std::result::Result<&[u8], Rank>> {
        self.introductions.iter().zip(0..).map(|(one, rank)| self.local_address(one).ok_or(rank))
    }

    /// What messages between hosts take, by the slowest of rank 0's routes to other hosts. All ranks must ask, and get the
    /// same answer: ranks that priced with numbers of their own would not choose alike.
    pub(in crate::communicator) fn net(&mut self, bootstrap: &mut Bootstrap) -> Result<Net> {
        let placement = self.placement();
        if placement.hosts == 1 {
            return Ok(Net::default());
        }
        let own = (self.rank == 0).then(|| self.slowest(placement));
        let own = serde_json::to_vec(&own).map_err(|error| malformed(self.rank, &error))?;
        let said = bootstrap.all_gather(&own)?;
        let first = said.first().map_or(&[][..], Vec::as_slice);
        let net: Net = serde_json::from_slice(first).map_err(|error| malformed(0, &error))?;
        tracing::debug!(?net, hosts = placement.hosts, "what messages between hosts take");
        net.fault().map_or(Ok(net), |why| Err(malformed(0, &why)))
    }

    /// The slowest of this rank's routes to other hosts. Peers that no transport reaches are told of when a plan needs them.
    fn slowest(&mut self, placement: Placement) -> Net {
        let (own, mut reaches) = (self.rank, Vec::new());
        for peer in (0..placement.ranks).filter(|peer| placement.are_apart(own, *peer)) {
            let index = self.choose(peer).ok();
            reaches.extend(index.and_then(|index| self.reach(index, peer)));
        }
        let slower = |one: Reach, other: Reach| Reach {
            latency_ns: one.latency_ns.max(other.latency_ns),
            message_ns: one.message_ns.max(other.message_ns),
            bandwidth: one.bandwidth.min(other.bandwidth),
            by_processor: one.by_processor || other.by_processor,
        };
        reaches.into_iter().reduce(slower).map_or_else(Net::default, Net::of)
    }

    /// How well the transport of this number reaches a peer.
    pub(super) fn reach(&self, index: usize, peer: Rank) -> Option<Reach> {
        let transport = &self.transports[index];
        let theirs = &self.introductions[peer as usize].transports;
        let (_, address) = theirs.iter().find(|(name, _)| name == transport.name())?;
        transport.probe(peer, address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Placement;
    use crate::transport::{LocalHub, Transport};

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
                devices: false,
                place: Vec::new(),
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
