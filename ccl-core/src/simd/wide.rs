//! The fast kernels: one generic body over blocks of elements, compiled once per instruction set.
//!
//! There are two ways through it. Where a value is an element or nearly so ([`Number::BLOCKS`]), a block is 64 or
//! 128 bytes of values: the body holds four blocks of values in registers
//! while it goes through the sources, so every source is read once and every sink written once, and the
//! operations are elementwise on arrays of constant length, which the compiler turns into the vector
//! instructions that the instruction set has. Elsewhere (conversions) such arrays come out as
//! scalar code, so the values go through a buffer on the stack, [`RUN`] at a time, in plain loops that the
//! compiler vectorises whatever is in them. No operation is fused or reordered: the bits are those of the
//! [scalar twin](super::scalar).

use super::number::{Number, Value};
use super::op::Op;
use super::reducer::Job;
use std::mem::MaybeUninit;

/// Compiled for what the target always has: NEON on aarch64, SSE2 on x86-64.
///
/// # Safety
/// As [`reduce`].
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn neon<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<N, O, W>(job) }
}

/// # Safety
/// As [`reduce`], and the CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn avx2<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<N, O, W>(job) }
}

/// # Safety
/// As [`reduce`], and the CPU has AVX2, F16C and AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn avx512<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
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
    // SAFETY: each strip lies inside the pieces.
    unsafe {
        while elements - at >= 4 * W {
            strip::<N, O, W, 4>(job, at);
            at += 4 * W;
        }
        while elements - at >= W {
            strip::<N, O, W, 1>(job, at);
            at += W;
        }
        while at < elements {
            strip::<N, O, 1, 1>(job, at);
            at += 1;
        }
    }
}

/// Combines `B` blocks of `W` elements, from element `at` on.
///
/// # Safety
/// They lie inside all pieces of the job.
#[inline(always)]
unsafe fn strip<N: Number, O: Op<N::Value>, const W: usize, const B: usize>(job: &Job<'_>, at: usize) {
    // SAFETY: the caller's promise. All sources are read before a sink is written, so that a sink may be a
    // source.
    unsafe {
        let (first, others) = job.sources.split_first().unwrap_unchecked();
        let mut sum = load::<N, W, B>(first.piece.as_ptr().cast::<N>().add(at));
        if let Some(factor) = job.factor {
            let factor = N::Value::from_bits(factor);
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
            for (block, values) in sum.iter().enumerate() {
                N::store(into.add(block * W), values);
            }
        }
    }
}

/// Values that go through the stack at a time: in the first cache with the elements that they come from.
const RUN: usize = 256;

/// Combines `len` elements, from element `at` on.
///
/// # Safety
/// They lie inside all pieces of the job, and are at most [`RUN`].
#[inline(always)]
unsafe fn run<N: Number, O: Op<N::Value>>(job: &Job<'_>, at: usize, len: usize) {
    let mut buffer = [const { MaybeUninit::<N::Value>::uninit() }; RUN];
    let sum = &mut buffer[..len];
    for (index, source) in job.sources.iter().enumerate() {
        // SAFETY: the caller's promise.
        let from = unsafe { source.piece.as_ptr().cast::<N>().add(at) };
        let factor = job.factor.filter(|_| source.scaled).map(N::Value::from_bits);
        for (i, sum) in sum.iter_mut().enumerate() {
            // SAFETY: `i < len`; the first source makes every sum a value, before the second reads it.
            unsafe {
                let value = from.add(i).read_unaligned().widen();
                let value = if let Some(factor) = factor { value.multiply(factor) } else { value };
                sum.write(if index == 0 { value } else { O::combine(sum.assume_init(), value) });
            }
        }
    }
    for sink in job.sinks {
        // SAFETY: the caller's promise; there was a source, so every sum is a value.
        unsafe {
            let into = sink.as_mut_ptr().cast::<N>().add(at);
            for (i, sum) in sum.iter().enumerate() {
                into.add(i).write_unaligned(N::narrow(sum.assume_init()));
            }
        }
    }
}

/// # Safety
/// There are `B * W` elements at `from`.
#[inline(always)]
unsafe fn load<N: Number, const W: usize, const B: usize>(from: *const N) -> [[N::Value; W]; B] {
    let zero = N::Value::from_bits(0);
    let mut blocks = [[zero; W]; B];
    for (index, block) in blocks.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *block = unsafe { N::load(from.add(index * W)) };
    }
    blocks
}

#[inline(always)]
fn combine<V: Value, O: Op<V>, const W: usize, const B: usize>(sum: &mut [[V; W]; B], next: &[[V; W]; B]) {
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
