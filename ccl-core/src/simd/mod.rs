//! The reduction kernels, and the only place of this crate that touches raw memory.
//!
//! A [`Reducer`] is a data type with an operator, bound once to the kernel for this CPU. It combines any
//! number of sources into any number of sinks in one pass. All kernels give the same bits: the
//! [levels](Level) differ in speed only.
//!
//! # The rules of arithmetic
//!
//! - Integers wrap.
//! - Values of 8 and 16 bits with fractions are widened to single precision, combined there from the first
//!   source to the last, and rounded once, to nearest, ties to even.
//! - A NaN among the sources makes the result NaN, for every operator. Its sign and payload are not
//!   specified for 16, 32 and 64 bits; with 8 bits it is `0x7f`.
//! - `Min` and `Max` order -0 below +0.
//! - Overflow goes to infinity where the type has one. E4M3 has none: it saturates at ±448.
//! - A scaled source is multiplied by the factor (single precision, double for `F64`) before it is combined.
//! - One source that is not scaled is copied, bit for bit.

mod copy;
mod level;
mod number;
mod piece;
mod reducer;
mod scalar;
mod slab;
#[cfg(test)]
mod twin;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide;

pub use level::Level;
pub use piece::{Buffers, Piece, PieceMut};
pub use reducer::{Reducer, Source};
pub(crate) use slab::Slab;
