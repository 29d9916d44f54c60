//! Which bytes of the buffers a chunk's piece is.

use super::task::Span;
use super::uneven::{Blocks, Uneven};
use crate::DataType;
use crate::error::{Error, Result};
use crate::kernels::Buffers;
use crate::plan::{Rank, Spec};
use std::ops::Range;
use std::sync::Arc;

/// Parts of at least this many bytes begin on a whole line.
const ROUND_FROM: usize = 1024;
/// Bytes of a line.
const LINE: usize = 64;

/// How the buffers of one call are cut into chunks and pieces.
///
/// A block of `count` elements is cut into the spec's parts: part `p` begins at element
/// `min(p * per, count)`, where `per` is `count / parts` rounded up, and further up to whole lines of 64
/// bytes where a part has at least 1024 bytes. So the last parts may be short or empty. A part is cut into
/// tiles in the same way. All ranks of a call cut alike, if they were given the same `tile_bytes`.
///
/// Blocks are of one length and lie side by side, or are [`Blocks`] of any length at any place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) spec: Spec,
    pub(super) rank: Rank,
    // All in bytes, and whole elements.
    block: usize,
    part: usize,
    tile: usize,
    tiles: usize,
    input: usize,
    output: usize,
    element: usize,
    /// In place of `block` and `part`, where blocks differ.
    uneven: Option<Arc<Uneven>>,
}

impl Layout {
    /// The layout at `rank` of a call with blocks of `count` elements, in tiles of at most `tile_bytes`.
    pub fn new(spec: &Spec, rank: Rank, count: usize, dtype: DataType, tile_bytes: usize) -> Result<Layout> {
        let element = dtype.size();
        let tile = tile(spec, rank, element, tile_bytes)?;
        let too_long = || {
            Error::invalid(
                format!("{count} elements of type {dtype} in {} on {} ranks", spec.collective, spec.ranks),
                "buffers must have fewer than 2^63 bytes",
            )
        };
        let sized = |blocks: u32| {
            let bytes = count.checked_mul(element)?.checked_mul(blocks as usize)?;
            (bytes <= isize::MAX as usize).then_some(bytes)
        };
        let block = sized(1).ok_or_else(too_long)?;
        let input = sized(spec.collective.input_blocks(spec.ranks, rank, spec.root)).ok_or_else(too_long)?;
        let output =
            sized(spec.collective.output_blocks(spec.ranks, rank, spec.root)).ok_or_else(too_long)?;
        let part = part(block, spec.parts, element).ok_or_else(too_long)?;
        let tiles = tiles(part.min(block), tile);
        Ok(Layout { spec: *spec, rank, block, part, tile, tiles, input, output, element, uneven: None })
    }

    /// The layout at `rank` of a call whose blocks differ: one extent for each block of this rank's buffers.
    pub fn uneven(
        spec: &Spec,
        rank: Rank,
        blocks: &Blocks,
        dtype: DataType,
        tile_bytes: usize,
    ) -> Result<Layout> {
        let element = dtype.size();
        let tile = tile(spec, rank, element, tile_bytes)?;
        let uneven = Uneven::new(spec, rank, blocks, element)?;
        Ok(Layout {
            spec: *spec,
            rank,
            block: uneven.longest_block(),
            part: uneven.longest_part(),
            tile,
            tiles: tiles(uneven.longest_part(), tile),
            input: uneven.input_bytes(),
            output: uneven.output_bytes(),
            element,
            uneven: Some(Arc::new(uneven)),
        })
    }

    /// Whether a rank knows the lengths of its own blocks only, so that tiles and fingerprints belong to
    /// the pair of ranks that share a block, and not to the call.
    #[inline]
    pub fn is_pairwise(&self) -> bool {
        self.uneven.as_ref().is_some_and(|uneven| uneven.is_pairwise())
    }

    /// Bytes of the longest buffer that any rank has in the call, times the ranks; `None` where blocks differ, and with them what ranks know.
    pub(super) fn longest_buffers(&self) -> Option<usize> {
        let Spec { collective, ranks, root, .. } = self.spec;
        let blocks =
            collective.input_blocks(ranks, root, root).max(collective.output_blocks(ranks, root, root));
        let of_all = self.block.saturating_mul(blocks as usize).saturating_mul(ranks as usize);
        self.uneven.is_none().then_some(of_all)
    }

    /// How many tiles a chunk of so many bytes needs.
    pub fn tiles_of(&self, bytes: usize) -> usize {
        tiles(bytes, self.tile)
    }

    /// How often each lane is run; at least once, and the same on every rank. Where ranks know the lengths of
    /// their own blocks only, the most often that any lane is.
    #[inline]
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// The longest piece in bytes: what a scratch piece and a link's slot must hold.
    #[inline]
    pub fn longest_piece(&self) -> usize {
        self.tile.min(self.part).min(self.block)
    }

    /// Length of the send buffer in bytes.
    #[inline]
    pub fn input_bytes(&self) -> usize {
        self.input
    }

    /// Length of the receive buffer in bytes.
    #[inline]
    pub fn output_bytes(&self) -> usize {
        self.output
    }

    /// Offset and length in bytes of what a reduction writes.
    #[inline]
    pub(super) fn result(&self) -> (usize, usize) {
        match &self.uneven {
            None => (0, self.output),
            Some(uneven) => uneven.result(),
        }
    }

    /// Whether buffers are long enough for the call.
    #[inline]
    pub fn check(&self, buffers: &Buffers<'_>) -> Result<()> {
        if buffers.input().len() < self.input || buffers.output().len() < self.output {
            return Err(self.short(buffers));
        }
        Ok(())
    }

    #[cold]
    fn short(&self, buffers: &Buffers<'_>) -> Error {
        Error::invalid(
            format!("buffers of {} and {} bytes", buffers.input().len(), buffers.output().len()),
            format!("this {} reads {} and writes {} bytes", self.spec.collective, self.input, self.output),
        )
    }

    /// Size of one element in bytes.
    #[inline]
    pub fn element_bytes(&self) -> usize {
        self.element
    }

    /// The bytes of tile `tile` of chunk `chunk` within its buffer; empty past the chunk's end. For blocks of
    /// one length, of which both buffers are made alike.
    pub fn piece(&self, chunk: u32, tile: usize) -> Range<usize> {
        let span = self.input_span(Place::of(chunk, self.spec.parts));
        let (at, len) = span.piece(tile * self.tile, self.tile);
        at..at + len
    }

    /// Where the buffers of an in-place call lie; `None` where this rank has only one of them.
    ///
    /// The overlay follows from [`Collective::in_place_output`](crate::Collective::in_place_output).
    pub fn overlay(&self) -> Option<Overlay> {
        let spec = &self.spec;
        let blocks = spec.collective.input_blocks(spec.ranks, self.rank, spec.root);
        if spec.collective.output_blocks(spec.ranks, self.rank, spec.root) == 0 {
            return None;
        }
        let met = |b| spec.collective.in_place_output(self.rank, b).map(|o| (b as usize, o as usize));
        let (from, into) = (0..blocks).find_map(met)?;
        // Block `from` of the input is block `into` of the output, and one of the two buffers holds the other.
        let input = into.saturating_sub(from) * self.block;
        let output = from.saturating_sub(into) * self.block;
        Some(Overlay {
            bytes: (input + self.input).max(output + self.output),
            input: input..input + self.input,
            output: output..output + self.output,
        })
    }

    /// What the call's plan is for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whose buffers these are.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The bytes of a whole chunk of the send buffer, which must have one of this number.
    pub fn input_chunk(&self, chunk: u32) -> Range<usize> {
        let Span { at, len } = self.input_span(Place::of(chunk, self.spec.parts));
        at..at + len
    }

    /// The same of the receive buffer.
    pub fn output_chunk(&self, chunk: u32) -> Range<usize> {
        let Span { at, len } = self.output_span(Place::of(chunk, self.spec.parts));
        at..at + len
    }

    /// The bytes of a chunk of the send buffer.
    pub(super) fn input_span(&self, place: Place) -> Span {
        self.uneven
            .as_ref()
            .map_or_else(|| self.span(place), |uneven| uneven.input(place.block).span(place.part))
    }

    /// The same of the receive buffer.
    pub(super) fn output_span(&self, place: Place) -> Span {
        self.uneven
            .as_ref()
            .map_or_else(|| self.span(place), |uneven| uneven.output(place.block).span(place.part))
    }

    /// A chunk where blocks of one length lie side by side.
    fn span(&self, place: Place) -> Span {
        let from = (place.part as usize * self.part).min(self.block);
        let end = (from + self.part).min(self.block);
        Span { at: place.block as usize * self.block + from, len: end - from }
    }

    /// The longest piece of a tile in bytes.
    pub fn tile_bytes(&self) -> usize {
        self.tile
    }
}

/// The length of a tile: whole lines if it has one, else whole elements.
fn tile(spec: &Spec, rank: Rank, element: usize, tile_bytes: usize) -> Result<usize> {
    if spec.parts == 0 || spec.ranks == 0 || rank >= spec.ranks {
        return Err(Error::invalid(
            format!("rank {rank} in a plan for {} ranks with {} parts", spec.ranks, spec.parts),
            "at least one part, and ranks from 0 up to their number",
        ));
    }
    if tile_bytes < element {
        return Err(Error::invalid(
            format!("tiles of {tile_bytes} bytes for elements of {element}"),
            "at least one element",
        ));
    }
    Ok(if tile_bytes >= LINE { tile_bytes / LINE * LINE } else { tile_bytes / element * element })
}

/// The length of the parts of a block, all but the last ones; `None` where all together overflow.
pub(super) fn part(block: usize, parts: u32, element: usize) -> Option<usize> {
    if parts == 1 {
        return Some(block);
    }
    let mut part = (block / element).div_ceil(parts as usize) * element;
    if part >= ROUND_FROM {
        part = part.next_multiple_of(LINE);
    }
    part.checked_mul(parts as usize).map(|_| part)
}

/// Tiles that a chunk is cut into; an empty one too has one, since its empty piece travels.
fn tiles(longest: usize, tile: usize) -> usize {
    if longest <= tile { 1 } else { longest.div_ceil(tile) }
}

/// The one buffer of an in-place call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Its length in bytes.
    pub bytes: usize,
    /// The bytes that are the send buffer.
    pub input: Range<usize>,
    /// The bytes that are the receive buffer.
    pub output: Range<usize>,
}

/// A chunk, taken apart once so that no division happens per piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) part: u32,
}

impl Place {
    pub(super) fn of(chunk: u32, parts: u32) -> Place {
        Place { block: chunk / parts, part: chunk % parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Collective;

    fn spec(collective: Collective, ranks: u32, parts: u32) -> Spec {
        Spec::new(collective, ranks, 0, parts)
    }

    #[test]
    fn pieces_cover_each_block_once_and_in_order() {
        for parts in [1, 2, 3, 7, 8, 64] {
            for count in [0, 1, 2, 5, 63, 64, 1000, 4096, 5003] {
                for tile_bytes in [8, 24, 64, 100, 1024, 1 << 20] {
                    let spec = spec(Collective::AllGather, 3, parts);
                    let layout = Layout::new(&spec, 1, count, DataType::F64, tile_bytes).expect("valid");
                    assert_eq!((layout.input_bytes(), layout.output_bytes()), (count * 8, count * 24));
                    let mut next = 0;
                    for chunk in 0..3 * parts {
                        for tile in 0..layout.tiles() {
                            let piece = layout.piece(chunk, tile);
                            assert!(piece.len() <= tile_bytes && piece.len() <= layout.longest_piece());
                            assert_eq!((piece.start % 8, piece.end % 8), (0, 0));
                            if !piece.is_empty() {
                                assert_eq!(piece.start, next);
                                next = piece.end;
                            }
                        }
                        assert!(layout.piece(chunk, layout.tiles()).is_empty(), "too few tiles");
                    }
                    assert_eq!(next, count * 24);
                }
            }
        }
    }

    #[test]
    fn long_parts_begin_on_lines_and_short_ones_are_even() {
        let spec = spec(Collective::AllReduce, 4, 4);
        let long = Layout::new(&spec, 0, 2003, DataType::F32, 1 << 20).expect("valid");
        assert!((0..4).all(|c| long.piece(c, 0).start.is_multiple_of(64)));
        let short = Layout::new(&spec, 0, 10, DataType::F32, 1 << 20).expect("valid");
        let lens: Vec<_> = (0..4).map(|c| short.piece(c, 0).len() / 4).collect();
        assert_eq!(lens, [3, 3, 3, 1]);
    }

    #[test]
    fn in_place_buffers_lie_as_in_nccl() {
        let at = |collective, rank| {
            let layout = Layout::new(&spec(collective, 4, 2), rank, 10, DataType::F32, 64).expect("valid");
            layout.overlay().map(|o| (o.bytes, o.input, o.output))
        };
        assert_eq!(at(Collective::AllReduce, 1), Some((40, 0..40, 0..40)));
        assert_eq!(at(Collective::AllToAll, 3), Some((160, 0..160, 0..160)));
        assert_eq!(at(Collective::AllGather, 2), Some((160, 80..120, 0..160)));
        assert_eq!(at(Collective::ReduceScatter, 3), Some((160, 0..160, 120..160)));
        assert_eq!(at(Collective::Scatter, 0), Some((160, 0..160, 0..40)));
        assert_eq!(at(Collective::Scatter, 1), None);
        assert_eq!(at(Collective::Gather, 1), None);
        assert_eq!(at(Collective::Reduce, 0), Some((40, 0..40, 0..40)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let spec = spec(Collective::AllGather, 4, 1);
        let at = |count, tile| Layout::new(&spec, 0, count, DataType::F64, tile);
        assert!(at(usize::MAX / 8, 64).is_err(), "one block is longer than memory");
        assert!(at(isize::MAX as usize / 16, 64).is_err(), "four blocks are longer than memory");
        assert!(at(1, 7).is_err(), "an element does not fit a tile");
        assert!(Layout::new(&spec, 4, 1, DataType::F64, 64).is_err(), "no such rank");
    }
}
