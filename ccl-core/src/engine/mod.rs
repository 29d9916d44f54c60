//! The engine: runs one rank's program over links and memory.
//!
//! A [`Schedule`] is a [`Program`](crate::plan::Program) bound to the link ends of a
//! [`Fabric`](crate::transport::Fabric), flattened into arrays. It is made once per plan and kept. A
//! [`Task`] says what runs of it are about: how the buffers are cut ([`Layout`]), and how values are combined
//! ([`Reducer`](crate::kernels::Reducer)). It is worked out once for calls that are alike.
//!
//! ```text
//! let task = Arc::new(schedule.task(layout, reducer)?);
//! schedule.start(&task, tag, sequence)?;
//! loop {
//!     match schedule.step(&mut fabric, &buffers)? {
//!         Progress::Done => break,
//!         Progress::Moved => {}
//!         Progress::Blocked => /* spin, yield, park: schedule.waits() says for whom */,
//!     }
//! }
//! ```
//!
//! [`Schedule::dash`] in place of `start` makes short calls without a step, if their peers have done their part before.
//!
//! A step runs every lane as far as its links let it, within a bound, and returns. Nothing here blocks,
//! looks at a clock, makes a system call, takes a lock, or allocates (a call with longer tiles than all
//! before it makes the scratch memory grow). The same steps over the same arrivals give the same bits, and
//! since a move waits for all of its sources and combines them in the plan's order, so do any other steps:
//! timing does not show in results.
//!
//! A lane whose later moves only take what others send is run in stages: some tiles are sent before as many are taken.
//!
//! Tiles do not depend on each other, so several threads may run a [`Share`] of a call's tiles each, with a schedule
//! of the same program that is bound to links of its own.
//!
//! What a move sends and the proof allows to be read later travels by reference, where the transport can
//! ([`Schedule::allow_references`]). Then a call ends when all of its references are released: its buffers are the
//! user's again. Tiles that lie side by side there are made in one go as far as they have come. Where what comes in is to be copied into the output, and the proof allows to do so early, that memory is
//! offered to whoever sends it when the call begins ([`Schedule::allow_offers`]). A rank that only sends may write a share there itself
//! ([`Schedule::allow_shares`]).

mod awaits;
mod binding;
mod dash;
#[cfg(test)]
mod idle;
mod layout;
mod offers;
mod quick;
mod reaches;
mod references;
mod run;
mod schedule;
mod stages;
mod stretches;
mod tag;
mod task;
mod uneven;

pub use binding::Links;
pub use layout::{Layout, Overlay};
pub use references::ReferFrom;
pub use run::{Progress, Wait, WaitOn};
pub use schedule::{Schedule, Share};
pub use tag::mix;
pub use task::{Streams, Task};
pub use uneven::Blocks;
