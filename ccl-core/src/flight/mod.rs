//! What ranks do and have done, for errors and for people.
//!
//! [`RankState`] is what one rank's flight record says at one moment, in the form in which it travels to the head of an
//! inquest, into dumps, and to the command line. `docs/failures.md` has the design.

mod state;
mod verdict;

pub use state::{CallState, RankState, WaitFor, WaitState};
pub use verdict::{Blame, Verdict};
