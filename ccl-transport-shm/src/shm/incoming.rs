//! The receiving end of one link.

use super::Segment;
use crate::bell::{Bell, CREDIT};
use crate::ring::{Corrupt, Credit, Entry, INLINE_BYTES, RecvEnd};
use ccl_core::simd::Piece;
use ccl_core::transport::{Arrival, Counters, LinkKey};
use std::ptr::NonNull;
use std::sync::Arc;

/// A link's receiving end; the link lies in the peer's segment.
#[derive(Debug)]
pub(crate) struct Incoming {
    entries: NonNull<Entry>,
    credit: NonNull<Credit>,
    bell: NonNull<Bell>,
    end: RecvEnd,
    /// Length and whether it is in the line, of the piece that `peek` gave and that is not released.
    held: Option<(u32, bool)>,
    /// The count of released pieces at which the last sleep has already told of a piece.
    told: Option<u32>,
    pub(crate) counters: Counters,
    pub(crate) key: LinkKey,
    peer: Arc<Segment>,
}

// SAFETY: the addresses point into a mapping that `peer` keeps and that any thread may use.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(crate) fn new(key: LinkKey, peer: Arc<Segment>, link: u32) -> Incoming {
        let (credit, entries) = peer.link(link);
        Incoming {
            entries,
            credit,
            bell: NonNull::from(peer.bell()),
            end: RecvEnd::new(peer.geometry().credits),
            held: None,
            told: None,
            counters: Counters::default(),
            key,
            peer,
        }
    }

    #[inline]
    fn entry(&self) -> &Entry {
        // SAFETY: the ring's position is less than the credits, and as many entries lie in `peer`, which lives
        // as long as `self`; any bytes are a valid entry.
        unsafe { self.entries.add(self.end.at()).as_ref() }
    }

    /// The oldest piece not released.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Arrival>, Corrupt> {
        let Some(message) = self.end.peek(self.entry())? else {
            self.counters.stalls += 1;
            return Ok(None);
        };
        let len = message.len as usize;
        let at: *const u8 = match message.slot {
            None if len <= INLINE_BYTES => self.entry().inline.get().cast::<u8>(),
            Some(slot) if slot < self.peer.geometry().slots() && len <= self.peer.geometry().slot_bytes => {
                self.peer.slot(slot).as_ptr()
            }
            _ => return Err(Corrupt("a message lies outside the slots")),
        };
        self.held = Some((message.len, message.slot.is_none()));
        // SAFETY: the bytes lie in `peer`'s mapping, as just checked, and are not written until `release`.
        Ok(Some(Arrival { piece: unsafe { Piece::new(at, len) }, tag: message.tag }))
    }

    /// Gives the piece back; false if there is none. Wakes a sender that sleeps for it.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        let Some((len, inline)) = self.held.take() else { return false };
        // SAFETY: in `peer`, which lives as long as `self`; any bytes are a valid credit line.
        self.end.release(unsafe { self.credit.as_ref() });
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(len);
        self.counters.inline += u64::from(inline);
        // SAFETY: in `peer`, as above.
        let bell = unsafe { self.bell.as_ref() };
        if bell.must_ring(CREDIT) {
            crate::park::wake(bell);
        }
        true
    }

    /// Whether a piece is there that nobody has peeked at, and this was not told before. An impossible
    /// word is news too: the next `peek` makes it an error.
    pub(crate) fn news(&mut self) -> bool {
        let is_there = self.held.is_none() && !matches!(self.end.peek(self.entry()), Ok(None));
        is_there && self.told.replace(self.end.released()) != Some(self.end.released())
    }
}
