//! Memory that a receiver offers to a sender.

use super::Stretch;
use crate::kernels::{Direction, PieceMut};

/// Where the next pieces on a link go, at their receiver.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The fingerprint that the pieces carry.
    pub tag: u64,
    /// One place beside the other.
    pub sink: PieceMut,
    /// Bytes of each place but the last, which may be shorter.
    pub piece: usize,
    /// Which way they are filled, beginning with the oldest piece that is not released.
    pub direction: Direction,
}

impl Offer {
    /// Where in `bytes` bytes, offered for pieces of `piece` bytes, the piece with this `index` goes, if there is a place for it and it is
    /// as long.
    pub fn place(bytes: usize, piece: usize, direction: Direction, index: u64, len: usize) -> Option<usize> {
        let places = if piece > 0 { bytes.div_ceil(piece) } else { 0 };
        let index = usize::try_from(index).ok().filter(|index| *index < places)?;
        let at = direction.part(index, places) * piece;
        let room = bytes.checked_sub(at)?.min(piece);
        (room == len && len > 0).then_some(at)
    }

    /// Where the pieces of a stretch go, of which the first has this `index`, if there is a place for each of them: from there on side by side.
    pub fn place_of(
        bytes: usize,
        piece: usize,
        direction: Direction,
        index: u64,
        stretch: &Stretch,
    ) -> Option<usize> {
        let last = stretch.pieces.checked_sub(1)?;
        let is_cut_alike = last == 0 || stretch.tile == piece && stretch.direction == direction;
        let place = |of: usize| {
            Offer::place(bytes, piece, direction, index.checked_add(of as u64)?, stretch.len_of(of))
        };
        let (first, last) = (place(0)?, place(last)?);
        is_cut_alike.then_some(first.min(last))
    }
}
