//! `oneshot`: everybody sends to everybody who needs it, and each rank combines what came, in rank order.
//!
//! One message deep, and the fastest for short buffers. Reductions give the same bits on every rank as a
//! serial loop over the ranks, at every size. What it costs is bandwidth: n - 1 blocks come in for each
//! that is reduced.

use super::Algorithm;
use super::moves::{after, alone, before, from, one_lane, step, to, to_all};
use crate::plan::{Collective, Move, Placement, Program, Rank, Sink, Source, Spec};

/// The direct algorithm of one step; see the [module](self).
pub struct OneShot;

impl Algorithm for OneShot {
    fn name(&self) -> &'static str {
        "oneshot"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        (collective != Collective::SendRecv).then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        (ranks > 1) as u32
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let (n, root) = (spec.ranks, spec.root);
        if n == 1 {
            return alone(spec);
        }
        // In place, a block is overwritten only after it was sent: sends come first everywhere.
        let mut moves: Vec<Move> = Vec::new();
        match spec.collective {
            Collective::AllReduce => {
                moves.push(step([Source::Input(0)], [to_all(after(n, rank))]));
                moves.push(combine(n, rank, 0));
            }
            Collective::Reduce if rank == root => moves.push(combine(n, rank, 0)),
            Collective::Broadcast if rank == root => {
                moves.push(step([Source::Input(0)], [Sink::Output(0), to_all(after(n, rank))]));
            }
            Collective::Broadcast | Collective::Scatter if rank != root => {
                moves.push(step([from(root)], [Sink::Output(0)]));
            }
            Collective::AllGather => {
                moves.push(step([Source::Input(0)], [Sink::Output(rank), to_all(after(n, rank))]));
                moves.extend(receive(n, rank));
            }
            Collective::ReduceScatter => {
                moves.extend(send(n, rank));
                moves.push(combine(n, rank, rank));
            }
            Collective::AllToAll => {
                moves.extend(send(n, rank));
                moves.push(step([Source::Input(rank)], [Sink::Output(rank)]));
                moves.extend(receive(n, rank));
            }
            Collective::Gather if rank == root => {
                moves.push(step([Source::Input(0)], [Sink::Output(rank)]));
                moves.extend(receive(n, rank));
            }
            Collective::Scatter => {
                moves.extend(send(n, rank));
                moves.push(step([Source::Input(rank)], [Sink::Output(0)]));
            }
            Collective::Reduce | Collective::Gather | Collective::Broadcast => {
                moves.push(step([Source::Input(0)], [to(root)]));
            }
            Collective::SendRecv => {}
        }
        one_lane(moves)
    }
}

/// Each block of the input to its rank.
fn send(ranks: u32, rank: Rank) -> impl Iterator<Item = Move> {
    after(ranks, rank).map(|peer| step([Source::Input(peer)], [to(peer)]))
}

/// Each other rank's piece into its block of the output.
fn receive(ranks: u32, rank: Rank) -> impl Iterator<Item = Move> {
    before(ranks, rank).map(|peer| step([from(peer)], [Sink::Output(peer)]))
}

/// All ranks' contributions in rank order, this one's being input chunk `own`.
fn combine(ranks: u32, rank: Rank, own: u32) -> Move {
    let term = |r| if r == rank { Source::Input(own) } else { from(r) };
    step((0..ranks).map(term).collect::<Vec<_>>(), [Sink::Output(0)])
}
