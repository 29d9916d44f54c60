//! Memory of users that peers write into, and how a sender hears of it.
//!
//! The receiver of a link writes a record into the front of the link's first line, at its sender, and says so. From then on
//! a piece that belongs there goes there, in one RDMA write with immediate and without a header: what a header would say
//! follows from the offer and from the order of the queue pair. No offer is made before the last was heard, so one record
//! has room, and the receiver keeps what it has offered last and before.

use super::bytes::Reader;
use super::wire::{FRONT, HEADER};
use crate::verbs::{Region, Remote};
use ccl_core::simd::PieceMut;
use ccl_core::transport::Offer;
use std::sync::Arc;

/// Bytes of a record.
pub(crate) const RECORD: usize = 40;
const _: () = assert!(RECORD + HEADER <= FRONT);

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
    /// The message for which its first place is.
    pub(crate) first: u32,
}

impl Offered {
    /// Where a message goes.
    pub(crate) fn place(&self, number: u32, len: usize) -> Option<PieceMut> {
        let Offer { sink, piece, .. } = self.offer;
        let at = Offer::place(sink.len(), piece, number.wrapping_sub(self.first).into(), len)?;
        Some(sink.slice(at, len))
    }
}

/// An offer at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tag: u64,
    /// The message for which its first place is.
    pub(crate) first: u32,
    /// Bytes of each place but the last.
    pub(crate) piece: u32,
    pub(crate) bytes: u64,
    pub(crate) at: Remote,
}

impl Target {
    /// Where a message goes, if it belongs there.
    #[inline]
    pub(crate) fn place(&self, number: u32, tag: u64, len: usize) -> Option<Remote> {
        if tag != self.tag {
            return None;
        }
        let index = number.wrapping_sub(self.first).into();
        Offer::place(self.bytes as usize, self.piece as usize, index, len).map(|at| self.at.at(at as u64))
    }

    pub(crate) fn encode(&self) -> [u8; RECORD] {
        // On the data path, so without memory of its own.
        let mut record = [0; RECORD];
        for (place, word) in record.chunks_exact_mut(8).zip([self.tag, self.bytes, self.at.address]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in record[24..].chunks_exact_mut(4).zip([self.at.key, self.first, self.piece]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    /// `None`: no version of this library says that.
    pub(crate) fn decode(record: [u8; RECORD]) -> Option<Target> {
        let mut bytes = Reader(&record);
        let (tag, length, address, key) = (bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u32()?);
        let (first, piece) = (bytes.u32()?, bytes.u32()?);
        let at = Remote { address, key };
        (piece > 0).then_some(Target { tag, first, piece, bytes: length, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_way_and_says_where_each_message_goes() {
        let at = Remote { address: 1 << 40, key: 7 };
        let target = Target { tag: u64::MAX - 3, first: u32::MAX, piece: 100, bytes: 250, at };
        let read = Target::decode(target.encode()).unwrap();
        assert_eq!(read, target);
        assert_eq!(Target::decode([0; RECORD]), None);
        let tag = target.tag;
        assert_eq!(read.place(u32::MAX, tag, 100), Some(at));
        assert_eq!(read.place(0, tag, 100), Some(at.at(100)));
        assert_eq!(read.place(1, tag, 50), Some(at.at(200)));
        for (number, tag, len) in [(1, tag, 100), (2, tag, 50), (0, tag, 99), (0, 0, 100), (0, tag, 0)] {
            assert_eq!(read.place(number, tag, len), None, "{number} {len}");
        }
    }
}
