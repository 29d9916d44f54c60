//! Memory that other processes may look at: a memfd, mapped once.

use ccl_core::flight::Line;
use ccl_core::monitor::Monitor;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// This process's memory, mapped as long as the process lives.
pub(crate) struct Shared {
    fd: OwnedFd,
    lines: &'static [Line],
    /// Which parts are used: from which line, and how many.
    pub(crate) taken: Monitor<BTreeMap<usize, usize>>,
    /// Whose it is: after a fork there are two processes with this value, and one of them has lost the memory.
    process: u32,
}

/// The memory of this process, where [`current`] finds it.
static CURRENT: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// This process's memory of so many bytes, which `format` has made of zeros when it was new; `None` where the system gives none.
pub(crate) fn current(name: &str, bytes: usize, format: fn(&[Line])) -> Option<&'static Shared> {
    // SAFETY: what was stored there was leaked by the line below, and is only ever read.
    if let Some(shared) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        return Some(shared);
    }
    match Shared::create(name, bytes) {
        Ok(shared) => {
            format(shared.lines);
            let new = Box::into_raw(Box::new(shared));
            let raced =
                CURRENT.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
            if let Err(theirs) = raced {
                // SAFETY: it was made above, and nobody else knows of it or its mapping.
                unsafe {
                    let unused = Box::from_raw(new);
                    let _ = rustix::mm::munmap(unused.lines.as_ptr().cast_mut().cast(), bytes);
                    return theirs.as_ref();
                }
            }
            // SAFETY: as above.
            unsafe { new.as_ref() }
        }
        Err(error) => {
            tracing::warn!(%error, "no memory for flight records that others can see");
            None
        }
    }
}

impl Shared {
    fn create(name: &str, bytes: usize) -> io::Result<Shared> {
        forget_in_children();
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        // Nobody can take the memory away under a reader, which would be a SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        // SAFETY: the mapping is never taken away (in a forked child it is replaced by another one of the same length),
        // begins on a page, and has as many bytes as the lines, for which any bytes are valid: they are atomics.
        let lines = unsafe { std::slice::from_raw_parts(base.as_ptr(), bytes / Line::BYTES) };
        Ok(Shared { fd, lines, taken: Monitor::default(), process: std::process::id() })
    }

    /// All of it.
    pub(crate) fn lines(&self) -> &'static [Line] {
        self.lines
    }

    /// Whether this process is the one that made it, and not a child that was forked since.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks for the memory of some lines now, so that the lack of it is an error and not a signal.
    pub(crate) fn populate(&self, from: usize, lines: usize) -> io::Result<()> {
        let part = &self.lines[from..from + lines];
        // SAFETY: the lines are mapped, and asking for their memory changes nothing in it.
        let asked = unsafe {
            let at = part.as_ptr().cast_mut().cast();
            rustix::mm::madvise(at, size_of_val(part), Advice::LinuxPopulateWrite)
        };
        match asked {
            // A kernel before 5.14 gives the memory at the first touch.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// A forked child must not write into its parent's records. It gets memory of its own in their place, closes the
/// descriptor, and makes another page if it makes communicators. (A child that was made without the handlers of
/// `fork`, as by `vfork` before an `exec`, has no business with communicators.)
fn forget_in_children() {
    extern "C" fn child() {
        let inherited = CURRENT.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: see `current`; the child has one thread, and its parent's values.
        let Some(shared) = (unsafe { inherited.as_ref() }) else { return };
        let (at, bytes) = (shared.lines.as_ptr().cast_mut().cast(), size_of_val(shared.lines));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is that of the page; what holds references into it finds atomics there as before, of zero
        // bytes. Both calls are allowed between fork and exec. If the mapping fails, the old one stays.
        unsafe {
            let _ = rustix::mm::mmap_anonymous(at, bytes, ProtFlags::READ | ProtFlags::WRITE, flags);
            libc::close(shared.fd.as_raw_fd());
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is not unloaded while it has threads or memory.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
        if refused != 0 {
            tracing::warn!(refused, "no handler for forked children");
        }
    });
}

/// The memory of another process, as it changes.
#[derive(Debug)]
pub(crate) struct Foreign {
    base: NonNull<Line>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, stays until drop, and holds atomics only.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Maps a descriptor of another process's memory, read-only. The text says why it cannot be one.
    pub(crate) fn map(file: &File, longest: usize) -> Result<Foreign, String> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|e| format!("it is no memfd: {e}"))?;
        let bytes = rustix::fs::fstat(file).map_err(|e| format!("fstat: {e}"))?.st_size;
        let bytes = usize::try_from(bytes).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || bytes == 0 || bytes > longest || bytes % Line::BYTES != 0 {
            return Err(format!("it has {bytes} bytes, and seals {seals:?}"));
        }
        let base = map(file, bytes, ProtFlags::READ).map_err(|e| format!("mmap: {e}"))?;
        Ok(Foreign { base, bytes })
    }

    /// All of it. They are only read.
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: the mapping begins on a page, has so many bytes and cannot shrink, and lives as long as the borrow. Others
        // write to it; lines are atomics, of which any bytes are valid, and readers of records only load them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes / Line::BYTES) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn map(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<NonNull<Line>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel picks.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0)? };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}
