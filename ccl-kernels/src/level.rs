//! Which instructions the kernels use.

use std::fmt;
use std::str::FromStr;

/// A set of kernels. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// One element at a time: the reference, and the fallback for a CPU without any of the others.
    Scalar,
    /// What every 64-bit ARM CPU has.
    Neon,
    /// AVX2 with F16C.
    Avx2,
    /// AVX-512 with its byte, word, doubleword and short-vector parts.
    Avx512,
}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Level; 4] = [Level::Scalar, Level::Neon, Level::Avx2, Level::Avx512];

    /// The fastest level of this CPU.
    pub fn best() -> Level {
        Level::ALL.into_iter().rev().find(|l| l.is_available()).unwrap_or(Level::Scalar)
    }

    /// Whether this CPU has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => true,
            Level::Neon => cfg!(target_arch = "aarch64"),
            Level::Avx2 => has_avx2(),
            Level::Avx512 => has_avx512(),
        }
    }

    /// The name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
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
