//! How a block reaches everybody in a logarithmic number of hops, and in which order a rank handles its
//! blocks.
//!
//! Number the ranks by their *distance* x from a block's owner (x = 0). Each hop adds a power of two to
//! the distance, so the way to x has a hop for each bit set in x: a binomial tree. All blocks use the
//! same tree, each from its own owner, and every rank stands at every distance once. Backwards, the same
//! trees reduce: all contributions meet at the owner.
//!
//! A rank has one lane for all of it, and handles the distances in one order that all ranks share. If it
//! went tree level by tree level, n/2 pieces would wait in a link; if it went along the distances, each
//! move would wait for the one before it. So it goes through windows of [`WINDOW`] distances, level by
//! level inside: a link never holds more than half a window, and the latency is paid once per window and
//! level.

/// Pieces handled together. Half of them may lie in one link, which hides its latency and asks for no
/// more than half of the usual 8 credits.
const WINDOW: u32 = 8;

/// In which order the hops to a distance are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// The longest hop first: most pieces travel between near ranks.
    Far,
    /// The shortest hop first: most pieces travel far.
    Near,
}

/// The tree over distances 0 … ranks-1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    ranks: u32,
    /// Bits of a distance.
    bits: u32,
    /// Distances in a window, a power of two.
    window: u32,
    first: First,
}

impl Spread {
    /// `pieces` (1 or 2) travel for each distance.
    pub(super) fn new(ranks: u32, pieces: u32, first: First) -> Spread {
        let all = ranks.next_power_of_two();
        Spread { ranks, bits: all.ilog2(), window: all.min(WINDOW / pieces), first }
    }

    /// All distances, each after its parent. Backwards: each after its children.
    pub(super) fn distances(self) -> impl DoubleEndedIterator<Item = u32> {
        let window = self.window;
        (0..1 << self.bits)
            .map(move |i| {
                // Reversed bits count level by level: 0, 4, 2, 6, 1, 3, 5, 7 for far hops first.
                let x = i - i % window + reverse(i % window, window.ilog2());
                if self.first == First::Far { x } else { reverse(x, self.bits) }
            })
            .filter(move |x| *x < self.ranks)
    }

    /// Messages in the longest row in which each waits for the one before it.
    pub(super) fn depth(self) -> u32 {
        (self.ranks * self.window.ilog2()).div_ceil(self.window)
    }

    /// The hop that leads to `distance`, or `None` at the owner.
    pub(super) fn hop_to(self, distance: u32) -> Option<u32> {
        match (distance, self.first) {
            (0, _) => None,
            (x, First::Far) => Some(x & x.wrapping_neg()),
            (x, First::Near) => Some(1 << x.ilog2()),
        }
    }

    /// The hops that lead on from `distance`, the one to the largest subtree first.
    pub(super) fn hops_from(self, distance: u32) -> impl DoubleEndedIterator<Item = u32> {
        let Spread { ranks, bits, first, .. } = self;
        let hops = (0..bits).map(move |i| 1 << if first == First::Far { bits - 1 - i } else { i });
        hops.filter(move |hop| {
            let fits = match (self.hop_to(distance), first) {
                (None, _) => true,
                (Some(came), First::Far) => *hop < came,
                (Some(came), First::Near) => *hop > came,
            };
            fits && distance + hop < ranks
        })
    }
}

/// The lowest `bits` bits of `x` in reverse.
fn reverse(x: u32, bits: u32) -> u32 {
    if bits == 0 { 0 } else { x.reverse_bits() >> (u32::BITS - bits) }
}
