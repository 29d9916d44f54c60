//! Which payload slots are free: the sender's private account of its segment.
//!
//! **A credit implies a slot.** Every open link adds `credits` slots to what may be handed out. A slot in
//! use is held by a message that is not known to be released, or by a reservation; messages occupy one
//! credit of each of their links, and so do reservations, of which a link has at most one. So the slots in
//! use are at most the credits in use, over all links; and where one link has a credit left, the credits in
//! use are fewer than the slots.
//!
//! **Oldest first.** Free slots are used in the order in which they came back: rewriting lines that
//! the other core still holds costs more than cycling through some 2 MiB that stay in the cache. Slots that
//! were never touched come last, so memory grows with need only.

use std::collections::VecDeque;

/// Bytes of slots through which a sender cycles before it reuses one.
const WARM_BYTES: usize = 2 << 20;

/// The account.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free slots that were used before, oldest first.
    free: VecDeque<u32>,
    /// For each slot that was used: who holds it, reservation or messages.
    holders: Vec<u32>,
    /// Slots that may be used at all; those from `holders.len()` are untouched.
    capacity: u32,
    /// Slots to touch before any is used twice.
    warm: u32,
}

impl Pool {
    pub(crate) fn new(slot_bytes: usize) -> Pool {
        let warm = (WARM_BYTES / slot_bytes).max(1) as u32;
        Pool { free: VecDeque::new(), holders: Vec::new(), capacity: 0, warm }
    }

    /// Adds the slots of one more link. The only call that allocates.
    pub(crate) fn grow(&mut self, credits: u32) {
        self.capacity += credits;
        self.free.reserve(self.capacity as usize - self.free.len());
        self.holders.reserve(self.capacity as usize - self.holders.len());
    }

    /// Whether the next slot would be a new one for want of free ones.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.free.is_empty() && self.holders.len() as u32 >= self.warm
    }

    /// A slot with one holder, and whether it is used for the first time; `None` if all are in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u32, bool)> {
        let touched = self.holders.len() as u32;
        if touched < self.warm.min(self.capacity) || (self.free.is_empty() && touched < self.capacity) {
            self.holders.push(1);
            return Some((touched, true));
        }
        let slot = self.free.pop_front()?;
        self.holders[slot as usize] = 1;
        Some((slot, false))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn new_slots_first_then_the_oldest() {
        let mut pool = Pool::new(WARM_BYTES / 2);
        assert_eq!(pool.take(), None);
        pool.grow(3);
        assert_eq!(pool.take(), Some((0, true)));
        pool.put(0);
        assert_eq!(pool.take(), Some((1, true)), "warm slots come before reuse");
        assert_eq!(pool.take(), Some((0, false)));
        assert!(pool.is_short());
        assert_eq!(pool.take(), Some((2, true)), "more memory only when nothing is free");
        assert_eq!(pool.take(), None);
        pool.put(1);
        pool.put(0);
        assert_eq!(pool.take(), Some((1, false)));
    }

    #[test]
    fn a_shared_slot_is_free_after_the_last() {
        let mut pool = Pool::new(WARM_BYTES);
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
