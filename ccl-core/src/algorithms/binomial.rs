//! `binomial`: pieces go down, or come up, a binomial tree that hangs from the root.
//!
//! Counted from the root, rank v's parent is v without its lowest set bit, and its subtree is the ranks
//! from v up to v plus that bit. So reductions combine neighbouring ranges in ascending order. log2 n
//! messages deep; a broadcast uses the links of one rank log2 n times, so that it is for short buffers.
//! Gather and scatter pass every block on one by one: they save connections, not messages.

use super::Algorithm;
use super::moves::{alone, from, one_lane, step, to, to_all};
use crate::plan::{Collective, Move, Placement, Program, Rank, Sink, Source, Spec};

/// The binomial tree; see the [module](self).
pub struct Binomial;

impl Algorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        collective.rooted().then_some(1)
    }

    fn depth(&self, _: Collective, Placement { ranks, .. }: Placement) -> u32 {
        ranks.ilog2()
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        let n = spec.ranks;
        if n == 1 {
            return alone(spec);
        }
        let absolute = |v: u32| (v + spec.root) % n;
        let v = (rank + n - spec.root) % n;
        // The ranks below v, itself included, are v .. v + reach.
        let low = if v == 0 { n } else { v & v.wrapping_neg() };
        let reach = low.min(n - v);
        let parent = (v != 0).then(|| absolute(v - low));
        let children = (0..u32::BITS).map_while(|b| (1 << b < reach).then(|| absolute(v + (1 << b))));
        let children: Vec<Rank> = children.collect();

        let mut moves: Vec<Move> = Vec::new();
        match spec.collective {
            Collective::Broadcast => {
                let mut sinks = vec![Sink::Output(0)];
                // The largest subtree first.
                sinks.extend((!children.is_empty()).then(|| to_all(children.into_iter().rev())));
                moves.push(step([parent.map_or(Source::Input(0), from)], sinks));
            }
            Collective::Reduce => {
                let mut sources = vec![Source::Input(0)];
                sources.extend(children.into_iter().map(from));
                moves.push(step(sources, [parent.map_or(Sink::Output(0), to)]));
            }
            Collective::Gather => {
                // A subtree's blocks come in ascending order, its root's own block first.
                let sink = |u: u32| parent.map_or(Sink::Output(absolute(u)), to);
                moves.push(step([Source::Input(0)], [sink(v)]));
                for below in 1..reach {
                    let child = absolute(v + (1 << below.ilog2()));
                    moves.push(step([from(child)], [sink(v + below)]));
                }
            }
            _ => {
                // In descending order: those who must pass on get their own block last.
                let source = |u: u32| parent.map_or(Source::Input(absolute(u)), from);
                for below in (1..reach).rev() {
                    let child = absolute(v + (1 << below.ilog2()));
                    moves.push(step([source(v + below)], [to(child)]));
                }
                moves.push(step([source(v)], [Sink::Output(0)]));
            }
        }
        one_lane(moves)
    }
}
