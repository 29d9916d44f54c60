//! `chain`: pieces travel along the ranks, from the root to the one before it or the other way.
//!
//! All links work at once on different tiles, so a long broadcast or reduction takes as long as one link
//! needs for its bytes; a short one takes n - 1 messages in a row. Pieces of gather and scatter are
//! passed on one by one as they come.

use super::Algorithm;
use super::moves::{alone, from, one_lane, step, to};
use crate::plan::{Collective, Move, Placement, Program, Rank, Sink, Source, Spec};

/// The pipelined chain; see the [module](self).
pub struct Chain;

impl Algorithm for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        collective.rooted().then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        ranks - 1
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let (n, root) = (spec.ranks, spec.root);
        if n == 1 {
            return alone(spec);
        }
        // Everything flows to the next rank: away from the root until the one before it, or from the one
        // after it until the root.
        let (next, prev) = ((rank + 1) % n, (rank + n - 1) % n);
        let (first, last) = match spec.collective {
            Collective::Broadcast | Collective::Scatter => (rank == root, next == root),
            _ => (prev == root, rank == root),
        };
        let distance = (rank + n - root) % n;

        let mut moves: Vec<Move> = Vec::new();
        match spec.collective {
            Collective::Broadcast => {
                let source = if first { Source::Input(0) } else { from(prev) };
                let mut sinks = vec![Sink::Output(0)];
                sinks.extend((!last).then(|| to(next)));
                moves.push(step([source], sinks));
            }
            Collective::Scatter if first => {
                // The farthest first: all are served when the root has sent its last piece.
                moves.extend((1..n).rev().map(|d| step([Source::Input((root + d) % n)], [to(next)])));
                moves.push(step([Source::Input(root)], [Sink::Output(0)]));
            }
            Collective::Scatter => {
                moves.extend((distance + 1..n).map(|_| step([from(prev)], [to(next)])));
                moves.push(step([from(prev)], [Sink::Output(0)]));
            }
            Collective::Gather if last => {
                moves.push(step([Source::Input(0)], [Sink::Output(root)]));
                moves.extend((1..n).rev().map(|d| step([from(prev)], [Sink::Output((root + d) % n)])));
            }
            Collective::Gather => {
                moves.push(step([Source::Input(0)], [to(next)]));
                moves.extend((1..distance).map(|_| step([from(prev)], [to(next)])));
            }
            _ => {
                let mut sources = Vec::from_iter((!first).then(|| from(prev)));
                sources.push(Source::Input(0));
                moves.push(step(sources, [if last { Sink::Output(0) } else { to(next) }]));
            }
        }
        one_lane(moves)
    }
}
