//! `tree`: two binary trees, each for one half of the block.
//!
//! A rank that is an inner node of one tree is a leaf of the other, so the two together keep every rank's
//! links as busy as a ring does, with 2 log2 n messages in a row instead of 2(n - 1). The root stands
//! above both. The way up and the way down are lanes of their own: a rank sends tile 1 up before tile 0
//! has come down. Each half is combined once, at the root, so all ranks get the same bits.
//!
//! # The trees
//!
//! The other ranks stand at positions 1 … n-1, counted from the root. In the first tree a position's
//! height is the number of its trailing zeros, as in a ruler: odd ones are leaves, 2 is between 1 and 3,
//! 4 between 2 and 6. Where the middle of the upper half does not exist (n is no power of two), what
//! exists of that half hangs from its nearest ancestor. The second tree is the same one with the
//! positions mirrored (odd n) or shifted by one (even n), which turns odd ones into even ones.

use super::Algorithm;
use super::moves::{alone, from_on, step, to_all_on};
use crate::plan::{Collective, Lane, Placement, Program, Rank, Sink, Source, Spec};

/// The double binary tree; see the [module](self).
pub struct Tree;

/// Trees, and so parts and channels.
const TREES: u32 = 2;

impl Algorithm for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn parts(&self, collective: Collective, _: Placement) -> Option<u32> {
        match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => Some(TREES),
            _ => None,
        }
    }

    fn depth(&self, collective: Collective, Placement { ranks, .. }: Placement) -> u32 {
        // The top of the trees has the largest power of two below n for its position, and hangs from the
        // root.
        let height = if ranks > 1 { (ranks - 1).ilog2() + 1 } else { 0 };
        if collective == Collective::AllReduce { 2 * height } else { height }
    }

    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        // The trees are drawn over ranks, so that their edges begin and end inside hosts.
        let ways = if collective == Collective::AllReduce { 2 } else { 1 };
        let hosts = self.depth(collective, placement.hosts.into());
        (hosts + 2 * ways).min(self.depth(collective, placement))
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        if spec.ranks == 1 {
            return alone(spec);
        }
        let up = spec.collective != Collective::Broadcast;
        let down = spec.collective != Collective::Reduce;
        let mut lanes = Vec::new();
        for tree in 0..TREES {
            let node = Node::new(spec, tree, rank);
            let channel = tree as u16;
            let to = |peers| to_all_on(channel, peers);
            // In order: what lies below, itself, what lies above.
            let mut terms: Vec<_> = node.below.map(|peer| from_on(channel, peer)).into_iter().collect();
            terms.push(Source::Input(tree));
            terms.extend(node.above.map(|peer| from_on(channel, peer)));
            let children: Vec<Rank> = node.below.into_iter().chain(node.above).collect();
            let mut results = vec![Sink::Output(tree)];
            results.extend((down && !children.is_empty()).then(|| to(children)));

            let moves = match node.parent {
                None if up => vec![step(terms, results)],
                None => vec![step([Source::Input(tree)], results)],
                Some(parent) => {
                    let rise = up.then(|| step(terms, [to(vec![parent])]));
                    let fall = down.then(|| step([from_on(channel, parent)], results));
                    rise.into_iter().chain(fall).collect()
                }
            };
            lanes.extend(moves.into_iter().map(|m| Lane { scratch: 0, moves: vec![m] }));
        }
        Program { lanes }
    }
}

/// A rank's place in one of the trees.
#[derive(Debug, PartialEq)]
struct Node {
    parent: Option<Rank>,
    /// The child with lower positions.
    below: Option<Rank>,
    /// The child with higher positions.
    above: Option<Rank>,
}

impl Node {
    fn new(spec: &Spec, tree: u32, rank: Rank) -> Node {
        let n = spec.ranks;
        let from_root = (rank + n - spec.root) % n;
        let position = if tree == 0 { from_root } else { swap_parity(n, from_root, false) };
        let rank_at = |p: u32| (spec.root + if tree == 0 { p } else { swap_parity(n, p, true) }) % n;

        if position == 0 {
            let top = 1 << (n - 1).ilog2();
            return Node { parent: None, below: None, above: Some(rank_at(top)) };
        }
        let low = position & position.wrapping_neg();
        let across = (position - low) | (low << 1);
        let parent = if across < n { across } else { position - low };
        // Halves of `low`: how far the child may be on either side.
        let halves = std::iter::successors(Some(low / 2), |half| Some(half / 2)).take_while(|half| *half > 0);
        let above = halves.map(|half| position + half).find(|p| *p < n);
        Node {
            parent: Some(rank_at(parent)),
            below: (low > 1).then(|| rank_at(position - low / 2)),
            above: above.map(rank_at),
        }
    }
}

/// Maps the positions 1 … n-1 onto themselves, odd ones to even ones (but for one, when n is even); 0
/// stays.
fn swap_parity(n: u32, position: u32, back: bool) -> u32 {
    match position {
        0 => 0,
        p if n % 2 == 1 => n - p,
        p if back => p % (n - 1) + 1,
        p => (p + n - 3) % (n - 1) + 1,
    }
}
