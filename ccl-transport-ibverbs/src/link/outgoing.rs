//! The sending end of one link.
//!
//! Message k travels in slot `k mod window` of the receiver's ring. Its header, and its bytes if they are few, wait in
//! line `k mod window` of the sender's; longer pieces wait in a slot of the pool. Both are free again when the receiver has
//! released the message, not when the device has sent it.

use super::pool::Pool;
use super::sys::write_header;
use super::wire::{FRONT, HEADER, Header, Immediate, LINE};
use crate::verbs::{Memory, Region, Remote, Sge};
use ccl_core::simd::{Piece, PieceMut};
use ccl_core::transport::{Counters, LinkKey};
use std::sync::Arc;

/// In place of a slot's number: the message was in its line.
const IN_LINE: u32 = u32::MAX;

/// A word of a peer that no correct one could have sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// The lines of all links that one connect opened over one adapter.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) memory: Memory,
    pub(crate) region: Region,
}

/// A link's sending end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: LinkKey,
    /// Its place among the lanes.
    pub(crate) lane: u32,
    /// The link of the other direction, whose credits go back in our headers.
    pub(crate) back: Option<u32>,
    /// Where the receiver's ring begins, and its slots' distance.
    ring: Remote,
    stride: u64,
    /// The receiver's number of the link.
    their: u32,
    lines: Arc<Lines>,
    /// Where ours begin there.
    first_line: usize,
    window: u32,
    published: u32,
    released: u32,
    /// The pool's slot of each message that is not released, or [`IN_LINE`].
    slots: Box<[u32]>,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    pub(crate) counters: Counters,
}

impl Outgoing {
    pub(crate) fn new(
        key: LinkKey,
        lane: u32,
        (ring, stride, their): (Remote, u64, u32),
        (lines, first_line): (Arc<Lines>, usize),
        window: u32,
    ) -> Outgoing {
        Outgoing {
            key,
            lane,
            back: None,
            ring,
            stride,
            their,
            lines,
            first_line,
            window,
            published: 0,
            released: 0,
            slots: vec![IN_LINE; window as usize].into(),
            reserved: false,
            counters: Counters::default(),
        }
    }

    /// Whether a message may be written.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight() < self.window
    }

    /// Messages that the receiver has not released, as far as we know.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.published.wrapping_sub(self.released)
    }

    #[inline]
    fn position(&self) -> u32 {
        self.published % self.window
    }

    fn line(&self, offset: usize, len: usize) -> PieceMut {
        let at = (self.first_line + self.position() as usize) * LINE;
        self.lines.memory.slice_mut(at + offset, len)
    }

    /// Where a short message is written before it is published.
    #[inline]
    pub(crate) fn inline_piece(&self, len: usize) -> PieceMut {
        self.line(FRONT, len)
    }

    /// The next message, as the work request needs it: its bytes, which begin with the header, where to and with what number.
    /// `released` counts for the link of the other direction.
    #[inline]
    pub(crate) fn message(&self, tag: u64, len: usize, released: u32, is_inline: bool) -> (Sge, Remote, u32) {
        let header = Header { tag, number: self.published, len: len as u32, released };
        write_header(self.line(FRONT - HEADER, HEADER), header.encode());
        let bytes = HEADER + if is_inline { len } else { 0 };
        let sge = self.lines.region.sge_mut(self.line(FRONT - HEADER, bytes));
        let slot = self.position();
        let to = self.ring.at(u64::from(slot) * self.stride + (FRONT - HEADER) as u64);
        (sge, to, Immediate::Piece { link: self.their, slot }.encode())
    }

    /// The message has been handed over; `slot` is the pool's, if it was not in the line.
    #[inline]
    pub(crate) fn published(&mut self, len: usize, slot: Option<u32>) {
        self.slots[self.position() as usize] = slot.unwrap_or(IN_LINE);
        self.published = self.published.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += len as u64;
        self.counters.inline += u64::from(slot.is_none());
    }

    /// The receiver has released so many messages in all, modulo 2^`bits` of `mask`. Whether that is news.
    #[inline]
    pub(crate) fn credit(&mut self, released: u32, mask: u32, pool: &mut Pool) -> Result<bool, Corrupt> {
        let more = released.wrapping_sub(self.released) & mask;
        if more > self.in_flight() {
            return Err(Corrupt("it returns credits that it never had"));
        }
        for _ in 0..more {
            let slot = std::mem::replace(&mut self.slots[(self.released % self.window) as usize], IN_LINE);
            if slot != IN_LINE {
                pool.put(slot);
            }
            self.released = self.released.wrapping_add(1);
        }
        Ok(more > 0)
    }

    /// Copies what another link of the same sender has in its line.
    #[inline]
    pub(crate) fn copy_inline(&self, from: Piece) {
        self.inline_piece(from.len()).copy_from(from);
    }
}
