//! What is done with whole pages, and which addresses are the heap's.

use libc::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Slabs begin on a multiple of it, and are as many times as long.
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// Addresses of programs end here.
const END: usize = 1 << 47;

/// A bit for each huge page that is in a slab. Only what is looked at takes memory: a page of it stands for 64 GiB.
static OWNED: [AtomicU64; END / HUGE_PAGE / 64] = [const { AtomicU64::new(0) }; END / HUGE_PAGE / 64];

/// Whether an address lies in a slab.
#[inline]
pub(super) fn owns(at: usize) -> bool {
    let page = at / HUGE_PAGE;
    let word = OWNED.get(page / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (page % 64) & 1 != 0)
}

pub(super) fn set_owned(start: usize, length: usize, owned: bool) {
    for page in start / HUGE_PAGE..(start + length) / HUGE_PAGE {
        let bit = 1 << (page % 64);
        // Who gets an address of it gets it after this, by what orders threads otherwise.
        match owned {
            true => OWNED[page / 64].fetch_or(bit, Ordering::Relaxed),
            false => OWNED[page / 64].fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// Gives back what lies behind pages of shared memory, which are zero then. False: the kernel refuses.
///
/// # Safety
/// They are a slab's, and nobody uses them.
pub(super) unsafe fn empty(at: usize, length: usize) -> bool {
    // SAFETY: by the contract.
    unsafe { libc::madvise(with_exposed_provenance_mut(at), length, libc::MADV_REMOVE) == 0 }
}

/// The same of memory that is this process's alone.
///
/// # Safety
/// As for [`empty`].
pub(super) unsafe fn empty_private(at: usize, length: usize) {
    // SAFETY: by the contract. Refused, it takes memory as before.
    unsafe { libc::madvise(with_exposed_provenance_mut(at), length, libc::MADV_DONTNEED) };
}

/// Memory of this process alone that holds what these blocks of a slab hold, at the same offsets. `None`: there is none.
///
/// # Safety
/// The slab is a mapping of `fd` from its start on, and the blocks lie in it.
pub(super) unsafe fn copied(
    (start, length, fd): (usize, usize, c_int),
    blocks: impl Iterator<Item = (usize, usize)>,
) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel wants it.
    let copy = unsafe { libc::mmap(null_mut(), length, protection, flags, -1, 0) };
    if copy == libc::MAP_FAILED {
        return None;
    }
    for (at, long) in blocks {
        let (mut from, end) = (at - start, at - start + long);
        // What was never touched has no pages, and gets none by being read.
        while let Some(data) = seek(fd, from, libc::SEEK_DATA).filter(|data| *data < end) {
            let hole = seek(fd, data, libc::SEEK_HOLE).unwrap_or(end).min(end);
            let source = with_exposed_provenance::<u8>(start + data);
            // SAFETY: both are inside of mappings of this length, and do not overlap.
            unsafe { copy.cast::<u8>().add(data).copy_from_nonoverlapping(source, hole - data) };
            from = hole;
        }
    }
    Some(copy.expose_provenance())
}

fn seek(fd: c_int, from: usize, what: c_int) -> Option<usize> {
    // SAFETY: always allowed. Nobody reads or writes by this descriptor, so its position is nobody's.
    usize::try_from(unsafe { libc::lseek(fd, from as libc::off_t, what) }).ok()
}

/// Ends a mapping.
///
/// # Safety
/// It is the caller's, and nobody uses it.
pub(super) unsafe fn unmap(at: usize, length: usize) {
    // SAFETY: by the contract.
    unsafe { libc::munmap(with_exposed_provenance_mut(at), length) };
}

/// Puts a copy in the slab's place; without one, memory that nobody can read: a crash that says where is better than data
/// that two processes write. Makes system calls only.
///
/// # Safety
/// The slab and its copy are mappings of this length, and nobody else runs in this process.
pub(super) unsafe fn replace(start: usize, length: usize, copy: Option<usize>) {
    let at: *mut c_void = with_exposed_provenance_mut(start);
    if let Some(copy) = copy {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: by the contract.
        let moved = unsafe { libc::mremap(with_exposed_provenance_mut(copy), length, length, flags, at) };
        if moved == at {
            return;
        }
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as above.
    unsafe { libc::mmap(at, length, libc::PROT_NONE, flags, -1, 0) };
}
