//! The receiving end of one link.

use super::{Geometry, Segment, Words};
use crate::bell::{Bell, CREDIT};
use crate::borrowing::Borrowing;
use crate::offer::{Offering, Terms};
use crate::passing::Passed;
use crate::pool::{Place, Pool};
use crate::ring::{
    Body, Corrupt, Credit, Entry, INLINE_BYTES, Message, Passing, ROOM_BYTES, RecvEnd, SHORT_BYTES,
};
use ccl_core::kernels::{Direction, Merge, Piece, Store};
use ccl_core::transport::{Arrival, Counters, LinkKey, Offer, Taken};
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

const OUTSIDE: Corrupt = Corrupt("a message lies outside the slots");

/// What is to be known of a message that `peek` gave and that is not released.
#[derive(Clone, Copy, Debug)]
struct Held {
    len: u32,
    body: Body,
    wraps: bool,
}

/// A link's receiving end; the link lies in the peer's segment.
#[derive(Debug)]
pub(crate) struct Incoming {
    entries: NonNull<Entry>,
    rooms: NonNull<u8>,
    credit: NonNull<Credit>,
    offering: NonNull<Offering>,
    bell: NonNull<Bell>,
    end: RecvEnd,
    held: Option<Held>,
    /// The last offer, the count of the first message that it is for, and how many there were.
    offer: Option<(Offer, u32)>,
    offers: u32,
    /// The count of released pieces at which the last sleep has already told of a piece.
    told: Option<u32>,
    pub(crate) counters: Counters,
    pub(crate) key: LinkKey,
    /// The account of what the peer has lent.
    pub(crate) lender: u32,
    own: Arc<Segment>,
    peer: Arc<Segment>,
}

// SAFETY: the addresses point into mappings that `own` and `peer` keep and that any thread may use.
unsafe impl Send for Incoming {}

impl Incoming {
    /// The receiving end of this link of `peer`, of a rank whose own segment is `own`.
    pub(crate) fn new(
        key: LinkKey,
        own: Arc<Segment>,
        peer: Arc<Segment>,
        link: u32,
        lender: u32,
    ) -> Incoming {
        let Words { credit, offering, entries } = peer.link(link);
        Incoming {
            entries,
            rooms: peer.rooms(link),
            credit,
            offering,
            bell: NonNull::from(peer.bell()),
            end: RecvEnd::new(peer.geometry().laps),
            held: None,
            offer: None,
            offers: 0,
            told: None,
            counters: Counters::default(),
            key,
            lender,
            own,
            peer,
        }
    }

    #[inline]
    fn entry(&self) -> &Entry {
        // SAFETY: the ring's position is less than that of the longest lap's end, and as many entries lie in `peer`, which lives
        // as long as `self`; any bytes are a valid entry.
        unsafe { self.entries.add(self.end.at()).as_ref() }
    }

    /// The oldest piece not released.
    #[inline(always)]
    pub(crate) fn peek(&mut self, borrowed: &[Borrowing], pool: &Pool) -> Result<Look, Corrupt> {
        let Some(message) = self.end.peek(self.entry())? else {
            self.counters.stalls += 1;
            return Ok(Look::Nothing);
        };
        let len = message.len as usize;
        let mut store = Store::Cached;
        let at: *const u8 = match message.body {
            Body::Line => self.short(self.entry(), len)?,
            Body::Slot { number, at, passing, by_words } => {
                let is_back = passing == Passing::Back;
                let segment = if is_back { &self.own } else { &self.peer };
                let Geometry { slot_bytes, .. } = segment.geometry();
                if number >= segment.geometry().slots() || at as usize + len > slot_bytes {
                    return Err(OUTSIDE);
                }
                if is_back && !pool.is_with(number, self.key.from) {
                    return Err(Corrupt("it hands back a slot that it has not got"));
                }
                if by_words {
                    store = Store::Words;
                }
                // SAFETY: within the slot, as just checked.
                unsafe { segment.slot(number).add(at as usize).as_ptr() }
            }
            Body::Lent { number, offset } => match self.lent(borrowed, number, offset, len)? {
                Some(at) => at,
                None => return Ok(Look::Unknown),
            },
            Body::Offered => self.offered(0, &message)?,
        };
        self.held = Some(Held { len: message.len, body: message.body, wraps: message.wraps });
        // SAFETY: the bytes lie in `peer`'s mapping or in that of a loan, as just checked, which is not given up while
        // they are held, or in what was offered until they are released; and they are not written until then.
        let piece = unsafe { Piece::new(at, len) };
        Ok(Look::Piece(Arrival { piece, tag: message.tag, store }))
    }

    /// The piece that [`peek`](Incoming::peek) gave, and those after it as far as they have come and lie side by side with it, in lent memory or where they were offered, at most so many: as
    /// one, and how many they are.
    pub(crate) fn stretch(
        &self,
        arrival: Arrival,
        (most, direction): (usize, Direction),
        borrowed: &[Borrowing],
    ) -> Result<(Arrival, usize), Corrupt> {
        let Some(Held { body: Body::Lent { .. } | Body::Offered, wraps, .. }) = self.held else {
            return Ok((arrival, 1));
        };
        let (mut all, mut pieces) = (arrival.piece, 1);
        let mut at = self.end.next(self.end.at() as u32, wraps);
        // An entry is made ready before the message before it is published: so each is looked at behind one that has come.
        while pieces < most {
            // SAFETY: as in `entry`: no position is outside of the ring.
            let entry = unsafe { self.entries.add(at as usize).as_ref() };
            let Some(next) =
                self.end.peek_ahead(pieces as u32, at, entry)?.filter(|next| next.tag == arrival.tag)
            else {
                break;
            };
            let len = next.len as usize;
            let there = match next.body {
                Body::Lent { number, offset } => self.lent(borrowed, number, offset, len)?,
                Body::Offered => Some(self.offered(pieces as u32, &next)?),
                Body::Line | Body::Slot { .. } => None,
            };
            let Some(there) = there else { break };
            // SAFETY: as in `peek`: it is released after the pieces before it.
            let piece = unsafe { Piece::new(there, len) };
            let joined = match direction {
                Direction::Forwards => all.join(piece),
                Direction::Backwards => piece.join(all),
            };
            let Some(joined) = joined else { break };
            all = joined;
            (at, pieces) = (self.end.next(at, next.wraps), pieces + 1);
        }
        Ok((Arrival { piece: all, ..arrival }, pieces))
    }

    /// Merges the next piece, as [`Fabric::take`](ccl_core::transport::Fabric::take) does; `None`, and nothing is done, unless it is in its line or in the room beside it.
    #[inline(always)]
    pub(crate) fn take_short(&mut self, tag: u64, merge: &Merge<'_>) -> Result<Option<Taken>, Corrupt> {
        // SAFETY: as in `entry`, written out because `self` changes before the bytes are read.
        let entry = unsafe { self.entries.add(self.end.at()).as_ref() };
        let Some(Message { len, tag: theirs, body, wraps }) = self.end.peek(entry)? else {
            self.counters.stalls += 1;
            return Ok(Some(Taken::NotYet));
        };
        if body != Body::Line {
            return Ok(None);
        }
        if theirs != tag || len as usize != merge.bytes() {
            return Ok(Some(Taken::Another));
        }
        let at = self.short(entry, len as usize)?;
        // SAFETY: the bytes lie in `peer`'s mapping, and are not written before the entry is returned, below.
        merge.apply(unsafe { Piece::new(at, len as usize) });
        self.held = None;
        self.counters.inline += u64::from(len as usize <= INLINE_BYTES);
        self.give_back(len, wraps);
        Ok(Some(Taken::Done))
    }

    /// Where the bytes of the next message are, whose entry this is, if they take no slot.
    #[inline(always)]
    fn short(&self, entry: &Entry, len: usize) -> Result<*const u8, Corrupt> {
        if len <= INLINE_BYTES {
            Ok(entry.inline.get().cast())
        } else if len <= SHORT_BYTES {
            // SAFETY: as many rooms as entries lie in `peer`, which lives as long as `self`.
            Ok(unsafe { self.rooms.add(self.end.at() * ROOM_BYTES).as_ptr() })
        } else {
            Err(OUTSIDE)
        }
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
        at.map(|at| Some(at.cast_const())).ok_or(Corrupt("a message lies outside the memory that it names"))
    }

    /// Where the bytes of a message are that was written to what this rank has offered, and comes so many after the next.
    #[inline(never)]
    fn offered(&self, ahead: u32, message: &Message) -> Result<*const u8, Corrupt> {
        let offer = self.offer.filter(|(offer, _)| offer.tag == message.tag);
        let place = offer.and_then(|(Offer { sink, piece, direction, .. }, first)| {
            let index = u64::from(self.end.released().wrapping_add(ahead).wrapping_sub(first));
            let at = Offer::place(sink.len(), piece, direction, index, message.len as usize)?;
            Some(sink.slice(at, message.len as usize).as_piece().as_ptr())
        });
        place.ok_or(Corrupt("a message was written where nothing was offered"))
    }

    fn offering(&self) -> &Offering {
        // SAFETY: in `peer`, which lives as long as `self`; any bytes are a valid offering.
        unsafe { self.offering.as_ref() }
    }

    /// Offers memory to the sender, which finds it so many bytes after the start of what is lent under this number.
    pub(crate) fn offer(&mut self, offer: Offer, number: u32, offset: u64) {
        let first = self.end.released();
        self.offer = Some((offer, first));
        // Never 0.
        self.offers = self.offers.checked_add(1).unwrap_or(1);
        let Offer { tag, sink, piece, direction } = offer;
        let (bytes, piece) = (sink.len() as u64, piece as u64);
        self.offering().make(self.offers, &Terms { tag, number, offset, bytes, piece, first, direction });
    }

    /// Takes the last offer back. The sender may still be [writing](Incoming::is_written).
    pub(crate) fn withdraw(&mut self) {
        if self.offers > 0 {
            self.offering().withdraw();
        }
    }

    /// Whether the sender is writing to what was offered.
    pub(crate) fn is_written(&self) -> bool {
        self.offers > 0 && self.offering().is_taken()
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
    pub(crate) fn release(&mut self, pool: &mut Pool, passed: &mut [Passed]) -> Result<bool, Corrupt> {
        let Some(Held { len, body, wraps }) = self.held.take() else { return Ok(false) };
        match body {
            Body::Line => self.counters.inline += u64::from(len as usize <= INLINE_BYTES),
            Body::Slot { number: slot, at, passing, .. } => {
                pool.received(len as usize);
                let passed = &mut passed[self.key.from as usize];
                match passing {
                    Passing::Stays => {}
                    Passing::Over => passed.get(Place { slot, at })?,
                    Passing::Back => {
                        pool.take_back(Place { slot, at });
                        passed.take_back();
                    }
                }
            }
            Body::Lent { .. } if self.peer.ledger().is_withdrawn() => {
                return Err(Corrupt("its call has failed, and what it lent may have changed since"));
            }
            Body::Lent { .. } => {
                self.counters.referenced += 1;
                self.counters.referenced_bytes += u64::from(len);
            }
            Body::Offered => {
                self.counters.direct += 1;
                self.counters.direct_bytes += u64::from(len);
            }
        }
        self.give_back(len, wraps);
        Ok(true)
    }

    /// Returns the entry of a message of this length. Wakes a sender that sleeps for it.
    #[inline(always)]
    fn give_back(&mut self, len: u32, wraps: bool) {
        // SAFETY: in `peer`, which lives as long as `self`; any bytes are a valid credit line.
        self.end.release(wraps, unsafe { self.credit.as_ref() });
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(len);
        // SAFETY: in `peer`, as above.
        let bell = unsafe { self.bell.as_ref() };
        if bell.must_ring(CREDIT) {
            crate::park::wake(bell);
        }
    }

    /// Whether a piece is there that nobody has peeked at, and this was not told before. An impossible
    /// word is news too: the next `peek` makes it an error.
    pub(crate) fn news(&mut self) -> bool {
        let is_there = self.held.is_none() && !matches!(self.end.peek(self.entry()), Ok(None));
        is_there && self.told.replace(self.end.released()) != Some(self.end.released())
    }
}
