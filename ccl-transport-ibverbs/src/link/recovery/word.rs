//! What one end of a lane tells the other while it is repaired.

use crate::link::terms::Place;
use crate::link::wire::MOST_LINKS;
use ccl_core::Rank;

/// Says that the bytes are ours, and in which version.
const MAGIC: u32 = 0x6962_7702;
/// Bytes of a word.
pub(crate) const BYTES: usize = 36 + COUNT * MOST_LINKS as usize;
/// Bytes of what it says of one link.
const COUNT: usize = 16;
// So it fits the smallest packet.
const _: () = assert!(BYTES <= 256);

/// A word. It can be heard any number of times, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// What the rank that it is for has asked for.
    pub(crate) session: u64,
    /// Who says it.
    pub(crate) from: Rank,
    /// Of which lane.
    pub(crate) place: Place,
    /// Of which of the lane's queue pairs, from 0.
    pub(crate) generation: u32,
    /// The pair of rails over which it travels.
    pub(crate) via: u8,
    pub(crate) says: Says,
    /// What has come on the links of the lane's group, once nothing more can come by the queue pair before.
    pub(crate) counts: Counts,
}

/// How far the one who says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// The queue pair before is being drained.
    Draining,
    /// It is, and nothing else has been made; a pair of rails on which it has failed just now, if any.
    Drained { avoid: Option<u8> },
    /// There is a new queue pair, on this pair of rails.
    Prepared(Offer),
    /// It is connected and sends.
    Ready,
    /// The lane has been given up.
    GivenUp,
    /// It is open elsewhere, and the other end shall answer over this pair of rails, if it hears.
    Asks,
}

/// A new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) rails: u8,
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
}

/// What has come on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) channel: u16,
    /// The number of the message that comes next.
    pub(crate) next: u32,
    /// How many messages were released.
    pub(crate) released: u32,
    /// Which have come beyond the next: the first bit is for the one after it.
    pub(crate) beyond: u64,
}

impl Count {
    /// Whether this message has come.
    pub(crate) fn has(&self, number: u32) -> bool {
        match number.wrapping_sub(self.next).cast_signed() {
            ..0 => true,
            0 => false,
            ahead => self.beyond.checked_shr((ahead - 1).cast_unsigned()).is_some_and(|bits| bits & 1 == 1),
        }
    }

    /// One more than the number of the last that has come.
    pub(crate) fn end(&self) -> u32 {
        match u64::BITS - self.beyond.leading_zeros() {
            0 => self.next,
            bits => self.next.wrapping_add(bits + 1),
        }
    }
}

/// That of all links of a lane's group from the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    len: u8,
    counts: [Count; MOST_LINKS as usize],
}

impl Counts {
    /// Adds a link; a group has no more than there is room for.
    pub(crate) fn push(&mut self, count: Count) {
        if let Some(place) = self.counts.get_mut(usize::from(self.len)) {
            *place = count;
            self.len += 1;
        }
    }

    /// That of one link: nothing has come on one that is not named.
    pub(crate) fn of(&self, channel: u16) -> Option<Count> {
        self.counts[..usize::from(self.len)].iter().find(|count| count.channel == channel).copied()
    }
}

impl Word {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.session.to_le_bytes());
        put(&self.from.to_le_bytes());
        put(&self.place.way.to_le_bytes());
        put(&self.place.turn.to_le_bytes());
        put(&self.generation.to_le_bytes());
        let (kind, rails, number, first_packet) = match self.says {
            Says::Draining => (0, NONE, 0, 0),
            Says::Drained { avoid } => (1, avoid.unwrap_or(NONE), 0, 0),
            Says::Prepared(Offer { rails, number, first_packet }) => (2, rails, number, first_packet),
            Says::Ready => (3, NONE, 0, 0),
            Says::GivenUp => (4, NONE, 0, 0),
            Says::Asks => (5, NONE, 0, 0),
        };
        put(&[self.via, kind, rails, self.counts.len]);
        put(&number.to_le_bytes());
        put(&first_packet.to_le_bytes());
        for Count { channel, next, released, beyond } in self.counts.counts {
            put(&channel.to_le_bytes());
            // Fewer than a link has slots.
            put(&(next.wrapping_sub(released) as u16).to_le_bytes());
            put(&next.to_le_bytes());
            put(&beyond.to_le_bytes());
        }
        out
    }

    /// `None`: no version of this library says it, or it does not know the session, and is of another one.
    pub(crate) fn decode(bytes: &[u8; BYTES], session: u64) -> Option<Word> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let [via, kind, rails, len] = [24, 25, 26, 27].map(|at: usize| bytes[at]);
        let knows_session = session == u64::from(word(4)) | u64::from(word(8)) << 32;
        (word(0) == MAGIC && knows_session && u32::from(len) <= MOST_LINKS).then_some(())?;
        let says = match kind {
            0 => Says::Draining,
            1 => Says::Drained { avoid: Some(rails).filter(|rails| *rails != NONE) },
            2 => Says::Prepared(Offer { rails, number: word(28), first_packet: word(32) }),
            3 => Says::Ready,
            4 => Says::GivenUp,
            5 => Says::Asks,
            _ => return None,
        };
        let mut counts = Counts { len, ..Counts::default() };
        for (count, at) in counts.counts.iter_mut().zip((36..).step_by(COUNT)) {
            let (next, waiting) = (word(at + 4), half(at + 2));
            let beyond = u64::from(word(at + 8)) | u64::from(word(at + 12)) << 32;
            let released = next.wrapping_sub(waiting.into());
            *count = Count { channel: half(at), next, released, beyond };
        }
        Some(Word {
            session,
            from: word(12),
            place: Place { way: half(16), turn: half(18) },
            generation: word(20),
            via,
            says,
            counts,
        })
    }
}

/// In place of the number of a pair of rails.
const NONE: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_way_and_nothing_else_passes() {
        let mut counts = Counts::default();
        for channel in [3, u16::MAX, 0, 7] {
            counts.push(Count { channel, next: 3, released: u32::MAX - 9, beyond: 1 << 63 | 5 });
        }
        let offer = Offer { rails: 3, number: 0xff_ffff, first_packet: 1 };
        for says in [
            Says::Draining,
            Says::Drained { avoid: None },
            Says::Drained { avoid: Some(0) },
            Says::Prepared(offer),
            Says::Ready,
            Says::GivenUp,
            Says::Asks,
        ] {
            let place = Place { way: 2, turn: 300 };
            let word =
                Word { session: u64::MAX - 3, from: 70_000, place, generation: 9, via: 1, says, counts };
            assert_eq!(Word::decode(&word.encode(), word.session), Some(word));
            assert_eq!(Word::decode(&word.encode(), word.session ^ 1 << 40), None);
            for (at, value) in [(0, 0), (25, 6), (27, 13)] {
                let mut bytes = word.encode();
                bytes[at] = value;
                assert_eq!(Word::decode(&bytes, word.session), None);
            }
        }
        let count = counts.of(7).unwrap();
        let has: Vec<_> = (-3..80).filter(|number: &i32| count.has(number.cast_unsigned())).collect();
        assert_eq!((has, count.end()), (vec![-3, -2, -1, 0, 1, 2, 4, 6, 67], 68));
        assert_eq!(counts.of(8), None);
    }
}
