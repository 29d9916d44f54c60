//! What a rank says about the memory that it lends: a page in its own segment, which its peers only read.
//!
//! Memory is *lent* under a number. The lower byte of the number is its row in the ledger, so that a borrower
//! finds what it has mapped by one look; the rest counts how often the row was given out, so that a number never
//! means two things. Peers get the descriptor through their mailbox. When the memory is freed its row is cleared, and
//! whoever sees that gives up its mapping.

use crate::sync::{AtomicU32, Ordering, fence};

/// Regions that one rank can lend at a time.
pub(crate) const ROWS: usize = 256;

/// All-zero bytes are a ledger of which nothing was lent.
#[repr(C, align(128))]
pub(crate) struct Ledger {
    /// Set once, when a call of the owner has failed: what it has lent may be written again before it was read.
    /// The owner stores it before it gives the memory back; a borrower looks after it has read. So whoever has read
    /// bytes of a later time sees it.
    withdrawn: AtomicU32,
    /// The number under which memory is lent in this row, or 0. Written by the owner. Orders nothing: a borrower
    /// that looks too early looks again.
    rows: [AtomicU32; ROWS],
}

/// The row of a number.
#[inline]
pub(crate) fn row(number: u32) -> usize {
    number as usize % ROWS
}

impl Ledger {
    /// Owner: memory is lent under `number` from now on.
    pub(crate) fn list(&self, number: u32) {
        self.rows[row(number)].store(number, Ordering::Relaxed);
    }

    /// Owner: the memory of `number` is gone.
    pub(crate) fn strike(&self, number: u32) {
        self.rows[row(number)].store(0, Ordering::Relaxed);
    }

    /// Borrower: whether the memory of `number` is lent still.
    pub(crate) fn lists(&self, number: u32) -> bool {
        self.rows[row(number)].load(Ordering::Relaxed) == number
    }

    /// Owner: a call has failed, and lent memory goes back to its user.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Borrower, after it has read lent memory: whether it may have changed meanwhile.
    #[inline]
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::Acquire);
        self.withdrawn.load(Ordering::Relaxed) != 0
    }
}
