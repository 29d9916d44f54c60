//! Processors that ranks may run on.

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

const BITS: usize = u64::BITS as usize;

/// Some processors of a host, by the kernel's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cores(Vec<u64>);

impl Cores {
    /// Those that this thread may run on, as its affinity says.
    pub(super) fn here() -> Cores {
        allowed().collect()
    }

    /// Those of both.
    pub(super) fn with(mut self, other: &Cores) -> Cores {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
        self
    }

    /// How many they are; at least 1, since whoever asks runs somewhere.
    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum::<u32>().max(1)
    }
}

/// Each processor that this thread may run on, in order. Allocates nothing.
pub(super) fn allowed() -> impl Iterator<Item = usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(move |processor| set.is_set(*processor))
}

impl FromIterator<usize> for Cores {
    fn from_iter<I: IntoIterator<Item = usize>>(processors: I) -> Cores {
        let mut words = Vec::new();
        for processor in processors {
            words.resize(words.len().max(processor / BITS + 1), 0);
            words[processor / BITS] |= 1 << (processor % BITS);
        }
        Cores(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_once_whoever_may_run_on_them() {
        let cores = |processors: &[usize]| processors.iter().copied().collect::<Cores>();
        assert_eq!(cores(&[0]).with(&cores(&[1])), cores(&[0, 1]));
        assert_eq!(cores(&[0, 64, 200]).with(&cores(&[64])).count(), 3);
        assert_eq!(cores(&[3]).with(&cores(&[3])).count(), 1);
        assert_eq!(Cores::default().count(), 1);
        assert!(Cores::here().count() >= 1 && Cores::here() != Cores::default());
        assert_eq!(Cores::here().count() as usize, allowed().count());
    }
}
