//! The numbers that the kernels know too: `kernels/program.h`, `kernels/move.h`. The emulation compares the two.

/// The version of the words' meaning, in the lowest bits of a program's first word.
pub const VERSION: u16 = 2;
/// The other bits of that word.
pub(super) const MAGIC: u64 = 0x5244_4d41_4343_0000;
/// Words before the lanes.
pub(super) const HEADER: usize = 8;
/// Words of a lane.
pub(super) const LANE: usize = 3;
/// Words of a move.
pub(super) const MOVE: usize = 2;

/// Sources and sinks of a move at most, a sink to several peers counting for each.
pub const MAX_OPERANDS: usize = 72;
/// Scratch pieces of a lane at most.
pub const MAX_SCRATCH: usize = 64;
/// Ends of links of a lane at most.
pub const MAX_ENDS: usize = 128;
/// Bytes of a slot at most: its flag has 24 bits for a length.
pub const MAX_SLOT_BYTES: usize = (1 << 24) - 64;
/// Lanes times shares at most: each is a thread block, and all are on the device at once.
pub const MAX_WORKERS: usize = 4096;
/// Credits at most: the flag of a slot has 16 bits for the number of a piece.
pub(super) const MAX_CREDITS: u32 = 1 << 14;

/// Tiles and slots are whole lines.
pub(super) const LINE: usize = 64;

// Kinds of operands, in the highest bits of their words.
pub(super) const INPUT: u64 = 0;
pub(super) const OUTPUT: u64 = 1;
pub(super) const SCRATCH: u64 = 2;
pub(super) const RECEIVE: u64 = 3;
pub(super) const SEND: u64 = 4;
/// Where the kind is.
pub(super) const KIND_SHIFT: u32 = 60;

/// Bits of the salt of a move, above its sources, its sinks and a bit for its chunk.
pub(super) const SALT_BITS: u32 = 15;
pub(super) const SALT_SHIFT: u32 = 17;

/// The salt of pieces about which their two ends know this and no more.
pub(super) const fn salt(known: u64) -> u32 {
    (known >> (64 - SALT_BITS)) as u32
}

/// Two halves of a word.
pub(super) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Its halves.
pub(super) const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
