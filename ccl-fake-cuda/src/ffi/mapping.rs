//! Memory under two addresses: one for programs, and the fake's own. Other processes can have it too.

use crate::work::Span;
use libc::{MAP_FAILED, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_short, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a memfd.
pub(crate) struct Mapping {
    /// Where others find the bytes. Whoever has them from another process holds a lock on it for reading.
    file: File,
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
        // SAFETY: a name.
        let file = unsafe { libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(len as u64).ok()?;
        Mapping::of(file, len, is_hidden)
    }

    /// The bytes that a process has made and [names](Mapping::name) so, if they are still there.
    pub(crate) fn open(process: u32, (descriptor, number): (i32, u64), is_hidden: bool) -> Option<Mapping> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        let about = file.metadata().ok()?;
        // Another file may have the descriptor's number by now.
        if about.ino() != number || !lock(&file, libc::F_RDLCK) {
            return None;
        }
        Mapping::of(file, about.len() as usize, is_hidden)
    }

    fn of(file: File, len: usize, is_hidden: bool) -> Option<Mapping> {
        // SAFETY: new mappings of a file that has so many bytes.
        let map = |rights| unsafe { libc::mmap(null_mut(), len, rights, MAP_SHARED, file.as_raw_fd(), 0) };
        let inner = map(PROT_READ | PROT_WRITE);
        let shown = if inner != MAP_FAILED && is_hidden { map(PROT_NONE) } else { inner };
        (shown != MAP_FAILED).then_some(Mapping { file, shown, inner: inner.cast(), len })
    }

    /// What another process opens it by: the descriptor here, and the file's number.
    pub(crate) fn name(&self) -> Option<(i32, u64)> {
        Some((self.file.as_raw_fd(), self.file.metadata().ok()?.ino()))
    }

    /// Whether another process has it. The kernel forgets those that have died.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        let is_alone = lock(&self.file, libc::F_WRLCK);
        lock(&self.file, libc::F_UNLCK);
        !is_alone
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

/// Locks a file as whoever opened it, or says that it cannot be.
fn lock(file: &File, how: i32) -> bool {
    // SAFETY: a structure of numbers; 0 is the whole file, and what the kernel wants for the process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = how as c_short;
    // SAFETY: an open file and a lock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The address of freed device memory is left without rights and never given out again: the driver too keeps
        // its range of addresses, and a use of it dies.
        // SAFETY: a mapping of our own, which nobody uses any more.
        unsafe { libc::munmap(self.inner.cast(), self.len) };
    }
}
