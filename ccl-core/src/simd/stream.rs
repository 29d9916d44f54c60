//! Stores that go past the caches.
//!
//! A plain store first fetches the line that it writes. Who writes whole lines that nobody reads soon saves that
//! traffic, and leaves the caches to others. So reductions put a [`STRIDE`] of results into the first cache, as ever, and
//! from there they stream out: the kernels know nothing of it, and a result does not depend on it.

use super::copy::copy_one;
use super::reducer::{Reducer, Source};
use super::strides::{self, SOURCES};
use super::{Piece, PieceMut, Store};

/// How much is combined at a time, and the least that streams: a small part of the first cache, next to what is
/// read.
pub(super) const STRIDE: usize = 4096;

/// The line that a store past the caches has to fill.
const LINE: usize = 64;

#[repr(C, align(64))]
struct Stage([u8; STRIDE]);

/// Whether any of `sinks` is to be written past the caches, and may be.
#[inline]
pub(super) fn streams(sources: usize, sinks: &[PieceMut]) -> bool {
    cfg!(target_arch = "x86_64")
        && sources <= SOURCES
        && sinks.iter().any(|sink| sink.store() == Store::Streaming)
}

/// Combines `sources` into `sinks`, some of which [stream](streams).
#[cold]
pub(super) fn reduce(reducer: &Reducer, sources: &[Source], sinks: &[PieceMut]) {
    let mut stage = Stage([0; STRIDE]);
    let first = first_stride(sinks, reducer.dtype().size());
    strides::each(sources, first, STRIDE, |sources, at, len| {
        // SAFETY: the stage is a variable of this function, apart from everything and as long, since there are few enough
        // sources; the parts are whole elements of pieces of one length.
        let staged = unsafe {
            let staged = PieceMut::new(stage.0.as_mut_ptr(), len);
            reducer.combine(sources, &[staged]);
            staged
        };
        write(staged.as_piece(), sinks, at);
    });
    fence();
}

/// Copies `from` to `sinks`, some of which [stream](streams).
#[cold]
pub(super) fn copy(from: Piece, sinks: &[PieceMut]) {
    if let [_] = sinks {
        write(from, sinks, 0);
        return fence();
    }
    let mut at = 0;
    let mut len = first_stride(sinks, 1);
    while at < from.len() {
        len = len.min(from.len() - at);
        write(from.slice(at, len), sinks, at);
        at += len;
        len = STRIDE;
    }
    fence();
}

/// Such that the others start on a line of the first streaming sink. Whole elements.
fn first_stride(sinks: &[PieceMut], element: usize) -> usize {
    let streaming = sinks.iter().find(|sink| sink.store() == Store::Streaming);
    let past = streaming.map_or(0, |sink| sink.as_mut_ptr().addr() % LINE);
    STRIDE - past.next_multiple_of(element)
}

/// Writes `from` to every sink from byte `at` on, as each wants it.
fn write(from: Piece, sinks: &[PieceMut], at: usize) {
    for sink in sinks {
        let into = sink.slice(at, from.len()).as_mut_ptr();
        match sink.store() {
            Store::Cached => copy_one(from.as_ptr(), into, from.len()),
            Store::Streaming => stream(from.as_ptr(), into, from.len()),
        }
    }
}

/// Copies `len` bytes, which the two pieces that the addresses come from have: whole lines past the caches.
#[cfg(target_arch = "x86_64")]
fn stream(from: *const u8, into: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    if std::ptr::eq(from, into) {
        return;
    }
    let head = into.align_offset(LINE).min(len);
    copy_one(from, into, head);
    let body = (len - head) / LINE * LINE;
    for line in (head..head + body).step_by(LINE) {
        // SAFETY: the line lies inside both pieces, and in the sink on its boundary.
        unsafe {
            let (from, into) = (from.add(line), into.add(line));
            let word = |index: usize| _mm_loadu_si128(from.add(index * WORD).cast());
            let (a, b, c, d) = (word(0), word(1), word(2), word(3));
            _mm_stream_si128(into.cast(), a);
            _mm_stream_si128(into.add(WORD).cast(), b);
            _mm_stream_si128(into.add(2 * WORD).cast(), c);
            _mm_stream_si128(into.add(3 * WORD).cast(), d);
        }
    }
    let tail = head + body;
    // SAFETY: at most where the pieces end.
    let (from, into) = unsafe { (from.add(tail), into.add(tail)) };
    copy_one(from, into, len - tail);
}

/// Stores past the caches come after others in no order. This puts them before what follows: the flag that tells
/// another thread or process of the bytes.
#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: every x86-64 has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(from: *const u8, into: *mut u8, len: usize) {
    copy_one(from, into, len);
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{DataType, ReduceOp};
    use crate::simd::Level;

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

    /// Around a stride and several, whole lines and not.
    const LENGTHS: [usize; 8] =
        [64, STRIDE - 8, STRIDE, STRIDE + 8, STRIDE + 64, 2 * STRIDE - 8, 3 * STRIDE + 136, 70_000];

    #[test]
    fn results_are_those_of_plain_stores_at_every_level_type_length_and_alignment() {
        use Store::{Cached, Streaming};
        let skews: [&[(usize, Store)]; 5] = [
            &[(0, Streaming)],
            &[(8, Streaming)],
            &[(3, Streaming)],
            &[(16, Streaming), (61, Streaming)],
            &[(1, Cached), (40, Streaming), (0, Cached)],
        ];
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
                        reducer.apply(&sources, &plain.pieces(len));
                        let right = plain.0[0].0[plain.0[0].1..][..len].to_vec();
                        for starts in skews {
                            let mut sinks = Sinks::new(len, starts);
                            reducer.apply(&sources, &sinks.pieces(len));
                            sinks.check(&right, &format!("{level} {dtype} {op} of {count}, {len} bytes"));
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
        reducer.apply(&[Source { piece: sink.as_piece(), scaled: true }, source(&other)], &[sink]);
        reducer.apply(&[Source { piece: sink.as_piece(), scaled: true }], &[sink]);
        assert!(own == right);
    }

    #[test]
    fn more_sources_than_fit_are_stored_as_usual() {
        let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, 2).expect("valid");
        let ones = vec![1; 2 * STRIDE];
        for count in [SOURCES, SOURCES + 1] {
            let mut sinks = Sinks::new(ones.len(), &[(0, Store::Streaming)]);
            reducer.apply(&vec![source(&ones); count], &sinks.pieces(ones.len()));
            sinks.check(&vec![count as u8; ones.len()], "sum of ones");
        }
    }
}
