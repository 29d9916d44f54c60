//! Ranks as the corners of a hypercube, for any number of ranks.
//!
//! The largest power of two that is at most n gives the corners. Each of the remaining ranks is the
//! *guest* of a corner: ranks 0 and 1 share corner 0, 2 and 3 corner 1, and so on while there are guests;
//! from there on each rank is a corner. So the ranks of neighbouring corners are neighbours, and sums
//! over subcubes are sums over ranges of ranks.

use super::moves::{from, one_lane, step, to, to_all};
use super::spread::{First, Spread};
use crate::plan::{Program, Rank, Sink, Source};

/// The corners of n ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cube {
    guests: u32,
    /// A power of two.
    pub(super) corners: u32,
}

/// What a rank is.
pub(super) enum Role {
    /// A corner, with the rank that is its guest.
    Corner { corner: u32, guest: Option<Rank> },
    /// A guest of a corner.
    Guest { corner: u32, host: Rank },
}

impl Cube {
    pub(super) fn new(ranks: u32) -> Cube {
        let corners = 1 << ranks.ilog2();
        Cube { guests: ranks - corners, corners }
    }

    pub(super) fn role(self, rank: Rank) -> Role {
        let (corner, odd) = (rank / 2, rank % 2 == 1);
        if rank >= 2 * self.guests {
            Role::Corner { corner: rank - self.guests, guest: None }
        } else if odd {
            Role::Guest { corner, host: rank - 1 }
        } else {
            Role::Corner { corner, guest: Some(rank + 1) }
        }
    }

    /// The rank at a corner.
    pub(super) fn host(self, corner: u32) -> Rank {
        if corner < self.guests { 2 * corner } else { corner + self.guests }
    }

    /// The ranks at a corner: the host, then its guest.
    pub(super) fn ranks_at(self, corner: u32) -> impl Iterator<Item = Rank> {
        let host = self.host(corner);
        host..host + 1 + (corner < self.guests) as u32
    }

    /// Most ranks at one corner.
    pub(super) fn crowd(self) -> u32 {
        1 + (self.guests > 0) as u32
    }

    /// Depth of an all-gather or a reduce-scatter.
    pub(super) fn depth(self) -> u32 {
        Spread::new(self.corners, self.crowd(), First::Far).depth() + 2 * (self.crowd() - 1)
    }

    /// An all-gather along the cube's edges.
    pub(super) fn all_gather(self, rank: Rank, first: First) -> Program {
        let spread = Spread::new(self.corners, self.crowd(), first);
        let blocks = |corner: u32| {
            spread.distances().flat_map(move |x| self.ranks_at(corner ^ x).map(move |b| (x, b)))
        };
        let mut moves = Vec::new();
        match self.role(rank) {
            Role::Corner { corner, guest } => {
                for (x, block) in blocks(corner) {
                    let source = match spread.hop_to(x) {
                        Some(hop) => from(self.host(corner ^ hop)),
                        None if block == rank => Source::Input(0),
                        None => from(block),
                    };
                    let mut peers: Vec<Rank> =
                        spread.hops_from(x).map(|hop| self.host(corner ^ hop)).collect();
                    peers.extend(guest.filter(|guest| *guest != block));
                    let mut sinks = vec![Sink::Output(block)];
                    sinks.extend((!peers.is_empty()).then(|| to_all(peers)));
                    moves.push(step([source], sinks));
                }
            }
            Role::Guest { corner, host } => {
                moves.push(step([Source::Input(0)], [Sink::Output(rank), to(host)]));
                let others = blocks(corner).filter(|(_, block)| *block != rank);
                moves.extend(others.map(|(_, block)| step([from(host)], [Sink::Output(block)])));
            }
        }
        one_lane(moves)
    }
}
