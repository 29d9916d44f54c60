//! The protocol of one link: a ring of entries that the sender fills, and one counter that returns them.
//!
//! Message k (from 0) travels in entry `k mod credits` and carries the sequence number `k + 1`, modulo
//! 2³². The sender writes an entry's body with plain stores and its [`flag`](Entry::flag) last, with
//! Release; the receiver that loads the expected sequence with Acquire sees the whole body. The receiver
//! returns entries by storing how many it has released, with Release; the sender that loads the count with
//! Acquire may write them again. Nothing else is shared: each side counts for itself in [`SendEnd`] and
//! [`RecvEnd`], and everything that it loads is checked against these counts, because the memory
//! belongs to another process too.

use crate::sync::{AtomicU32, AtomicU64, Cell, Ordering};

/// Bytes of a message that fit beside its flag.
pub(crate) const INLINE_BYTES: usize = 104;
/// Bytes of a message that fit into the room that each entry has apart from the others: a link may have as many of these messages on
/// their way as it has entries, and they take no slot. Pieces of 2 KiB are quicker in slots: two ranks take 0.65 of the time.
pub(crate) const SHORT_BYTES: usize = 1536;
/// Bytes from one such room to the next. Were they as close as can be, pieces of 1 KiB would take 1.1 to 1.2 of the time.
pub(crate) const ROOM_BYTES: usize = 2048;

/// Set in the length: the bytes are in a slot, not in the entry.
const IN_SLOT: u32 = 1 << 31;
/// Set in the length: the bytes are in memory that the sender has lent.
const LENT: u32 = 1 << 30;
/// Both: the bytes are in memory that the receiver has offered.
const OFFERED: u32 = IN_SLOT | LENT;
/// Bits of a place that count bytes from the start of lent memory; the others number it.
const OFFSET_BITS: u32 = 40;
/// Bits of a slot's place that number the slot; then those that say where in it, and [`Passing`].
const SLOT_BITS: u32 = 32;
/// The highest place in a slot, and more: slots have at most 64 MiB.
const AT: u64 = (1 << 30) - 1;
/// Bytes of lent memory that a message can name, from its start.
pub(crate) const LENT_BYTES: u64 = 1 << OFFSET_BITS;

/// One message of a link: two cache lines, of which a message up to 40 bytes touches the first only.
///
/// All-zero bytes are a valid entry, "never written".
#[repr(C, align(128))]
pub(crate) struct Entry {
    /// Sequence number in the upper half; length, and [`IN_SLOT`], [`LENT`] or [`OFFERED`], in the lower. The sender stores it
    /// last, with Release: it publishes all other fields and the bytes. The receiver loads it with Acquire.
    flag: AtomicU64,
    /// The call's tag. Written by the sender before the flag (Relaxed), read after it.
    tag: AtomicU64,
    /// Number and offset of the slot or of lent memory. Written and read like the tag.
    place: AtomicU64,
    /// The bytes, if they are nowhere else. The sender's while it holds the credit and has not
    /// stored the flag, the receiver's to read from then until it returns the credit.
    pub(crate) inline: Cell<[u8; INLINE_BYTES]>,
}

/// The way back of a link.
#[repr(C, align(128))]
pub(crate) struct Credit {
    /// Messages released, modulo 2³². Only the receiver stores it, with Release, after its last read of the
    /// message; the sender loads it with Acquire before it writes the entry or the slot again.
    released: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 128 && size_of::<Credit>() == 128);

/// A word in shared memory that no correct peer could have written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// What the flag announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) len: u32,
    pub(crate) tag: u64,
    pub(crate) body: Body,
}

/// Where a message's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the entry, or in its room if it is longer than [`INLINE_BYTES`].
    Line,
    /// In the slot of this number, so many bytes from its start.
    Slot {
        /// Which.
        number: u32,
        /// Where in it; less than 2³⁰.
        at: u32,
        /// Who has it when the message is released.
        passing: Passing,
    },
    /// In the lent memory of this number (24 bits), so many bytes from its start (less than [`LENT_BYTES`]).
    Lent {
        /// Which.
        number: u32,
        /// Where in it.
        offset: u64,
    },
    /// Where the receiver has offered memory for it.
    Offered,
}

/// Who writes to a slot next, when the message in it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The sender, whose slot it is.
    Stays,
    /// The receiver: the sender hands its slot over.
    Over,
    /// The receiver, whose slot it is: the sender had got it and hands it back.
    Back,
}

/// A slot's number, and where in it, as one word.
fn slot_place(number: u32, at: u32, passing: Passing) -> u64 {
    let passing = match passing {
        Passing::Stays => 0,
        Passing::Over => 1,
        Passing::Back => 2,
    };
    (passing << 30 | u64::from(at)) << SLOT_BITS | u64::from(number)
}

/// The sender's count of a link.
#[derive(Debug)]
pub(crate) struct SendEnd {
    credits: u32,
    published: u32,
    /// The receiver's count as last loaded: loading it again is a cache miss, so it is done in need only.
    released: u32,
    /// The entry of the next message.
    at: u32,
}

impl SendEnd {
    pub(crate) fn new(credits: u32) -> SendEnd {
        SendEnd { credits, published: 0, released: 0, at: 0 }
    }

    /// The entry that the next message goes into.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at as usize
    }

    /// The entry of the message that comes so many after the next one, if it is known to be free.
    #[inline]
    pub(crate) fn ahead(&self, messages: u32) -> Option<usize> {
        let (at, free) = (self.at + messages, self.outstanding() + messages < self.credits);
        free.then(|| if at < self.credits { at as usize } else { (at - self.credits) as usize })
    }

    /// Messages that are not known to be released.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.published.wrapping_sub(self.released)
    }

    /// Whether a message may be written, as far as is known without looking.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.outstanding() < self.credits
    }

    /// The count, modulo 2³², of the next message.
    pub(crate) fn published(&self) -> u32 {
        self.published
    }

    /// Looks at what the receiver has released: how many messages more than at the last look.
    #[inline]
    pub(crate) fn refresh(&mut self, credit: &Credit) -> Result<u32, Corrupt> {
        let now = credit.released.load(Ordering::Acquire);
        let more = now.wrapping_sub(self.released);
        if more > self.outstanding() {
            return Err(Corrupt("it released more messages than it was sent"));
        }
        self.released = now;
        Ok(more)
    }

    /// The receiver's count, to tell whether something has changed.
    #[inline]
    pub(crate) fn glance(&self, credit: &Credit) -> u32 {
        credit.released.load(Ordering::Acquire)
    }

    /// The count at the last [`refresh`](SendEnd::refresh).
    #[inline]
    pub(crate) fn known(&self) -> u32 {
        self.released
    }

    /// Hands over the entry [`at`](SendEnd::at), for which there must be a credit.
    #[inline]
    pub(crate) fn publish(&mut self, entry: &Entry, tag: u64, len: u32, body: Body) {
        debug_assert!(self.has_credit() && len < LENT);
        self.published = self.published.wrapping_add(1);
        self.at += 1;
        if self.at == self.credits {
            self.at = 0;
        }
        entry.tag.store(tag, Ordering::Relaxed);
        let mut low = len;
        match body {
            Body::Line => {}
            Body::Slot { number, at, passing } => {
                debug_assert!(u64::from(at) <= AT);
                entry.place.store(slot_place(number, at, passing), Ordering::Relaxed);
                low |= IN_SLOT;
            }
            Body::Lent { number, offset } => {
                debug_assert!(offset < LENT_BYTES && number >> (u64::BITS - OFFSET_BITS) == 0);
                entry.place.store(u64::from(number) << OFFSET_BITS | offset, Ordering::Relaxed);
                low |= LENT;
            }
            Body::Offered => low |= OFFERED,
        }
        entry.flag.store(u64::from(self.published) << 32 | u64::from(low), Ordering::Release);
    }
}

/// The receiver's count of a link.
#[derive(Debug)]
pub(crate) struct RecvEnd {
    credits: u32,
    released: u32,
    /// The entry of the oldest message that is not released.
    at: u32,
}

impl RecvEnd {
    pub(crate) fn new(credits: u32) -> RecvEnd {
        RecvEnd { credits, released: 0, at: 0 }
    }

    /// The entry of the oldest message that is not released.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at as usize
    }

    /// The oldest message that is not released, if it has come.
    #[inline(always)]
    pub(crate) fn peek(&self, entry: &Entry) -> Result<Option<Message>, Corrupt> {
        let flag = entry.flag.load(Ordering::Acquire);
        let (sequence, low) = ((flag >> 32) as u32, flag as u32);
        if sequence != self.released.wrapping_add(1) {
            // What may stand here instead: nothing yet, or the message of the lap before.
            let previous = self.released.wrapping_add(1).wrapping_sub(self.credits);
            return match flag == 0 || sequence == previous {
                true => Ok(None),
                false => Err(Corrupt("a message carries an impossible sequence number")),
            };
        }
        let tag = entry.tag.load(Ordering::Relaxed);
        let place = || entry.place.load(Ordering::Relaxed);
        let body = match (low & IN_SLOT != 0, low & LENT != 0) {
            (false, false) => Body::Line,
            (true, false) => {
                let place = place();
                let passing = match place >> 62 {
                    0 => Passing::Stays,
                    1 => Passing::Over,
                    2 => Passing::Back,
                    _ => return Err(Corrupt("a message's slot goes to nobody")),
                };
                Body::Slot { number: place as u32, at: (place >> SLOT_BITS & AT) as u32, passing }
            }
            (false, true) => {
                let place = place();
                Body::Lent { number: (place >> OFFSET_BITS) as u32, offset: place & (LENT_BYTES - 1) }
            }
            (true, true) => Body::Offered,
        };
        Ok(Some(Message { len: low & !OFFERED, tag, body }))
    }

    /// Returns the oldest message, which [`peek`](RecvEnd::peek) has given.
    #[inline]
    pub(crate) fn release(&mut self, credit: &Credit) {
        self.released = self.released.wrapping_add(1);
        self.at += 1;
        if self.at == self.credits {
            self.at = 0;
        }
        credit.released.store(self.released, Ordering::Release);
    }

    /// Messages released so far, modulo 2³².
    #[inline]
    pub(crate) fn released(&self) -> u32 {
        self.released
    }
}

#[cfg(any(test, loom))]
pub(crate) mod boxed {
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
                Body::Slot { number, at, passing } => (slot_place(number, at, passing), IN_SLOT),
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
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Message `i` of a lap: one of each kind.
    fn body(i: u64) -> Body {
        match i {
            0 => Body::Line,
            1 => Body::Slot { number: u32::MAX, at: AT as u32, passing: Passing::Over },
            2 => Body::Offered,
            _ => Body::Lent { number: (1 << 24) - 1, offset: LENT_BYTES - 1 },
        }
    }

    #[test]
    fn counts_wrap_around() {
        let entries = [Entry::new(), Entry::new(), Entry::new(), Entry::new()];
        let credit = Credit::new();
        let start = u32::MAX - 4;
        let mut send = SendEnd { published: start, released: start, ..SendEnd::new(4) };
        let mut recv = RecvEnd { released: start, ..RecvEnd::new(4) };
        credit.released.store(start, Ordering::Relaxed);
        for k in 0..40u64 {
            assert_eq!(recv.peek(&entries[recv.at()]), Ok(None));
            for i in 0..4 {
                assert!(send.has_credit());
                send.publish(&entries[send.at()], k * 4 + i, i as u32, body(i));
            }
            assert!(!send.has_credit());
            assert_eq!(send.refresh(&credit), Ok(0));
            for i in 0..4 {
                let expected = Message { len: i as u32, tag: k * 4 + i, body: body(i) };
                assert_eq!(recv.peek(&entries[recv.at()]), Ok(Some(expected)));
                recv.release(&credit);
            }
            assert_eq!(send.refresh(&credit), Ok(4));
        }
    }

    #[test]
    fn what_is_ahead_is_free() {
        let (entries, credit) = ([Entry::new(), Entry::new(), Entry::new(), Entry::new()], Credit::new());
        let (mut send, mut recv) = (SendEnd::new(4), RecvEnd::new(4));
        let ahead = |send: &SendEnd| [0, 1, 2, 3, 4].map(|messages| send.ahead(messages));
        assert_eq!(ahead(&send), [Some(0), Some(1), Some(2), Some(3), None]);
        for message in 0..3 {
            send.publish(&entries[send.at()], message, 0, Body::Line);
        }
        assert_eq!(ahead(&send), [Some(3), None, None, None, None]);
        recv.release(&credit);
        recv.release(&credit);
        assert_eq!(ahead(&send), [Some(3), None, None, None, None], "it has not looked");
        assert_eq!(send.refresh(&credit), Ok(2));
        assert_eq!(ahead(&send), [Some(3), Some(0), Some(1), None, None]);
    }

    #[test]
    fn impossible_words_are_errors() {
        let (entry, credit) = (Entry::new(), Credit::new());
        entry.flag.store(9 << 32, Ordering::Relaxed);
        assert!(RecvEnd::new(4).peek(&entry).is_err());
        credit.released.store(1, Ordering::Relaxed);
        assert!(SendEnd::new(4).refresh(&credit).is_err());
    }
}
