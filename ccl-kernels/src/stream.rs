//! Stores that go past the caches.
//!
//! A plain store first fetches the line that it writes. Who writes whole lines that nobody reads soon saves that
//! traffic, and leaves the caches to others.

use super::copy::{copy_cached, copy_one};
use super::{Piece, PieceMut, Store};

/// The least that is copied so, and how much to one sink before the next.
pub(crate) const STRIDE: usize = 4096;

/// The line that a store past the caches has to fill.
pub(crate) const LINE: usize = 64;

/// The first of `sinks` that is to be written past the caches, and may be.
#[inline]
pub(crate) fn first(sinks: &[PieceMut]) -> Option<&PieceMut> {
    sinks.iter().find(|sink| cfg!(target_arch = "x86_64") && sink.store() == Store::Streaming)
}

/// Copies `from` to `sinks`, some of which [stream](first).
#[cold]
pub(crate) fn copy(from: Piece, sinks: &[PieceMut]) {
    if let [sink] = sinks {
        write(from, *sink);
        return fence();
    }
    let (mut at, mut len) = (0, STRIDE - first(sinks).map_or(0, |sink| sink.as_mut_ptr().addr() % LINE));
    while at < from.len() {
        len = len.min(from.len() - at);
        sinks.iter().for_each(|sink| write(from.slice(at, len), sink.slice(at, len)));
        at += len;
        len = STRIDE;
    }
    fence();
}

/// How many bytes of a sink come before its first line. Whole elements.
pub(crate) fn head(sink: PieceMut, element: usize) -> usize {
    let past = sink.as_mut_ptr().addr() % LINE;
    past.next_multiple_of(LINE) - past.next_multiple_of(element)
}

/// Writes `from` to a sink of its length, as it wants it. What goes past the caches needs a [`fence`].
pub(crate) fn write(from: Piece, sink: PieceMut) {
    match sink.store() {
        Store::Cached | Store::Words => copy_cached(from, sink),
        Store::Streaming => stream(from.as_ptr(), sink.as_mut_ptr(), from.len()),
    }
}

/// Copies `len` bytes, which the two pieces that the addresses come from have: whole lines past the caches.
#[inline(never)]
pub(crate) fn stream(from: *const u8, into: *mut u8, len: usize) {
    if std::ptr::eq(from, into) {
        return;
    }
    let head = into.align_offset(LINE).min(len);
    let tail = head + (len - head) / LINE * LINE;
    copy_one(from, into, head);
    // SAFETY: all lies inside both pieces; from `head` on the sink has whole lines up to `tail`.
    unsafe {
        whole_lines(from.add(head), into.add(head), tail - head);
        copy_one(from.add(tail), into.add(tail), len - tail);
    }
}

/// Copies whole lines past the caches, to where lines begin.
///
/// # Safety
/// The addresses are good for `len` bytes, and apart.
#[cfg(target_arch = "x86_64")]
unsafe fn whole_lines(from: *const u8, into: *mut u8, len: usize) {
    #[target_feature(enable = "avx")]
    unsafe fn with_avx(from: *const u8, into: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { strip(from, into, len) }
    }

    if is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, and AVX is there.
        unsafe { with_avx(from, into, len) }
    } else {
        copy_one(from, into, len);
    }
}

/// [`whole_lines`] for code that is compiled with AVX.
///
/// # Safety
/// That of `whole_lines`, and the CPU has AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn strip(from: *const u8, into: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    const WORD: usize = size_of::<__m256i>();
    for line in (0..len).step_by(LINE) {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, into) = (from.add(line), into.add(line));
            let (a, b) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(WORD).cast()));
            _mm256_stream_si256(into.cast(), a);
            _mm256_stream_si256(into.add(WORD).cast(), b);
        }
    }
}

/// Nothing streams here.
///
/// # Safety
/// The addresses are good for `len` bytes, and apart.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn strip(from: *const u8, into: *mut u8, len: usize) {
    copy_one(from, into, len);
}

#[cfg(not(target_arch = "x86_64"))]
use strip as whole_lines;

/// Stores past the caches come after others in no order. This puts them before what follows: the flag that tells
/// another thread or process of the bytes.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence() {
    // SAFETY: every x86-64 has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fence() {}
