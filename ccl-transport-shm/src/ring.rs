//! The protocol of one link: a ring of entries that the sender fills, and one counter that returns them.
//!
//! Message k (from 0) carries the sequence number `k + 1`, modulo 2³². It travels in the entry after that of the message before, or in the first
//! one if that message has said so: the ring is as long as it has to be. A sender whose messages are taken soon comes back to lines that are still in the
//! caches; [laps](Laps) become twice as long when one lacks a credit, because a receiver does not run, say, and half as long when it has kept up for some laps. An entry that the
//! lap before has not used is cleared first: what stands there may be as old as sequence numbers are many. The sender writes an entry's body with plain stores and its [`flag`](Entry::flag) last, with
//! Release; the receiver that loads the expected sequence with Acquire sees the whole body. The receiver
//! returns entries by storing how many it has released, with Release; the sender that loads the count with
//! Acquire may write them again. Nothing else is shared: each side counts for itself in [`SendEnd`] and
//! [`RecvEnd`], and everything that it loads is checked against these counts, because the memory
//! belongs to another process too.

#[cfg(any(test, loom))]
mod boxed;
mod receiving;
mod sending;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{AtomicU32, AtomicU64, Cell, Ordering};
pub(crate) use receiving::RecvEnd;
pub(crate) use sending::{Laps, SendEnd};

/// Bytes of a message that fit beside its flag.
pub(crate) const INLINE_BYTES: usize = 104;
/// Bytes of a message that fit into the room that each entry has apart from the others: a link may have as many of these messages on
/// their way as it has entries, and they take no slot. Pieces of 2 KiB are quicker in slots: two ranks take 0.65 of the time.
pub(crate) const SHORT_BYTES: usize = 1536;
/// Bytes from one such room to the next. Were they as close as can be, pieces of 1 KiB would take 1.1 to 1.2 of the time.
pub(crate) const ROOM_BYTES: usize = 2048;

/// Set in the length: the next message is in the first entry.
const WRAPS: u32 = 1 << 29;
/// Set in the length: the bytes are in a slot, not in the entry.
const IN_SLOT: u32 = 1 << 31;
/// Set in the length: the bytes are in memory that the sender has lent.
const LENT: u32 = 1 << 30;
/// Both: the bytes are in memory that the receiver has offered.
const OFFERED: u32 = IN_SLOT | LENT;
/// Bits of a place that count bytes from the start of lent memory; the others number it.
const OFFSET_BITS: u32 = 40;
/// Bits of a slot's place that number the slot; then those that say where in it, [`BY_WORDS`], and [`Passing`].
const SLOT_BITS: u32 = 32;
/// The highest place in a slot, and more: slots have at most 64 MiB.
const AT: u64 = (1 << 29) - 1;
/// Set in a slot's place: the bytes are best copied by words.
const BY_WORDS: u64 = 1 << 61;
/// Bytes of lent memory that a message can name, from its start.
pub(crate) const LENT_BYTES: u64 = 1 << OFFSET_BITS;

/// One message of a link: two cache lines, of which a message up to 40 bytes touches the first only.
///
/// All-zero bytes are a valid entry, "never written".
#[repr(C, align(128))]
pub(crate) struct Entry {
    /// Sequence number in the upper half; length, and [`IN_SLOT`], [`LENT`] or [`OFFERED`], in the lower. The sender stores it
    /// last, with Release: it publishes all other fields and the bytes. The receiver loads it with Acquire.
    flag: AtomicU64,
    /// The call's tag. Written by the sender before the flag (Relaxed), read after it.
    tag: AtomicU64,
    /// Number and offset of the slot or of lent memory. Written and read like the tag.
    place: AtomicU64,
    /// The bytes, if they are nowhere else. The sender's while it holds the credit and has not
    /// stored the flag, the receiver's to read from then until it returns the credit.
    pub(crate) inline: Cell<[u8; INLINE_BYTES]>,
}

/// The way back of a link.
#[repr(C, align(128))]
pub(crate) struct Credit {
    /// Messages released, modulo 2³². Only the receiver stores it, with Release, after its last read of the
    /// message; the sender loads it with Acquire before it writes the entry or the slot again.
    released: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 128 && size_of::<Credit>() == 128);

/// A word in shared memory that no correct peer could have written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// What the flag announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) len: u32,
    pub(crate) tag: u64,
    pub(crate) body: Body,
    /// Whether the next one is in the first entry.
    pub(crate) wraps: bool,
}

/// Where a message's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the entry, or in its room if it is longer than [`INLINE_BYTES`].
    Line,
    /// In the slot of this number, so many bytes from its start.
    Slot {
        /// Which.
        number: u32,
        /// Where in it; less than 2²⁹.
        at: u32,
        /// Who has it when the message is released.
        passing: Passing,
        /// Whether the bytes are best [copied by words](ccl_core::kernels::Store::Words).
        by_words: bool,
    },
    /// In the lent memory of this number (24 bits), so many bytes from its start (less than [`LENT_BYTES`]).
    Lent {
        /// Which.
        number: u32,
        /// Where in it.
        offset: u64,
    },
    /// Where the receiver has offered memory for it.
    Offered,
}

/// Who writes to a slot next, when the message in it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The sender, whose slot it is.
    Stays,
    /// The receiver: the sender hands its slot over.
    Over,
    /// The receiver, whose slot it is: the sender had got it and hands it back.
    Back,
}

/// A slot's number, where in it, and what becomes of it, as one word.
fn slot_place(number: u32, at: u32, passing: Passing, by_words: bool) -> u64 {
    let passing = match passing {
        Passing::Stays => 0,
        Passing::Over => 1,
        Passing::Back => 2,
    };
    let words = if by_words { BY_WORDS } else { 0 };
    passing << 62 | words | u64::from(at) << SLOT_BITS | u64::from(number)
}

impl Entry {
    /// Makes an entry ready that holds nothing that is read any more: before the message before it is published.
    #[cold]
    pub(crate) fn clear(&self) {
        self.flag.store(0, Ordering::Relaxed);
    }

    /// Puts a message there, whose bytes are in their place.
    #[inline(always)]
    fn write(&self, sequence: u32, message: &Message) {
        debug_assert!(message.len < WRAPS);
        self.tag.store(message.tag, Ordering::Relaxed);
        let mut low = message.len;
        if message.wraps {
            low |= WRAPS;
        }
        match message.body {
            Body::Line => {}
            Body::Slot { number, at, passing, by_words } => {
                debug_assert!(u64::from(at) <= AT);
                self.place.store(slot_place(number, at, passing, by_words), Ordering::Relaxed);
                low |= IN_SLOT;
            }
            Body::Lent { number, offset } => {
                debug_assert!(offset < LENT_BYTES && number >> (u64::BITS - OFFSET_BITS) == 0);
                self.place.store(u64::from(number) << OFFSET_BITS | offset, Ordering::Relaxed);
                low |= LENT;
            }
            Body::Offered => low |= OFFERED,
        }
        self.flag.store(u64::from(sequence) << 32 | u64::from(low), Ordering::Release);
    }

    /// Which message is there, and what it is: see [`Entry::flag`](field@Entry::flag).
    #[inline(always)]
    fn flag(&self) -> u64 {
        self.flag.load(Ordering::Acquire)
    }

    /// The message whose flag has this lower half.
    #[inline(always)]
    fn read(&self, low: u32) -> Result<Message, Corrupt> {
        let tag = self.tag.load(Ordering::Relaxed);
        let place = || self.place.load(Ordering::Relaxed);
        let body = match (low & IN_SLOT != 0, low & LENT != 0) {
            (false, false) => Body::Line,
            (true, false) => {
                let place = place();
                let passing = match place >> 62 {
                    0 => Passing::Stays,
                    1 => Passing::Over,
                    2 => Passing::Back,
                    _ => return Err(Corrupt("a message's slot goes to nobody")),
                };
                Body::Slot {
                    number: place as u32,
                    at: (place >> SLOT_BITS & AT) as u32,
                    passing,
                    by_words: place & BY_WORDS != 0,
                }
            }
            (false, true) => {
                let place = place();
                Body::Lent { number: (place >> OFFSET_BITS) as u32, offset: place & (LENT_BYTES - 1) }
            }
            (true, true) => Body::Offered,
        };
        Ok(Message { len: low & !(OFFERED | WRAPS), tag, body, wraps: low & WRAPS != 0 })
    }
}
