//! # ccl-kernels: what touches memory
//!
//! Data types, operators, and the kernels that copy and combine; [`Piece`] and [`PieceMut`], by which the rest of the library
//! names memory without touching it. It promises:
//!
//! - *All kernels give the same bits.* The [levels](Level) differ in speed only. What is computed, to the bit, is written in
//!   `docs/arithmetic.md`.
//! - *One pass.* A [`Reducer`] is a data type with an operator, bound once to the kernel for this CPU. It combines any
//!   number of sources into any number of sinks at once.
//! - *It knows nobody*: no rank, no link, no call; it makes no system call, allocates for a call nothing but the room of a
//!   [`Slab`], and never prints, exits or aborts.
//!
//! It refuses an operator that does not fit its type, and, by a panic, pieces whose lengths differ.

mod copy;
mod direction;
mod element;
mod error;
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
pub use element::{DataType, Factor, ReduceOp};
pub use error::{Error, Result};
pub use level::Level;
pub use long::LEAST_BACKWARDS;
pub use merge::Merge;
pub use piece::{Buffers, Piece, PieceMut, Store};
pub use reducer::{Reducer, Source};
pub use slab::Slab;
