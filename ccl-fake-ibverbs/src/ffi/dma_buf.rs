//! Memory of the devices of ccl-fake-cuda, which is a file.
//!
//! A device that wants flushes has behind the bytes as much room again, where writes wait, and a list of them: a number of 64 bits that
//! says how many there were, one by which the list is known, and then offset and length of each, in turns.

use super::pointer;
use crate::world::{DmaBuf, Errno};
use libc::{MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a list.
const LIST: u64 = 1 << 20;
const ENTRIES: u64 = LIST / 16 - 1;
const KNOWN_BY: u64 = 0x6c61_7465_6c69_7374;

fn errno() -> Errno {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Maps a file that has so many bytes from an offset on.
pub(super) fn map(fd: c_int, offset: u64, length: usize) -> Result<DmaBuf, Errno> {
    // SAFETY: numbers, and room for what is asked.
    let size = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut about) != 0 {
            return Err(errno());
        }
        about.st_size as u64
    };
    if length == 0 || size < offset + length as u64 {
        return Err(libc::EINVAL);
    }
    let mut known_by = 0u64;
    let list = size.wrapping_sub(LIST);
    // SAFETY: room for a number.
    let read = unsafe { libc::pread(fd, (&raw mut known_by).cast(), 8, list.wrapping_add(8).cast_signed()) };
    let is_late = size > LIST && read == 8 && known_by == KNOWN_BY;
    // SAFETY: a new mapping of a file that is as long.
    let at = unsafe { libc::mmap(null_mut(), size as usize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) };
    if at == MAP_FAILED {
        return Err(errno());
    }
    let base = at.expose_provenance() as u64;
    let late = is_late.then_some((base + list / 2 + offset, base + list));
    Ok(DmaBuf { at: base + offset, base, mapped: size as usize, late })
}

pub(super) fn unmap(dma_buf: DmaBuf) {
    // SAFETY: mapped by `map`, and its region is gone.
    unsafe { libc::munmap(pointer(dma_buf.base).cast(), dma_buf.mapped) };
}

/// Notes that bytes wait. One at a time does so.
pub(super) fn note(list: u64, from: u64, len: u64) {
    let word = |index: u64| {
        // SAFETY: inside of the list, aligned; every access is atomic.
        unsafe { AtomicU64::from_ptr(pointer(list + 8 * index).cast()) }
    };
    let count = word(0).load(Ordering::Acquire);
    let entry = 2 + 2 * (count % ENTRIES);
    word(entry).store(from, Ordering::Relaxed);
    word(entry + 1).store(len, Ordering::Relaxed);
    word(0).store(count + 1, Ordering::Release);
}
