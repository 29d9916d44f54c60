//! The receiving end of one link: a ring of slots that the peer writes, and the credits that it gets back.

use super::lane::Window;
use super::outgoing::Corrupt;
use super::sys::read_header;
use super::wire::{FRONT, HEADER, Header};
use crate::verbs::Memory;
use ccl_core::transport::{Arrival, Counters, LinkKey};

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
    /// What the sender knows of `released`.
    reported: u32,
    /// Whether the oldest message was looked at.
    peeked: bool,
    /// Tag and length of each message that is not released, as they were when it came: the peer could change them.
    messages: Box<[(u64, u32)]>,
    pub(crate) counters: Counters,
}

impl Incoming {
    pub(crate) fn new(
        key: LinkKey,
        lane: u32,
        their: u32,
        (memory, first, stride): (Memory, usize, usize),
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
            arrived: 0,
            released: 0,
            reported: 0,
            peeked: false,
            messages: vec![(0, 0); window.slots as usize].into(),
            counters: Counters::default(),
        }
    }

    /// A message of `bytes` with its header has come into `slot`. Gives what its header says of the link of the other
    /// direction.
    #[inline]
    pub(crate) fn arrive(&mut self, slot: u32, bytes: usize) -> Result<u32, Corrupt> {
        let position = self.arrived % self.window.slots;
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
        self.messages[position as usize] = (header.tag, header.len);
        self.arrived = self.arrived.wrapping_add(1);
        Ok(header.released)
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
        let position = (self.released % self.window.slots) as usize;
        let (tag, len) = self.messages[position];
        let piece = self.memory.slice(self.first + position * self.stride + FRONT, len as usize);
        Some(Arrival { piece, tag })
    }

    /// Gives it back; false: nobody has looked at it.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.peeked) {
            return false;
        }
        let (_, len) = self.messages[(self.released % self.window.slots) as usize];
        self.released = self.released.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(len);
        self.counters.inline += u64::from(len as usize <= super::wire::INLINE_BYTES);
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

    const STRIDE: usize = FRONT + 4096;

    fn link() -> Incoming {
        let key = LinkKey { from: 1, to: 0, channel: 0 };
        Incoming::new(key, 0, 0, (Memory::allocate(5 * STRIDE).unwrap(), 0, STRIDE), Window::of(4))
    }

    fn put(link: &Incoming, slot: usize, header: Header) {
        let place = link.memory.slice_mut(slot * STRIDE + FRONT - HEADER, HEADER);
        write_header(place, header.encode());
    }

    #[test]
    fn credits_go_back_by_halves() {
        let mut link = link();
        for number in 0..20u32 {
            let slot = number % 5;
            put(&link, slot as usize, Header { tag: 7, number, len: 3, released: 0 });
            link.arrive(slot, HEADER + 3).unwrap();
            assert!(!link.owes());
            assert_eq!(link.peek().unwrap().tag, 7);
            assert!(link.release());
            assert_eq!(link.owes(), number % 2 == 1);
            if link.owes() {
                assert_eq!(link.report(), number + 1);
            }
        }
    }

    #[test]
    fn what_no_sender_says_is_found() {
        let mut link = link();
        let right = Header { tag: 0, number: 0, len: 8, released: 0 };
        put(&link, 0, right);
        assert!(link.arrive(1, HEADER + 8).is_err(), "slot");
        assert!(link.arrive(0, HEADER + 9).is_err(), "length");
        put(&link, 0, Header { number: 1, ..right });
        assert!(link.arrive(0, HEADER + 8).is_err(), "number");
        put(&link, 0, Header { len: 4097, ..right });
        assert!(link.arrive(0, HEADER + 4097).is_err(), "longer than a slot");
        put(&link, 0, right);
        assert_eq!(link.arrive(0, HEADER + 8), Ok(0));
        assert!(!link.release(), "not looked at");
    }
}
