//! The receiving end of one link.

use super::Segment;
use crate::bell::{Bell, CREDIT};
use crate::borrowing::Borrowing;
use crate::pool::Pool;
use crate::ring::{Body, Corrupt, Credit, Entry, INLINE_BYTES, Message, RecvEnd, SHORT_BYTES};
use ccl_core::simd::Piece;
use ccl_core::transport::{Arrival, Counters, LinkKey};
use std::ptr::NonNull;
use std::sync::Arc;

/// What is there to read.
#[derive(Debug)]
pub(crate) enum Look {
    Nothing,
    Piece(Arrival),
    /// A piece in memory that was lent under a number that we do not know yet.
    Unknown,
}

/// A piece that `peek` gave and that is not released.
#[derive(Clone, Copy, Debug)]
struct Held {
    len: u32,
    body: Body,
}

/// A link's receiving end; the link lies in the peer's segment.
#[derive(Debug)]
pub(crate) struct Incoming {
    entries: NonNull<Entry>,
    rooms: NonNull<u8>,
    credit: NonNull<Credit>,
    bell: NonNull<Bell>,
    end: RecvEnd,
    held: Option<Held>,
    /// The count of released pieces at which the last sleep has already told of a piece.
    told: Option<u32>,
    pub(crate) counters: Counters,
    pub(crate) key: LinkKey,
    /// The account of what the peer has lent.
    pub(crate) lender: u32,
    peer: Arc<Segment>,
}

// SAFETY: the addresses point into a mapping that `peer` keeps and that any thread may use.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(crate) fn new(key: LinkKey, peer: Arc<Segment>, link: u32, lender: u32) -> Incoming {
        let (credit, entries) = peer.link(link);
        Incoming {
            entries,
            rooms: peer.rooms(link),
            credit,
            bell: NonNull::from(peer.bell()),
            end: RecvEnd::new(peer.geometry().credits),
            held: None,
            told: None,
            counters: Counters::default(),
            key,
            lender,
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
    #[inline(always)]
    pub(crate) fn peek(&mut self, borrowed: &[Borrowing]) -> Result<Look, Corrupt> {
        let Some(message) = self.end.peek(self.entry())? else {
            self.counters.stalls += 1;
            return Ok(Look::Nothing);
        };
        let len = message.len as usize;
        let at: *const u8 = match message.body {
            Body::Line if len <= INLINE_BYTES => self.entry().inline.get().cast::<u8>(),
            // SAFETY: as many rooms as entries lie in `peer`, which lives as long as `self`.
            Body::Line if len <= SHORT_BYTES => unsafe {
                self.rooms.add(self.end.at() * SHORT_BYTES).as_ptr()
            },
            Body::Slot { number, at }
                if number < self.peer.geometry().slots()
                    && at as usize + len <= self.peer.geometry().slot_bytes =>
            {
                // SAFETY: within the slot, as just checked.
                unsafe { self.peer.slot(number).add(at as usize).as_ptr() }
            }
            Body::Lent { number, offset } => match self.lent(borrowed, number, offset, len)? {
                Some(at) => at,
                None => return Ok(Look::Unknown),
            },
            _ => return Err(Corrupt("a message lies outside the slots")),
        };
        self.held = Some(Held { len: message.len, body: message.body });
        // SAFETY: the bytes lie in `peer`'s mapping or in that of a loan, as just checked, which is not given up while
        // they are held; and they are not written until `release`.
        Ok(Look::Piece(Arrival { piece: unsafe { Piece::new(at, len) }, tag: message.tag }))
    }

    /// Where bytes of lent memory are; `None` if we do not know that memory. Not inlined: pieces in it are long.
    #[inline(never)]
    fn lent(
        &self,
        borrowed: &[Borrowing],
        number: u32,
        offset: u64,
        len: usize,
    ) -> Result<Option<*const u8>, Corrupt> {
        let Some(loan) = borrowed[self.lender as usize].find(number) else { return Ok(None) };
        let at = loan.bytes(offset, len);
        at.map(Some).ok_or(Corrupt("a message lies outside the memory that it names"))
    }

    /// The number of the lent memory that the message at hand names.
    pub(crate) fn number(&self) -> Option<u32> {
        match self.end.peek(self.entry()) {
            Ok(Some(Message { body: Body::Lent { number, .. }, .. })) => Some(number),
            _ => None,
        }
    }

    /// Whether a piece is held that lies in lent memory.
    pub(crate) fn holds_loan(&self) -> bool {
        matches!(self.held, Some(Held { body: Body::Lent { .. }, .. }))
    }

    /// Gives the piece back; false if there is none. Wakes a sender that sleeps for it.
    #[inline]
    pub(crate) fn release(&mut self, pool: &mut Pool) -> Result<bool, Corrupt> {
        let Some(Held { len, body }) = self.held.take() else { return Ok(false) };
        match body {
            Body::Line => self.counters.inline += u64::from(len as usize <= INLINE_BYTES),
            Body::Slot { .. } => pool.received(len as usize),
            Body::Lent { .. } if self.peer.ledger().is_withdrawn() => {
                return Err(Corrupt("its call has failed, and what it lent may have changed since"));
            }
            Body::Lent { .. } => {
                self.counters.referenced += 1;
                self.counters.referenced_bytes += u64::from(len);
            }
        }
        // SAFETY: in `peer`, which lives as long as `self`; any bytes are a valid credit line.
        self.end.release(unsafe { self.credit.as_ref() });
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(len);
        // SAFETY: in `peer`, as above.
        let bell = unsafe { self.bell.as_ref() };
        if bell.must_ring(CREDIT) {
            crate::park::wake(bell);
        }
        Ok(true)
    }

    /// Whether a piece is there that nobody has peeked at, and this was not told before. An impossible
    /// word is news too: the next `peek` makes it an error.
    pub(crate) fn news(&mut self) -> bool {
        let is_there = self.held.is_none() && !matches!(self.end.peek(self.entry()), Ok(None));
        is_there && self.told.replace(self.end.released()) != Some(self.end.released())
    }
}
