//! Why there is no gang.

use crate::program::ProgramError;

/// Why ranks cannot be launched together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GangError {
    /// They would not all be on the device at once, so some would wait for others that never begin.
    #[error(
        "{kernel} in {blocks} blocks of {threads} threads: the device holds {fits} of them at once; use fewer ranks, blocks or threads"
    )]
    TooLarge {
        /// Which kernel.
        kernel: String,
        /// Blocks of all ranks.
        blocks: u32,
        /// Threads of a block.
        threads: u32,
        /// How many blocks there can be.
        fits: u32,
    },
    /// There is no such kernel for these elements.
    #[error("{kernel} of {family}: there is no such kernel; the interpreter runs a plan for every type")]
    NoKernel {
        /// Which kernel.
        kernel: String,
        /// For which family of types and operators.
        family: &'static str,
    },
    /// What the launch is told would be wrong.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The driver says no.
    #[error(transparent)]
    Core(#[from] ccl_core::Error),
}
