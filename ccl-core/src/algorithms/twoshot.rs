//! `twoshot`: a direct reduce-scatter, then a direct all-gather.
//!
//! Rank r gathers everybody's part r, combines it in rank order and sends the result to all. Two messages
//! deep, every byte crosses a link twice at most, which is optimal; 2(n - 1) messages per rank. As each
//! part is combined once, in rank order, the result has the bits of a serial loop on every rank. Each of the two has a channel of
//! its own, so that a rank may send further parts while results are under way.

use super::Algorithm;
use super::moves::{after, alone, before, from, from_on, one_lane, step, to, to_all_on};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// The direct algorithm of two steps; see the [module](self).
pub struct TwoShot;

impl Algorithm for TwoShot {
    fn name(&self) -> &'static str {
        "twoshot"
    }

    fn parts(&self, collective: Collective, Placement { ranks, .. }: Placement) -> Option<u32> {
        (collective == Collective::AllReduce).then_some(ranks)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        if ranks > 1 { 2 } else { 0 }
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let n = spec.ranks;
        if n == 1 {
            return alone(spec);
        }
        let term = |r| if r == rank { Source::Input(rank) } else { from(r) };
        let mut moves = Vec::with_capacity(2 * n as usize);
        moves.extend(after(n, rank).map(|peer| step([Source::Input(peer)], [to(peer)])));
        moves.push(step(
            (0..n).map(term).collect::<Vec<_>>(),
            [Sink::Output(rank), to_all_on(1, after(n, rank))],
        ));
        moves.extend(before(n, rank).map(|peer| step([from_on(1, peer)], [Sink::Output(peer)])));
        one_lane(moves)
    }
}
