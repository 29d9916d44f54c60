//! `halving`: recursive halving, then recursive doubling, along the edges of a hypercube.
//!
//! In bytes as good as the ring, and logarithmic in depth. In the reduce-scatter, what a corner is not
//! responsible for goes out by halves: everything whose lowest bit differs to the neighbour across that
//! bit, and so on. Seen from one chunk this is a `spread` tree run backwards, so a corner combines its
//! own contribution, its guest's and all its children's in one move, in ascending order of ranks. The
//! all-gather is the same tree forwards. Each chunk is combined once, so all ranks get the same bits.

use super::Algorithm;
use super::cube::{Cube, Role};
use super::moves::{alone, from, one_lane, step, to, to_all};
use super::spread::{First, Spread};
use crate::plan::{Collective, Move, Placement, Program, Rank, Sink, Source, Spec};

/// Recursive halving and doubling; see the [module](self).
pub struct Halving;

impl Algorithm for Halving {
    fn name(&self) -> &'static str {
        "halving"
    }

    fn parts(&self, collective: Collective, Placement { ranks, .. }: Placement) -> Option<u32> {
        match collective {
            Collective::AllReduce => Some(Cube::new(ranks).corners),
            Collective::AllGather | Collective::ReduceScatter => Some(1),
            _ => None,
        }
    }

    fn depth(&self, collective: Collective, Placement { ranks, .. }: Placement) -> u32 {
        let cube = Cube::new(ranks);
        match collective {
            Collective::AllReduce => {
                2 * Spread::new(cube.corners, 1, First::Far).depth() + 2 * (cube.crowd() - 1)
            }
            _ => cube.depth(),
        }
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let cube = Cube::new(spec.ranks);
        match spec.collective {
            _ if spec.ranks == 1 => alone(spec),
            Collective::AllGather => cube.all_gather(rank, First::Far),
            Collective::AllReduce => one_lane(all_reduce(cube, rank)),
            _ => one_lane(reduce_scatter(cube, rank)),
        }
    }
}

/// Each part belongs to a corner.
fn all_reduce(cube: Cube, rank: Rank) -> Vec<Move> {
    let spread = Spread::new(cube.corners, 1, First::Far);
    let mut moves = Vec::with_capacity(2 * cube.corners as usize);
    let (corner, guest) = match cube.role(rank) {
        Role::Corner { corner, guest } => (corner, guest),
        Role::Guest { corner, host } => {
            moves.extend(spread.distances().rev().map(|x| step([Source::Input(corner ^ x)], [to(host)])));
            moves.extend(spread.distances().map(|x| step([from(host)], [Sink::Output(corner ^ x)])));
            return moves;
        }
    };
    let host = |hop: u32| cube.host(corner ^ hop);
    let spread_on = |x: u32| {
        let peers: Vec<Rank> = spread.hops_from(x).map(host).chain(guest).collect();
        let mut sinks = vec![Sink::Output(corner ^ x)];
        sinks.extend((!peers.is_empty()).then(|| to_all(peers)));
        sinks
    };
    for x in spread.distances().rev() {
        let sinks = spread.hop_to(x).map_or_else(|| spread_on(0), |hop| vec![to(host(hop))]);
        moves.push(step(sum(cube, spread, (corner, guest), x, corner ^ x), sinks));
    }
    for x in spread.distances() {
        let Some(hop) = spread.hop_to(x) else { continue };
        moves.push(step([from(host(hop))], spread_on(x)));
    }
    moves
}

/// Each corner is responsible for its own block and its guest's.
fn reduce_scatter(cube: Cube, rank: Rank) -> Vec<Move> {
    let spread = Spread::new(cube.corners, cube.crowd(), First::Far);
    let blocks = |corner: u32| {
        let distances = spread.distances().rev();
        distances.flat_map(move |x| cube.ranks_at(corner ^ x).map(move |block| (x, block)))
    };
    let mut moves = Vec::with_capacity(2 * cube.corners as usize);
    match cube.role(rank) {
        Role::Corner { corner, guest } => {
            for (x, block) in blocks(corner) {
                let sink = match spread.hop_to(x) {
                    Some(hop) => to(cube.host(corner ^ hop)),
                    None if block == rank => Sink::Output(0),
                    None => to(block),
                };
                moves.push(step(sum(cube, spread, (corner, guest), x, block), [sink]));
            }
        }
        Role::Guest { corner, host } => {
            moves.extend(blocks(corner).map(|(_, block)| step([Source::Input(block)], [to(host)])));
            moves.push(step([from(host)], [Sink::Output(0)]));
        }
    }
    moves
}

/// What a corner knows of `chunk`, whose owner is at `distance`: its own contribution, its guest's and its
/// children's, in ascending order of ranks.
fn sum(
    cube: Cube,
    spread: Spread,
    (corner, guest): (u32, Option<Rank>),
    distance: u32,
    chunk: u32,
) -> Vec<Source> {
    let mut children: Vec<u32> = spread.hops_from(distance).map(|hop| corner ^ hop).collect();
    children.sort_unstable();
    let (lower, upper) = children.split_at(children.partition_point(|child| *child < corner));
    let child = |c: &u32| from(cube.host(*c));
    let own = [Source::Input(chunk)].into_iter().chain(guest.map(from));
    lower.iter().map(child).chain(own).chain(upper.iter().map(child)).collect()
}
