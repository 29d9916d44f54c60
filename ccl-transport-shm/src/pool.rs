//! Which payload slots are free: the sender's private account of its segment.
//!
//! **A credit implies a slot.** Every open link adds as many slots to what may be handed out as it may have messages in
//! slots: its credits for slots. A slot in use is held by a message that is not known to be released, or by a
//! reservation; messages in slots occupy one such credit of each of their links, and so do reservations, of which a
//! link has at most one. So the slots in use are at most the credits in use, over all links; and where one link has a
//! credit left, the credits in use are fewer than the slots.
//!
//! **Oldest first.** Free slots are used in the order in which they came back: rewriting lines that
//! the other core still holds costs more than cycling through some 2 MiB that stay in the cache. These *warm*
//! slots are there from the first link on, so that no call pays for getting them; further ones are touched
//! when all are in use, so memory grows with need only.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of warm slots.
const WARM_BYTES: usize = 2 << 20;
/// Up to so many ranks each has that much; more ranks have less each, since they may all be on one host.
const WARM_RANKS: usize = 16;

/// The account.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free slots that are warm or were used before, oldest first.
    free: VecDeque<u32>,
    /// For each slot that was touched: who holds it, reservation or messages.
    holders: Vec<u32>,
    /// Slots that may be used at all; those from `holders.len()` are untouched.
    capacity: u32,
    /// Slots that are touched before they are needed.
    warm: u32,
}

impl Pool {
    pub(crate) fn new(slot_bytes: usize, ranks: u32) -> Pool {
        Pool { free: VecDeque::new(), holders: Vec::new(), capacity: 0, warm: warm_slots(slot_bytes, ranks) }
    }

    /// Adds the slots of one more link, and returns those that are warm from now on: their memory must be
    /// there. The only call that allocates.
    pub(crate) fn grow(&mut self, slots: u32) -> Range<u32> {
        self.capacity += slots;
        self.free.reserve(self.capacity as usize - self.free.len());
        self.holders.reserve(self.capacity as usize - self.holders.len());
        let touched = self.holders.len() as u32;
        let warm = touched..self.warm.min(self.capacity).max(touched);
        self.free.extend(warm.clone());
        self.holders.resize(warm.end as usize, 0);
        warm
    }

    /// Slots that take memory.
    pub(crate) fn touched(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Whether the next slot would be a new one for want of free ones.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.free.is_empty()
    }

    /// A slot with one holder, and whether it is touched for the first time; `None` if all are in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u32, bool)> {
        let touched = self.holders.len() as u32;
        match self.free.pop_front() {
            Some(slot) => {
                self.holders[slot as usize] = 1;
                Some((slot, false))
            }
            None if touched < self.capacity => {
                self.holders.push(1);
                Some((touched, true))
            }
            None => None,
        }
    }

    /// The reservation becomes `messages` messages.
    #[inline]
    pub(crate) fn share(&mut self, slot: u32, messages: u32) {
        self.holders[slot as usize] = messages;
    }

    /// One holder is done with it.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32) {
        let holders = &mut self.holders[slot as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push_back(slot);
        }
    }
}

/// How many slots of each rank are warm.
pub(crate) fn warm_slots(slot_bytes: usize, ranks: u32) -> u32 {
    let share = WARM_BYTES * WARM_RANKS / (ranks as usize).max(WARM_RANKS);
    (share / slot_bytes).max(2) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn warm_slots_first_then_the_oldest_then_new_ones() {
        let mut pool = Pool::new(WARM_BYTES / 2, 2);
        assert_eq!(pool.take(), None);
        assert_eq!(pool.grow(3), 0..2);
        assert_eq!(pool.take(), Some((0, false)));
        pool.put(0);
        assert_eq!(pool.take(), Some((1, false)), "the oldest free one");
        assert_eq!(pool.take(), Some((0, false)));
        assert!(pool.is_short());
        assert_eq!(pool.take(), Some((2, true)), "more memory only when nothing is free");
        assert_eq!(pool.take(), None);
        pool.put(1);
        pool.put(0);
        assert_eq!(pool.take(), Some((1, false)));
        assert_eq!(pool.grow(3), 3..3, "as many are warm as there shall be");
    }

    #[test]
    fn a_crowd_has_few_warm_slots_each() {
        assert_eq!(warm_slots(64 << 10, 2), 32);
        assert_eq!(warm_slots(64 << 10, 16), 32);
        assert_eq!(warm_slots(64 << 10, 256), 2);
        assert_eq!(warm_slots(64 << 20, 2), 2);
    }

    #[test]
    fn a_shared_slot_is_free_after_the_last() {
        let mut pool = Pool::new(WARM_BYTES, 2);
        pool.grow(1);
        let (slot, _) = pool.take().unwrap();
        pool.share(slot, 3);
        pool.put(slot);
        pool.put(slot);
        assert_eq!(pool.take(), None);
        pool.put(slot);
        assert_eq!(pool.take(), Some((slot, false)));
    }
}
