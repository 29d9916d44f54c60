//! Memory: mapped, protected, registered; and addresses of peers, which belong to a protection domain too.

use super::abi::*;
use super::constants::*;
use super::{Context, last};
use ccl_core::kernels::{Piece, PieceMut};
use libc::c_void;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The size of a huge page, from which on a mapping asks for them: fewer entries in the device's tables.
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory of our own, zeroed, on page boundaries.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process until drop; who touches which bytes is the contract of `Piece`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes, not zero; from a huge page on aligned to one.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let room = if len >= HUGE_PAGE {
            len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?
        } else {
            len
        };
        // SAFETY: a new mapping at an address that the kernel picks.
        let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), room, protection, flags) }?;
        let mapping = |base: *mut c_void| {
            let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 unasked");
            Mapping { base, len }
        };
        if room == len {
            return Ok(mapping(start));
        }
        let page = rustix::param::page_size();
        let head = start.addr().wrapping_neg() % HUGE_PAGE;
        let end = head + len.next_multiple_of(page);
        let at = start.cast::<u8>().wrapping_add(head).cast();
        // SAFETY: the two ends of the room just made, which nobody knows of.
        unsafe {
            if head > 0 {
                let _ = rustix::mm::munmap(start, head);
            }
            if end < room {
                let _ = rustix::mm::munmap(start.cast::<u8>().wrapping_add(end).cast(), room - end);
            }
            // Advice: memory without huge pages is as good, only slower.
            let _ = rustix::mm::madvise(at, len, Advice::LinuxHugepage);
        }
        Ok(mapping(at))
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `N` bytes from `offset`, which must lie inside.
    #[inline]
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let piece = self.piece().slice(offset, N);
        // SAFETY: inside of the mapping, as `slice` has checked; bytes have no alignment.
        unsafe { piece.as_ptr().cast::<[u8; N]>().read() }
    }

    /// Writes `N` bytes from `offset` on, which must lie inside.
    #[inline]
    pub(crate) fn write<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        let piece = self.piece_mut().slice(offset, N);
        // SAFETY: as for `read`.
        unsafe { piece.as_mut_ptr().cast::<[u8; N]>().write(bytes) }
    }

    /// All of it. Whoever keeps a part of the piece keeps the mapping too.
    pub(crate) fn piece(&self) -> Piece {
        // SAFETY: mapped readable; the rest is the contract of `Piece`.
        unsafe { Piece::new(self.base.as_ptr(), self.len) }
    }

    /// As [`Mapping::piece`].
    pub(crate) fn piece_mut(&self) -> PieceMut {
        // SAFETY: mapped writable; the rest is the contract of `PieceMut`.
        unsafe { PieceMut::new(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; whoever holds addresses in it holds its owner.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A protection domain.
pub(crate) struct Pd {
    pub(super) context: Arc<Context>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: verbs may be called on it by any thread at any time.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: Arc<Context>) -> io::Result<Pd> {
        // SAFETY: an open context, which the domain holds.
        let pd = unsafe { (context.table.ibv_alloc_pd)(context.raw()) };
        Ok(Pd { pd: NonNull::new(pd).ok_or_else(last)?, context })
    }

    /// What is said to a dma-buf of no bytes whose descriptor is none; `None`: there is no such function.
    pub(crate) fn refuse_dma_buf(&self) -> Option<io::Error> {
        let register = self.context.table.reg_dmabuf_mr?;
        // SAFETY: a live domain and numbers.
        let mr = unsafe { register(self.raw(), 0, 0, 0, -1, 0) };
        let error = last();
        if !mr.is_null() {
            // SAFETY: just registered, if what cannot be has been done.
            unsafe { (self.context.table.ibv_dereg_mr)(mr) };
        }
        Some(error)
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by us, freed once; all that was made in it holds it, so nothing is left.
        let freed = unsafe { (self.context.table.ibv_dealloc_pd)(self.raw()) };
        debug_assert_eq!(freed, 0);
    }
}

/// Registered memory.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    mr: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    relaxed: bool,
}

// SAFETY: a registration is not changed; it is read and ended by any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `address`. Relaxed ordering among `access` is dropped where it cannot be had.
    pub(crate) fn new(pd: Arc<Pd>, address: u64, len: usize, access: u32) -> io::Result<Mr> {
        let table = pd.context.table;
        let at: *mut c_void = std::ptr::with_exposed_provenance_mut(address as usize);
        // ibv_reg_mr knows no optional bit; in C it is a macro that picks the other function where one is set.
        if access & IBV_ACCESS_RELAXED_ORDERING != 0
            && let Some(register) = table.reg_mr_iova2
        {
            // SAFETY: a live domain. The kernel refuses a range that is not mapped, and pins one that is.
            let mr = unsafe { register(pd.raw(), at, len, address, access) };
            if let Some(mr) = NonNull::new(mr) {
                return Ok(Mr::of(pd, mr, true));
            }
        }
        let access = (access & !IBV_ACCESS_RELAXED_ORDERING).cast_signed();
        // SAFETY: as above.
        let mr = unsafe { (table.ibv_reg_mr)(pd.raw(), at, len, access) };
        let mr = NonNull::new(mr).ok_or_else(last)?;
        Ok(Mr::of(pd, mr, false))
    }

    /// Registers `len` bytes of a dma-buf from an offset on, to be named by addresses from `iova` on. Relaxed ordering is dropped where it
    /// cannot be had.
    pub(crate) fn of_dma_buf(
        pd: Arc<Pd>,
        (descriptor, offset): (BorrowedFd<'_>, u64),
        iova: u64,
        len: usize,
        access: u32,
    ) -> io::Result<Mr> {
        let function = pd.context.table.reg_dmabuf_mr.ok_or(io::ErrorKind::Unsupported)?;
        let register = |access: u32| {
            let fd = descriptor.as_raw_fd();
            // SAFETY: a live domain and an open descriptor. The kernel refuses what is no dma-buf, or not as long.
            NonNull::new(unsafe { function(pd.raw(), offset, len, iova, fd, access.cast_signed()) })
        };
        let strict = access & !IBV_ACCESS_RELAXED_ORDERING;
        if access != strict
            && let Some(mr) = register(access)
        {
            return Ok(Mr::of(pd, mr, true));
        }
        let mr = register(strict).ok_or_else(last)?;
        Ok(Mr::of(pd, mr, false))
    }

    fn of(pd: Arc<Pd>, mr: NonNull<ibv_mr>, relaxed: bool) -> Mr {
        // SAFETY: just registered.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        Mr { pd, mr, lkey, rkey, relaxed }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Whether it was registered with relaxed ordering.
    pub(crate) fn relaxed(&self) -> bool {
        self.relaxed
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered by us, ended once; a work request that still names its key fails, it reaches nothing.
        let ended = unsafe { (self.pd.context.table.ibv_dereg_mr)(self.mr.as_ptr()) };
        debug_assert_eq!(ended, 0);
    }
}

/// The way to a peer's port, for datagrams.
pub(crate) struct Ah {
    pd: Arc<Pd>,
    ah: NonNull<ibv_ah>,
}

// SAFETY: it is not changed; it is used and destroyed by any thread.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    pub(crate) fn new(pd: Arc<Pd>, mut attributes: ibv_ah_attr) -> io::Result<Ah> {
        // SAFETY: a live domain; the attributes are read.
        let ah = unsafe { (pd.context.table.ibv_create_ah)(pd.raw(), &mut attributes) };
        Ok(Ah { ah: NonNull::new(ah).ok_or_else(last)?, pd })
    }

    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        let destroyed = unsafe { (self.pd.context.table.ibv_destroy_ah)(self.raw()) };
        debug_assert_eq!(destroyed, 0);
    }
}
