//! Long pieces: which sinks a kernel writes itself, and which get copies.
//!
//! - What goes [past the caches](stream) the kernel stores so itself, a strip at a time. Where results are first put into the first
//!   cache and leave it a page at a time, reading stands still meanwhile: up to 1.6 times as long. Strips are whole lines; what comes
//!   before the first line of a sink is combined by itself, and sinks whose lines begin elsewhere get copies.
//! - Into the caches the kernel writes one sink, and others are copied from there. A copy writes whole lines; a kernel first asks
//!   for what was in them, and where the other core still holds them it waits for that: up to twice as long, and never less than the
//!   second pass over what lies in the first cache. Between two ranks 256 KiB and 1 MiB take a tenth less time with it in mapped memory, and a
//!   twentieth in other.

use super::stream::{self, LINE};
use super::{Direction, Piece, PieceMut, Reducer, Source};
use std::mem::MaybeUninit;

/// The least that is long, and how much is combined before it is copied: a part of the first cache, next to what is read. Half of it takes up to
/// a twentieth longer; with twice as much next to nothing is gained.
pub(crate) const STRIDE: usize = 8 << 10;

/// The least that is gone through backwards. What a shorter piece reads and writes stays in the first cache from call to call either way.
pub const LEAST_BACKWARDS: usize = 4 * STRIDE;

/// How many sources, and sinks, are told apart at most.
const PIECES: usize = 32;

/// Combined results on their way to sinks that the kernel does not write.
#[repr(C, align(64))]
struct Stage([u8; STRIDE]);

/// Whether a long piece wants more than the kernel.
#[inline]
pub(crate) fn is_for(bytes: usize, sinks: &[PieceMut], direction: Direction) -> bool {
    let is_backwards = direction == Direction::Backwards && bytes >= LEAST_BACKWARDS;
    is_backwards || sinks.len() > 1 || stream::first(sinks).is_some()
}

/// Combines `sources` into `sinks`, what goes past the caches always forwards. Where there are too many pieces, the kernel writes them all, into the caches.
///
/// # Safety
/// That of [`Reducer::combine`].
#[inline(never)]
pub(crate) unsafe fn combine(
    reducer: &Reducer,
    sources: &[Source],
    sinks: &[PieceMut],
    direction: Direction,
) {
    let mut from = [Source { piece: Piece::EMPTY, scaled: false }; PIECES];
    let mut into = [PieceMut::EMPTY; PIECES + 1];
    let Some(from) = from.get_mut(..sources.len()).filter(|_| sinks.len() <= PIECES) else {
        // SAFETY: the caller's promise.
        return unsafe { reducer.combine(sources, sinks, false) };
    };
    let mut stage = MaybeUninit::<Stage>::uninit();
    let streaming = stream::first(sinks);
    let streams = streaming.is_some();
    let head = streaming.map_or(0, |sink| stream::head(*sink, reducer.dtype().size()));
    let is_written = |index: usize| match streams {
        true => (sinks[index].as_mut_ptr().addr() + head).is_multiple_of(LINE),
        false => index == 0,
    };
    let are_copied = !(0..sinks.len()).all(is_written);
    let bytes = sources[0].piece.len();
    let mut combine = |at: usize, len: usize| {
        for (part, source) in from.iter_mut().zip(sources) {
            *part = Source { piece: source.piece.slice(at, len), scaled: source.scaled };
        }
        let mut count = 0;
        for index in (0..sinks.len()).filter(|index| is_written(*index)) {
            into[count] = sinks[index].slice(at, len);
            count += 1;
        }
        if streams && are_copied {
            // SAFETY: a variable of this function, apart from everything, and as long.
            into[count] = unsafe { PieceMut::new(stage.as_mut_ptr().cast(), len) };
            count += 1;
        }
        // SAFETY: the caller's promise, for parts of whole elements.
        unsafe { reducer.combine(from, &into[..count], streams) };
        // The stage, or the only sink so far.
        let result = into[count - 1].as_piece();
        for index in (0..sinks.len()).filter(|index| !is_written(*index)) {
            stream::write(result, sinks[index].slice(at, len));
        }
    };
    let head = head.min(bytes);
    if head > 0 {
        combine(0, head);
    }
    let direction = if streams { Direction::Forwards } else { direction };
    let stride = if are_copied || direction == Direction::Backwards { STRIDE } else { bytes };
    let strides = (bytes - head).div_ceil(stride);
    for done in 0..strides {
        let at = head + direction.part(done, strides) * stride;
        combine(at, stride.min(bytes - at));
    }
    if streams {
        stream::fence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, Level, ReduceOp, Store};

    const FRAME: usize = 64;

    /// Sinks that are stored in one way or the other, with bytes around them that must stay.
    struct Sinks(Vec<(Vec<u8>, usize, Store)>);

    impl Sinks {
        fn new(len: usize, starts: &[(usize, Store)]) -> Sinks {
            let sink = |(skew, store): &(usize, Store)| {
                let memory = vec![0xa5; len + 3 * FRAME];
                let start = FRAME + (0x40 - memory.as_ptr().addr() % 0x40) % 0x40 + skew;
                (memory, start, *store)
            };
            Sinks(starts.iter().map(sink).collect())
        }

        fn pieces(&mut self, len: usize) -> Vec<PieceMut> {
            let piece = |(memory, start, store): &mut (Vec<u8>, usize, Store)| {
                // SAFETY: a vector of this test, long enough, apart from the others.
                unsafe { PieceMut::new(memory[*start..][..len].as_mut_ptr(), len) }.stored(*store)
            };
            self.0.iter_mut().map(piece).collect()
        }

        fn check(&self, right: &[u8], what: &str) {
            for (memory, start, store) in &self.0 {
                assert!(memory[*start..][..right.len()] == *right, "{what}: {store:?} at {start}");
                let around = memory[..*start].iter().chain(&memory[start + right.len()..]);
                assert!(around.copied().all(|byte| byte == 0xa5), "{what}: wrote outside at {start}");
            }
        }
    }

    fn bytes(seed: u32, len: usize) -> Vec<u8> {
        // The highest bits of an exponent stay away from those of infinity: a NaN's bits are no one's promise.
        (0..len as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8 & 0xbf)
            .collect()
    }

    fn source(bytes: &[u8]) -> Source {
        // SAFETY: borrowed by the caller for longer than the source is used.
        Source { piece: unsafe { Piece::new(bytes.as_ptr(), bytes.len()) }, scaled: true }
    }

    /// Around what is long, whole lines and not.
    const LENGTHS: [usize; 9] =
        [64, 4096, STRIDE - 8, STRIDE, STRIDE + 8, STRIDE + 64, 2 * STRIDE - 8, 3 * STRIDE + 136, 70_000];

    #[test]
    fn results_are_those_of_plain_stores_at_every_level_type_length_and_alignment() {
        use Store::{Cached, Streaming};
        let skews: [&[(usize, Store)]; 9] = [
            &[(16, Cached)],
            &[(16, Cached), (0, Cached)],
            &[(16, Streaming), (16, Cached)],
            &[(0, Streaming), (0, Cached), (32, Streaming)],
            &[(0, Streaming)],
            &[(8, Streaming)],
            &[(3, Streaming)],
            &[(16, Streaming), (61, Streaming)],
            &[(1, Cached), (40, Streaming), (0, Cached)],
        ];
        let forwards = skews.map(|starts| (Direction::Forwards, starts));
        let backwards = [0, 1, 2, 8].map(|some| (Direction::Backwards, skews[some]));
        for dtype in DataType::ALL {
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                for (op, count) in
                    [(ReduceOp::Sum, 1), (ReduceOp::Sum, 2), (ReduceOp::Avg, 1), (ReduceOp::Max, 5)]
                {
                    let reducer = Reducer::at(level, dtype, op, 2).expect("available");
                    for len in LENGTHS {
                        let sources: Vec<Vec<u8>> = (0..count).map(|i| bytes(i, len + 1)).collect();
                        let sources: Vec<Source> = sources.iter().map(|bytes| source(&bytes[1..])).collect();
                        let mut plain = Sinks::new(len, &[(5, Cached)]);
                        reducer.apply(&sources, &plain.pieces(len), Direction::Forwards);
                        let right = plain.0[0].0[plain.0[0].1..][..len].to_vec();
                        for (direction, starts) in forwards.into_iter().chain(backwards) {
                            let mut sinks = Sinks::new(len, starts);
                            reducer.apply(&sources, &sinks.pieces(len), direction);
                            let what = format!("{level} {dtype} {op} of {count}, {len} bytes {direction:?}");
                            sinks.check(&right, &what);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_sink_that_is_a_source_too() {
        let reducer = Reducer::new(DataType::I32, ReduceOp::Sum, 2).expect("valid");
        let len = 3 * STRIDE + 20;
        let (mut own, other) = (bytes(1, len), bytes(2, len));
        let wrapped =
            |(a, b): (&[u8; 4], &[u8; 4])| i32::from_le_bytes(*a).wrapping_add(i32::from_le_bytes(*b));
        let right = own.as_chunks().0.iter().zip(other.as_chunks().0).map(wrapped);
        let right: Vec<u8> = right.flat_map(i32::to_le_bytes).collect();
        // SAFETY: a vector of this test; the same bytes as source and sink, as the contract allows.
        let sink = unsafe { PieceMut::new(own.as_mut_ptr(), len) }.stored(Store::Streaming);
        let same = Source { piece: sink.as_piece(), scaled: true };
        reducer.apply(&[same, source(&other)], &[sink], Direction::Forwards);
        reducer.apply(&[same], &[sink], Direction::Forwards);
        assert!(own == right);
    }

    #[test]
    fn more_pieces_than_are_told_apart() {
        let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, 2).expect("valid");
        let ones = vec![1; 2 * STRIDE];
        for (sources, sinks) in [(PIECES, 1), (PIECES + 1, 1), (2, PIECES), (2, PIECES + 1)] {
            let mut sinks = Sinks::new(ones.len(), &vec![(0, Store::Streaming); sinks]);
            reducer.apply(&vec![source(&ones); sources], &sinks.pieces(ones.len()), Direction::Forwards);
            sinks.check(&vec![sources as u8; ones.len()], "sum of ones");
        }
    }
}
