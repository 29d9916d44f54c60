//! Memory of users that peers write into, and how a sender hears of it.
//!
//! The receiver of a link writes a record behind the link's lines, at its sender, and says so. From then on a piece that
//! belongs there goes there by any lane, in one RDMA write with immediate and without a header: what a header would say follows
//! from the offer and from the message's number, which is in the immediate. No offer is made before the last was heard, so one
//! record has room, and the receiver keeps what it has offered last and before.

use super::bytes::{Reader, Writer};
use super::proposal::MOST_RAILS;
use super::wire::LINE;
use crate::verbs::{Region, Remote};
use ccl_core::kernels::{Direction, PieceMut};
use ccl_core::transport::Offer;
use std::sync::Arc;

/// Bytes of a record.
pub(crate) const RECORD: usize = 40 + 4 * MOST_RAILS;
const _: () = assert!(RECORD <= LINE);

/// What the word with the length of a place carries besides: a piece is never so long.
const BACKWARDS: u32 = 1 << 31;

/// How a receiver tells a sender: by pair of rails, the regions of its ring, in which it writes a record down, and where the
/// sender's lines begin; and how far behind these the record goes.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    pub(crate) regions: Arc<[Region]>,
    pub(crate) lines: Arc<[Remote]>,
    pub(crate) offset: u64,
}

/// An offer at the receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) offer: Offer,
    /// The message that comes first.
    pub(crate) first: u32,
}

impl Offered {
    /// Where a message goes.
    pub(crate) fn place(&self, number: u32, len: usize) -> Option<PieceMut> {
        let Offer { sink, piece, direction, .. } = self.offer;
        let at = Offer::place(sink.len(), piece, direction, number.wrapping_sub(self.first).into(), len)?;
        Some(sink.slice(at, len))
    }
}

/// How peers name memory: where it is, and its key for each pair of rails over which they may write there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) address: u64,
    /// Over which pairs of rails, as bits.
    over: u32,
    keys: [u32; MOST_RAILS],
}

impl Keys {
    /// It is known over a pair of rails as this.
    pub(crate) fn add(&mut self, rails: usize, at: Remote) {
        self.address = at.address;
        self.over |= 1 << rails;
        self.keys[rails] = at.key;
    }

    /// How it is told beside calls.
    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.address);
        out.u32(self.over);
        self.keys.iter().for_each(|key| out.u32(*key));
    }

    /// What [`Keys::write`] wrote.
    pub(super) fn read(bytes: &mut Reader<'_>) -> Option<Keys> {
        let (address, over) = (bytes.u64()?, bytes.u32()?);
        let mut keys = Keys { address, over, keys: [0; MOST_RAILS] };
        for key in &mut keys.keys {
            *key = bytes.u32()?;
        }
        (over >> MOST_RAILS == 0).then_some(keys)
    }

    /// The memory as it is known over a pair of rails.
    pub(super) fn over(&self, rails: usize) -> Option<Remote> {
        let is_known = self.over >> rails & 1 == 1;
        is_known.then(|| Remote { address: self.address, key: self.keys[rails] })
    }
}

/// An offer at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tag: u64,
    /// Which of the link's offers, from 1.
    pub(crate) number: u32,
    /// The message that comes first.
    pub(crate) first: u32,
    /// Bytes of each place but the last.
    pub(crate) piece: u32,
    /// Which way the places are filled.
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
    pub(crate) keys: Keys,
}

impl Target {
    /// Where a message goes over a pair of rails, if it belongs there.
    #[inline]
    pub(crate) fn place(&self, number: u32, tag: u64, len: usize, rails: usize) -> Option<Remote> {
        if tag != self.tag {
            return None;
        }
        let index = number.wrapping_sub(self.first).into();
        let at = Offer::place(self.bytes as usize, self.piece as usize, self.direction, index, len)?;
        Some(self.keys.over(rails)?.at(at as u64))
    }

    pub(crate) fn encode(&self) -> [u8; RECORD] {
        // On the data path, so without memory of its own.
        let mut record = [0; RECORD];
        let (longs, words) = record.split_at_mut(24);
        for (place, word) in longs.chunks_exact_mut(8).zip([self.tag, self.bytes, self.keys.address]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let backwards = if self.direction == Direction::Backwards { BACKWARDS } else { 0 };
        let fixed = [self.number, self.first, self.piece | backwards, self.keys.over];
        for (place, word) in words.chunks_exact_mut(4).zip(fixed.into_iter().chain(self.keys.keys)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    /// `None`: no version of this library says that.
    pub(crate) fn decode(record: [u8; RECORD]) -> Option<Target> {
        let mut bytes = Reader(&record);
        let (tag, length, address) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        let (number, first, piece, over) = (bytes.u32()?, bytes.u32()?, bytes.u32()?, bytes.u32()?);
        let mut keys = Keys { address, over, keys: [0; MOST_RAILS] };
        for key in &mut keys.keys {
            *key = bytes.u32()?;
        }
        let direction = if piece & BACKWARDS == 0 { Direction::Forwards } else { Direction::Backwards };
        let piece = piece & !BACKWARDS;
        let sane = piece > 0 && number > 0 && over >> MOST_RAILS == 0;
        sane.then_some(Target { tag, number, first, piece, direction, bytes: length, keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_way_and_says_where_each_message_goes() {
        let at = Remote { address: 1 << 40, key: 7 };
        let mut keys = Keys::default();
        keys.add(0, at);
        keys.add(MOST_RAILS - 1, Remote { key: 0, ..at });
        let (tag, direction) = (u64::MAX - 3, Direction::Forwards);
        let target = Target { tag, number: 9, first: u32::MAX, piece: 100, direction, bytes: 250, keys };
        let back = Target { direction: Direction::Backwards, ..target };
        assert_eq!(Target::decode(back.encode()), Some(back));
        assert_eq!([50, 100].map(|len| back.place(u32::MAX, tag, len, 0)), [Some(at.at(200)), None]);
        assert_eq!(back.place(1, tag, 100, 0), Some(at));
        let read = Target::decode(target.encode()).unwrap();
        assert_eq!(read, target);
        assert_eq!(Target::decode([0; RECORD]), None);
        assert_eq!(read.place(u32::MAX, tag, 100, 0), Some(at));
        assert_eq!(read.place(0, tag, 100, 0), Some(at.at(100)));
        assert_eq!(read.place(1, tag, 50, MOST_RAILS - 1), Some(Remote { key: 0, ..at }.at(200)));
        assert_eq!(read.place(1, tag, 50, 1), None, "not known over these rails");
        for (number, tag, len) in [(1, tag, 100), (2, tag, 50), (0, tag, 99), (0, 0, 100), (0, tag, 0)] {
            assert_eq!(read.place(number, tag, len, 0), None, "{number} {len}");
        }
    }
}
