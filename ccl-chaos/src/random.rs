//! Random numbers that a seed determines.

/// SplitMix64.
pub(crate) struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that depends on both and looks like neither.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(STEP)).wrapping_add(STEP);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Random {
    /// The stream of this number under a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(mix(mix(seed, stream), stream))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0, 1)
    }

    /// One of 0 … `end` - 1; 0 where `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True in so many of 100 cases.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Different ones of 0 … `end` - 1, in order.
    pub(crate) fn some_of(&mut self, many: u32, end: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..end).collect();
        while all.len() > many as usize {
            all.remove(self.below(all.len() as u64) as usize);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_numbers_and_streams_differ() {
        let first = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.below(10), random.next()]
        };
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(2, 1));
        assert_ne!(first(1, 2), first(1, 3));
    }

    #[test]
    fn some_are_different_and_in_order() {
        for seed in 0..100 {
            let some = Random::new(seed, 0).some_of(3, 7);
            assert!(some.len() == 3 && some.is_sorted_by(|a, b| a < b) && some[2] < 7, "{some:?}");
        }
    }
}
