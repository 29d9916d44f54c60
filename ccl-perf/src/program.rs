//! What each program measures, and what nccl-tests says about it.

use ccl::Collective;

/// A program of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// One collective; of [`Collective::SendRecv`]: every rank sends to the next and receives from the one before, in
    /// one group.
    Collective(Collective),
    /// An all-to-all whose blocks differ.
    AllToAllV,
    /// The time until all ranks have come, and whether none leaves before.
    Barrier,
}

impl Program {
    /// Its name, which is nccl-tests' where that has one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Collective(Collective::AllReduce) => "all_reduce_perf",
            Program::Collective(Collective::Reduce) => "reduce_perf",
            Program::Collective(Collective::Broadcast) => "broadcast_perf",
            Program::Collective(Collective::AllGather) => "all_gather_perf",
            Program::Collective(Collective::ReduceScatter) => "reduce_scatter_perf",
            Program::Collective(Collective::AllToAll) => "alltoall_perf",
            Program::Collective(Collective::Gather) => "gather_perf",
            Program::Collective(Collective::Scatter) => "scatter_perf",
            Program::Collective(Collective::SendRecv) => "sendrecv_perf",
            Program::AllToAllV => "alltoallv_perf",
            Program::Barrier => "barrier_perf",
        }
    }

    /// The collective that carries its data.
    pub(crate) fn collective(self) -> Option<Collective> {
        match self {
            Program::Collective(collective) => Some(collective),
            Program::AllToAllV => Some(Collective::AllToAll),
            Program::Barrier => None,
        }
    }

    /// Whether values are combined, so that an operator is looked at.
    pub(crate) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Whether a root is looked at.
    pub(crate) fn rooted(self) -> bool {
        self.has_choice() && self.collective().is_some_and(Collective::rooted)
    }

    /// Whether one buffer may be both; a rank cannot receive into what it still sends.
    pub(crate) fn has_in_place(self) -> bool {
        self != Program::Collective(Collective::SendRecv)
    }

    /// Whether there are several algorithms.
    pub(crate) fn has_choice(self) -> bool {
        !matches!(self, Program::Collective(Collective::SendRecv) | Program::AllToAllV | Program::Barrier)
    }

    /// Whether it moves data, so that there are sizes and types.
    pub(crate) fn moves_data(self) -> bool {
        self != Program::Barrier
    }

    /// How many bytes the busiest link carries per byte of size: nccl-tests' factors.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Program::Collective(Collective::AllReduce) => 2.0 * (n - 1.0) / n,
            Program::Collective(Collective::Broadcast | Collective::Reduce | Collective::SendRecv) => 1.0,
            Program::Collective(_) | Program::AllToAllV => (n - 1.0) / n,
            Program::Barrier => 0.0,
        }
    }
}

impl From<Collective> for Program {
    fn from(collective: Collective) -> Program {
        Program::Collective(collective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let factor = |collective, ranks| Program::from(collective).bus_factor(ranks);
        assert_eq!(factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(factor(Collective::AllGather, 4), 0.75);
        assert_eq!(factor(Collective::ReduceScatter, 8), 0.875);
        assert_eq!(factor(Collective::AllToAll, 8), 0.875);
        assert_eq!(factor(Collective::Gather, 4), 0.75);
        assert_eq!(factor(Collective::Scatter, 4), 0.75);
        assert_eq!(factor(Collective::Broadcast, 8), 1.0);
        assert_eq!(factor(Collective::Reduce, 8), 1.0);
        assert_eq!(factor(Collective::AllReduce, 1), 0.0);
        assert_eq!(factor(Collective::SendRecv, 4), 1.0);
        assert_eq!(Program::AllToAllV.bus_factor(4), 0.75);
    }
}
