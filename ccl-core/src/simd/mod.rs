//! The reduction kernels, and the only place of this crate that touches raw memory.
//!
//! A [`Reducer`] is a data type with an operator, bound once to the kernel for this CPU. It combines any
//! number of sources into any number of sinks in one pass. All kernels give the same bits: the
//! [levels](Level) differ in speed only.
//!
//! What they compute, to the bit, is written in `docs/arithmetic.md`.

mod copy;
mod direction;
mod level;
mod long;
mod merge;
mod narrow;
mod number;
mod op;
mod ordered;
#[cfg(target_arch = "x86_64")]
mod packed;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod pair;
mod piece;
mod reducer;
#[cfg(target_arch = "x86_64")]
mod register;
mod scalar;
mod slab;
mod stream;
#[cfg(test)]
mod twin;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide;

pub use direction::Direction;
pub use level::Level;
pub(crate) use long::LEAST_BACKWARDS;
pub use merge::Merge;
pub use piece::{Buffers, Piece, PieceMut, Store};
pub use reducer::{Reducer, Source};
pub(crate) use slab::Slab;
