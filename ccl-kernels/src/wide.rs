//! The fast kernels: one generic body over blocks of elements, compiled once per instruction set.
//!
//! There are two ways through it. Where a value is an element or nearly so ([`Number::BLOCKS`]), a block is up to 32
//! values in 32 to 128 bytes: the body holds up to 64 values in registers (two blocks, where sums go past the caches)
//! while it goes through the sources, so every source is read once and every sink written once, and the operations are
//! elementwise on arrays of constant length, which the compiler turns into the vector instructions that the instruction
//! set has; pairs of sources go [block by block](super::pair). Elsewhere such arrays come out as scalar code; plain
//! loops over a [`RUN`] of elements do not, whatever is in them, and cost a copy of the result within the first cache.
//! No operation is fused or reordered: the bits are those of the [scalar twin](super::scalar).

use super::copy::copy_one;
use super::number::{Number, Value};
use super::op::Op;
use super::reducer::{Job, Source};
use super::{Store, stream};
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Compiled for what the target always has: NEON on aarch64, SSE2 on x86-64.
///
/// # Safety
/// As [`reduce`].
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn neon<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<N, O, W>(job) }
}

/// # Safety
/// As [`reduce`], and the CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,f16c")]
pub(crate) unsafe fn avx2<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<N, O, W>(job) }
}

/// # Safety
/// As [`reduce`], and the CPU has AVX2, F16C and AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn avx512<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<N, O, W>(job) }
}

/// Combines all sources into all sinks, `W` elements to a block.
///
/// # Safety
/// The job's pieces are all of one length, a multiple of the element's size, and there is a source.
#[inline(always)]
unsafe fn reduce<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    let elements = job.bytes / size_of::<N>();
    let mut at = 0;
    if !N::BLOCKS {
        while at < elements {
            let len = RUN.min(elements - at);
            // SAFETY: the run lies inside the pieces.
            unsafe { run::<N, O>(job, at, len) }
            at += len;
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        // A loop of its own: the question at each sink would slow the other down. Two blocks: with four, sums of what
        // lies in memory take up to an eighth longer, with one, sums of what lies in the third cache.
        if job.streams {
            at = strips::<N, O, W, 2, true>(job, at, elements);
        }
        // With more than 64 values the compiler takes arrays apart: half as fast, and less.
        at = match W {
            0..=16 => strips::<N, O, W, 4, false>(job, at, elements),
            _ => strips::<N, O, W, 2, false>(job, at, elements),
        };
        at = strips::<N, O, W, 1, false>(job, at, elements);
        if !N::PACKED {
            at = strips::<N, O, 8, 1, false>(job, at, elements);
            at = strips::<N, O, 2, 1, false>(job, at, elements);
        }
        at = strips::<N, O, 1, 1, false>(job, at, elements);
        if N::PACKED && at * size_of::<N>() < job.bytes {
            rest::<N, O>(job, at * size_of::<N>());
        }
    }
}

/// Combines `B` blocks of `W` elements after the other, from element `at` of so many on, and returns where less than
/// that is left.
///
/// # Safety
/// That of [`reduce`].
#[inline(always)]
unsafe fn strips<N: Number, O: Op<N::Value>, const W: usize, const B: usize, const STREAMS: bool>(
    job: &Job<'_>,
    mut at: usize,
    elements: usize,
) -> usize {
    while elements - at >= B * W {
        // SAFETY: the strip lies inside the pieces.
        unsafe { strip::<N, O, W, B, STREAMS>(job, at) }
        at += B * W;
    }
    at
}

/// Combines what is left from byte `at` on, less than a register holds: padded with zeros, which become numbers that
/// nobody looks at.
///
/// # Safety
/// That much is left of all pieces of the job.
#[inline(always)]
unsafe fn rest<N: Number, O: Op<N::Value>>(job: &Job<'_>, at: usize) {
    let len = job.bytes - at;
    // SAFETY: the caller's promise. All sources are read before a sink is written.
    unsafe {
        let (first, others) = job.sources.split_first().unwrap_unchecked();
        let mut sum = padded::<N, O>(job, first, at, len);
        for source in others {
            sum = O::combine(sum, padded::<N, O>(job, source, at, len));
        }
        let result = N::narrow(sum);
        for sink in job.sinks {
            copy_one((&raw const result).cast(), sink.as_mut_ptr().add(at), len);
        }
    }
}

/// The values of the `len` bytes from byte `at` of a source, then zeros.
///
/// # Safety
/// The source has these bytes, fewer than an element of `N`.
#[inline(always)]
unsafe fn padded<N: Number, O: Op<N::Value>>(
    job: &Job<'_>,
    source: &Source,
    at: usize,
    len: usize,
) -> N::Value {
    // SAFETY: the caller's promise.
    unsafe {
        let value = N::part(source.piece.as_ptr().add(at), len).widen();
        match job.factor::<N::Value, O>() {
            Some(factor) if source.scaled => value.multiply(factor),
            _ => value,
        }
    }
}

/// Combines `B` blocks of `W` elements, from element `at` on.
///
/// # Safety
/// They lie inside all pieces of the job.
#[inline(always)]
unsafe fn strip<N: Number, O: Op<N::Value>, const W: usize, const B: usize, const STREAMS: bool>(
    job: &Job<'_>,
    at: usize,
) {
    // SAFETY: the caller's promise. All sources are read before a sink is written, so that a sink may be a
    // source.
    unsafe {
        let (first, others) = job.sources.split_first().unwrap_unchecked();
        let mut sum = load::<N, W, B>(first.piece.as_ptr().cast::<N>().add(at));
        if let Some(factor) = job.factor::<N::Value, O>() {
            if first.scaled {
                scale(&mut sum, factor);
            }
            for source in others {
                let mut next = load::<N, W, B>(source.piece.as_ptr().cast::<N>().add(at));
                if source.scaled {
                    scale(&mut next, factor);
                }
                combine::<N::Value, O, W, B>(&mut sum, &next);
            }
        } else {
            for source in others {
                let next = load::<N, W, B>(source.piece.as_ptr().cast::<N>().add(at));
                combine::<N::Value, O, W, B>(&mut sum, &next);
            }
        }
        for sink in job.sinks {
            let into = sink.as_mut_ptr().cast::<N>().add(at);
            if STREAMS && sink.store() == Store::Streaming {
                let mut results = MaybeUninit::<Lines<[[N; W]; B]>>::uninit();
                store(&sum, results.as_mut_ptr().cast::<N>());
                // Where the compiler knows what is there, it takes registers apart, word by word.
                let results = black_box(results.as_ptr()).cast();
                stream::strip(results, into.cast(), size_of::<[[N; W]; B]>());
            } else {
                store(&sum, into);
            }
        }
    }
}

/// From the beginning of a line: strips on the stack that happen to lie across two pages make a call ten times as long.
#[repr(align(64))]
struct Lines<T>(T);

/// Elements that are combined at a time: in the first cache, and long enough that the loops below pay.
const RUN: usize = 1024;

/// Combines `len` elements, from element `at` on.
///
/// # Safety
/// They lie inside all pieces of the job, and are at most [`RUN`].
#[inline(always)]
unsafe fn run<N: Number, O: Op<N::Value>>(job: &Job<'_>, at: usize, len: usize) {
    let mut results = [const { MaybeUninit::<N>::uninit() }; RUN];
    let results = &mut results[..len];
    // SAFETY: the caller's promise. All sources are read before a sink is written, so that a sink may be a
    // source; the results are filled, since there is a source.
    unsafe {
        match job.factor::<N::Value, O>() {
            None => fold::<N, O, false>(job.sources, at, results, N::Value::one()),
            Some(factor) => fold::<N, O, true>(job.sources, at, results, factor),
        }
        for sink in job.sinks {
            // As bytes: no alignment is promised.
            let into = sink.as_mut_ptr().add(at * size_of::<N>());
            let (results, bytes) = (results.as_ptr().cast(), len * size_of::<N>());
            if job.streams && sink.store() == Store::Streaming {
                stream::stream(results, into, bytes);
            } else {
                into.copy_from_nonoverlapping(results, bytes);
            }
        }
    }
}

/// Fills `results` with what the sources come to, from element `at` on. Up to two sources, values stay in
/// registers from load to store.
///
/// Plain loops without closures: those would be compiled without the instructions of their caller.
///
/// # Safety
/// The sources have that many elements, and are at least one; there are at most [`RUN`] results.
#[inline(always)]
unsafe fn fold<N: Number, O: Op<N::Value>, const SCALES: bool>(
    sources: &[Source],
    at: usize,
    results: &mut [MaybeUninit<N>],
    factor: N::Value,
) {
    // SAFETY: the caller's promise, for every index of a result. Sums are written before they are read.
    unsafe {
        match sources {
            [] => {}
            [only] => {
                let only = Reader::<N, SCALES>::new(only, at, factor);
                for (i, result) in results.iter_mut().enumerate() {
                    result.write(N::narrow(only.read(i)));
                }
            }
            [first, last] => {
                let first = Reader::<N, SCALES>::new(first, at, factor);
                let last = Reader::<N, SCALES>::new(last, at, factor);
                for (i, result) in results.iter_mut().enumerate() {
                    result.write(N::narrow(O::combine(first.read(i), last.read(i))));
                }
            }
            [first, middle @ .., last] => {
                let mut sums = [const { MaybeUninit::<N::Value>::uninit() }; RUN];
                let sums = &mut sums[..results.len()];
                let first = Reader::<N, SCALES>::new(first, at, factor);
                for (i, sum) in sums.iter_mut().enumerate() {
                    sum.write(first.read(i));
                }
                for source in middle {
                    let source = Reader::<N, SCALES>::new(source, at, factor);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        sum.write(O::combine(sum.assume_init(), source.read(i)));
                    }
                }
                let last = Reader::<N, SCALES>::new(last, at, factor);
                for (i, (result, sum)) in results.iter_mut().zip(sums).enumerate() {
                    result.write(N::narrow(O::combine(sum.assume_init(), last.read(i))));
                }
            }
        }
    }
}

/// A source as values, each multiplied by its factor where the call `SCALES`.
struct Reader<N: Number, const SCALES: bool> {
    from: *const N,
    factor: N::Value,
}

impl<N: Number, const SCALES: bool> Reader<N, SCALES> {
    /// # Safety
    /// The source has an element `at`, or ends there.
    #[inline(always)]
    unsafe fn new(source: &Source, at: usize, factor: N::Value) -> Self {
        let factor = if source.scaled { factor } else { N::Value::one() };
        // SAFETY: the caller's promise.
        Reader { from: unsafe { source.piece.as_ptr().cast::<N>().add(at) }, factor }
    }

    /// # Safety
    /// The source has `i` more elements, and one after them.
    #[inline(always)]
    unsafe fn read(&self, i: usize) -> N::Value {
        // SAFETY: the caller's promise.
        let value = unsafe { self.from.add(i).read_unaligned().widen() };
        if SCALES { value.multiply(self.factor) } else { value }
    }
}

/// # Safety
/// There are `B * W` elements at `from`.
#[inline(always)]
pub(crate) unsafe fn load<N: Number, const W: usize, const B: usize>(from: *const N) -> [[N::Value; W]; B] {
    let zero = N::Value::from_bits(0);
    let mut blocks = [[zero; W]; B];
    for (index, block) in blocks.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *block = unsafe { N::load(from.add(index * W)) };
    }
    blocks
}

/// # Safety
/// There is room for `B * W` elements at `into`.
#[inline(always)]
pub(crate) unsafe fn store<N: Number, const W: usize, const B: usize>(
    blocks: &[[N::Value; W]; B],
    into: *mut N,
) {
    for (index, block) in blocks.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { N::store(into.add(index * W), block) }
    }
}

#[inline(always)]
pub(crate) fn combine<V: Value, O: Op<V>, const W: usize, const B: usize>(
    sum: &mut [[V; W]; B],
    next: &[[V; W]; B],
) {
    for b in 0..B {
        for i in 0..W {
            sum[b][i] = O::combine(sum[b][i], next[b][i]);
        }
    }
}

#[inline(always)]
fn scale<V: Value, const W: usize, const B: usize>(blocks: &mut [[V; W]; B], factor: V) {
    for block in blocks {
        for value in block {
            *value = value.multiply(factor);
        }
    }
}
