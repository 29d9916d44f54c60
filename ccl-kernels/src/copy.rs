//! Moves of one source.

use super::{Piece, PieceMut, Store, stream};
use std::ptr;

/// How much is copied to one sink before the next: small enough that the source stays in the first cache.
const STRIDE: usize = 4096;

/// Copies `from` into every one of `into`, which have its length.
#[inline]
pub(crate) fn copy(from: Piece, into: &[PieceMut]) {
    if from.len() >= stream::STRIDE && stream::first(into).is_some() {
        return stream::copy(from, into);
    }
    if let [sink] = into {
        copy_cached(from, *sink);
        return;
    }
    let mut at = 0;
    while at < from.len() {
        let len = STRIDE.min(from.len() - at);
        for sink in into {
            copy_cached(from.slice(at, len), sink.slice(at, len));
        }
        at += len;
    }
}

/// Copies a piece to one of its length, into the caches.
#[inline(always)]
pub(crate) fn copy_cached(from: Piece, into: PieceMut) {
    assert!(from.len() == into.len(), "a piece is copied to one of another length");
    if into.store() == Store::Words && from.len() >= LONG && !ptr::eq(from.as_ptr(), into.as_mut_ptr()) {
        // SAFETY: both are of this length, and by the contract of pieces apart.
        return unsafe { by_words(from.as_ptr(), into.as_mut_ptr(), from.len()) };
    }
    copy_one(from.as_ptr(), into.as_mut_ptr(), from.len());
}

/// Copies `len` bytes, which the two pieces that the addresses come from have.
#[inline(always)]
pub(crate) fn copy_one(from: *const u8, into: *mut u8, len: usize) {
    if ptr::eq(from, into) {
        return;
    }
    // SAFETY: readable and writable for `len` bytes, and by the contract of pieces either one and the same
    // (excluded above) or apart. The short cases read all before they write and stay within `len`.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                let (first, middle, last) = (from.read(), from.add(len / 2).read(), from.add(len - 1).read());
                into.write(first);
                into.add(len / 2).write(middle);
                into.add(len - 1).write(last);
            }
            4..=7 => ends::<u32>(from, into, len),
            8..=16 => ends::<u64>(from, into, len),
            17..=32 => ends::<[u64; 2]>(from, into, len),
            33..=64 => ends::<[u64; 4]>(from, into, len),
            LONG.. if is_close_behind(from, into) => by_words(from, into, len),
            _ => ptr::copy_nonoverlapping(from, into, len),
        }
    }
}

/// From about so many bytes on the C library copies by `rep movsb`.
const LONG: usize = 2048;

/// Whether the sink begins less than a line after the source, but for whole pages between them. Zen 3 and 4 then take the two for
/// overlapping, and `rep movsb` copies 3 to 17 GB/s where it is 30 otherwise; not every C library keeps off it. So lie the buffers that `malloc` maps,
/// 16 bytes after the beginning of a page, beside slots, which begin there.
#[inline(always)]
fn is_close_behind(from: *const u8, into: *mut u8) -> bool {
    const PAGE: usize = 4096;
    cfg!(target_arch = "x86_64") && (into.addr().wrapping_sub(from.addr()).wrapping_sub(1)) % PAGE < 63
}

/// How far ahead of itself a copy by words asks for what it reads, which another core may have.
const AHEAD: usize = 1024;

/// Copies by loads and stores, 128 bytes at a time.
///
/// # Safety
/// Both addresses are good for `len` bytes, and apart.
#[inline(never)]
unsafe fn by_words(from: *const u8, into: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx")]
        unsafe fn with_avx(from: *const u8, into: *mut u8, len: usize) {
            // SAFETY: the caller's promise.
            unsafe { words(from, into, len) }
        }

        if is_x86_feature_detected!("avx") {
            // SAFETY: the caller's promise, and AVX is there.
            return unsafe { with_avx(from, into, len) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { words(from, into, len) }
}

/// [`by_words`], by registers as long as those of the code that it is compiled into.
///
/// # Safety
/// That of `by_words`.
#[inline(always)]
unsafe fn words(from: *const u8, into: *mut u8, len: usize) {
    type Words = [u128; 8];
    const STEP: usize = size_of::<Words>();
    let whole = len / STEP * STEP;
    // SAFETY: the caller's promise; each lies within `len` bytes.
    unsafe {
        for at in (0..whole).step_by(STEP) {
            // Not beyond what is read: there may be what another core writes just now.
            if at + AHEAD + STEP <= len {
                fetch(from.add(at + AHEAD));
                fetch(from.add(at + AHEAD + STEP / 2));
            }
            let words = from.add(at).cast::<Words>().read_unaligned();
            into.add(at).cast::<Words>().write_unaligned(words);
        }
        copy_one(from.add(whole), into.add(whole), len - whole);
    }
}

/// Asks for a line that is to be read soon.
#[inline(always)]
fn fetch(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, which reads nothing and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// Copies the first and the last `T` of `len` bytes; together they are all of them.
///
/// # Safety
/// `size_of::<T>() <= len <= 2 * size_of::<T>()`; both addresses are good for `len` bytes.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, into: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: both places lie within `len` bytes.
    unsafe {
        let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        into.cast::<T>().write_unaligned(a);
        into.add(last).cast::<T>().write_unaligned(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_to_every_number_of_sinks() {
        let from: Vec<u8> = (0..10_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..200).chain([4095, 4096, 4097, 9000]) {
            for (sinks, store) in (1..=3).flat_map(|sinks| [(sinks, Store::Cached), (sinks, Store::Words)]) {
                let mut into = vec![vec![0xa5u8; len + 2]; sinks];
                // SAFETY: vectors of this test, long enough and apart.
                unsafe {
                    let pieces: Vec<PieceMut> = into
                        .iter_mut()
                        .map(|v| PieceMut::new(v.as_mut_ptr().add(1), len).stored(store))
                        .collect();
                    copy(Piece::new(from.as_ptr().add(3), len), &pieces);
                }
                for v in &into {
                    assert_eq!(v[1..=len], from[3..3 + len], "{len} bytes to {sinks} sinks, {store:?}");
                    assert_eq!((v[0], v[len + 1]), (0xa5, 0xa5), "wrote outside of {len} bytes");
                }
            }
        }
    }

    #[test]
    fn close_behind_its_source_but_for_whole_pages() {
        let from: Vec<u8> = (0..3 * 4096u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for behind in [1, 4, 16, 63, 64] {
            for len in [LONG - 1, LONG, LONG + 1, LONG + 63, 4200] {
                let mut into = vec![0xa5u8; from.len() + 2 * 4096];
                // As the source begins in its page, but for so many bytes more.
                let first = (from.as_ptr().addr().wrapping_sub(into.as_ptr().addr())) % 4096 + behind;
                // SAFETY: vectors of this test, long enough and apart.
                let sink = unsafe { PieceMut::new(into.as_mut_ptr().add(first), len) };
                assert_eq!(
                    is_close_behind(from.as_ptr(), sink.as_mut_ptr()),
                    behind < 64 && cfg!(target_arch = "x86_64")
                );
                // SAFETY: as above.
                copy(unsafe { Piece::new(from.as_ptr(), len) }, &[sink]);
                assert_eq!(into[first..first + len], from[..len], "{len} bytes {behind} behind");
                assert_eq!(
                    (into[first - 1], into[first + len]),
                    (0xa5, 0xa5),
                    "wrote outside of {len} bytes"
                );
            }
        }
    }

    #[test]
    fn onto_itself_is_nothing_to_do() {
        let mut bytes = *b"in place";
        // SAFETY: an array of this test; the same bytes as source and sink, as the contract allows.
        unsafe {
            let sink = PieceMut::new(bytes.as_mut_ptr(), 8);
            copy(sink.as_piece(), &[sink]);
        }
        assert_eq!(&bytes, b"in place");
    }
}
