//! Plans as data for a kernel.
//!
//! The device's engine is one kernel per family of types and operators (`kernels/interpret.cu`). It knows no plan; it runs whatever
//! program it is given, and this module writes that: a [`Program`] is one rank's part of a plan, for buffers of one length, as a flat
//! array of 64-bit words. A [`Rule`] says how the call's contributions are combined, and which kernel can do it.
//!
//! # Words
//!
//! All fields are little-endian halves of a word, low half first; `layout` has their numbers.
//!
//! | words | what |
//! | --- | --- |
//! | 1 | magic and version |
//! | 1 | words of the program, lanes |
//! | 1 | rank, ranks |
//! | 1 | moves, operands |
//! | 1 | bytes of a tile, bytes of a slot |
//! | 1 | nothing, credits |
//! | 1 | shares, scratch pieces |
//! | 1 | whether it reduces, ends of links |
//! | 3 per lane | first move, moves; 16 bits each of first end, ends, first scratch piece, scratch pieces; tiles, whether it is a queue |
//! | 2 per move | first operand, 8 bits each of sources and sinks, a bit for "has a chunk", 15 bits of salt; the chunk's bytes |
//! | 1 per operand | 4 bits of kind, and a chunk's byte offset or the lane's number of a scratch piece or end |
//!
//! A program holds no address. The ends of links that it names by number are [`Program::ends`], in order: whoever launches the kernel
//! hands it a table with the memory of each. So a program can be written, read and tested anywhere. (Those of transfers
//! may be the exception: their memory lies anywhere, so the buffers of the call begin at 0 and places are addresses.)
//!
//! Pieces carry the call's tag. Where only the two ends of a link know how long a block is, a move has a *salt* of that, which its pieces
//! have in the tag: ends that differ find out at the first piece.
//!
//! # What is checked
//!
//! A program is checked when it is written, and [`Listing::read`] checks any words against buffers: kinds, numbers, extents, limits. Plans
//! come from the verifier, which proves what is not looked at here: that sends meet receives, races, progress.

mod encode;
mod error;
mod launch;
mod layout;
mod listing;
mod modules;
mod queues;
mod rule;
#[cfg(test)]
mod tests;

pub use encode::{Geometry, Program};
pub use error::ProgramError;
pub use launch::{
    Call, Failure, Launch, MAX_TEAM, MAX_TEAM_BLOCKS, MAX_THREADS, Mark, Member, Report, STAGE_BYTES,
    TEAM_FLAGS, Team, Verdict, Wire, book, stage_room,
};
pub use layout::{MAX_ENDS, MAX_OPERANDS, MAX_SCRATCH, MAX_SLOT_BYTES, MAX_WORKERS, VERSION};
pub use listing::{LaneListing, Listing, MoveListing, Operand};
pub use modules::{MODULES, Module};
pub use queues::{Item, Queue};
pub use rule::{Family, Rule};

use ccl_core::Rank;

/// An end of a link, as a rank's program names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct End {
    /// Whether this rank receives on it, or sends.
    pub direction: Direction,
    /// Who is at the other end.
    pub peer: Rank,
    /// Which of the links between the two.
    pub channel: u16,
}

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Where pieces arrive.
    Receive,
    /// Where they leave.
    Send,
}
