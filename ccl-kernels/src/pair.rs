//! The kernels for two sources and one sink, as nearly all calls of two ranks are made of: one block after the other.
//!
//! Four blocks at a time, as [`super::wide`] takes them, read ahead of what they write, and the processor then fetches
//! lines that another core has just written in an order that its prefetchers make nothing of. A whole all-reduce of 2
//! ranks (float32, Zen 5, near cores) takes this part of the time: 1 KiB 0.88, 1.5 KiB 0.79, 4 KiB 0.93, 8 and 16 KiB
//! 0.95, in mapped memory 8 and 16 KiB 0.82 to 0.85, 32 KiB 0.95, 256 KiB 0.91, 1 MiB in place 0.92; 512 bytes 1.02,
//! else the same. Packed types gain nothing, and sums that are scaled or go past the caches have more to do per block:
//! the wide kernels make these.

use super::number::Number;
use super::op::Op;
use super::reducer::Job;
use super::wide::{self, combine, load, store};
use std::arch::asm;

/// Compiled for what the target always has.
///
/// # Safety
/// As [`wide::neon`].
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn neon<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pair::<N, O>(job) {
            Some(pieces) => all::<N, O, W>(pieces, job.bytes),
            None => wide::neon::<N, O, W>(job),
        }
    }
}

/// # Safety
/// As [`wide::avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(crate) unsafe fn avx2<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pair::<N, O>(job) {
            Some(pieces) => all::<N, O, W>(pieces, job.bytes),
            None => wide::avx2::<N, O, W>(job),
        }
    }
}

/// # Safety
/// As [`wide::avx512`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn avx512<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match pair::<N, O>(job) {
            Some(pieces) => all::<N, O, W>(pieces, job.bytes),
            None => wide::avx512::<N, O, W>(job),
        }
    }
}

/// Where two sources and a sink begin.
type Pieces = (*const u8, *const u8, *mut u8);

/// The pieces of a job that is made here.
#[inline(always)]
fn pair<N: Number, O: Op<N::Value>>(job: &Job<'_>) -> Option<Pieces> {
    match (job.sources, job.sinks) {
        ([first, second], [sink])
            if N::BLOCKS && !N::PACKED && job.factor::<N::Value, O>().is_none() && !job.streams =>
        {
            Some((first.piece.as_ptr(), second.piece.as_ptr(), sink.as_mut_ptr()))
        }
        _ => None,
    }
}

/// Combines two sources into one sink, `W` elements to a block.
///
/// # Safety
/// All three are `bytes` long, a multiple of the element's size; the third is one of the others or apart from them.
#[inline(always)]
unsafe fn all<N: Number, O: Op<N::Value>, const W: usize>(pieces: Pieces, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = blocks::<N, O, W>(pieces, 0, bytes);
        let at = blocks::<N, O, 8>(pieces, at, bytes);
        let at = blocks::<N, O, 2>(pieces, at, bytes);
        blocks::<N, O, 1>(pieces, at, bytes);
    }
}

/// Combines blocks of `W` elements, from byte `at` on, and returns where less than a block is left.
///
/// # Safety
/// That of [`all`].
#[inline(always)]
unsafe fn blocks<N: Number, O: Op<N::Value>, const W: usize>(
    (first, second, sink): Pieces,
    mut at: usize,
    bytes: usize,
) -> usize {
    while bytes - at >= W * size_of::<N>() {
        // SAFETY: the block lies inside all three; both sources are read before the sink is written.
        unsafe {
            let mut sum = load::<N, W, 1>(first.add(at).cast::<N>());
            combine::<N::Value, O, W, 1>(&mut sum, &load::<N, W, 1>(second.add(at).cast()));
            store(&sum, sink.add(at).cast::<N>());
        }
        at += W * size_of::<N>();
        // SAFETY: it does nothing. The compiler would make one loop over words of many blocks of this loop over blocks.
        unsafe { asm!("/* {0} */", inout(reg) at, options(nomem, nostack, preserves_flags)) }
    }
    at
}
