//! Waking a rank that sleeps, at no cost for ranks that do not.
//!
//! A rank that finds nothing to do stores what it waits for in its own [`Bell`], executes a heavy barrier,
//! looks at all its links once more and only then sleeps on the word. Whoever publishes or releases
//! executes a light barrier and looks at the word; if it waits for that kind of news, it clears the word
//! and wakes the sleeper.
//!
//! No wake-up is lost (Dekker's argument). The sleeper does "store the word; barrier; load the links", the
//! waker "store the link; barrier; load the word". With a full barrier on both sides at least one of
//! the two loads sees the other's store: either the sleeper finds the news, or the waker finds the word.
//! The waker is on the path of every message and cannot pay for a full barrier, so the sleeper pays
//! for both: `membarrier(2)` makes every core that runs a registered process execute one. If the word is
//! cleared between the sleeper's last look and its sleep, the futex does not let it sleep.

use crate::sync::{AtomicU32, Ordering, light_barrier};

/// Nobody sleeps.
const AWAKE: u32 = 0;
/// A sleeper wants to know of a piece.
pub(crate) const PIECE: u32 = 1;
/// A sleeper wants to know of a credit.
pub(crate) const CREDIT: u32 = 2;

/// The word on which a rank sleeps, on a line that its peers only read while it is awake.
#[repr(C, align(128))]
pub(crate) struct Bell {
    /// [`AWAKE`], or the kinds of news that its owner sleeps for. The owner stores them before it looks
    /// at its links for the last time, and `AWAKE` when it is up; a waker swaps in `AWAKE` before it wakes.
    /// Orders nothing by itself: the news are published by the links.
    waits_for: AtomicU32,
    /// One more than the core on which its owner runs, 0 before it has said so. The owner stores it when it waits on
    /// another core than before, so the line stays in its peers' caches. A hint: it orders nothing, and any value
    /// is valid.
    core: AtomicU32,
}

impl Bell {
    /// Owner: about to sleep for `news`. A heavy barrier and a last look must follow.
    pub(crate) fn arm(&self, news: u32) {
        self.waits_for.store(news, Ordering::SeqCst);
    }

    /// Owner: awake again.
    pub(crate) fn disarm(&self) {
        self.waits_for.store(AWAKE, Ordering::Relaxed);
    }

    /// The futex.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.waits_for
    }

    /// Owner: it runs on this core.
    pub(crate) fn set_core(&self, core: u32) {
        self.core.store(core.wrapping_add(1), Ordering::Relaxed);
    }

    /// Peers: where the owner ran when it last said so.
    pub(crate) fn core(&self) -> Option<u32> {
        self.core.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Waker, after it stored `news` into a link: whether the owner sleeps for them and must be woken.
    #[inline]
    pub(crate) fn must_ring(&self, news: u32) -> bool {
        light_barrier();
        self.waits_for.load(Ordering::Relaxed) & news != 0 && self.claim()
    }

    /// One waker of several makes the system call.
    #[cold]
    fn claim(&self) -> bool {
        self.waits_for.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Bell {
        Bell { waits_for: AtomicU32::new(AWAKE), core: AtomicU32::new(0) }
    }
}
