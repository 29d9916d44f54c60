//! `ring`: pieces travel round the ranks, each step to the next one.
//!
//! Optimal in bytes and light on links (one neighbour each way), but n - 1 messages deep (2(n - 1) for
//! all-reduce). Each part is combined once, starting at the rank after its owner and ending at its owner,
//! so all ranks get the same bits.

use super::Algorithm;
use super::moves::{alone, from, one_lane, step, to};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// The ring; see the [module](self).
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn parts(&self, collective: Collective, Placement { ranks, .. }: Placement) -> Option<u32> {
        match collective {
            Collective::AllReduce => Some(ranks),
            Collective::AllGather | Collective::ReduceScatter => Some(1),
            _ => None,
        }
    }

    fn depth(&self, collective: Collective, Placement { ranks, .. }: Placement) -> u32 {
        if collective == Collective::AllReduce { 2 * (ranks - 1) } else { ranks - 1 }
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        self.depth(collective, placement).div_ceil(placement.locals())
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let n = spec.ranks;
        if n == 1 {
            return alone(spec);
        }
        let (next, prev) = ((rank + 1) % n, (rank + n - 1) % n);
        // The chunk (of the part or block) that leaves here after as many steps.
        let behind = |steps: u32| (rank + n - steps) % n;

        let mut moves = Vec::with_capacity(2 * n as usize);
        if spec.collective != Collective::AllGather {
            moves.push(step([Source::Input(behind(1))], [to(next)]));
            moves.extend((2..n).map(|s| step([from(prev), Source::Input(behind(s))], [to(next)])));
        }
        match spec.collective {
            Collective::ReduceScatter => {
                moves.push(step([from(prev), Source::Input(rank)], [Sink::Output(0)]));
                return one_lane(moves);
            }
            Collective::AllReduce => {
                moves.push(step([from(prev), Source::Input(rank)], [Sink::Output(rank), to(next)]));
            }
            _ => moves.push(step([Source::Input(0)], [Sink::Output(rank), to(next)])),
        }
        moves.extend((1..n - 1).map(|s| step([from(prev)], [Sink::Output(behind(s)), to(next)])));
        moves.push(step([from(prev)], [Sink::Output(next)]));
        one_lane(moves)
    }
}
