//! The receiving end of one link: a ring of slots that the peer writes, and the credits that it gets back.

use super::group::MOST_BEYOND;
use super::lane::Window;
use super::offers::{Board, Keys, Offered, RECORD, Target};
use super::outgoing::Corrupt;
use super::recovery::Count;
use super::sys::{read, write};
use super::wire::{FIRST, FRONT, HEADER, Header, INLINE_BYTES, Immediate, after};
use crate::verbs::{Extent, Remote, Sge};
use ccl_core::kernels::{Piece, PieceMut, Store};
use ccl_core::transport::{Arrival, Counters, LinkKey, Offer};

/// A message that has come.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u64,
    /// Where it lies: in its slot, or where it was offered to come.
    piece: Piece,
    is_direct: bool,
}

impl Message {
    const NONE: Message = Message { tag: 0, piece: Piece::EMPTY, is_direct: false };
}

/// A link's receiving end.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) key: LinkKey,
    /// Its home's place among the lanes, and that of the group of lanes.
    pub(crate) home: u32,
    pub(crate) group: u32,
    /// The link of the other direction, on which credits come with the headers.
    pub(crate) back: Option<u32>,
    /// Its number in the group.
    pub(crate) number: u32,
    /// Its slots, and room to write an offer down; the regions of the board keep it.
    ring: PieceMut,
    /// The distance of the slots.
    stride: usize,
    window: Window,
    /// Messages that have come without a gap.
    arrived: u32,
    released: u32,
    /// Where the next message comes, and the oldest lies that is not released.
    head: u32,
    tail: u32,
    /// Which messages have come beyond the next: the first bit is for the one after it.
    beyond: u64,
    /// What the sender knows of `released`.
    reported: u32,
    /// Whether the oldest message was looked at.
    peeked: bool,
    /// Each message that is not released, as it was when it came: the peer could change it.
    messages: Box<[Message]>,
    /// What was offered last and before, by number modulo 2; how often, and how often the sender has said that it knows.
    offers: [Option<Offered>; 2],
    offered: u32,
    heard: u32,
    /// The lane by which the last offer was told.
    told_by: u32,
    board: Board,
    pub(crate) counters: Counters,
}

impl Incoming {
    pub(crate) fn new(
        key: LinkKey,
        (home, group): (u32, u32),
        number: u32,
        (ring, stride): (PieceMut, usize),
        board: Board,
        window: Window,
    ) -> Incoming {
        Incoming {
            key,
            home,
            group,
            back: None,
            number,
            ring,
            stride,
            window,
            arrived: FIRST,
            released: FIRST,
            head: 0,
            tail: 0,
            beyond: 0,
            reported: FIRST,
            peeked: false,
            messages: vec![Message::NONE; window.slots as usize].into(),
            offers: [None; 2],
            offered: 0,
            heard: 0,
            told_by: home,
            board,
            counters: Counters::default(),
        }
    }

    /// A message of `bytes` with its header has come into `slot`. Gives what its header says of the link of the other
    /// direction.
    #[inline]
    pub(crate) fn arrive(&mut self, slot: u32, bytes: usize) -> Result<u32, Corrupt> {
        if slot as usize >= self.messages.len() {
            return Err(Corrupt("a message came into a slot that there is not"));
        }
        let slot_piece = self.ring.as_piece().slice(slot as usize * self.stride, self.stride);
        let header = Header::decode(read(slot_piece.slice(FRONT - HEADER, HEADER)));
        let ahead = header.number.wrapping_sub(self.arrived);
        if self.slot_of(ahead)? != slot {
            return Err(Corrupt("a message came into a slot that is not its own"));
        }
        if bytes != HEADER + header.len as usize || header.len as usize > self.stride - FRONT {
            return Err(Corrupt("a message has another length than it says"));
        }
        self.hear(header.heard)?;
        let piece = slot_piece.slice(FRONT, header.len as usize);
        self.take(ahead, slot, Message { tag: header.tag, piece, is_direct: false });
        Ok(header.released)
    }

    /// A message of so many bytes has come by an offer; both numbers are what is left of them.
    #[inline]
    pub(crate) fn land(&mut self, number: u32, offer: u32, bytes: usize) -> Result<(), Corrupt> {
        const STRANGE: Corrupt = Corrupt("a message came into memory that was not offered for it");
        let ahead = number.wrapping_sub(self.arrived) & Immediate::NUMBERS;
        let ago = self.offered.wrapping_sub(offer) & Immediate::OFFERS;
        let slot = self.slot_of(ahead)?;
        if ago > 1 {
            return Err(STRANGE);
        }
        let (number, offer) = (self.arrived.wrapping_add(ahead), self.offered.wrapping_sub(ago));
        let offered = self.offers[offer as usize % 2].as_ref().ok_or(STRANGE)?;
        let piece = offered.place(number, bytes).ok_or(STRANGE)?.as_piece();
        let tag = offered.offer.tag;
        self.hear(offer)?;
        self.take(ahead, slot, Message { tag, piece, is_direct: true });
        Ok(())
    }

    /// The slot of a message that is so many ahead of the next one, if it can come.
    #[inline]
    fn slot_of(&self, ahead: u32) -> Result<u32, Corrupt> {
        if ahead >= self.window.slots - self.waiting() {
            return Err(Corrupt("a message has a number that has come already, or has no turn yet"));
        }
        if ahead > 0 && (ahead > MOST_BEYOND || self.beyond >> (ahead - 1) & 1 == 1) {
            return Err(Corrupt("a message has come twice, or before too many others"));
        }
        let slot = self.head + ahead;
        Ok(if slot < self.window.slots { slot } else { slot - self.window.slots })
    }

    /// Takes it in. Those that have waited for it have come with it.
    #[inline]
    fn take(&mut self, ahead: u32, slot: u32, message: Message) {
        self.messages[slot as usize] = message;
        if ahead > 0 {
            self.beyond |= 1 << (ahead - 1);
            return;
        }
        self.advance();
        if self.beyond == 0 {
            return;
        }
        while self.beyond & 1 == 1 {
            self.beyond >>= 1;
            self.advance();
        }
        self.beyond >>= 1;
    }

    #[inline]
    fn advance(&mut self) {
        self.head = after(self.head, self.window.slots);
        self.arrived = self.arrived.wrapping_add(1);
    }

    /// The sender has heard of this offer, or of later ones.
    #[inline]
    fn hear(&mut self, offer: u32) -> Result<(), Corrupt> {
        if offer == self.heard {
            return Ok(());
        }
        let news = offer.wrapping_sub(self.heard).cast_signed();
        if news > self.unheard().cast_signed() {
            return Err(Corrupt("it has heard of offers that were not made"));
        }
        if news > 0 {
            self.heard = offer;
        }
        Ok(())
    }

    /// Offers that the sender has not said that it knows.
    #[inline]
    pub(crate) fn unheard(&self) -> u32 {
        self.offered.wrapping_sub(self.heard)
    }

    /// Makes an offer of memory for which peers have these keys, by pair of rails, and tells it by a lane over a pair of
    /// rails. Gives the record as it is to be written, and where to.
    pub(crate) fn offer(&mut self, offer: Offer, keys: Keys, by: (u32, usize)) -> (Sge, Remote) {
        self.offered = self.offered.wrapping_add(1);
        let (first, rails) = (self.released, by.1);
        self.told_by = by.0;
        self.offers[self.offered as usize % 2] = Some(Offered { offer, first });
        let (piece, bytes) = (offer.piece as u32, offer.sink.len() as u64);
        let Offer { tag, direction, .. } = offer;
        let target = Target { tag, number: self.offered, first, piece, direction, bytes, keys };
        // Behind the slots, where no peer writes.
        let place = self.ring.slice(self.window.slots as usize * self.stride, RECORD);
        write(place, target.encode());
        let Board { regions, lines, offset } = &self.board;
        (regions[rails].sge_mut(place), lines[rails].at(*offset))
    }

    /// What was offered may not be used any more.
    pub(crate) fn lapse(&mut self) {
        self.offers = [None; 2];
    }

    /// Memory has gone: what was offered of it may not be used any more.
    pub(crate) fn lapse_in(&mut self, gone: Extent) {
        let lies_there = |one: &Offered| gone.covers(Extent::of(one.offer.sink.as_piece()));
        for offer in &mut self.offers {
            *offer = offer.filter(|one| !lies_there(one));
        }
    }

    /// A lane has another queue pair: what was told by the one before has come, or never will.
    pub(crate) fn was_told_by(&mut self, lane: u32) {
        if self.told_by == lane {
            self.heard = self.offered;
        }
    }

    /// Messages that are not released.
    #[inline]
    fn waiting(&self) -> u32 {
        self.arrived.wrapping_sub(self.released)
    }

    /// The oldest message that is not released.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Arrival> {
        if self.waiting() == 0 {
            return None;
        }
        self.peeked = true;
        let Message { tag, piece, .. } = self.messages[self.tail as usize];
        Some(Arrival { piece, tag, store: Store::Cached })
    }

    /// Gives it back; false: nobody has looked at it.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.peeked) {
            return false;
        }
        let Message { piece, is_direct, .. } = self.messages[self.tail as usize];
        let len = piece.len();
        self.tail = after(self.tail, self.window.slots);
        self.released = self.released.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += len as u64;
        if is_direct {
            self.counters.direct += 1;
            self.counters.direct_bytes += len as u64;
        } else if len <= INLINE_BYTES {
            self.counters.inline += 1;
        }
        true
    }

    /// Whether so much is owed that it goes back by itself.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.released.wrapping_sub(self.reported) >= self.window.batch
    }

    /// What has come, and is released.
    pub(crate) fn count(&self) -> Count {
        Count { channel: self.key.channel, next: self.arrived, released: self.released, beyond: self.beyond }
    }

    /// What the sender is told now.
    #[inline]
    pub(crate) fn report(&mut self) -> u32 {
        self.reported = self.released;
        self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Memory;
    use std::sync::Arc;

    const STRIDE: usize = FRONT + 4096;

    /// A link, and the memory of its ring.
    fn link() -> (Memory, Incoming) {
        let key = LinkKey { from: 1, to: 0, channel: 0 };
        let memory = Memory::allocate(5 * STRIDE).unwrap();
        let nowhere = Board { regions: Arc::new([]), lines: Arc::new([]), offset: 0 };
        let ring = memory.slice_mut(0, memory.len());
        (memory, Incoming::new(key, (0, 0), 0, (ring, STRIDE), nowhere, Window::of(4)))
    }

    fn put(link: &Incoming, slot: usize, header: Header) {
        write(link.ring.slice(slot * STRIDE + FRONT - HEADER, HEADER), header.encode());
    }

    #[test]
    fn credits_go_back_by_halves() {
        let (_memory, mut link) = link();
        // Past the number after which they begin anew.
        for count in 0..200u32 {
            let (slot, number) = (count % 5, FIRST.wrapping_add(count));
            put(&link, slot as usize, Header { tag: 7, number, len: 3, released: 0, heard: 0 });
            link.arrive(slot, HEADER + 3).unwrap();
            assert!(!link.owes());
            assert_eq!(link.peek().unwrap().tag, 7);
            assert!(link.release());
            assert_eq!(link.owes(), count % 2 == 1);
            if link.owes() {
                assert_eq!(link.report(), number.wrapping_add(1));
            }
        }
    }

    #[test]
    fn what_no_sender_says_is_found() {
        let (_memory, mut link) = link();
        let right = Header { tag: 0, number: FIRST, len: 8, released: 0, heard: 0 };
        put(&link, 0, right);
        assert!(link.arrive(1, HEADER + 8).is_err() && link.arrive(5, HEADER + 8).is_err(), "slot");
        assert!(link.arrive(0, HEADER + 9).is_err(), "length");
        for number in [FIRST + 1, FIRST + 5, FIRST - 1] {
            put(&link, 0, Header { number, ..right });
            assert!(link.arrive(0, HEADER + 8).is_err(), "number");
        }
        put(&link, 0, Header { len: 4097, ..right });
        assert!(link.arrive(0, HEADER + 4097).is_err(), "longer than a slot");
        put(&link, 0, Header { heard: 1, ..right });
        assert!(link.arrive(0, HEADER + 8).is_err(), "an offer that was not made");
        assert!(link.land(FIRST, 0, 8).is_err() && link.land(FIRST, 1, 8).is_err(), "no offer");
        put(&link, 0, right);
        assert_eq!(link.arrive(0, HEADER + 8), Ok(0));
        assert!(!link.release(), "not looked at");
        assert!(link.arrive(0, HEADER + 8).is_err(), "twice");
        put(&link, 2, Header { number: FIRST + 2, ..right });
        assert_eq!(link.arrive(2, HEADER + 8), Ok(0));
        assert!(link.arrive(2, HEADER + 8).is_err(), "twice, beyond one that is missing");
    }

    /// Messages overtake one another in all orders; the reader sees them in theirs.
    #[test]
    fn what_overtakes_waits_for_its_turn() {
        let orders: Vec<Vec<u32>> = (0..120u32)
            .map(|k| {
                let mut left: Vec<u32> = (0..5).collect();
                [24, 6, 2, 1, 1].iter().map(|unit| left.remove((k / unit) as usize % left.len())).collect()
            })
            .collect();
        let (_memory, mut link) = link();
        for (round, order) in (0u32..).zip(&orders) {
            let first = FIRST.wrapping_add(5 * round);
            let mut came = [false; 5];
            for &k in order {
                let number = first.wrapping_add(k);
                put(&link, k as usize, Header { tag: number.into(), number, len: 3, released: 0, heard: 0 });
                link.arrive(k, HEADER + 3).unwrap();
                came[k as usize] = true;
                let run = came.iter().take_while(|came| **came).count() as u32;
                let count = link.count();
                assert_eq!((count.next, link.waiting()), (first.wrapping_add(run), run));
                for other in 0..5 {
                    assert_eq!(count.has(first.wrapping_add(other)), came[other as usize], "{order:?} {k}");
                }
            }
            for k in 0..5 {
                assert_eq!(link.peek().unwrap().tag, u64::from(first.wrapping_add(k)));
                assert!(link.release());
            }
            assert!(link.peek().is_none());
        }
    }
}
