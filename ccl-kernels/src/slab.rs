//! Scratch memory of the engine.

use super::{Piece, PieceMut};

/// Equal pieces of memory, each on a boundary of 64 bytes. Grows, never shrinks.
#[derive(Debug, Default)]
pub struct Slab {
    lines: Vec<Line>,
    lines_each: usize,
}

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Line([u8; 64]);

impl Slab {
    /// Makes room for `pieces` of `bytes` each; what they held is lost when they have to grow.
    pub fn fit(&mut self, pieces: usize, bytes: usize) {
        let each = bytes.div_ceil(64).max(self.lines_each);
        let total = each.saturating_mul(pieces);
        if total > self.lines.len() {
            self.lines = vec![Line([0; 64]); total];
        }
        self.lines_each = each;
    }

    /// `len` bytes of piece `index`, to write. They stay valid until the next `fit`.
    #[inline]
    pub fn sink(&mut self, index: usize, len: usize) -> PieceMut {
        let first = index * self.lines_each;
        let lines = &mut self.lines[first..first + self.lines_each];
        assert!(len <= lines.len() * 64, "scratch piece too short");
        // SAFETY: the bytes lie in these lines, which the slab owns; it hands a piece to one lane only.
        unsafe { PieceMut::new(lines.as_mut_ptr().cast(), len) }
    }

    /// `len` bytes of piece `index`, to read.
    #[inline]
    pub fn source(&mut self, index: usize, len: usize) -> Piece {
        self.sink(index, len).as_piece()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let mut slab = Slab::default();
        slab.fit(3, 100);
        let at: Vec<usize> = (0..3).map(|i| slab.sink(i, 100).as_mut_ptr().addr()).collect();
        assert!(at.iter().all(|a| a % 64 == 0));
        assert_eq!((at[1] - at[0], at[2] - at[1]), (128, 128));
        slab.fit(3, 10);
        assert_eq!(slab.sink(1, 100).as_mut_ptr().addr(), at[1], "a smaller call keeps the memory");
    }

    #[test]
    #[should_panic(expected = "too short")]
    fn a_piece_longer_than_its_place_is_refused() {
        let mut slab = Slab::default();
        slab.fit(2, 64);
        slab.sink(0, 65);
    }
}
