//! Pieces that lie one behind the other, and are read or written as one.

use crate::kernels::Direction;

/// Some pieces that come after one another on a link and lie side by side. Each has as many bytes as a tile, but for one that ends
/// its chunk: the last one forwards, the first one backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many; at least one.
    pub pieces: usize,
    /// Bytes of a tile.
    pub tile: usize,
    /// Bytes of all pieces: more than the tiles before the last one have, and no more than all have.
    pub bytes: usize,
    /// Whether each lies behind the one that comes before it, or in front of it.
    pub direction: Direction,
}

impl Stretch {
    /// One piece.
    pub fn one(bytes: usize) -> Stretch {
        Stretch { pieces: 1, tile: bytes, bytes, direction: Direction::Forwards }
    }

    /// How many bytes lie before the piece that comes after so many others.
    pub fn offset_of(&self, index: usize) -> usize {
        self.direction.part(index, self.pieces) * self.tile
    }

    /// Bytes of the piece that comes after so many others.
    pub fn len_of(&self, index: usize) -> usize {
        let is_cut = match self.direction {
            Direction::Forwards => index + 1 == self.pieces,
            Direction::Backwards => index == 0,
        };
        if is_cut { self.bytes - (self.pieces - 1) * self.tile } else { self.tile }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_chunk_is_shorter() {
        let pieces = |direction| {
            let stretch = Stretch { pieces: 3, tile: 64, bytes: 130, direction };
            [0, 1, 2].map(|index| (stretch.offset_of(index), stretch.len_of(index)))
        };
        assert_eq!(pieces(Direction::Forwards), [(0, 64), (64, 64), (128, 2)]);
        assert_eq!(pieces(Direction::Backwards), [(128, 2), (64, 64), (0, 64)]);
        assert_eq!((Stretch::one(9).offset_of(0), Stretch::one(9).len_of(0)), (0, 9));
    }
}
