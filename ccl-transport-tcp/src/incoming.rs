//! The receiving end of a link.

use crate::slots::Slots;
use ccl_core::kernels::{Piece, Store};
use ccl_core::transport::{Arrival, Counters, LinkKey};
use std::collections::VecDeque;

/// What the receiver knows of a link. Counts are modulo 2³² from 0, when the link was opened.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) key: LinkKey,
    /// Its socket.
    pub(crate) socket: u32,
    /// Pieces that may be on it, and how many released ones the sender is told of together.
    window: u32,
    batch: u32,
    /// Pieces whose header has come.
    came: u32,
    /// Pieces released.
    released: u32,
    /// Pieces of which the sender was told that they are released.
    told: u32,
    /// Pieces that are here and not released, oldest first. Has room for all that there can be.
    here: VecDeque<Held>,
    peeked: bool,
    pub(crate) counters: Counters,
}

/// A piece that has come in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// `None` for a piece of no bytes.
    pub(crate) slot: Option<u32>,
    pub(crate) len: u32,
    pub(crate) tag: u64,
}

impl Incoming {
    pub(crate) fn new(key: LinkKey, socket: u32, window: u32, batch: u32) -> Incoming {
        Incoming {
            key,
            socket,
            window,
            batch,
            came: 0,
            released: 0,
            told: 0,
            here: VecDeque::with_capacity(window as usize),
            peeked: false,
            counters: Counters::default(),
        }
    }

    /// The header of a piece has come; an error if it cannot have.
    #[inline]
    pub(crate) fn admit(&mut self, number: u32) -> Result<(), &'static str> {
        if number != self.came {
            return Err("a piece out of order");
        }
        if self.came.wrapping_sub(self.released) >= self.window {
            return Err("more pieces than there are credits");
        }
        self.came = self.came.wrapping_add(1);
        Ok(())
    }

    /// All of the piece is here.
    #[inline]
    pub(crate) fn keep(&mut self, piece: Held) {
        self.here.push_back(piece);
    }

    /// The oldest piece that is here.
    #[inline]
    pub(crate) fn peek(&mut self, slots: &Slots) -> Option<Arrival> {
        let held = self.here.front()?;
        self.peeked = true;
        let piece = held.slot.map_or(Piece::EMPTY, |slot| slots[slot].piece(held.len as usize));
        Some(Arrival { piece, tag: held.tag, store: Store::Cached })
    }

    /// The oldest piece is done with; false if it was not peeked at.
    #[inline]
    pub(crate) fn release(&mut self, slots: &mut Slots) -> bool {
        if !std::mem::take(&mut self.peeked) {
            return false;
        }
        let Some(held) = self.here.pop_front() else { return false };
        if let Some(slot) = held.slot {
            slots.put(slot);
        }
        self.released = self.released.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += u64::from(held.len);
        true
    }

    /// Whether the sender should be told of releases with a frame of their own.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.released.wrapping_sub(self.told) >= self.batch
    }

    /// How many pieces are released, which the sender is told now.
    #[inline]
    pub(crate) fn tell(&mut self) -> u32 {
        self.told = self.released;
        self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_in_order_and_within_the_window() {
        let mut slots = Slots::new(8);
        let mut link = Incoming::new(LinkKey { from: 0, to: 1, channel: 0 }, 0, 3, 2);
        (link.came, link.released, link.told) = (u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(link.admit(0), Err("a piece out of order"));
        for number in [u32::MAX, 0, 1] {
            assert_eq!(link.admit(number), Ok(()));
            let slot = (number == 0).then(|| slots.take());
            link.keep(Held { slot, len: slot.map_or(0, |_| 5), tag: number.into() });
        }
        assert_eq!(link.admit(2), Err("more pieces than there are credits"));
        assert!(!link.release(&mut slots), "not peeked at");
        assert_eq!(link.peek(&slots).unwrap().tag, u64::from(u32::MAX));
        assert!(link.release(&mut slots) && !link.owes());
        assert_eq!(link.peek(&slots).unwrap().piece.len(), 5);
        assert!(link.release(&mut slots) && link.owes());
        assert_eq!(link.tell(), 1);
        assert!(!link.owes());
        assert_eq!(link.admit(2), Ok(()));
        assert_eq!((link.counters.pieces, link.counters.bytes), (2, 5));
    }
}
