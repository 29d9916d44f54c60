//! `exchange`: each block travels straight to its rank, in a lane of its own for each peer.
//!
//! No lane knows of more than one pair of ranks, so blocks may be of any lengths that the two of a pair agree on:
//! this does the uneven all-to-all, gather and scatter, where no rank knows all lengths. And no peer that is
//! late keeps the others waiting, as in `pairwise` and `oneshot`. A lane sends a piece before it takes
//! one, so that the block that comes in may lie where the block that went out lay.

use super::Algorithm;
use super::moves::{after, from, step, to};
use crate::plan::{Collective, Lane, Move, Placement, Program, Rank, Sink, Source, Spec};

/// A lane for each peer; see the [module](self).
pub struct Exchange;

impl Algorithm for Exchange {
    fn name(&self) -> &'static str {
        "exchange"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        matches!(collective, Collective::AllToAll | Collective::Gather | Collective::Scatter).then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        (ranks > 1) as u32
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let swap = |peer| lane(send(spec, rank, peer).into_iter().chain(receive(spec, rank, peer)));
        let lanes = std::iter::once(keep(spec, rank)).chain(after(spec.ranks, rank).map(swap));
        Program { lanes: lanes.filter(|lane| !lane.moves.is_empty()).collect() }
    }
}

fn lane(moves: impl IntoIterator<Item = Move>) -> Lane {
    Lane { scratch: 0, moves: moves.into_iter().collect() }
}

/// The block that a rank sends itself.
fn keep(spec: &Spec, rank: Rank) -> Lane {
    let (input, output) = (input(spec, rank, rank), output(spec, rank, rank));
    lane(input.zip(output).map(|(input, output)| step([Source::Input(input)], [Sink::Output(output)])))
}

fn send(spec: &Spec, rank: Rank, peer: Rank) -> Option<Move> {
    let wanted = output(spec, peer, rank).and(input(spec, rank, peer));
    wanted.map(|input| step([Source::Input(input)], [to(peer)]))
}

fn receive(spec: &Spec, rank: Rank, peer: Rank) -> Option<Move> {
    let sent = input(spec, peer, rank).and(output(spec, rank, peer));
    sent.map(|output| step([from(peer)], [Sink::Output(output)]))
}

/// The block of `rank`'s send buffer that goes to `peer`, if there is one.
fn input(spec: &Spec, rank: Rank, peer: Rank) -> Option<u32> {
    match spec.collective.input_blocks(spec.ranks, rank, spec.root) {
        0 => None,
        1 => Some(0),
        _ => Some(peer),
    }
}

/// The block of `rank`'s receive buffer that comes from `peer`, if there is one.
fn output(spec: &Spec, rank: Rank, peer: Rank) -> Option<u32> {
    match spec.collective.output_blocks(spec.ranks, rank, spec.root) {
        0 => None,
        1 if spec.collective == Collective::Scatter => (peer == spec.root).then_some(0),
        1 => Some(0),
        _ => Some(peer),
    }
}
