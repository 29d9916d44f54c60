//! Why there is no program.

use ccl_core::Rank;

/// Why a plan cannot be a program for the device, or words are none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Something is more than the kernels have room for.
    #[error(
        "rank {rank}, lane {lane}: {found} {what}, but a kernel has room for {limit}: use another algorithm or fewer ranks"
    )]
    TooMany {
        /// Whose program.
        rank: Rank,
        /// Which lane.
        lane: usize,
        /// Of what.
        what: &'static str,
        /// How many the plan has.
        found: usize,
        /// How many there can be.
        limit: usize,
    },
    /// The lanes with their shares are more blocks than a launch may have.
    #[error(
        "rank {rank}: {lanes} lanes with {shares} shares each are more than {limit} thread blocks: use fewer shares"
    )]
    Workers {
        /// Whose program.
        rank: Rank,
        /// Lanes of the plan.
        lanes: usize,
        /// Shares of each.
        shares: u32,
        /// Blocks at most.
        limit: usize,
    },
    /// A number that was chosen for the links is not one that they can have.
    #[error("{what} of {found}: {wanted}")]
    Geometry {
        /// Which.
        what: &'static str,
        /// What was given.
        found: usize,
        /// What it must be.
        wanted: &'static str,
    },
    /// The plan names what is not there, or a move has operands of different lengths.
    #[error("rank {rank}, lane {lane}, move {mv}: {what}")]
    Plan {
        /// Whose program.
        rank: Rank,
        /// Which lane.
        lane: usize,
        /// Which of its moves.
        mv: usize,
        /// What is wrong.
        what: String,
    },
    /// Words that are no program.
    #[error("word {at} of a device program: {what}")]
    Words {
        /// Which word.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// The buffers do not go with the plan.
    #[error(transparent)]
    Core(#[from] ccl_core::Error),
}
