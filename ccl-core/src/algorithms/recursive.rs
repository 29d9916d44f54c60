//! `recursive`: recursive doubling along the edges of a hypercube, for any number of ranks.
//!
//! All-reduce: in each of log2 n steps, neighbours swap what they have so far and both combine it, the
//! lower one's first: the same bits on every rank. Whole blocks travel each time, so it is for short
//! ones. A guest (see `cube`) hands its block to its corner before, and gets the result after.
//! The all-gather doubles what everybody has in each step.

use super::Algorithm;
use super::cube::{Cube, Role};
use super::moves::{alone, from, one_lane, share_across, step, to};
use super::spread::First;
use crate::plan::{Collective, Move, Placement, Program, Rank, Sink, Source, Spec};

/// Recursive doubling; see the [module](self).
pub struct Recursive;

impl Algorithm for Recursive {
    fn name(&self) -> &'static str {
        "recursive"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        matches!(collective, Collective::AllReduce | Collective::AllGather).then_some(1)
    }

    fn depth(&self, collective: Collective, Placement { ranks, .. }: Placement) -> u32 {
        let cube = Cube::new(ranks);
        match collective {
            Collective::AllGather => cube.depth(),
            _ => cube.corners.ilog2() + 2 * (cube.crowd() - 1),
        }
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        match collective {
            // Pieces of different rounds wait for each other.
            Collective::AllGather => share_across(self.depth(collective, placement), placement),
            _ => self.depth(collective, placement.hosts.into()),
        }
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let cube = Cube::new(spec.ranks);
        match spec.collective {
            _ if spec.ranks == 1 => alone(spec),
            Collective::AllGather => cube.all_gather(rank, First::Near),
            _ => one_lane(all_reduce(cube, rank)),
        }
    }
}

fn all_reduce(cube: Cube, rank: Rank) -> Vec<Move> {
    let (corner, guest) = match cube.role(rank) {
        Role::Corner { corner, guest } => (corner, guest),
        Role::Guest { host, .. } => {
            let give = step([Source::Input(0)], [to(host)]);
            return vec![give, step([from(host)], [Sink::Output(0)])];
        }
    };
    let steps = cube.corners.ilog2();
    let partner = |s: u32| cube.host(corner ^ 1 << s);
    let last = |s: u32| if s < steps { Some(to(partner(s))) } else { guest.map(to) };

    // The sum so far lies in the output, except at the start.
    let mut sum = Source::Input(0);
    let mut moves = Vec::new();
    let mut combine = |sources: Vec<Source>, then: Option<Sink>| {
        moves.push(step(sources, Vec::from_iter([Sink::Output(0)].into_iter().chain(then))));
    };
    if let Some(guest) = guest {
        combine(vec![sum, from(guest)], last(0));
        sum = Source::Output(0);
    }
    for s in 0..steps {
        let theirs = from(partner(s));
        combine(if corner & 1 << s == 0 { vec![sum, theirs] } else { vec![theirs, sum] }, last(s + 1));
        sum = Source::Output(0);
    }
    if guest.is_none() {
        moves.insert(0, step([Source::Input(0)], [to(partner(0))]));
    }
    moves
}
