//! `pat`: parallel aggregated trees, for all-gather and reduce-scatter on any number of ranks.
//!
//! Every block goes from its owner to all along the `spread` tree round the circle of ranks, the long
//! hops first, so that most bytes travel between neighbours. All-gather and reduce-scatter are mirror
//! images. A reduction combines its own contribution with those of all its children in one move, straight
//! out of the links: no partial sums in memory.

use super::Algorithm;
use super::moves::{alone, from, one_lane, step, to, to_all};
use super::spread::{First, Spread};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// Parallel aggregated trees; see the [module](self).
pub struct Pat;

impl Algorithm for Pat {
    fn name(&self) -> &'static str {
        "pat"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        matches!(collective, Collective::AllGather | Collective::ReduceScatter).then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        Spread::new(ranks, 1, First::Far).depth()
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        // Short hops cross as well, for the ranks at a host's edge.
        let hosts = self.depth(collective, placement.hosts.into());
        (2 * hosts).min(self.depth(collective, placement))
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        match spec.collective {
            _ if spec.ranks == 1 => alone(spec),
            Collective::AllGather => all_gather(spec, rank, First::Far),
            _ => reduce_scatter(spec, rank),
        }
    }
}

/// A block's distance is how far its owner is ahead; blocks travel backwards round the circle.
pub(super) fn all_gather(spec: &Spec, rank: Rank, first: First) -> Program {
    let n = spec.ranks;
    let spread = Spread::new(n, 1, first);
    let mut moves = Vec::with_capacity(n as usize);
    for x in spread.distances() {
        let source = spread.hop_to(x).map_or(Source::Input(0), |hop| from((rank + hop) % n));
        let peers: Vec<Rank> = spread.hops_from(x).map(|hop| (rank + n - hop) % n).collect();
        let mut sinks = vec![Sink::Output((rank + x) % n)];
        sinks.extend((!peers.is_empty()).then(|| to_all(peers)));
        moves.push(step([source], sinks));
    }
    one_lane(moves)
}

/// The same, backwards: contributions travel forwards round the circle. The farthest come first in the
/// sum, as in the ring.
fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    let n = spec.ranks;
    let spread = Spread::new(n, 1, First::Far);
    let mut moves = Vec::with_capacity(n as usize);
    for x in spread.distances().rev() {
        let mut sources: Vec<_> = spread.hops_from(x).map(|hop| from((rank + n - hop) % n)).collect();
        sources.push(Source::Input((rank + x) % n));
        let sink = spread.hop_to(x).map_or(Sink::Output(0), |hop| to((rank + hop) % n));
        moves.push(step(sources, [sink]));
    }
    one_lane(moves)
}
