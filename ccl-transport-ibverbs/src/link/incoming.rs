//! The receiving end of one link: a ring of slots that the peer writes, and the credits that it gets back.

use super::lane::Window;
use super::offers::{Board, Offered, RECORD, Target};
use super::outgoing::Corrupt;
use super::sys::read_header;
use super::wire::{FIRST, FRONT, HEADER, Header, INLINE_BYTES, Immediate, after};
use crate::verbs::{Memory, Remote, Sge};
use ccl_core::simd::Piece;
use ccl_core::transport::{Arrival, Counters, LinkKey, Offer};

/// A message that has come.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    tag: u64,
    len: u32,
    /// Where it lies, if not in its slot.
    direct: Option<Piece>,
}

/// A link's receiving end.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) key: LinkKey,
    /// Its place among the lanes.
    pub(crate) lane: u32,
    /// The link of the other direction, on which credits come with the headers.
    pub(crate) back: Option<u32>,
    /// The sender's number of the link.
    pub(crate) their: u32,
    memory: Memory,
    /// Where the ring begins, and its slots' distance.
    first: usize,
    stride: usize,
    window: Window,
    arrived: u32,
    released: u32,
    /// Where the next message comes, and the oldest lies that is not released.
    head: u32,
    tail: u32,
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
    board: Board,
    pub(crate) counters: Counters,
}

impl Incoming {
    pub(crate) fn new(
        key: LinkKey,
        lane: u32,
        their: u32,
        (memory, first, stride): (Memory, usize, usize),
        board: Board,
        window: Window,
    ) -> Incoming {
        Incoming {
            key,
            lane,
            back: None,
            their,
            memory,
            first,
            stride,
            window,
            arrived: FIRST,
            released: FIRST,
            head: 0,
            tail: 0,
            reported: FIRST,
            peeked: false,
            messages: vec![Message::default(); window.slots as usize].into(),
            offers: [None; 2],
            offered: 0,
            heard: 0,
            board,
            counters: Counters::default(),
        }
    }

    /// A message of `bytes` with its header has come into `slot`. Gives what its header says of the link of the other
    /// direction.
    #[inline]
    pub(crate) fn arrive(&mut self, slot: u32, bytes: usize) -> Result<u32, Corrupt> {
        let position = self.head;
        if slot != position || self.waiting() == self.window.slots {
            return Err(Corrupt("a message came into a slot that is not its turn"));
        }
        let at = self.first + position as usize * self.stride + FRONT - HEADER;
        let header = Header::decode(read_header(self.memory.slice(at, HEADER)));
        if header.number != self.arrived {
            return Err(Corrupt("a message has another number than its turn"));
        }
        if bytes != HEADER + header.len as usize || header.len as usize > self.stride - FRONT {
            return Err(Corrupt("a message has another length than it says"));
        }
        if header.heard.wrapping_sub(self.heard) > self.unheard() {
            return Err(Corrupt("it has heard of offers that were not made"));
        }
        self.heard = header.heard;
        self.messages[position as usize] = Message { tag: header.tag, len: header.len, direct: None };
        self.advance();
        Ok(header.released)
    }

    /// A message of so many bytes has come by an offer.
    #[inline]
    pub(crate) fn land(&mut self, offer: u32, bytes: usize) -> Result<(), Corrupt> {
        const STRANGE: Corrupt = Corrupt("a message came into memory that was not offered for it");
        let ago = self.offered.wrapping_sub(offer) & Immediate::MASK;
        if ago > self.unheard() || self.waiting() == self.window.slots {
            return Err(STRANGE);
        }
        let number = self.offered.wrapping_sub(ago);
        let offered = self.offers[number as usize % 2].as_ref().ok_or(STRANGE)?;
        let piece = offered.place(self.arrived, bytes).ok_or(STRANGE)?.as_piece();
        self.heard = number;
        let message = Message { tag: offered.offer.tag, len: bytes as u32, direct: Some(piece) };
        self.messages[self.head as usize] = message;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        self.head = after(self.head, self.window.slots);
        self.arrived = self.arrived.wrapping_add(1);
    }

    /// Offers that the sender has not said that it knows.
    #[inline]
    pub(crate) fn unheard(&self) -> u32 {
        self.offered.wrapping_sub(self.heard)
    }

    /// Makes an offer, of memory that a peer knows as `at`, on this pair of rails. Gives the record as it is to be written,
    /// and where to.
    pub(crate) fn offer(&mut self, offer: Offer, at: Remote, rails: usize) -> (Sge, Remote) {
        self.offered = self.offered.wrapping_add(1);
        let first = self.released;
        self.offers[self.offered as usize % 2] = Some(Offered { offer, first });
        let (piece, bytes) = (offer.piece as u32, offer.sink.len() as u64);
        let target = Target { tag: offer.tag, first, piece, bytes, at };
        // In front of the first slot's header, which no peer writes.
        self.memory.write(self.first, target.encode());
        let Board { regions, lines, offset } = &self.board;
        let record = regions[rails].sge(self.memory.slice(self.first, RECORD));
        (record, lines[rails].at(*offset))
    }

    /// What was offered may not be used any more.
    pub(crate) fn lapse(&mut self) {
        self.offers = [None; 2];
    }

    /// The sender has another queue pair, and knows of no offer.
    pub(crate) fn forget_offers(&mut self) {
        self.lapse();
        (self.offered, self.heard) = (0, 0);
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
        let position = self.tail as usize;
        let Message { tag, len, direct } = self.messages[position];
        let in_slot = || self.memory.slice(self.first + position * self.stride + FRONT, len as usize);
        Some(Arrival { piece: direct.unwrap_or_else(in_slot), tag })
    }

    /// Gives it back; false: nobody has looked at it.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.peeked) {
            return false;
        }
        let Message { len, direct, .. } = self.messages[self.tail as usize];
        self.tail = after(self.tail, self.window.slots);
        self.released = self.released.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(len);
        match direct {
            None => self.counters.inline += u64::from(len as usize <= INLINE_BYTES),
            Some(_) => {
                self.counters.direct += 1;
                self.counters.direct_bytes += u64::from(len);
            }
        }
        true
    }

    /// Whether so much is owed that it goes back by itself.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.released.wrapping_sub(self.reported) >= self.window.batch
    }

    /// The number of the next message, and how many are released.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.arrived, self.released)
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
    use super::super::sys::write_header;
    use super::*;
    use std::sync::Arc;

    const STRIDE: usize = FRONT + 4096;

    fn link() -> Incoming {
        let key = LinkKey { from: 1, to: 0, channel: 0 };
        let memory = Memory::allocate(5 * STRIDE).unwrap();
        let nowhere = Board { regions: Arc::new([]), lines: Arc::new([]), offset: 0 };
        Incoming::new(key, 0, 0, (memory, 0, STRIDE), nowhere, Window::of(4))
    }

    fn put(link: &Incoming, slot: usize, header: Header) {
        let place = link.memory.slice_mut(slot * STRIDE + FRONT - HEADER, HEADER);
        write_header(place, header.encode());
    }

    #[test]
    fn credits_go_back_by_halves() {
        let mut link = link();
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
        let mut link = link();
        let right = Header { tag: 0, number: FIRST, len: 8, released: 0, heard: 0 };
        put(&link, 0, right);
        assert!(link.arrive(1, HEADER + 8).is_err(), "slot");
        assert!(link.arrive(0, HEADER + 9).is_err(), "length");
        put(&link, 0, Header { number: FIRST + 1, ..right });
        assert!(link.arrive(0, HEADER + 8).is_err(), "number");
        put(&link, 0, Header { len: 4097, ..right });
        assert!(link.arrive(0, HEADER + 4097).is_err(), "longer than a slot");
        put(&link, 0, Header { heard: 1, ..right });
        assert!(link.arrive(0, HEADER + 8).is_err(), "an offer that was not made");
        assert!(link.land(0, 8).is_err() && link.land(1, 8).is_err(), "no offer");
        put(&link, 0, right);
        assert_eq!(link.arrive(0, HEADER + 8), Ok(0));
        assert!(!link.release(), "not looked at");
    }
}
