//! What two ranks tell each other before they map each other's memory.

use crate::mailbox::Address;
use crate::ring::Laps;
use crate::shm::Geometry;
use ccl_core::Rank;
use ccl_core::transport::Row;

/// Says that the bytes are ours, and in which version of the layout.
const MAGIC: u64 = 0x7264_6d61_6363_6c02;

/// One rank's word to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) rank: Rank,
    /// Names the process; ranks of one process share mappings.
    pub(crate) process: u128,
    /// Names the sender's segment, and the socket at which it takes descriptors.
    pub(crate) segment: u128,
    /// What a message to that socket must begin with.
    pub(crate) token: u128,
    pub(crate) geometry: Geometry,
    /// Whether the peer's descriptor is wanted.
    pub(crate) wants_descriptor: bool,
    /// Whether the process takes part in heavy barriers.
    pub(crate) barrier: bool,
    /// The first link of the row to the peer.
    pub(crate) first: u32,
    /// The new links, which lie one after the other in the sender's segment, by channel.
    pub(crate) to_peer: Row,
    pub(crate) from_peer: Row,
}

impl Blob {
    /// Where the rank takes letters.
    pub(crate) fn mailbox(&self) -> Address {
        Address { segment: self.segment, token: self.token }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        for number in [self.process, self.segment, self.token] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.geometry.slot_bytes as u64, self.to_peer.hash, self.from_peer.hash] {
            bytes.extend(number.to_le_bytes());
        }
        let Geometry { laps: Laps { least, most }, max_links, .. } = self.geometry;
        let flags = u32::from(self.wants_descriptor) | u32::from(self.barrier) << 1;
        let (to, from) = (self.to_peer.count, self.from_peer.count);
        for number in [self.rank, least, most, max_links, flags, self.first, to, from] {
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    /// `None`: not a blob of this version.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Blob> {
        if u64_of(&mut bytes)? != MAGIC {
            return None;
        }
        let (process, segment, token) = (u128_of(&mut bytes)?, u128_of(&mut bytes)?, u128_of(&mut bytes)?);
        let slot_bytes = usize::try_from(u64_of(&mut bytes)?).ok()?;
        let (to_hash, from_hash) = (u64_of(&mut bytes)?, u64_of(&mut bytes)?);
        let rank = u32_of(&mut bytes)?;
        let laps = Laps { least: u32_of(&mut bytes)?, most: u32_of(&mut bytes)? };
        let (max_links, flags, first) = (u32_of(&mut bytes)?, u32_of(&mut bytes)?, u32_of(&mut bytes)?);
        let to_peer = Row { count: u32_of(&mut bytes)?, hash: to_hash };
        let from_peer = Row { count: u32_of(&mut bytes)?, hash: from_hash };
        let known = flags & !3 == 0;
        (known && bytes.is_empty()).then_some(Blob {
            rank,
            process,
            segment,
            token,
            geometry: Geometry { laps, slot_bytes, max_links },
            wants_descriptor: flags & 1 != 0,
            barrier: flags & 2 != 0,
            first,
            to_peer,
            from_peer,
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk()?;
    *bytes = tail;
    Some(*head)
}

fn u32_of(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

fn u64_of(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

fn u128_of(bytes: &mut &[u8]) -> Option<u128> {
    take(bytes).map(u128::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_survives_the_way_and_nothing_else_passes() {
        let blob = Blob {
            rank: 3,
            process: 1 << 100,
            segment: 2,
            token: u128::MAX,
            geometry: Geometry { laps: Laps { least: 4, most: 8 }, slot_bytes: 8192, max_links: 9 },
            wants_descriptor: true,
            barrier: false,
            first: 5,
            to_peer: Row::of(&[0, 7]),
            from_peer: Row::of(&[]),
        };
        let bytes = blob.encode();
        assert!(bytes.len() <= 4096);
        assert_eq!(Blob::decode(&bytes), Some(blob));
        assert!((0..bytes.len()).all(|n| Blob::decode(&bytes[..n]).is_none()));
        assert_eq!(Blob::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
