//! Links in ordinary memory, for the tests.

use super::*;

impl Entry {
    pub(crate) fn new() -> Entry {
        Entry {
            flag: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            place: AtomicU64::new(0),
            inline: Cell::new([0; INLINE_BYTES]),
        }
    }
}

impl Credit {
    pub(crate) fn new() -> Credit {
        Credit { released: AtomicU32::new(0) }
    }
}

#[cfg(not(loom))]
impl Entry {
    /// Writes what a peer might have written.
    pub(crate) fn forge(&self, sequence: u32, len: u32, body: Body) {
        let (place, bits) = match body {
            Body::Line => (0, 0),
            Body::Slot { number, at, passing, by_words } => {
                (slot_place(number, at, passing, by_words), IN_SLOT)
            }
            Body::Lent { number, offset } => (u64::from(number) << OFFSET_BITS | offset, LENT),
            Body::Offered => (0, OFFERED),
        };
        self.place.store(place, Ordering::Relaxed);
        let low = len | bits;
        self.flag.store(u64::from(sequence) << 32 | u64::from(low), Ordering::Release);
    }
}

#[cfg(not(loom))]
impl Credit {
    /// The same.
    pub(crate) fn forge(&self, released: u32) {
        self.released.store(released, Ordering::Release);
    }
}
