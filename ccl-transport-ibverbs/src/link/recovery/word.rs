//! What one end of a lane tells the other while it is repaired.

use crate::link::lane::CHANNELS;
use crate::link::terms::Place;
use ccl_core::Rank;

/// Says that the bytes are ours, and in which version.
const MAGIC: u32 = 0x6962_7701;
/// Bytes of a word.
pub(crate) const BYTES: usize = 36 + 10 * CHANNELS as usize;

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
    /// What has come on the links of the lane, once nothing more can come by the queue pair before.
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
}

/// That of all links of a lane from the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    len: u8,
    counts: [Count; CHANNELS as usize],
}

impl Counts {
    /// Adds a link; a lane has no more than there is room for.
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
        };
        put(&[self.via, kind, rails, self.counts.len]);
        put(&number.to_le_bytes());
        put(&first_packet.to_le_bytes());
        for Count { channel, next, released } in self.counts.counts {
            put(&channel.to_le_bytes());
            put(&next.to_le_bytes());
            put(&released.to_le_bytes());
        }
        out
    }

    /// `None`: no version of this library says it, or it does not know the session, and is of another one.
    pub(crate) fn decode(bytes: &[u8; BYTES], session: u64) -> Option<Word> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let [via, kind, rails, len] = [24, 25, 26, 27].map(|at: usize| bytes[at]);
        let knows_session = session == u64::from(word(4)) | u64::from(word(8)) << 32;
        (word(0) == MAGIC && knows_session && u32::from(len) <= CHANNELS).then_some(())?;
        let says = match kind {
            0 => Says::Draining,
            1 => Says::Drained { avoid: Some(rails).filter(|rails| *rails != NONE) },
            2 => Says::Prepared(Offer { rails, number: word(28), first_packet: word(32) }),
            3 => Says::Ready,
            4 => Says::GivenUp,
            _ => return None,
        };
        let mut counts = Counts { len, ..Counts::default() };
        for (count, at) in counts.counts.iter_mut().zip((36..).step_by(10)) {
            *count = Count { channel: half(at), next: word(at + 2), released: word(at + 6) };
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
            counts.push(Count { channel, next: u32::MAX, released: 17 });
        }
        let offer = Offer { rails: 3, number: 0xff_ffff, first_packet: 1 };
        for says in [
            Says::Draining,
            Says::Drained { avoid: None },
            Says::Drained { avoid: Some(0) },
            Says::Prepared(offer),
            Says::Ready,
            Says::GivenUp,
        ] {
            let place = Place { way: 2, turn: 300 };
            let word =
                Word { session: u64::MAX - 3, from: 70_000, place, generation: 9, via: 1, says, counts };
            assert_eq!(Word::decode(&word.encode(), word.session), Some(word));
            assert_eq!(Word::decode(&word.encode(), word.session ^ 1 << 40), None);
            for (at, value) in [(0, 0), (25, 5), (27, 5)] {
                let mut bytes = word.encode();
                bytes[at] = value;
                assert_eq!(Word::decode(&bytes, word.session), None);
            }
        }
        assert_eq!(counts.of(7).unwrap().next, u32::MAX);
        assert_eq!(counts.of(8), None);
    }
}
