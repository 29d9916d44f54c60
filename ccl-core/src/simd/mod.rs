//! The reduction kernels, and the only place of this crate that touches raw memory.

mod piece;

pub use piece::{Buffers, Piece, PieceMut};
