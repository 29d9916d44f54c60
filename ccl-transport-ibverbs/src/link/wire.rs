//! What travels: the header in front of each piece, and the 32 bits of the immediate.

use std::fmt;

/// Bytes of a header.
pub(crate) const HEADER: usize = 24;
/// Bytes in front of a piece's own, of which the header is the last: so pieces begin on cache lines.
pub(crate) const FRONT: usize = 64;
/// Bytes of a place for a short piece.
pub(crate) const LINE: usize = 256;
/// Bytes of a piece that fit into such a place.
pub(crate) const INLINE_BYTES: usize = LINE - FRONT;

/// Bits of the immediate that number a link among those of its group.
const LINK_BITS: u32 = 4;
/// Bits that say which slot, or how many credits. Messages that overtake one another are never so many that the number of
/// released ones would come round: that many pieces of a spread link take longer than a device tries to bring one.
const VALUE_BITS: u32 = 25;
/// Bits of them that number an offer, where there is a message's number too.
const OFFER_BITS: u32 = 11;
/// Links of a group in one direction: a word of recovery about all of them fits the smallest packet.
pub(crate) const MOST_LINKS: u32 = 12;
const _: () = assert!(MOST_LINKS <= 1 << LINK_BITS);

/// The number of a link's first message. Numbers begin anew after 2³²: so soon that it is seen.
pub(crate) const FIRST: u32 = u32::MAX - 100;

/// The place of a ring after this one.
#[inline]
pub(crate) fn after(position: u32, window: u32) -> u32 {
    if position + 1 == window { 0 } else { position + 1 }
}

/// What stands in front of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The call's tag.
    pub(crate) tag: u64,
    /// The message's number on its link, from [`FIRST`] on, modulo 2³².
    pub(crate) number: u32,
    /// Bytes of the piece.
    pub(crate) len: u32,
    /// Messages that the sender has released on the link of the other direction, modulo 2³²; 0 if there is none.
    pub(crate) released: u32,
    /// The last offer for this link that its sender has heard of, by number modulo 2³².
    pub(crate) heard: u32,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.released.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.heard.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; HEADER]) -> Header {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let tag = u64::from(word(0)) | u64::from(word(4)) << 32;
        Header { tag, number: word(8), len: word(12), released: word(16), heard: word(20) }
    }
}

/// What an immediate says. Links are numbered within their group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// A piece lies in this slot of the receiver's link.
    Piece { link: u32, slot: u32 },
    /// So many messages of the sender's link (the one who gets this) are released by now, modulo 2^25.
    Credit { link: u32, released: u32 },
    /// Nothing follows from this queue pair, and nothing that is sent to it is read any more.
    Goodbye,
    /// A record of an offer lies at the sender's link (the one who gets this).
    Offer { link: u32 },
    /// A piece of this number, modulo 2^14, lies where it goes by this offer for the receiver's link, modulo 2^11.
    Direct { link: u32, number: u32, offer: u32 },
}

impl Immediate {
    /// What is left of credits.
    pub(crate) const MASK: u32 = (1 << VALUE_BITS) - 1;
    /// What is left of numbers of offers.
    pub(crate) const OFFERS: u32 = (1 << OFFER_BITS) - 1;
    /// What is left of a message's number beside that of an offer: more than a link has slots.
    pub(crate) const NUMBERS: u32 = (1 << (VALUE_BITS - OFFER_BITS)) - 1;

    pub(crate) fn encode(self) -> u32 {
        let (kind, link, value) = match self {
            Immediate::Piece { link, slot } => (0, link, slot),
            Immediate::Credit { link, released } => (1, link, released & Self::MASK),
            Immediate::Goodbye => (2, 0, 0),
            Immediate::Offer { link } => (3, link, 0),
            Immediate::Direct { link, number, offer } => {
                (4, link, (number & Self::NUMBERS) << OFFER_BITS | offer & Self::OFFERS)
            }
        };
        debug_assert!(link < MOST_LINKS && value <= Self::MASK);
        kind << (LINK_BITS + VALUE_BITS) | link << VALUE_BITS | value
    }

    /// `None`: no version of this library sends it.
    pub(crate) fn decode(word: u32) -> Option<Immediate> {
        let (link, value) = (word >> VALUE_BITS & ((1 << LINK_BITS) - 1), word & Self::MASK);
        match word >> (LINK_BITS + VALUE_BITS) {
            _ if link >= MOST_LINKS => None,
            0 => Some(Immediate::Piece { link, slot: value }),
            1 => Some(Immediate::Credit { link, released: value }),
            2 if (link, value) == (0, 0) => Some(Immediate::Goodbye),
            3 if value == 0 => Some(Immediate::Offer { link }),
            4 => Some(Immediate::Direct { link, number: value >> OFFER_BITS, offer: value & Self::OFFERS }),
            _ => None,
        }
    }
}

impl fmt::Debug for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Immediate::Piece { link, slot } => write!(f, "piece in slot {slot} of link {link}"),
            Immediate::Credit { link, released } => write!(f, "credit {released} of link {link}"),
            Immediate::Goodbye => f.write_str("goodbye"),
            Immediate::Offer { link } => write!(f, "offer for link {link}"),
            Immediate::Direct { link, number, offer } => {
                write!(f, "piece {number} by offer {offer} for link {link}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_immediates_survive_the_way() {
        let header =
            Header { tag: u64::MAX - 7, number: 1, len: 2, released: 0xfedc_ba98, heard: 0x0102_0304 };
        assert_eq!(Header::decode(header.encode()), header);
        let all = [
            Immediate::Piece { link: MOST_LINKS - 1, slot: 2047 },
            Immediate::Piece { link: 0, slot: 0 },
            Immediate::Credit { link: 5, released: Immediate::MASK },
            Immediate::Goodbye,
            Immediate::Offer { link: MOST_LINKS - 1 },
            Immediate::Direct { link: MOST_LINKS - 1, number: Immediate::NUMBERS, offer: 2047 },
        ];
        for word in all {
            assert_eq!(Immediate::decode(word.encode()), Some(word));
        }
        let strange = [5 << 29, 2 << 29 | 1, 3 << 29 | 1, MOST_LINKS << 25];
        assert_eq!(strange.map(Immediate::decode), [None; 4]);
    }
}
