//! Which ranks share a host, and what it takes to reach another one.

use super::{Routes, malformed};
use crate::bootstrap::Bootstrap;
use crate::cost::Net;
use crate::error::Result;
use crate::plan::{Placement, Rank};
use crate::transport::Reach;

impl Routes {
    /// How the ranks lie on hosts. All ranks get the same answer.
    pub(in crate::communicator) fn placement(&self) -> Placement {
        let ranks = self.introductions.iter().zip(0 as Rank..);
        // A rank without a transport of one host has its host for itself.
        let hosts: Vec<_> = ranks.map(|(one, rank)| self.local_address(one).ok_or(rank)).collect();
        Placement::of(&hosts)
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
            bandwidth: one.bandwidth.min(other.bandwidth),
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
