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
//!
//! **What was read just now first of all.** Slots that a peer [hands back](crate::passing) have their lines in this core's cache, and are used
//! before any others. Those that are away are beyond what the credits imply, so as many are added to what may be handed out.
//!
//! **Fewer for long calls.** What a long call reads and writes besides drives slots out of the other core's cache too, and has better use for the
//! third cache than slots have. So a call that has sent much, by a rank that receives much as well, goes on with the *near* slots, half of the warm ones.

use crate::flow::Flow;
use crate::passing::MOST_AWAY;
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
/// Bytes of slots that each peer may have: what a long call sends before it receives.
const PASSED_BYTES: usize = 512 << 10;
/// Calls that send so many bytes hand no slots over: their buffers drive a slot out of the caches until it is used again. Two ranks with a core each would take up to 1.15
/// of the time for 16 MiB sent, and 1.25 for 32; for 4 MiB and 8 they take 0.85 to 1.0.
const PASS_BELOW: usize = 12 << 20;
/// The same where ranks share cores: 4 ranks on 2 would take 1.0 to 1.1 from 4 MiB on.
const PASS_BELOW_IN_A_CROWD: usize = 4 << 20;
/// Most that all ranks of a host have together.
const MOST_WARM_BYTES: usize = 256 << 20;

/// In place of a number of holders: the slot is away, with the rank that the other bits number.
const AWAY: u32 = 1 << 31;

/// Where in which slot a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    /// Bytes from its start.
    pub(crate) at: u32,
}

impl Place {
    /// The same place if a piece of this length has room there, or else the start of the slot.
    #[inline]
    pub(crate) fn fit(self, len: usize, slot_bytes: usize) -> Place {
        if self.at as usize + len <= slot_bytes { self } else { Place { at: 0, ..self } }
    }
}
/// The account.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free slots that are warm or were used before, oldest first: those that are not near, and those that are.
    free: [VecDeque<u32>; 2],
    /// Free slots that have come back from a peer, and where in them its piece was; the last one last.
    fresh: Vec<Place>,
    /// For each slot: the how manieth it was to come back.
    freed: Vec<u64>,
    /// How many have come back.
    returns: u64,
    flow: Flow,
    /// For each slot that was touched: how many hold it, reservation or messages; or with whom it is.
    holders: Vec<u32>,
    /// For each slot: where in it the next piece goes.
    starts: Vec<u32>,
    slot_bytes: usize,
    /// Slots that the links may need at a time.
    needed: u32,
    /// Slots that may be used at all; those from `holders.len()` are untouched.
    capacity: u32,
    warm: Warm,
}

/// Slots that are touched before they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Warm {
    pub(crate) slots: u32,
    /// Those below this one are near.
    pub(crate) near: u32,
    /// So many may be with each peer.
    pub(crate) passed: u32,
    /// So many may be with all of them.
    pub(crate) away: u32,
    /// Calls that have sent so many bytes hand none over.
    pub(crate) pass_below: usize,
}

impl Pool {
    /// An account of slots of this length, so many of them warm.
    pub(crate) fn new(warm: Warm, slot_bytes: usize) -> Pool {
        Pool {
            free: Default::default(),
            fresh: Vec::new(),
            freed: Vec::new(),
            returns: 0,
            flow: Flow::default(),
            holders: Vec::new(),
            starts: Vec::new(),
            slot_bytes,
            needed: 0,
            capacity: 0,
            warm,
        }
    }

    /// How many slots are to be warm. Before the first link is added.
    pub(crate) fn set_warm(&mut self, warm: Warm) {
        self.warm = warm;
    }

    /// How many slots are warm, once there are links.
    pub(crate) fn warm(&self) -> u32 {
        self.warm.slots
    }

    /// Adds the slots of one more link, and returns those that are warm from now on: their memory must be
    /// there. The only call that allocates.
    pub(crate) fn grow(&mut self, slots: u32) -> Range<u32> {
        self.needed += slots;
        self.capacity = (self.needed + self.warm.away).max(self.warm.slots);
        let capacity = self.capacity as usize;
        self.fresh.reserve(self.warm.away as usize - self.fresh.len());
        self.free.iter_mut().for_each(|free| free.reserve(capacity - free.len()));
        self.holders.reserve(capacity - self.holders.len());
        self.freed.resize(capacity, 0);
        self.starts.resize(capacity, 0);
        let touched = self.touched();
        let warm = touched..self.warm.slots.max(touched);
        self.holders.resize(warm.end as usize, 0);
        warm.clone().for_each(|slot| self.add_free(slot));
        warm
    }

    /// Slots that take memory.
    pub(crate) fn touched(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Whether the next slot would be a new one for want of free ones.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.fresh.is_empty() && self.free.iter().all(VecDeque::is_empty)
    }

    /// Room for a piece in a slot with one holder, and whether that is touched for the first time; `None` if all are in use.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<(Place, bool)> {
        if let Some(place) = self.fresh.pop() {
            self.holders[place.slot as usize] = 1;
            return Some((place.fit(len, self.slot_bytes), false));
        }
        let touched = self.touched();
        let (slot, is_new) = match self.next() {
            Some(slot) => {
                self.holders[slot as usize] = 1;
                (slot, false)
            }
            None if touched < self.capacity => {
                self.holders.push(1);
                (touched, true)
            }
            None => return None,
        };
        Some((Place { slot, at: self.room_for(slot, len) }, is_new))
    }

    /// Whether a slot may be handed over to a peer that has so many already. Not by the longest calls, nor by the one after them until it is known to be long or short.
    #[inline]
    pub(crate) fn may_pass(&self, away: u32) -> bool {
        away < self.warm.passed && self.flow.most_sent() < self.warm.pass_below
    }

    /// A slot that was taken goes to a rank, with the message in it.
    #[inline]
    pub(crate) fn hand_over(&mut self, slot: u32, to: Rank) {
        self.holders[slot as usize] = AWAY | to;
    }

    /// Whether a rank has got this slot.
    #[inline]
    pub(crate) fn is_with(&self, slot: u32, peer: Rank) -> bool {
        self.holders.get(slot as usize) == Some(&(AWAY | peer))
    }

    /// A slot is back from a rank, and the piece in it was read.
    #[inline]
    pub(crate) fn take_back(&mut self, place: Place) {
        self.holders[place.slot as usize] = 0;
        self.fresh.push(place);
    }

    /// The oldest of the free slots, or of the near ones.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        let [others, near] = &self.free;
        let is_near = match (others.front(), near.front()) {
            (Some(&other), Some(&near)) => {
                self.flow.is_long() || self.freed[near as usize] < self.freed[other as usize]
            }
            (None, _) => true,
            (_, None) => false,
        };
        self.free[usize::from(is_near)].pop_front()
    }

    #[inline]
    fn add_free(&mut self, slot: u32) {
        self.returns += 1;
        self.freed[slot as usize] = self.returns;
        self.free[usize::from(slot < self.warm.near)].push_back(slot);
    }

    /// Where in a slot that was taken a piece goes: behind the last one that was there, as long as there is room. So short pieces come
    /// back to the same lines as late as long ones do.
    #[inline]
    fn room_for(&mut self, slot: u32, len: usize) -> u32 {
        let start = &mut self.starts[slot as usize];
        let at = if *start as usize + len <= self.slot_bytes { *start } else { 0 };
        *start = at + len.next_multiple_of(LINE) as u32;
        at
    }

    /// A slot with so many bytes becomes messages of a call.
    #[inline]
    pub(crate) fn sent(&mut self, call: u64, len: usize) {
        self.flow.send(call, len);
    }

    /// So many bytes were received in a peer's slot.
    #[inline]
    pub(crate) fn received(&mut self, len: usize) {
        self.flow.receive(len);
    }

    /// The reservation becomes `messages` messages.
    #[inline]
    pub(crate) fn share(&mut self, slot: u32, messages: u32) {
        self.holders[slot as usize] = messages;
    }

    /// A slot that was taken is not used after all.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.holders[slot as usize] = 0;
        self.add_free(slot);
    }

    /// One holder is done with it.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32) {
        let holders = &mut self.holders[slot as usize];
        *holders -= 1;
        if *holders == 0 {
            self.add_free(slot);
        }
    }
}

impl Warm {
    /// The slots of each of so many ranks, which share a host and so many of its cores, at most `most`.
    pub(crate) fn of(slot_bytes: usize, ranks: u32, cores: u32, most: u32) -> Warm {
        let (ranks, cores) = (ranks.max(1) as usize, cores.max(1) as usize);
        let slots = |bytes: usize| ((bytes / slot_bytes).max(2) as u32).min(most);
        let (all, near, pass_below) = if ranks > cores {
            // So few that a long call can do with no fewer.
            let all = slots(WARM_BYTES_OF_A_CORE * cores / ranks);
            (all, all, PASS_BELOW_IN_A_CROWD)
        } else {
            let bytes = WARM_BYTES.min(MOST_WARM_BYTES / ranks);
            (slots(bytes), slots(bytes / 2), PASS_BELOW)
        };
        let peers = (ranks as u32 - 1).max(1);
        let most = (PASSED_BYTES / slot_bytes).max(1) as u32;
        let passed = (near / peers).clamp(1, most).min(MOST_AWAY / peers);
        Warm { slots: all, near, passed, away: passed * peers, pass_below }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::flow::MUCH;

    /// So many slots, all of them near, of which two may be away.
    fn warm(slots: u32) -> Warm {
        Warm { slots, near: slots, passed: 2, away: 2, pass_below: 1000 }
    }

    /// Takes a slot for a short piece.
    fn take(pool: &mut Pool) -> Option<(u32, bool)> {
        pool.take(1).map(|(Place { slot, .. }, is_new)| (slot, is_new))
    }

    #[test]
    fn warm_slots_first_then_the_oldest_then_new_ones() {
        let mut pool = Pool::new(Warm { away: 0, ..warm(2) }, 1024);
        assert_eq!(take(&mut pool), None);
        assert_eq!(pool.grow(3), 0..2);
        assert_eq!(take(&mut pool), Some((0, false)));
        pool.put(0);
        assert_eq!(take(&mut pool), Some((1, false)), "the oldest free one");
        assert_eq!(take(&mut pool), Some((0, false)));
        assert!(pool.is_short());
        assert_eq!(take(&mut pool), Some((2, true)), "more memory only when nothing is free");
        assert_eq!(take(&mut pool), None);
        pool.put(1);
        pool.put(0);
        assert_eq!(take(&mut pool), Some((1, false)));
        assert_eq!(pool.grow(3), 3..3, "as many are warm as there shall be");
    }

    #[test]
    fn one_link_cycles_through_all_that_is_warm() {
        let mut pool = Pool::new(warm(5), 1024);
        assert_eq!(pool.grow(2), 0..5);
        let taken = std::iter::repeat_with(|| {
            let (slot, _) = take(&mut pool).unwrap();
            pool.put(slot);
            slot
        });
        assert_eq!(taken.take(6).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
        assert_eq!(pool.touched(), 5);
    }

    #[test]
    fn pieces_of_a_slot_follow_each_other() {
        let mut pool = Pool::new(warm(1), 1024);
        pool.grow(1);
        let starts = [300, 300, 256, 1024, 1, 1024, 1024].map(|len| {
            let (Place { slot, at }, _) = pool.take(len).unwrap();
            pool.put(slot);
            at
        });
        assert_eq!(starts, [0, 384, 768, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_away_is_beyond_what_the_credits_imply_and_comes_back_to_be_used_first() {
        let mut pool = Pool::new(warm(2), 1024);
        pool.grow(3);
        assert!(pool.may_pass(1) && !pool.may_pass(2));
        for slot in [0, 1] {
            assert_eq!(take(&mut pool), Some((slot, false)));
            pool.hand_over(slot, 7);
        }
        let new: Vec<_> = (0..3).map(|_| take(&mut pool).unwrap()).collect();
        assert_eq!((new, take(&mut pool)), (vec![(2, true), (3, true), (4, true)], None));
        assert!(pool.is_with(1, 7) && !pool.is_with(1, 6) && !pool.is_with(2, 7) && !pool.is_with(9, 7));
        pool.put(2);
        for slot in [1, 0] {
            pool.take_back(Place { slot, at: 256 });
        }
        assert!(!pool.is_with(1, 7) && !pool.is_short());
        let lengths = [768, 769, 1024];
        let taken = lengths.map(|len| pool.take(len).map(|(Place { slot, at }, _)| (slot, at)));
        assert_eq!(taken, [Some((0, 256)), Some((1, 0)), Some((2, 0))], "the last first, where it was read");
    }

    #[test]
    fn the_longest_calls_hand_nothing_over() {
        let mut pool = Pool::new(warm(2), 1000);
        let mut passes = |call, len| {
            pool.sent(call, len);
            pool.may_pass(0)
        };
        let calls = [(1, 999), (1, 1), (2, 1), (3, 1)].map(|(call, len)| passes(call, len));
        assert_eq!(calls, [true, false, false, true], "nor the one after it, until it is known to be short");
        let below = |ranks| Warm::of(64 << 10, ranks, 2, 1000).pass_below;
        assert!(below(4) < below(2), "those of a crowd are the longest sooner");
    }

    #[test]
    fn a_long_call_of_a_rank_that_receives_too_keeps_to_the_near_slots() {
        let calls = |received: usize| {
            let mut pool = Pool::new(Warm { near: 3, ..warm(6) }, MUCH / 4);
            pool.grow(2);
            let mut take = |call| {
                let (slot, _) = take(&mut pool).unwrap();
                pool.sent(call, MUCH / 4);
                pool.received(received);
                pool.put(slot);
                slot
            };
            [1, 2, 3].map(|call| (0..8).map(|_| take(call)).collect::<Vec<_>>())
        };
        let all = [[0, 1, 2, 3, 4, 5, 0, 1], [2, 3, 4, 5, 0, 1, 2, 3], [4, 5, 0, 1, 2, 3, 4, 5]];
        assert_eq!(calls(0), all, "a root");
        // A slot is taken before it is said for which call, so the first of a call still goes by the one before.
        let near = [[0, 1, 2, 3, 0, 1, 2, 0], [1, 4, 5, 3, 2, 0, 1, 2], [0, 4, 5, 3, 1, 2, 0, 1]];
        assert_eq!(calls(MUCH / 4), near);
    }

    #[test]
    fn a_long_call_takes_others_when_no_near_one_is_free() {
        let mut pool = Pool::new(Warm { near: 1, ..warm(3) }, MUCH);
        pool.grow(4);
        pool.sent(1, MUCH);
        pool.received(MUCH);
        let taken: Vec<_> = (0..4).map(|_| take(&mut pool).unwrap()).collect();
        assert_eq!(taken, [(0, false), (1, false), (2, false), (3, true)]);
        [2, 3, 0].into_iter().for_each(|slot| pool.put(slot));
        let taken: Vec<_> = (0..3).map(|_| take(&mut pool).unwrap().0).collect();
        assert_eq!(taken, [0, 2, 3]);
    }

    #[test]
    fn ranks_share_the_warm_slots_of_their_cores() {
        let of = |slot_bytes, ranks, cores| {
            let Warm { slots, near, .. } = Warm::of(slot_bytes, ranks, cores, 1000);
            (slots, near)
        };
        assert_eq!(of(64 << 10, 2, 2), (48, 24));
        assert_eq!(of(64 << 10, 2, 64), (48, 24), "no more than what is used");
        assert_eq!(of(64 << 10, 4, 2), (8, 8), "all are near");
        assert_eq!(of(64 << 10, 256, 256), (16, 8), "nor more than the host has for them");
        assert_eq!(of(64 << 10, 256, 1), (2, 2));
        assert_eq!(of(64 << 20, 2, 2), (2, 2));
        let warm = Warm::of(4096, 2, 2, 100);
        assert_eq!((warm.slots, warm.near), (100, 100), "nor more than there are");
    }

    #[test]
    fn each_peer_may_have_its_part_of_the_near_slots_and_one_at_least() {
        let of = |slot_bytes, ranks, cores| {
            let Warm { passed, away, .. } = Warm::of(slot_bytes, ranks, cores, 1000);
            (passed, away)
        };
        assert_eq!(of(128 << 10, 2, 2), (4, 4), "half a MiB");
        assert_eq!(of(64 << 10, 8, 8), (3, 21));
        assert_eq!(of(64 << 10, 8, 2), (1, 7));
        assert_eq!(of(64 << 10, 65, 65), (1, 64));
        assert_eq!(of(64 << 10, 66, 66), (0, 0), "as many as all may have");
        assert_eq!(of(64 << 20, 2, 2), (1, 1));
        assert_eq!(of(4096, 1, 1), (64, 64));
    }

    #[test]
    fn a_shared_slot_is_free_after_the_last() {
        let mut pool = Pool::new(warm(1), 1024);
        pool.grow(1);
        let (slot, _) = take(&mut pool).unwrap();
        pool.share(slot, 3);
        pool.put(slot);
        pool.put(slot);
        assert_ne!(take(&mut pool), Some((slot, false)));
        pool.put(slot);
        assert_eq!(take(&mut pool), Some((slot, false)));
    }
}
