//! What two ranks tell each other before they open links.

use crate::config::Limits;
use ccl_core::Rank;
use ccl_core::transport::Row;

/// Says that the bytes are ours, and in which version of the frames.
const MAGIC: u64 = 0x7264_6d61_7463_7001;

/// One rank's word to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) rank: Rank,
    pub(crate) limits: Limits,
    pub(crate) to_peer: Row,
    pub(crate) from_peer: Row,
    /// The host's name.
    pub(crate) host: String,
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Limits { slot_bytes, credits, sockets } = self.limits;
        let mut bytes = Vec::new();
        for number in [MAGIC, slot_bytes as u64, self.to_peer.hash, self.from_peer.hash] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.rank, credits, sockets.into(), self.to_peer.count, self.from_peer.count] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.host.as_bytes());
        bytes
    }

    /// `None`: not a blob of this version.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Blob> {
        if u64_of(&mut bytes)? != MAGIC {
            return None;
        }
        let slot_bytes = usize::try_from(u64_of(&mut bytes)?).ok()?;
        let (to_hash, from_hash) = (u64_of(&mut bytes)?, u64_of(&mut bytes)?);
        let (rank, credits) = (u32_of(&mut bytes)?, u32_of(&mut bytes)?);
        let sockets = u16::try_from(u32_of(&mut bytes)?).ok()?;
        let to_peer = Row { count: u32_of(&mut bytes)?, hash: to_hash };
        let from_peer = Row { count: u32_of(&mut bytes)?, hash: from_hash };
        let host = std::str::from_utf8(bytes).ok()?.to_string();
        Some(Blob { rank, limits: Limits { slot_bytes, credits, sockets }, to_peer, from_peer, host })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_survives_the_way_and_no_shorter_one_passes() {
        let blob = Blob {
            rank: 3,
            limits: Limits { slot_bytes: 8192, credits: 4, sockets: 2 },
            to_peer: Row::of(&[0, 7]),
            from_peer: Row::of(&[]),
            host: "left".into(),
        };
        let bytes = blob.encode();
        assert_eq!(Blob::decode(&bytes), Some(blob));
        assert!((0..bytes.len() - 4).all(|n| Blob::decode(&bytes[..n]).is_none()));
        assert_eq!(Blob::decode(&[&[0], &bytes[1..]].concat()), None);
    }
}
