//! Which instructions the kernels use.

use std::fmt;
use std::str::FromStr;

/// A set of kernels. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// One element at a time: the reference, and the fallback for a CPU without any of the others.
    Scalar,
}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Level; 1] = [Level::Scalar];

    /// The fastest level of this CPU.
    pub fn best() -> Level {
        Level::ALL.into_iter().rev().find(|l| l.is_available()).unwrap_or(Level::Scalar)
    }

    /// Whether this CPU has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => true,
        }
    }

    /// The name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Level::ALL.into_iter().find(|l| l.name() == s).ok_or_else(|| {
            let names: Vec<_> = Level::ALL.iter().map(|l| l.name()).collect();
            format!("unknown kernel level '{s}': one of {}", names.join(", "))
        })
    }
}
