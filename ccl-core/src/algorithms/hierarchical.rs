//! `hierarchical`: for ranks on several hosts. What crosses from host to host crosses once, and all ranks of a host take
//! part in that, so that every rail of the host works.
//!
//! Ranks lie as [`Placement`] says: rank (H, L) is the one with local number L on host H. Its *column* are the ranks (k, L)
//! of the other hosts. For h hosts of l ranks, an all-reduce cuts the block into h·l chunks, of which (L, H) is combined by
//! rank (H, L):
//!
//! 1. *Scatter.* Every rank gives chunk (j, k) to its local peer j, for all hosts k.
//! 2. *Combine.* Rank (H, L) combines its host's terms of each chunk (L, k), in local order, and sends the sum across to
//!    (k, L); that of chunk (L, H) it keeps.
//! 3. *Finish.* It combines the hosts' sums of chunk (L, H), in host order, and sends the result to its column and to its
//!    local peers.
//! 4. *Relay.* What comes from the column is kept and passed on to the local peers.
//! 5. *Take.* What the local peers finish or relay is kept.
//!
//! A reduce-scatter is the first three with whole blocks for chunks, an all-gather the last three. Each step is a lane: a
//! rank scatters the next tile while this one is on its way across, and no lane reads after it has begun to send, so
//! latency between hosts is paid once for a call and not for every tile. Broadcast and reduce are in `rooted`.
//!
//! Four messages deep for an all-reduce, two of them across, whatever the number of hosts: between hosts it is the direct
//! algorithm of two steps. Each host sends 2(h - 1)/h of the block across, shared out evenly to its ranks, and nobody receives
//! from more than h - 1 others at a time. With very many hosts these are many short messages, and the cost function
//! may prefer a ring or a tree. Every sum is made once, hosts by hosts, so all ranks get the same bits at every size.
//!
//! The idea is that of the hierarchical collectives of MagPIe (Kielmann et al., 1999). Collectives that combine nothing and keep
//! nobody's block twice (all-to-all, gather, scatter) gain nothing from it: their bytes cross once as it is.

mod rooted;
#[cfg(test)]
mod tests;

use super::Algorithm;
use super::moves::{after, before, from_on, step, to_all_on};
use crate::plan::{Collective, Lane, Move, Placement, Program, Rank, Sink, Source, Spec};

/// Steps inside hosts around one between hosts; see the [module](self).
pub struct Hierarchical;

/// Terms for sums that cross, and these sums.
const TERMS: u16 = 0;
/// Terms for the sum that stays.
const OWN_TERMS: u16 = 1;
/// What is finished.
const FINISHED: u16 = 2;
/// What was finished on another host.
const RELAYED: u16 = 3;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn parts(&self, collective: Collective, placement: Placement) -> Option<u32> {
        if placement.hosts == 1 || placement.locals() == 1 {
            return None;
        }
        match collective {
            Collective::AllReduce => Some(placement.ranks),
            Collective::ReduceScatter | Collective::AllGather => Some(1),
            Collective::Broadcast | Collective::Reduce => Some(placement.locals()),
            Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => None,
        }
    }

    fn depth(&self, collective: Collective, _: Placement) -> u32 {
        match collective {
            Collective::AllReduce => 4,
            Collective::Broadcast | Collective::Reduce => 3,
            _ => 2,
        }
    }

    fn crossings(&self, collective: Collective, _: Placement) -> u32 {
        if collective == Collective::AllReduce { 2 } else { 1 }
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let place = Place::new(spec, rank);
        let lanes = match spec.collective {
            Collective::Broadcast => rooted::broadcast(spec, place),
            Collective::Reduce => rooted::reduce(spec, place),
            _ => symmetric(spec, place),
        };
        Program { lanes }
    }
}

/// Where a rank is.
#[derive(Clone, Copy)]
struct Place {
    hosts: u32,
    locals: u32,
    host: u32,
    local: u32,
}

impl Place {
    fn new(spec: &Spec, rank: Rank) -> Place {
        let (hosts, locals) = (spec.hosts, spec.placement().locals());
        Place { hosts, locals, host: rank / locals, local: rank % locals }
    }

    /// The rank with this local number on this host.
    fn rank(self, host: u32, local: u32) -> Rank {
        host * self.locals + local
    }

    /// The other ranks of this host, from the next one round.
    fn peers(self) -> impl Iterator<Item = Rank> + Clone {
        after(self.locals, self.local).map(move |local| self.rank(self.host, local))
    }

    /// The ranks of the other hosts with this local number, from the next host round.
    fn column(self) -> impl Iterator<Item = Rank> + Clone {
        after(self.hosts, self.host).map(move |host| self.rank(host, self.local))
    }

    /// What this host's ranks have to say about a chunk, in their order; `own` is this rank's.
    fn terms(self, channel: u16, own: Source) -> Vec<Source> {
        let term = |local| match local == self.local {
            true => own,
            false => from_on(channel, self.rank(self.host, local)),
        };
        (0..self.locals).map(term).collect()
    }

    /// The sums of the hosts, in their order; `own` is this host's.
    fn sums(self, own: Source) -> Vec<Source> {
        let sum = |host| match host == self.host {
            true => own,
            false => from_on(TERMS, self.rank(host, self.local)),
        };
        (0..self.hosts).map(sum).collect()
    }
}

fn lane(moves: impl IntoIterator<Item = Move>) -> Lane {
    Lane { scratch: 0, moves: moves.into_iter().collect() }
}

/// The collectives without a root.
fn symmetric(spec: &Spec, place: Place) -> Vec<Lane> {
    let Place { hosts, locals, host, local } = place;
    let reduces = spec.collective.reduces();
    let gathers = spec.collective != Collective::ReduceScatter;
    // The chunk of this local rank on this host: a part of the one block, or that rank's block.
    let chunk = |local: u32, host: u32| match spec.collective {
        Collective::AllReduce => local * hosts + host,
        _ => place.rank(host, local),
    };
    let mut lanes = Vec::new();
    if reduces {
        // What crosses is wanted first.
        let scatter = after(hosts, host).chain([host]).flat_map(|to| {
            let channel = if to == host { OWN_TERMS } else { TERMS };
            after(locals, local).map(move |peer| {
                step([Source::Input(chunk(peer, to))], [to_all_on(channel, [place.rank(host, peer)])])
            })
        });
        lanes.push(lane(scatter));
        let combine = after(hosts, host).map(|to| {
            let terms = place.terms(TERMS, Source::Input(chunk(local, to)));
            step(terms, [to_all_on(TERMS, [place.rank(to, local)])])
        });
        lanes.push(lane(combine));
    }

    let mut finished = vec![Sink::Output(if gathers { chunk(local, host) } else { 0 })];
    if gathers {
        finished.push(to_all_on(FINISHED, place.column().chain(place.peers())));
    }
    if reduces {
        let own = step(place.terms(OWN_TERMS, Source::Input(chunk(local, host))), [Sink::Scratch(0)]);
        let finish = step(place.sums(Source::Scratch(0)), finished);
        lanes.push(Lane { scratch: 1, moves: vec![own, finish] });
    } else {
        lanes.push(lane([step([Source::Input(0)], finished)]));
    }

    if gathers {
        let relay = before(hosts, host).map(|of| {
            let relayed = [Sink::Output(chunk(local, of)), to_all_on(RELAYED, place.peers())];
            step([from_on(FINISHED, place.rank(of, local))], relayed)
        });
        lanes.push(lane(relay));
        let take = std::iter::once(host).chain(before(hosts, host)).flat_map(|of| {
            let channel = if of == host { FINISHED } else { RELAYED };
            before(locals, local).map(move |peer| {
                step([from_on(channel, place.rank(host, peer))], [Sink::Output(chunk(peer, of))])
            })
        });
        lanes.push(lane(take));
    }
    lanes
}
