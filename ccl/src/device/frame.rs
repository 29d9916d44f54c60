//! What two proxies say to each other, in the tag of a piece.

use ccl_core::kernels::{Buffers, Piece};

/// A piece between proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A kernel's piece: the way that it is on, its number there, and the kernel's tag of 24 bits.
    Piece { way: u32, number: u16, tag: u32 },
    /// The kernel has released so many pieces of a way, modulo 2^16. No bytes come with it.
    Credit { way: u32, count: u16 },
}

const WAY_BITS: u32 = 23;
const WAY_AT: u32 = 16;
const CREDIT_BIT: u64 = 1 << (WAY_AT + WAY_BITS);
const TAG_AT: u32 = WAY_AT + WAY_BITS + 1;

impl Frame {
    pub(super) fn word(self) -> u64 {
        match self {
            Frame::Piece { way, number, tag } => {
                u64::from(number) | u64::from(way) << WAY_AT | u64::from(tag) << TAG_AT
            }
            Frame::Credit { way, count } => u64::from(count) | u64::from(way) << WAY_AT | CREDIT_BIT,
        }
    }

    pub(super) fn read(word: u64) -> Frame {
        let (low, way) = (word as u16, (word >> WAY_AT) as u32 & ((1 << WAY_BITS) - 1));
        match word & CREDIT_BIT {
            0 => Frame::Piece { way, number: low, tag: (word >> TAG_AT) as u32 },
            _ => Frame::Credit { way, count: low },
        }
    }
}

/// The bytes of a message that announces a put: how long it is.
pub(super) struct Length([u8; 4]);

impl Length {
    pub(super) fn of(len: usize) -> Length {
        Length((len as u32).to_le_bytes())
    }

    pub(super) fn piece(&self) -> Piece {
        Buffers::new(&self.0, &mut []).input()
    }

    /// What a message says; `None`: it is none of these.
    pub(super) fn read(piece: Piece) -> Option<usize> {
        let mut bytes = [0; 4];
        let is_length = piece.len() == bytes.len();
        is_length.then(|| {
            Buffers::new(&[], &mut bytes).output().copy_from(piece);
            u32::from_le_bytes(bytes) as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back() {
        for len in [0, 1, 1 << 24] {
            assert_eq!(Length::read(Length::of(len).piece()), Some(len));
        }
        let short = Buffers::new(&[1, 2, 3], &mut []).input();
        assert_eq!([Piece::EMPTY, short].map(Length::read), [None, None]);
    }

    #[test]
    fn frames_come_back() {
        let frames = [
            Frame::Piece { way: 0, number: 0, tag: 0 },
            Frame::Piece { way: (1 << WAY_BITS) - 1, number: u16::MAX, tag: 0xff_ffff },
            Frame::Piece { way: 5, number: 7, tag: 0x80_0001 },
            Frame::Credit { way: (1 << WAY_BITS) - 1, count: u16::MAX },
            Frame::Credit { way: 3, count: 1 },
        ];
        for frame in frames {
            assert_eq!(Frame::read(frame.word()), frame);
        }
    }
}
