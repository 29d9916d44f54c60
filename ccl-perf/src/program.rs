//! What each program measures, and what nccl-tests says about it.

use ccl::Collective;
use std::ffi::OsString;
use std::path::Path;

/// A program of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// One collective; of [`Collective::SendRecv`]: every rank sends to the next and receives from the one before, in
    /// one group.
    Collective(Collective),
    /// An all-to-all whose blocks differ.
    AllToAllV,
    /// The time until all ranks have come, and whether none leaves before.
    Barrier,
}

/// All of them.
const ALL: [Program; 11] = [
    Program::Collective(Collective::AllReduce),
    Program::Collective(Collective::Reduce),
    Program::Collective(Collective::Broadcast),
    Program::Collective(Collective::AllGather),
    Program::Collective(Collective::ReduceScatter),
    Program::Collective(Collective::AllToAll),
    Program::Collective(Collective::Gather),
    Program::Collective(Collective::Scatter),
    Program::Collective(Collective::SendRecv),
    Program::AllToAllV,
    Program::Barrier,
];

impl Program {
    /// The one that is meant by what a process was called by: a path, as a rule.
    pub(crate) fn called(word: Option<OsString>) -> Result<Program, String> {
        let word = word.unwrap_or_default();
        let name = Path::new(&word).file_name().unwrap_or_default().to_string_lossy();
        // Another spelling that scripts have.
        let meant = if name == "allreduce_perf" { "all_reduce_perf" } else { &name };
        ALL.into_iter().find(|program| program.name() == meant).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|program| program.name()).collect();
            format!("called as '{name}': the name says what is measured, and is one of {}", names.join(", "))
        })
    }

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
    fn the_name_of_the_file_says_which_program_it_is() {
        for program in ALL {
            for folder in ["", "bin/", "/usr/bin/"] {
                let word = format!("{folder}{}", program.name());
                assert_eq!(Program::called(Some(word.into())), Ok(program));
            }
        }
        assert_eq!(Program::called(Some("./allreduce_perf".into())), Ok(Collective::AllReduce.into()));
        for word in [None, Some("".into()), Some("/bin/perf".into())] {
            let why = Program::called(word).unwrap_err();
            assert!(why.contains("is one of all_reduce_perf, ") && why.contains("barrier_perf"), "{why}");
        }
    }

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
