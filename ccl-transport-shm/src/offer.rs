//! The protocol of offered memory: one line of a link, in which the receiver says where it wants what comes next, and
//! the sender that it is writing there.
//!
//! The receiver writes its [`Terms`] and then the offer's number, which [stands](Offering::stands) from then on. A sender that means to write
//! says so first and then looks whether the offer still stands; a receiver that withdraws takes the number away first and then looks whether the
//! sender is writing. Each stores, executes a full barrier and loads what the other one stores, so at least one of the two
//! sees the other (Dekker's argument): either the sender leaves the memory alone, or the receiver waits until it has written. The same
//! second look tells the sender that the terms which it has read belong together.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use ccl_core::kernels::Direction;

/// All-zero bytes are a link on which nothing was offered.
#[repr(C, align(128))]
pub(crate) struct Offering {
    /// The number of the offer that stands, 0 for none: before the first, while it changes, and once it is withdrawn. The receiver
    /// stores it, with Release after the terms.
    stands: AtomicU32,
    /// The number of the offer under which the sender is writing, or 0. The sender stores it, with Release when it has written.
    taken: AtomicU32,
    /// [`Terms`]. The receiver stores them while nothing stands.
    tag: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    piece: AtomicU64,
    number: AtomicU32,
    first: AtomicU32,
    /// 0: forwards.
    backwards: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Offering>() == 128);

/// What a receiver says of the memory that it offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The call whose pieces go there.
    pub(crate) tag: u64,
    /// The number under which the receiver lends the memory.
    pub(crate) number: u32,
    /// Where in it the place of the first piece begins.
    pub(crate) offset: u64,
    /// Of all places.
    pub(crate) bytes: u64,
    /// Of one place.
    pub(crate) piece: u64,
    /// The count, modulo 2^32, of the message that comes first.
    pub(crate) first: u32,
    /// Which way the places are filled.
    pub(crate) direction: Direction,
}

impl Offering {
    /// Receiver: makes an offer, under a number that is not 0 and not that of the last one.
    pub(crate) fn make(&self, offer: u32, terms: &Terms) {
        self.stands.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.tag.store(terms.tag, Ordering::Relaxed);
        self.number.store(terms.number, Ordering::Relaxed);
        self.offset.store(terms.offset, Ordering::Relaxed);
        self.bytes.store(terms.bytes, Ordering::Relaxed);
        self.piece.store(terms.piece, Ordering::Relaxed);
        self.first.store(terms.first, Ordering::Relaxed);
        let backwards = u32::from(terms.direction == Direction::Backwards);
        self.backwards.store(backwards, Ordering::Relaxed);
        self.stands.store(offer, Ordering::Release);
    }

    /// Receiver: nothing is offered any more. The sender may still be [writing](Offering::is_taken).
    pub(crate) fn withdraw(&self) {
        self.stands.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Receiver, after it has withdrawn: whether the sender is writing.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire) != 0
    }

    /// Sender: takes an offer whose terms it `wants`. From then on the receiver waits for [`leave`](Offering::leave).
    pub(crate) fn take<T>(&self, wants: impl FnOnce(&Terms) -> Option<T>) -> Option<T> {
        let offer = self.stands.load(Ordering::Acquire);
        if offer == 0 {
            return None;
        }
        let terms = Terms {
            tag: self.tag.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            piece: self.piece.load(Ordering::Relaxed),
            first: self.first.load(Ordering::Relaxed),
            direction: match self.backwards.load(Ordering::Relaxed) {
                0 => Direction::Forwards,
                _ => Direction::Backwards,
            },
        };
        let wanted = wants(&terms)?;
        self.taken.store(offer, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.stands.load(Ordering::Relaxed) == offer {
            return Some(wanted);
        }
        self.leave();
        None
    }

    /// Sender: it has written, or will not.
    pub(crate) fn leave(&self) {
        self.taken.store(0, Ordering::Release);
    }

    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Offering {
        Offering {
            stands: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            tag: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            piece: AtomicU64::new(0),
            number: AtomicU32::new(0),
            first: AtomicU32::new(0),
            backwards: AtomicU32::new(0),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_offer_stands_until_it_is_replaced_or_withdrawn() {
        let line = Offering::new();
        assert_eq!(line.take(|terms| Some(*terms)), None);
        let terms = Terms {
            tag: 1,
            number: 2,
            offset: 3,
            bytes: 4,
            piece: 5,
            first: 6,
            direction: Direction::Backwards,
        };
        for offer in 1..3 {
            line.make(offer, &terms);
            assert_eq!(line.take(|terms| Some(*terms)), Some(terms));
            assert!(line.is_taken());
            line.leave();
            assert!(!line.is_taken());
        }
        assert_eq!(line.take(|_| None::<()>), None);
        assert!(!line.is_taken(), "what is not wanted is not taken");
        line.take(|_| Some(())).unwrap();
        line.withdraw();
        assert!(line.is_taken(), "it is being written to");
        line.leave();
        assert_eq!(line.take(|_| Some(())), None);
        assert!(!line.is_taken());
    }
}
