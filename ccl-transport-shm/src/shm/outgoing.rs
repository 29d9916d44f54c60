//! The sending end of one link.

use super::Segment;
use crate::bell::{Bell, PIECE};
use crate::pool::Pool;
use crate::ring::{Corrupt, Credit, Entry, INLINE_BYTES, SendEnd};
use ccl_core::simd::PieceMut;
use ccl_core::transport::{Counters, LinkKey};
use std::ptr::NonNull;
use std::sync::Arc;

/// In place of a slot's number: the message was in the line.
const NO_SLOT: u32 = u32::MAX;

/// A link's sending end; the link lies in this rank's segment.
#[derive(Debug)]
pub(crate) struct Outgoing {
    entries: NonNull<Entry>,
    credit: NonNull<Credit>,
    bell: NonNull<Bell>,
    end: SendEnd,
    /// The slot of each message in the ring, or [`NO_SLOT`].
    slots: Box<[u32]>,
    /// The ring position of the oldest message not known to be released.
    oldest: usize,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    /// Whether the last `reserve` failed for want of a credit on this link.
    pub(crate) starved: bool,
    /// The receiver's count that the last sleep has already told about.
    told: u32,
    pub(crate) counters: Counters,
    pub(crate) key: LinkKey,
    own: Arc<Segment>,
    /// Keeps the bell.
    _peer: Arc<Segment>,
}

// SAFETY: the addresses point into the two mappings, which `own` and `_peer` keep and which any thread may use.
unsafe impl Send for Outgoing {}

impl Outgoing {
    pub(crate) fn new(key: LinkKey, own: Arc<Segment>, link: u32, peer: Arc<Segment>) -> Outgoing {
        let (credit, entries) = own.link(link);
        let credits = own.geometry().credits;
        Outgoing {
            entries,
            credit,
            bell: NonNull::from(peer.bell()),
            end: SendEnd::new(credits),
            slots: vec![NO_SLOT; credits as usize].into(),
            oldest: 0,
            reserved: false,
            starved: false,
            told: 0,
            counters: Counters::default(),
            key,
            own,
            _peer: peer,
        }
    }

    #[inline]
    fn credit(&self) -> &Credit {
        // SAFETY: in `own`, which lives as long as `self`; any bytes are a valid credit line.
        unsafe { self.credit.as_ref() }
    }

    #[inline]
    fn entry(&self) -> &Entry {
        // SAFETY: the ring's position is less than the credits, and as many entries lie in `own`, which lives
        // as long as `self`; any bytes are a valid entry.
        unsafe { self.entries.add(self.end.at()).as_ref() }
    }

    /// Whether a message may be written. Looks at the receiver's count only when it must.
    #[inline]
    pub(crate) fn has_credit(&mut self, pool: &mut Pool) -> Result<bool, Corrupt> {
        if !self.end.has_credit() {
            self.refresh(pool)?;
        }
        Ok(self.end.has_credit())
    }

    /// Takes back what the receiver has released.
    pub(crate) fn refresh(&mut self, pool: &mut Pool) -> Result<(), Corrupt> {
        // SAFETY: as in `credit`, written out because `end` is borrowed at the same time.
        let credit = unsafe { self.credit.as_ref() };
        for _ in 0..self.end.refresh(credit)? {
            let slot = std::mem::replace(&mut self.slots[self.oldest], NO_SLOT);
            if slot != NO_SLOT {
                pool.put(slot);
            }
            self.oldest += 1;
            if self.oldest == self.slots.len() {
                self.oldest = 0;
            }
        }
        Ok(())
    }

    /// The room in the next message's line. The caller holds a credit.
    #[inline]
    pub(crate) fn inline_piece(&self, len: usize) -> PieceMut {
        debug_assert!(len <= INLINE_BYTES && self.end.has_credit());
        // SAFETY: with a credit and before `publish`, the entry's bytes are the sender's.
        unsafe { PieceMut::new(self.entry().inline.get().cast(), len) }
    }

    /// The room in a slot that the pool gave.
    #[inline]
    pub(crate) fn slot_piece(&self, slot: u32, len: usize) -> PieceMut {
        debug_assert!(len <= self.own.geometry().slot_bytes);
        // SAFETY: the pool gives a slot only after all readers have released it.
        unsafe { PieceMut::new(self.own.slot(slot).as_ptr(), len) }
    }

    /// Puts the same bytes into this link's line as into that of `first`.
    #[inline]
    pub(crate) fn copy_inline(&self, first: PieceMut) {
        let into = self.inline_piece(first.len());
        // SAFETY: both are unpublished lines of this sender, of the same length; entries of two links do not
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(first.as_mut_ptr(), into.as_mut_ptr(), first.len()) };
    }

    /// Hands over the message; `slot` is `None` if it is in the line. Wakes a receiver that sleeps.
    #[inline]
    pub(crate) fn publish(&mut self, tag: u64, len: usize, slot: Option<u32>) {
        self.reserved = false;
        self.slots[self.end.at()] = slot.unwrap_or(NO_SLOT);
        // SAFETY: as in `entry`, written out because `end` is borrowed at the same time.
        let entry = unsafe { self.entries.add(self.end.at()).as_ref() };
        self.end.publish(entry, tag, len as u32, slot);
        self.prefetch_next();
        self.counters.pieces += 1;
        self.counters.bytes += len as u64;
        self.counters.inline += u64::from(slot.is_none());
        // SAFETY: in `_peer`, which lives as long as `self`.
        let bell = unsafe { self.bell.as_ref() };
        if bell.must_ring(PIECE) {
            crate::park::wake(bell);
        }
    }

    /// Asks for the next entry's line in a state in which it may be written. The receiver read it one lap ago and
    /// still holds it; taking it away from there costs as much as sending it, and now nobody waits for that.
    #[inline]
    fn prefetch_next(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; and the entry lies in `own`, as in `entry`.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(self.entries.add(self.end.at()).as_ptr().cast());
        }
    }

    /// Whether a sender waits for a credit that has come since, and this was not told before.
    pub(crate) fn news(&mut self) -> bool {
        let now = self.end.glance(self.credit());
        self.starved && now != self.end.known() && std::mem::replace(&mut self.told, now) != now
    }
}
