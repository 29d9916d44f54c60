//! The only place of this crate that needs unsafe code: the cell behind a [`Turnstile`], and the
//! signal mask of threads.

mod cell;
mod line;
#[cfg(not(loom))]
mod quiet;

pub use line::{Entered, Turn, Turnstile};
#[cfg(not(loom))]
pub use quiet::spawn_quiet;
