//! `bruck`: blocks travel by powers of two, for all-gather and all-to-all on any number of ranks.
//!
//! All-gather is the `spread` with the short hops first. In an all-to-all, a block whose destination is d
//! ranks ahead makes a hop for each bit set in d, the short ones first. It needs links to log2 n peers
//! instead of n - 1, and sends each block log2 n / 2 times on average: for many ranks, where connections
//! are dear.
//!
//! Blocks for d and for n - d are handled together: the one that comes in last lies, in place, where the
//! other lay, which has been sent by then.

use super::Algorithm;
use super::moves::{alone, from, one_lane, share_across, step, to};
use super::pat::all_gather;
use super::spread::{First, Spread};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// The Bruck algorithms; see the [module](self).
pub struct Bruck;

/// Blocks that hop together: enough to hide a link's latency, half of the usual 8 credits. Even, for pairs.
const WINDOW: usize = 4;

impl Algorithm for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        matches!(collective, Collective::AllGather | Collective::AllToAll).then_some(1)
    }

    fn depth(&self, collective: Collective, Placement { ranks, .. }: Placement) -> u32 {
        match collective {
            Collective::AllGather => Spread::new(ranks, 1, First::Near).depth(),
            // As measured on plans: windows overlap, so it is less than all hops of all windows in a row.
            _ => (ranks * ranks.ilog2()).div_ceil(5),
        }
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        share_across(self.depth(collective, placement), placement)
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        match spec.collective {
            _ if spec.ranks == 1 => alone(spec),
            Collective::AllGather => all_gather(spec, rank, First::Near),
            _ => all_to_all(spec.ranks, rank),
        }
    }
}

fn all_to_all(n: u32, rank: Rank) -> Program {
    let mut distances: Vec<u32> = (1..=n / 2).flat_map(|d| [d, n - d]).collect();
    distances.dedup(); // n / 2 is its own counterpart
    let hop = |d: u32, i: u32| (0..u32::BITS).map(|b| d & 1 << b).filter(|hop| *hop != 0).nth(i as usize);

    let mut moves = vec![step([Source::Input(rank)], [Sink::Output(rank)])];
    for window in distances.chunks(WINDOW) {
        for i in 0..=n.ilog2() + 1 {
            for &d in window.iter().filter(|d| i <= d.count_ones()) {
                // What is at its destination here came from d ranks behind.
                let came = i.checked_sub(1).and_then(|last| hop(d, last));
                let source = came.map_or(Source::Input((rank + d) % n), |hop| from((rank + n - hop) % n));
                let sink = hop(d, i).map_or(Sink::Output((rank + n - d) % n), |hop| to((rank + hop) % n));
                moves.push(step([source], [sink]));
            }
        }
    }
    one_lane(moves)
}
