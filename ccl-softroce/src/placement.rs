//! Which processor runs what: the hosts share one kernel, and so its processors, as real ones do not.

use std::thread::available_parallelism;

/// Where the programs of a host run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Wherever the kernel puts them.
    Free,
    /// On the host's own processor, as far as there are enough.
    Bound,
}

impl Placement {
    pub(crate) const ALL: [Placement; 2] = [Placement::Free, Placement::Bound];

    /// What stands before a program of a host.
    pub(crate) fn words(self, host: usize) -> String {
        let processors = available_parallelism().map_or(1, |count| count.get());
        match self {
            Placement::Free => String::new(),
            Placement::Bound => format!("taskset -c {} ", host % processors),
        }
    }

    /// How it is called where both are measured.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Free => "free",
            Placement::Bound => "bound",
        }
    }
}
