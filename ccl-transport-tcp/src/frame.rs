//! What travels on a socket: headers, each followed by the bytes of a piece or by nothing.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A piece on the link to whoever reads it; its bytes follow.
    Piece,
    /// Nothing but the count of released pieces.
    Credit,
}

/// The header of a frame between two ranks. Numbers count modulo 2³² from 0, when the link was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The link's.
    pub(crate) channel: u16,
    /// Bytes that follow.
    pub(crate) len: u32,
    /// The piece's number on its link.
    pub(crate) number: u32,
    /// Pieces that the sender of this frame has released on the link of this channel that leads to it.
    pub(crate) released: u32,
    /// The piece's.
    pub(crate) tag: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = match self.kind {
            Kind::Piece => 1,
            Kind::Credit => 2,
        };
        bytes[2..4].copy_from_slice(&self.channel.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.released.to_le_bytes());
        bytes[16..].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// `None`: no header.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header {
            kind: match bytes[0] {
                1 => Kind::Piece,
                2 => Kind::Credit,
                _ => return None,
            },
            channel: u16::from_le_bytes([bytes[2], bytes[3]]),
            len: word(4),
            number: word(8),
            released: word(12),
            tag: u64::from(word(16)) | u64::from(word(20)) << 32,
        };
        let bare = header.len == 0 && header.number == 0 && header.tag == 0;
        (bytes[1] == 0 && (header.kind == Kind::Piece || bare)).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_way_and_each_bit_of_it_counts() {
        let piece = Header { kind: Kind::Piece, channel: 513, len: 7, number: 1 << 31, released: 3, tag: !5 };
        let credit = Header { kind: Kind::Credit, len: 0, number: 0, tag: 0, ..piece };
        for header in [piece, credit] {
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Some(header));
            for bit in 0..HEADER_BYTES * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Header::decode(&changed), Some(header), "bit {bit}");
            }
        }
    }
}
