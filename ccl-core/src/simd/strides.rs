//! Long pieces in parts that fit into the first cache.

use super::{Piece, Source};

/// How many sources are cut into parts at most.
pub(super) const SOURCES: usize = 32;

/// Calls `combine` for one part of all `sources` after the other, with where it begins and how long it is: `first` bytes, then `stride` at a
/// time. All at once where there are too many sources.
#[inline]
pub(super) fn each(
    sources: &[Source],
    first: usize,
    stride: usize,
    mut combine: impl FnMut(&[Source], usize, usize),
) {
    let bytes = sources[0].piece.len();
    let mut parts = [Source { piece: Piece::EMPTY, scaled: false }; SOURCES];
    let Some(parts) = parts.get_mut(..sources.len()) else { return combine(sources, 0, bytes) };
    let (mut at, mut len) = (0, first);
    while at < bytes {
        len = len.min(bytes - at);
        for (part, source) in parts.iter_mut().zip(sources) {
            *part = Source { piece: source.piece.slice(at, len), scaled: source.scaled };
        }
        combine(parts, at, len);
        at += len;
        len = stride;
    }
}
