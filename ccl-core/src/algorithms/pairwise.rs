//! `pairwise`: an all-to-all in n rounds, each a perfect matching of the ranks.
//!
//! In round s, ranks whose numbers add up to s (modulo n) swap blocks. So a rank talks to one peer at a
//! time, which spares the network the incast of `oneshot`; and the block that comes in lies where the
//! block that went to the same peer lay, so that it works in place. One lane holds all rounds: with a
//! lane for each peer they would all run at once, and the matching would be lost. The block of the next
//! round is sent before that of this round is waited for, which hides the latency of a round behind the
//! other's bytes.

use super::Algorithm;
use super::moves::{from, one_lane, share_across, step, to};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// The pairwise exchange; see the [module](self).
pub struct Pairwise;

impl Algorithm for Pairwise {
    fn name(&self) -> &'static str {
        "pairwise"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        (collective == Collective::AllToAll).then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        if ranks > 1 { ranks.div_ceil(2) } else { 0 }
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        share_across(self.depth(collective, placement), placement)
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let n = spec.ranks;
        let partner = |round: u32| (round + n - rank) % n;
        let mut moves = Vec::with_capacity(2 * n as usize);
        for round in 0..=n {
            if round < n {
                let peer = partner(round);
                let sink = if peer == rank { Sink::Output(rank) } else { to(peer) };
                moves.push(step([Source::Input(peer)], [sink]));
            }
            if let Some(peer) = round.checked_sub(1).map(partner).filter(|peer| *peer != rank) {
                moves.push(step([from(peer)], [Sink::Output(peer)]));
            }
        }
        one_lane(moves)
    }
}
