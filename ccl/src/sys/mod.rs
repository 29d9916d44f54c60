//! The only place of this crate that needs unsafe code: the cell behind a [`Turnstile`], the
//! signal mask and the turns of threads, and memory that other processes look at.

mod cell;
mod line;
#[cfg(not(loom))]
pub(crate) mod page;
#[cfg(not(loom))]
mod quiet;
#[cfg(not(loom))]
mod slice;

pub use line::{Entered, Turn, Turnstile};
#[cfg(not(loom))]
pub use quiet::spawn_quiet;
#[cfg(not(loom))]
pub(crate) use slice::take_short_turns;
