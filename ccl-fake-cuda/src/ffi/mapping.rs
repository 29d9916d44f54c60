//! Memory under two addresses: one for programs, and the fake's own. Other processes can have it too.

use crate::work::Span;
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_short,
    c_void,
};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a memfd.
pub(crate) struct Mapping {
    /// Where others find the bytes. Whoever has them from another process holds a lock on it for reading.
    file: File,
    /// Where programs believe it to be.
    shown: *mut c_void,
    /// Where the bytes can be reached.
    inner: *mut u8,
    len: usize,
    /// Where what others write waits to be flushed, once they were given the bytes so.
    late: OnceLock<Late>,
    /// Whether the address was somebody's before, and is again.
    is_reserved: bool,
}

/// Behind the bytes as much room again, where the writes of others wait, and a list of them: how many there were, what it is known by, and then offset
/// and length of each, in turns.
struct Late {
    base: *mut u8,
    pages: usize,
    /// How many were flushed.
    flushed: AtomicU64,
}

impl Late {
    /// A number of the list.
    fn word(&self, index: u64) -> &AtomicU64 {
        assert!(index < LIST as u64 / 8, "past the list's end");
        // SAFETY: inside of the list, aligned; every access is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(2 * self.pages + 8 * index as usize).cast()) }
    }
}

/// Bytes of a list.
const LIST: usize = 1 << 20;
const ENTRIES: u64 = LIST as u64 / 16 - 1;
const KNOWN_BY: u64 = 0x6c61_7465_6c69_7374;

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
        let late = OnceLock::new();
        (shown != MAP_FAILED).then_some(Mapping {
            file,
            shown,
            inner: inner.cast(),
            len,
            late,
            is_reserved: false,
        })
    }

    /// The file, for whoever maps it; what is written there waits to be flushed, if `is_late`.
    pub(crate) fn give(&self, is_late: bool) -> Option<OwnedFd> {
        if is_late && self.late.get().is_none() {
            let pages = self.len.next_multiple_of(4096);
            let size = 2 * pages + LIST;
            self.file.set_len(size as u64).ok()?;
            let (rights, fd) = (PROT_READ | PROT_WRITE, self.file.as_raw_fd());
            // SAFETY: a new mapping of a file that has so many bytes.
            let base = unsafe { libc::mmap(null_mut(), size, rights, MAP_SHARED, fd, 0) };
            if base == MAP_FAILED {
                return None;
            }
            let late = Late { base: base.cast(), pages, flushed: AtomicU64::new(0) };
            late.word(1).store(KNOWN_BY, Ordering::Release);
            // The world's lock is held.
            let _ = self.late.set(late);
        }
        self.file.as_fd().try_clone_to_owned().ok()
    }

    /// Brings what others wrote to where it belongs.
    pub(crate) fn flush(&self) {
        let Some(late) = self.late.get() else { return };
        let count = late.word(0).load(Ordering::Acquire);
        let before = late.flushed.swap(count, Ordering::Relaxed);
        assert!(count - before <= ENTRIES, "more writes than a list has room for");
        for number in before..count {
            let entry = 2 + 2 * (number % ENTRIES);
            let [from, len] = [entry, entry + 1].map(|at| late.word(at).load(Ordering::Relaxed) as usize);
            assert!(from + len <= self.len, "written past the end");
            // SAFETY: inside of the waiting bytes and of the others, which are apart.
            unsafe {
                std::ptr::copy_nonoverlapping(late.base.add(late.pages + from), self.inner.add(from), len);
            }
        }
    }

    /// Maps what a program has made without an address to some that it has reserved. Nothing may touch it there yet.
    pub(crate) fn at(address: usize, backing: &Backing) -> Option<Mapping> {
        let (file, len) = (backing.file.try_clone().ok()?, backing.len);
        let (at, descriptor) = (std::ptr::with_exposed_provenance_mut(address), file.as_raw_fd());
        // SAFETY: a new mapping of a file that has so many bytes.
        let inner = unsafe { libc::mmap(null_mut(), len, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) };
        // SAFETY: addresses that were reserved, and of which nobody has any.
        let shown = unsafe { libc::mmap(at, len, PROT_NONE, MAP_SHARED | MAP_FIXED, descriptor, 0) };
        let is_there = inner != MAP_FAILED && shown != MAP_FAILED;
        is_there.then_some(Mapping {
            file,
            shown,
            inner: inner.cast(),
            len,
            late: OnceLock::new(),
            is_reserved: true,
        })
    }

    /// Lets kernels touch it, where they run.
    pub(crate) fn show(&self) {
        // SAFETY: a mapping of our own.
        unsafe { libc::mprotect(self.shown, self.len, PROT_READ | PROT_WRITE) };
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

    /// Where the fake reaches the bytes from an offset on.
    pub(crate) fn inner(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "past the end");
        // SAFETY: inside, or right behind it.
        unsafe { self.inner.add(offset) }
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
        if let Some(late) = self.late.get() {
            // SAFETY: as above.
            unsafe { libc::munmap(late.base.cast(), 2 * late.pages + LIST) };
        }
        if self.is_reserved {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            // SAFETY: as above; the addresses stay reserved.
            unsafe { libc::mmap(self.shown, self.len, PROT_NONE, flags, -1, 0) };
        }
    }
}

/// Bytes of a device that have no address yet.
pub(crate) struct Backing {
    file: File,
    pub(crate) len: usize,
    pub(crate) device: u32,
    /// Whether other processes may have them.
    pub(crate) is_exportable: bool,
}

impl Backing {
    const NAME: &str = "fake-cuda-of-device-";

    pub(crate) fn new(len: usize, device: u32, is_exportable: bool) -> Option<Backing> {
        let name = CString::new(format!("{}{device}", Backing::NAME)).ok()?;
        // SAFETY: a name.
        let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(len as u64).ok()?;
        Some(Backing { file, len, device, is_exportable })
    }

    /// What all processes find it by while it is here: the descriptor in this one, and the file's number.
    pub(crate) fn name(&self) -> Option<(i32, u64)> {
        Some((self.file.as_raw_fd(), self.file.metadata().ok()?.ino()))
    }

    /// A new descriptor of it.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.file.try_clone().ok()?.into_raw_fd())
    }

    /// That of a descriptor, whose file says by its name of which device it is.
    pub(crate) fn of(descriptor: i32) -> Option<Backing> {
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
        let name = path.to_str()?.strip_prefix("/memfd:")?.strip_prefix(Backing::NAME)?;
        let device = name.split(' ').next()?.parse().ok()?;
        // SAFETY: it is open, as its link was read, and only borrowed.
        let file = File::from(unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().ok()?);
        let len = file.metadata().ok()?.len() as usize;
        Some(Backing { file, len, device, is_exportable: true })
    }
}

/// Addresses at which nothing is, from a multiple of `alignment` on.
pub(crate) fn reserve(len: usize, alignment: usize) -> Option<usize> {
    let all = len + alignment;
    // SAFETY: a new mapping without a place.
    let at = unsafe { libc::mmap(null_mut(), all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };
    if at == MAP_FAILED {
        return None;
    }
    let (from, at) = (at.expose_provenance(), at.addr().next_multiple_of(alignment));
    for (part, bytes) in [(from, at - from), (at + len, from + all - at - len)] {
        if bytes > 0 {
            give_back(part, bytes);
        }
    }
    Some(at)
}

/// Gives them back.
pub(crate) fn give_back(at: usize, len: usize) {
    // SAFETY: reserved before, and nothing is there.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at), len) };
}
