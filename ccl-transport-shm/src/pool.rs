//! Which payload slots are free: the sender's private account of its segment.
//!
//! **A credit implies a slot.** Every open link adds as many slots to what may be handed out as it may have messages in
//! slots: its credits for slots. A slot in use is held by a message that is not known to be released, or by a
//! reservation; messages in slots occupy one such credit of each of their links, and so do reservations, of which a
//! link has at most one. So the slots in use are at most the credits in use, over all links; and where one link has a
//! credit left, the credits in use are fewer than the slots.
//!
//! **Oldest first.** Free slots are used in the order in which they came back: rewriting lines that
//! the other core still holds costs more than cycling through some megabytes that it has dropped meanwhile. These *warm*
//! slots are there from the first link on, so that no call pays for getting them; further ones are touched
//! when all are in use, so memory grows with need only.

use ccl_core::Rank;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a line, and of the one that is fetched beside it.
const LINE: usize = 128;
/// Bytes of warm slots of a rank that has a core for itself: three times the second cache of today's cores. With less, lines are written
/// while the reader still holds them; with more, they push the user's buffers out of the third cache.
const WARM_BYTES: usize = 3 << 20;
/// The same of all ranks that share a core, and so its cache.
const WARM_BYTES_OF_A_CORE: usize = 1 << 20;
/// Most that all ranks of a host have together.
const MOST_WARM_BYTES: usize = 256 << 20;

/// The account.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free slots that are warm or were used before, oldest first.
    free: VecDeque<u32>,
    /// For each slot that was touched: who holds it, reservation or messages.
    holders: Vec<u32>,
    /// For each slot: where in it the next piece goes.
    starts: Vec<u32>,
    /// For each slot: who released it last.
    readers: Vec<Option<Rank>>,
    slot_bytes: usize,
    /// Slots that the links may need at a time.
    needed: u32,
    /// Slots that may be used at all; those from `holders.len()` are untouched.
    capacity: u32,
    /// Slots that are touched before they are needed.
    warm: u32,
}

impl Pool {
    /// An account of slots of this length, so many of them warm.
    pub(crate) fn new(warm: u32, slot_bytes: usize) -> Pool {
        let (free, holders, starts, readers) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        Pool { free, holders, starts, readers, slot_bytes, needed: 0, capacity: 0, warm }
    }

    /// How many slots are to be warm. Before the first link is added.
    pub(crate) fn set_warm(&mut self, warm: u32) {
        self.warm = warm;
    }

    /// How many slots are warm, once there are links.
    pub(crate) fn warm(&self) -> u32 {
        self.warm
    }

    /// Adds the slots of one more link, and returns those that are warm from now on: their memory must be
    /// there. The only call that allocates.
    pub(crate) fn grow(&mut self, slots: u32) -> Range<u32> {
        self.needed += slots;
        self.capacity = self.needed.max(self.warm);
        self.free.reserve(self.capacity as usize - self.free.len());
        self.holders.reserve(self.capacity as usize - self.holders.len());
        self.starts.resize(self.capacity as usize, 0);
        self.readers.resize(self.capacity as usize, None);
        let touched = self.holders.len() as u32;
        let warm = touched..self.warm.max(touched);
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

    /// Where in a slot that was taken a piece goes: behind the last one that was there, as long as there is room. So short pieces come
    /// back to the same lines as late as long ones do.
    #[inline]
    pub(crate) fn room_for(&mut self, slot: u32, len: usize) -> u32 {
        let start = &mut self.starts[slot as usize];
        let at = if *start as usize + len <= self.slot_bytes { *start } else { 0 };
        *start = at + len.next_multiple_of(LINE) as u32;
        at
    }

    /// The reservation becomes `messages` messages.
    #[inline]
    pub(crate) fn share(&mut self, slot: u32, messages: u32) {
        self.holders[slot as usize] = messages;
    }

    /// Who read the slot last, so that its lines may lie in that rank's cache; nobody yet, if it is new.
    #[inline]
    pub(crate) fn last_reader(&self, slot: u32) -> Option<Rank> {
        self.readers[slot as usize]
    }

    /// A slot that was taken is not used after all.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.holders[slot as usize] = 0;
        self.free.push_back(slot);
    }

    /// One holder, this rank, is done with it.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32, reader: Rank) {
        self.readers[slot as usize] = Some(reader);
        let holders = &mut self.holders[slot as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push_back(slot);
        }
    }
}

/// How many slots are warm at each of so many ranks, which share a host and so many of its cores.
pub(crate) fn warm_slots(slot_bytes: usize, ranks: u32, cores: u32) -> u32 {
    let (ranks, cores) = (ranks.max(1) as usize, cores.max(1) as usize);
    let share = match ranks > cores {
        true => WARM_BYTES_OF_A_CORE * cores / ranks,
        false => WARM_BYTES.min(MOST_WARM_BYTES / ranks),
    };
    (share / slot_bytes).max(2) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn warm_slots_first_then_the_oldest_then_new_ones() {
        let mut pool = Pool::new(2, 1024);
        assert_eq!(pool.take(), None);
        assert_eq!(pool.grow(3), 0..2);
        assert_eq!(pool.take(), Some((0, false)));
        pool.put(0, 1);
        assert_eq!(pool.take(), Some((1, false)), "the oldest free one");
        assert_eq!(pool.take(), Some((0, false)));
        assert!(pool.is_short());
        assert_eq!(pool.take(), Some((2, true)), "more memory only when nothing is free");
        assert_eq!(pool.take(), None);
        pool.put(1, 1);
        pool.put(0, 1);
        assert_eq!(pool.take(), Some((1, false)));
        assert_eq!(pool.grow(3), 3..3, "as many are warm as there shall be");
    }

    #[test]
    fn one_link_cycles_through_all_that_is_warm() {
        let mut pool = Pool::new(5, 1024);
        assert_eq!(pool.grow(2), 0..5);
        let taken = std::iter::repeat_with(|| {
            let (slot, _) = pool.take().unwrap();
            pool.put(slot, 1);
            slot
        });
        assert_eq!(taken.take(6).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
        assert_eq!(pool.touched(), 5);
    }

    #[test]
    fn pieces_of_a_slot_follow_each_other() {
        let mut pool = Pool::new(1, 1024);
        pool.grow(1);
        let starts = [300, 300, 256, 1024, 1, 1024, 1024].map(|len| pool.room_for(0, len));
        assert_eq!(starts, [0, 384, 768, 0, 0, 0, 0]);
    }

    #[test]
    fn ranks_share_the_warm_slots_of_their_cores() {
        assert_eq!(warm_slots(64 << 10, 2, 2), 48);
        assert_eq!(warm_slots(64 << 10, 2, 64), 48, "no more than what is used");
        assert_eq!(warm_slots(64 << 10, 4, 2), 8);
        assert_eq!(warm_slots(64 << 10, 256, 256), 16, "nor more than the host has for them");
        assert_eq!(warm_slots(64 << 10, 256, 1), 2);
        assert_eq!(warm_slots(64 << 20, 2, 2), 2);
    }

    #[test]
    fn a_shared_slot_is_free_after_the_last() {
        let mut pool = Pool::new(1, 1024);
        pool.grow(1);
        let (slot, _) = pool.take().unwrap();
        pool.share(slot, 3);
        assert_eq!(pool.last_reader(slot), None);
        pool.put(slot, 1);
        pool.put(slot, 3);
        assert_eq!(pool.take(), None);
        pool.put(slot, 2);
        assert_eq!(pool.take(), Some((slot, false)));
        assert_eq!(pool.last_reader(slot), Some(2));
    }
}
