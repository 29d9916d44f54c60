//! What ranks do and have done, for errors and for people.
//!
//! A [`Recorder`] is one rank's record: the last calls in a ring, what runs, and what that waits for. It lies in memory that
//! others may read at any moment, while the rank is stuck, stopped, or dead; [`View`] is how they do. Writing a call takes
//! one cache line, no lock, no clock and no memory.
//!
//! [`RankState`] is what a record says at one moment, in the form in which it travels to the head of an
//! inquest, into dumps, and to the command line. [`judge`] tells from the states of all ranks who is to blame.
//! `docs/flight-record.md` has the design.

mod about;
mod dump;
mod format;
pub(crate) mod fuzzing;
mod memory;
mod page;
mod recorder;
mod state;
#[cfg(test)]
mod tests;
mod verdict;
mod view;

pub use about::{About, End};
pub use dump::{Dump, judge_dumps};
pub use format::{RING_LENGTHS, lines_for};
pub use memory::{Line, Memory};
pub use page::{PAGE_HEAD, format_page, list_record, records, unlist_record};
pub use recorder::{Entry, Identity, Recorder};
pub use state::{CallState, KernelState, Progress, RankState, WaitFor, WaitState};
pub use verdict::{Blame, Reason, Verdict, judge, judge_at};
pub use view::{Recorded, Status, View};
