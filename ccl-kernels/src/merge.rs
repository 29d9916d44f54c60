//! What becomes of a piece that comes in.

use super::{Direction, Piece, PieceMut, Reducer, Source, Store};

/// A piece that comes in becomes what is in a sink, as it is or combined with a source of this rank.
#[derive(Clone, Copy, Debug)]
pub struct Merge<'a> {
    sink: PieceMut,
    own: Option<Own<'a>>,
}

/// What a piece is combined with.
#[derive(Clone, Copy, Debug)]
struct Own<'a> {
    source: Source,
    reducer: &'a Reducer,
    /// Whether it is the first of the two.
    is_first: bool,
    /// Which way to go through them.
    direction: Direction,
}

impl<'a> Merge<'a> {
    /// The piece is copied.
    #[inline(always)]
    pub fn copy(sink: PieceMut) -> Merge<'a> {
        Merge { sink, own: None }
    }

    /// The piece comes second or, unless `is_first`, first; long ones are gone through in this direction.
    #[inline(always)]
    pub fn combine(
        reducer: &'a Reducer,
        source: Source,
        is_first: bool,
        direction: Direction,
        sink: PieceMut,
    ) -> Merge<'a> {
        Merge { sink, own: Some(Own { source, is_first, reducer, direction }) }
    }

    /// The same, of a piece that is best written so where it is [copied](PieceMut::copied).
    #[inline(always)]
    pub fn copied(self, store: Store) -> Merge<'a> {
        Merge { sink: self.sink.copied(store), ..self }
    }

    /// How long the piece must be.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.sink.len()
    }

    /// Does it. Panics where the piece is not as long as the sink.
    #[inline(always)]
    pub fn apply(&self, piece: Piece) {
        let Some(Own { source, is_first, reducer, direction }) = self.own else {
            return self.sink.copy_from(piece);
        };
        reducer.apply_pair(source, piece, is_first, self.sink, direction);
    }
}
