//! Memory under two addresses: one for programs, and the fake's own.

use crate::work::Span;
use libc::{MAP_FAILED, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a memfd.
pub(crate) struct Mapping {
    /// Where programs believe it to be.
    shown: *mut c_void,
    /// Where the bytes can be reached.
    inner: *mut u8,
    len: usize,
}

// SAFETY: addresses of mappings that live as long as it does.
unsafe impl Send for Mapping {}
// SAFETY: as above; who copies from and to it answers for the order, as on a device.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// So many bytes of zeros; where the host must not touch them, or where it may.
    pub(crate) fn new(len: usize, is_hidden: bool) -> Option<Mapping> {
        let len = len.max(1);
        // SAFETY: a name; new mappings of a file of our own, which stays as long as they do.
        unsafe {
            let file = libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC);
            if file < 0 {
                return None;
            }
            let map = |rights| libc::mmap(null_mut(), len, rights, MAP_SHARED, file, 0);
            let fits = libc::ftruncate(file, len as libc::off_t) == 0;
            let inner = if fits { map(PROT_READ | PROT_WRITE) } else { MAP_FAILED };
            let shown = if inner != MAP_FAILED && is_hidden { map(PROT_NONE) } else { inner };
            libc::close(file);
            if shown == MAP_FAILED {
                return None;
            }
            Some(Mapping { shown, inner: inner.cast(), len })
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.shown.addr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies from another, or from itself.
    pub(crate) fn copy(&self, offset: usize, from: &Span, len: usize) {
        assert!(offset + len <= self.len && from.offset + len <= from.mapping.len, "copy past an end");
        // SAFETY: both ranges lie inside; the two may be one.
        unsafe { std::ptr::copy(from.mapping.inner.add(from.offset), self.inner.add(offset), len) };
    }

    /// Sets bytes from an offset on.
    pub(crate) fn fill(&self, offset: usize, byte: u8, len: usize) {
        assert!(offset + len <= self.len, "filled past the end");
        // SAFETY: inside.
        unsafe { self.inner.add(offset).write_bytes(byte, len) };
    }

    /// The number at an offset.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "no number there");
        // SAFETY: inside and aligned; who writes it does so atomically.
        unsafe { AtomicU32::from_ptr(self.inner.add(offset).cast()) }.load(Ordering::Acquire)
    }

    /// The bytes from an offset into `to`, or the other way.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len, "read past the end");
        // SAFETY: inside; `to` is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(self.inner.add(offset), to.as_mut_ptr(), to.len()) };
    }

    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.len, "written past the end");
        // SAFETY: inside; `from` is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.inner.add(offset), from.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The address of freed device memory is left without rights and never given out again: the driver too keeps
        // its range of addresses, and a use of it dies.
        // SAFETY: a mapping of our own, which nobody uses any more.
        unsafe { libc::munmap(self.inner.cast(), self.len) };
    }
}
