//! The sending end of one link.

use super::{Geometry, Loan, Segment, Words};
use crate::bell::{Bell, PIECE};
use crate::fabric::corrupt;
use crate::offer::{Offering, Terms};
use crate::pool::{Place, Pool};
use crate::ring::{Body, Corrupt, Credit, Entry, INLINE_BYTES, Passing, ROOM_BYTES, SHORT_BYTES, SendEnd};
use crate::sys::prefetch_to_write;
use ccl_core::Result as CoreResult;
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::transport::misuse::reserved_twice;
use ccl_core::transport::{Counters, LinkKey, Offer, Stretch};
use std::ptr::NonNull;
use std::sync::Arc;

/// How many messages lie between the next one and that whose line is asked for, to be written. Between cores that are 230 ns apart a stream of
/// messages of 8 bytes takes 104 ns each with 0, 72 with 1 and 61 with 2; between near ones 6 are too many (75 ns instead of 60).
const AHEAD: u32 = 2;
/// Bytes that are asked for at a time.
const LINE: usize = 64;

/// In place of a slot's number: the message was in the line.
const NO_SLOT: u32 = u32::MAX;
/// In place of a slot's number: the message was in lent memory.
const LENT: u32 = u32::MAX - 1;
/// In place of a slot's number: it was handed over, or back, with the message.
const PASSED: u32 = u32::MAX - 2;

/// A link's sending end; the link lies in this rank's segment.
#[derive(Debug)]
pub(crate) struct Outgoing {
    entries: NonNull<Entry>,
    rooms: NonNull<u8>,
    /// How many entries' memory is there, and whether that of their rooms is.
    reach: u32,
    has_rooms: bool,
    link: u32,
    credit: NonNull<Credit>,
    offering: NonNull<Offering>,
    bell: NonNull<Bell>,
    end: SendEnd,
    /// The slot of each message that is not known to be released, or [`NO_SLOT`], [`LENT`] or [`PASSED`]: around from the oldest.
    slots: Box<[u32]>,
    /// How many of them are not [`NO_SLOT`].
    elsewhere: u32,
    /// The place there of the oldest.
    oldest: usize,
    /// Messages in lent memory that are not known to be released.
    lent: u32,
    /// How many may be in slots at a time.
    most_in_slots: u32,
    /// Whether somebody waits for these.
    unsettled: bool,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    /// Whether the last `reserve` failed for want of a credit on this link.
    pub(crate) starved: bool,
    /// The receiver's count that the last sleep has already told about.
    told: u32,
    pub(crate) counters: Counters,
    pub(crate) key: LinkKey,
    own: Arc<Segment>,
    /// Keeps the bell, and has slots that the peer has handed over.
    peer: Arc<Segment>,
}

// SAFETY: the addresses point into the two mappings, which `own` and `peer` keep and which any thread may use.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// The sending end of this link of `own`, of whose messages so many may be in slots at a time.
    pub(crate) fn new(
        key: LinkKey,
        own: Arc<Segment>,
        link: u32,
        peer: Arc<Segment>,
        most_in_slots: u32,
    ) -> Outgoing {
        let Words { credit, offering, entries } = own.link(link);
        let laps = own.geometry().laps;
        Outgoing {
            entries,
            rooms: own.rooms(link),
            reach: laps.least,
            has_rooms: false,
            link,
            credit,
            offering,
            bell: NonNull::from(peer.bell()),
            end: SendEnd::new(laps),
            slots: vec![NO_SLOT; laps.most as usize].into(),
            elsewhere: 0,
            oldest: 0,
            lent: 0,
            most_in_slots,
            unsettled: false,
            reserved: false,
            starved: false,
            told: 0,
            counters: Counters::default(),
            key,
            own,
            peer,
        }
    }

    #[inline]
    fn credit(&self) -> &Credit {
        // SAFETY: in `own`, which lives as long as `self`; any bytes are a valid credit line.
        unsafe { self.credit.as_ref() }
    }

    #[inline]
    fn entry(&self) -> &Entry {
        // SAFETY: the ring's position is less than that of the longest lap's end, and as many entries lie in `own`, which lives
        // as long as `self`; any bytes are a valid entry.
        unsafe { self.entries.add(self.end.at()).as_ref() }
    }

    /// Whether a message may be written, into a slot or not. Looks at the receiver's count only when it must.
    #[inline]
    pub(crate) fn has_credit(&mut self, in_slot: bool, pool: &mut Pool) -> Result<bool, Corrupt> {
        if !self.has_known_credit(in_slot) {
            self.refresh(pool)?;
            if !self.end.has_credit() {
                self.end.starve();
            }
        }
        Ok(self.has_known_credit(in_slot))
    }

    /// [`has_credit`](Outgoing::has_credit), for a message that goes to all links of a sender or to none: which one lacks it is noted.
    #[inline(always)]
    pub(crate) fn take_credit(&mut self, in_slot: bool, pool: &mut Pool) -> CoreResult<bool> {
        if self.reserved {
            return Err(reserved_twice(self.key.to));
        }
        let has_credit = self.has_credit(in_slot, pool).map_err(|what| corrupt(self.key.to, what))?;
        self.starved = !has_credit;
        if !has_credit {
            self.counters.stalls += 1;
        }
        Ok(has_credit)
    }

    #[inline]
    fn has_known_credit(&self, in_slot: bool) -> bool {
        // What is outside of its line and not lent is in a slot.
        let has_slot = || self.elsewhere - self.lent < self.most_in_slots;
        self.end.has_credit() && (!in_slot || has_slot())
    }

    /// Takes back what the receiver has released.
    pub(crate) fn refresh(&mut self, pool: &mut Pool) -> Result<(), Corrupt> {
        // SAFETY: as in `credit`, written out because `end` is borrowed at the same time.
        let credit = unsafe { self.credit.as_ref() };
        let mut released = self.end.refresh(credit)? as usize;
        while released > 0 && self.elsewhere > 0 {
            let slot = std::mem::replace(&mut self.slots[self.oldest], NO_SLOT);
            match slot {
                NO_SLOT => {}
                LENT => self.lent -= 1,
                PASSED => {}
                slot => pool.put(slot),
            }
            self.elsewhere -= u32::from(slot != NO_SLOT);
            self.skip(1);
            released -= 1;
        }
        // The others were in their lines.
        self.skip(released);
        Ok(())
    }

    /// So many messages, at most a lap, are known to be released.
    #[inline]
    fn skip(&mut self, messages: usize) {
        self.oldest += messages;
        if self.oldest >= self.slots.len() {
            self.oldest -= self.slots.len();
        }
    }

    /// Whether all lent memory that was sent here is released. Looks at the receiver's count only when it must.
    #[inline]
    pub(crate) fn is_settled(&mut self, pool: &mut Pool) -> Result<bool, Corrupt> {
        if self.lent > 0 {
            self.refresh(pool)?;
        }
        self.unsettled = self.lent > 0;
        Ok(!self.unsettled)
    }

    /// Whether a sleep must end when a credit comes.
    pub(crate) fn awaits_credit(&self) -> bool {
        self.starved || self.unsettled
    }

    /// Gets the memory of the entries' rooms, for a message that does not fit into its line.
    #[inline]
    pub(crate) fn make_room(&mut self) -> CoreResult<()> {
        if !self.has_rooms {
            self.own.populate_rooms(self.link, 0..self.reach)?;
            self.has_rooms = true;
        }
        Ok(())
    }

    /// Bytes of memory that the entries and their rooms take.
    pub(crate) fn memory(&self) -> usize {
        let rooms = if self.has_rooms { self.reach as usize * ROOM_BYTES } else { 0 };
        Geometry::line_bytes(self.reach) + rooms
    }

    /// The next message's line, or the room beside it, which [must be there](Outgoing::make_room). The caller holds a credit.
    #[inline]
    pub(crate) fn inline_piece(&self, len: usize) -> PieceMut {
        if len <= INLINE_BYTES { self.line_piece(len) } else { self.room_piece(len) }
    }

    /// The next message's line. The caller holds a credit.
    #[inline]
    pub(crate) fn line_piece(&self, len: usize) -> PieceMut {
        assert!(len <= INLINE_BYTES, "a piece that is longer than a line");
        debug_assert!(self.end.has_credit());
        // SAFETY: with a credit and before `publish`, the entry's bytes are the sender's.
        unsafe { PieceMut::new(self.entry().inline.get().cast(), len) }
    }

    /// The room beside it, which must be there. The caller holds a credit.
    #[inline]
    pub(crate) fn room_piece(&self, len: usize) -> PieceMut {
        assert!(len <= SHORT_BYTES, "a piece that is longer than a room");
        debug_assert!(self.end.has_credit() && self.has_rooms);
        // SAFETY: with a credit and before `publish`, the room's bytes are the sender's. As many rooms as entries lie in `own`,
        // which lives as long as `self`.
        unsafe { PieceMut::new(self.rooms.add(self.end.at() * ROOM_BYTES).as_ptr(), len) }
    }

    /// The room in a slot that the pool gave or the peer has handed over, so many bytes from its start.
    #[inline]
    pub(crate) fn slot_piece(&self, Place { slot, at }: Place, passing: Passing, len: usize) -> PieceMut {
        assert!(at as usize + len <= self.own.geometry().slot_bytes, "a piece outside its slot");
        let segment = if passing == Passing::Back { &self.peer } else { &self.own };
        // SAFETY: within the slot, which the pool gives only after all readers have released it, and the peer does not use
        // until it is handed back.
        unsafe { PieceMut::new(segment.slot(slot).add(at as usize).as_ptr(), len) }
    }

    /// Puts the same bytes into this link's line as into that of `first`.
    #[inline]
    pub(crate) fn copy_inline(&self, first: PieceMut) {
        let into = self.inline_piece(first.len());
        // SAFETY: both are unpublished lines of this sender, of the same length; entries of two links do not
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(first.as_mut_ptr(), into.as_mut_ptr(), first.len()) };
    }

    /// Puts a message that takes no slot into the line, or into the room beside it, and hands it over. The caller holds a credit.
    #[inline]
    pub(crate) fn send(&mut self, piece: Piece, tag: u64) -> CoreResult<()> {
        if piece.len() > INLINE_BYTES {
            self.make_room()?;
        }
        self.inline_piece(piece.len()).copy_from(piece);
        self.publish(tag, piece.len(), Body::Line);
        Ok(())
    }

    /// Whether a message of this length takes no slot and may be sent with nothing to be decided.
    #[inline(always)]
    pub(crate) fn is_easy(&self, len: usize) -> bool {
        (len <= INLINE_BYTES || len <= SHORT_BYTES && self.has_rooms) && self.end.is_easy() && !self.reserved
    }

    /// [`send`](Outgoing::send) for one that [is easy](Outgoing::is_easy).
    #[inline(always)]
    pub(crate) fn send_easily(&mut self, piece: Piece, tag: u64) {
        self.starved = false;
        self.inline_piece(piece.len()).copy_from(piece);
        // SAFETY: as in `entry`, written out because `end` is borrowed at the same time.
        let entry = unsafe { self.entries.add(self.end.at()).as_ref() };
        self.end.publish(entry, tag, piece.len() as u32, Body::Line, false);
        self.sent(piece.len(), Body::Line);
    }

    /// Hands over the message. Inlined, so that a message in the line takes no decisions.
    #[inline(always)]
    pub(crate) fn publish(&mut self, tag: u64, len: usize, body: Body) {
        self.reserved = false;
        match body {
            // It says so already, since the entry was released or never used.
            Body::Line => debug_assert!(self.slots[self.newest()] == NO_SLOT),
            Body::Slot { number, passing: Passing::Stays, .. } => self.note(number),
            Body::Slot { .. } => self.note(PASSED),
            Body::Lent { .. } => self.note(LENT),
            Body::Offered => {}
        }
        let wraps = !self.end.goes_on() && (self.end.ends_lap() || !self.go_beyond());
        // SAFETY: as in `entry`, written out because `end` is borrowed at the same time.
        let entry = unsafe { self.entries.add(self.end.at()).as_ref() };
        self.end.publish(entry, tag, len as u32, body, wraps);
        if wraps {
            // SAFETY: as in `credit`, written out for the same reason.
            self.end.begin_lap(unsafe { self.credit.as_ref() });
        }
        self.sent(len, body);
    }

    /// What follows when a message was handed over. Wakes a receiver that sleeps.
    #[inline(always)]
    fn sent(&mut self, len: usize, body: Body) {
        self.prefetch(len);
        self.counters.pieces += 1;
        self.counters.bytes += len as u64;
        match body {
            Body::Line => self.counters.inline += u64::from(len <= INLINE_BYTES),
            Body::Slot { .. } => {}
            Body::Lent { .. } => {
                self.lent += 1;
                self.counters.referenced += 1;
                self.counters.referenced_bytes += len as u64;
            }
            Body::Offered => {
                self.leave_offered();
                self.counters.direct += 1;
                self.counters.direct_bytes += len as u64;
            }
        }
        // SAFETY: in `peer`, which lives as long as `self`.
        let bell = unsafe { self.bell.as_ref() };
        if bell.must_ring(PIECE) {
            crate::park::wake(bell);
        }
    }

    fn offering(&self) -> &Offering {
        // SAFETY: in `own`, which lives as long as `self`; any bytes are a valid offering.
        unsafe { self.offering.as_ref() }
    }

    /// Whether so many messages that take no slot may be written one after the other. More than one are asked for where nothing is to be decided only.
    pub(crate) fn take_credits(&mut self, messages: usize, pool: &mut Pool) -> CoreResult<bool> {
        let has_credit = self.take_credit(false, pool)?;
        if messages == 1 || !has_credit {
            return Ok(has_credit);
        }
        if (self.end.easy() as usize) < messages {
            self.refresh(pool).map_err(|what| corrupt(self.key.to, what))?;
        }
        Ok(self.end.easy() as usize >= messages)
    }

    /// Takes what the receiver has offered for the next messages, if they have this tag and these lengths: what memory it is, by its number and the offset in it. The receiver
    /// waits from then on until they are published, or it is [left](Outgoing::leave_offered).
    pub(crate) fn take_offered(&self, stretch: &Stretch, tag: u64) -> Option<(u32, u64)> {
        self.offering().take(|terms: &Terms| {
            let index = u64::from(self.end.published().wrapping_sub(terms.first));
            let (bytes, piece) = (usize::try_from(terms.bytes).ok()?, usize::try_from(terms.piece).ok()?);
            let at = Offer::place_of(bytes, piece, terms.direction, index, stretch);
            let at = at.filter(|_| terms.tag == tag)?;
            Some((terms.number, terms.offset.checked_add(at as u64)?))
        })
    }

    /// What was taken is not written to any more.
    pub(crate) fn leave_offered(&self) {
        self.offering().leave();
    }

    /// The place in lent memory that the receiver has offered, and that was taken; `None` where it lies outside.
    pub(crate) fn offered_piece(&self, loan: &Loan, offset: u64, len: usize) -> Option<PieceMut> {
        let at = loan.bytes(offset, len)?;
        // SAFETY: inside of a mapping which is not given up before `publish`; the receiver has promised that nobody else uses
        // it, and waits for this rank before it withdraws that.
        Some(unsafe { PieceMut::new(at, len) })
    }

    /// Keeps where the bytes of the message are, which are not in its line.
    #[inline]
    fn note(&mut self, slot: u32) {
        let newest = self.newest();
        self.slots[newest] = slot;
        self.elsewhere += 1;
    }

    /// The place among [`slots`](Outgoing::slots) of the next message.
    fn newest(&self) -> usize {
        let at = self.oldest + self.end.outstanding() as usize;
        if at < self.slots.len() { at } else { at - self.slots.len() }
    }

    /// Makes an entry ready that the lap before has not used; false if there is no memory for it, and the lap ends before it.
    #[cold]
    #[inline(never)]
    fn go_beyond(&mut self) -> bool {
        let most = self.slots.len() as u32;
        if self.reach < most {
            let more = self.reach..most;
            let lines = self.own.populate_entries(self.link, more.clone());
            let rooms = if self.has_rooms { self.own.populate_rooms(self.link, more) } else { Ok(()) };
            if let Err(error) = lines.and(rooms) {
                tracing::debug!(link = ?self.key, %error, "a sender does not run ahead further");
                return false;
            }
            self.reach = most;
        }
        // SAFETY: the longest lap has it, and so the ring in `own`; any bytes are a valid entry.
        unsafe { self.entries.add(self.end.beyond()).as_ref() }.clear();
        true
    }

    /// Asks for lines that a message will be written to soon, as one of this length is now. The receiver read them one lap ago and
    /// still holds them; taking them away from there costs as much as sending them, and now nobody waits for that. What it has not read
    /// yet is left to it.
    #[inline(always)]
    fn prefetch(&self, len: usize) {
        let Some(at) = self.end.ahead(AHEAD) else { return };
        prefetch_to_write(self.entries.as_ptr().wrapping_add(at).cast());
        if len > INLINE_BYTES && len <= SHORT_BYTES {
            let room = self.rooms.as_ptr().wrapping_add(at * ROOM_BYTES);
            (0..len).step_by(LINE).for_each(|line| prefetch_to_write(room.wrapping_add(line)));
        }
    }

    /// Whether the receiver has released something since its count was last loaded.
    pub(crate) fn has_news(&self) -> bool {
        self.end.glance(self.credit()) != self.end.known()
    }

    /// Whether a sender waits for a credit that has come since, and this was not told before.
    pub(crate) fn news(&mut self) -> bool {
        let now = self.end.glance(self.credit());
        self.awaits_credit() && now != self.end.known() && std::mem::replace(&mut self.told, now) != now
    }
}
