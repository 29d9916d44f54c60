//! Orders of reduction, each kept once.
//!
//! A shape says how contributions were combined: a leaf is a rank, a fold a list of shapes combined from
//! left to right. Equal shapes have equal numbers.

use crate::plan::Rank;

/// The number of a shape; the leaf of rank r is r.
pub(super) type Shape = u32;

pub(super) struct Shapes {
    ranks: u32,
    /// Per fold, where its children end in `children`.
    ends: Vec<u32>,
    children: Vec<Shape>,
    /// Per fold, a hash of its structure.
    digests: Vec<u64>,
    /// Open addressing: folds by digest, `EMPTY` where there is none.
    table: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl Shapes {
    pub(super) fn new(ranks: u32) -> Shapes {
        Shapes { ranks, ends: Vec::new(), children: Vec::new(), digests: Vec::new(), table: vec![EMPTY; 64] }
    }

    /// How many there are: numbers are below this.
    pub(super) fn len(&self) -> usize {
        self.ranks as usize + self.ends.len()
    }

    /// What a fold combines; nothing for a leaf.
    pub(super) fn children(&self, shape: Shape) -> &[Shape] {
        let Some(fold) = shape.checked_sub(self.ranks) else { return &[] };
        let start = if fold == 0 { 0 } else { self.ends[fold as usize - 1] };
        &self.children[start as usize..self.ends[fold as usize] as usize]
    }

    /// 64 bits that stand for the structure: equal for equal shapes, in any plan.
    pub(super) fn digest(&self, shape: Shape) -> u64 {
        match shape.checked_sub(self.ranks) {
            Some(fold) => self.digests[fold as usize],
            None => mix(0, u64::from(shape) + 1),
        }
    }

    /// The shape that combines these.
    pub(super) fn fold(&mut self, children: &[Shape]) -> Shape {
        let digest = children.iter().fold(children.len() as u64, |d, &child| mix(d, self.digest(child)));
        let mask = self.table.len() - 1;
        let mut slot = digest as usize & mask;
        while self.table[slot] != EMPTY {
            let fold = self.table[slot];
            let shape = self.ranks + fold;
            if self.digests[fold as usize] == digest && self.children(shape) == children {
                return shape;
            }
            slot = (slot + 1) & mask;
        }
        let fold = self.ends.len() as u32;
        self.table[slot] = fold;
        self.children.extend_from_slice(children);
        self.ends.push(self.children.len() as u32);
        self.digests.push(digest);
        if self.ends.len() * 2 > self.table.len() {
            self.grow();
        }
        self.ranks + fold
    }

    fn grow(&mut self) {
        let mask = self.table.len() * 2 - 1;
        self.table = vec![EMPTY; mask + 1];
        for (fold, &digest) in self.digests.iter().enumerate() {
            let mut slot = digest as usize & mask;
            while self.table[slot] != EMPTY {
                slot = (slot + 1) & mask;
            }
            self.table[slot] = fold as u32;
        }
    }

    /// Some rank in it.
    pub(super) fn some_rank(&self, mut shape: Shape) -> Rank {
        while let Some(&first) = self.children(shape).first() {
            shape = first;
        }
        shape
    }

    /// Whether it is what a loop over the ranks computes: ((0 + 1) + 2) + ….
    pub(super) fn is_rank_order(&self, mut shape: Shape) -> bool {
        let mut next = self.ranks; // one past the rank that must stand rightmost
        while let [first, rest @ ..] = self.children(shape) {
            for &child in rest.iter().rev() {
                if next == 0 || child != next - 1 {
                    return false;
                }
                next -= 1;
            }
            shape = *first;
        }
        next == 1 && shape == 0
    }
}

/// Mixes a word into a digest (the finaliser of splitmix64).
pub(super) fn mix(digest: u64, word: u64) -> u64 {
    let mut x = digest.rotate_left(23).wrapping_add(word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How the contributions in a shape differ from "every rank once".
pub(super) enum Census {
    /// Every rank once.
    Exact,
    /// This rank is absent.
    Missing(Rank),
    /// This rank is in twice; the smallest shape that has it twice.
    Double(Rank, Shape),
}

/// Counts contributions; keeps its memory from one count to the next.
pub(super) struct Counter {
    seen: Vec<u32>,
    round: u32,
    /// Per shape, whether it is known to be exact.
    exact: Vec<bool>,
}

impl Counter {
    pub(super) fn new(shapes: &Shapes) -> Counter {
        Counter { seen: vec![0; shapes.ranks as usize], round: 0, exact: vec![false; shapes.len()] }
    }

    pub(super) fn count(&mut self, shapes: &Shapes, shape: Shape) -> Census {
        if self.exact[shape as usize] {
            return Census::Exact;
        }
        if let Some(rank) = self.repeated(shapes, shape) {
            return Census::Double(rank, self.smallest_double(shapes, shape));
        }
        match self.seen.iter().position(|&seen| seen != self.round) {
            Some(absent) => Census::Missing(absent as Rank),
            None => {
                self.exact[shape as usize] = true;
                Census::Exact
            }
        }
    }

    /// A rank that is in twice. Ends after a number of steps in the order of the number of ranks, because
    /// of more leaves than ranks one is a repetition.
    fn repeated(&mut self, shapes: &Shapes, shape: Shape) -> Option<Rank> {
        self.round += 1;
        let mut open = vec![shape];
        while let Some(shape) = open.pop() {
            let children = shapes.children(shape);
            open.extend(children.iter().rev());
            if children.is_empty()
                && std::mem::replace(&mut self.seen[shape as usize], self.round) == self.round
            {
                return Some(shape);
            }
        }
        None
    }

    /// Goes down from a shape with a repetition while a single child has one too.
    fn smallest_double(&mut self, shapes: &Shapes, mut shape: Shape) -> Shape {
        loop {
            let child = shapes.children(shape).iter().find(|&&child| self.repeated(shapes, child).is_some());
            match child {
                Some(&child) => shape = child,
                None => return shape,
            }
        }
    }
}
