//! Memory of the user that peers can map.

use super::Segment;
use super::mapping::{HUGE_PAGE, Mapping};
use crate::sync::{AtomicU64, Ordering};
use ccl_core::kernels::Piece;
use ccl_core::transport::{KnownMemory, UserMemory};
use ccl_core::{Error, Result};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Zeroed memory that ranks of the same host can see, so that calls on it move no byte through slots.
///
/// It behaves like a `Vec<u8>` of fixed length, aligned to 2 MiB, and takes memory when it is touched. It is an
/// unnamed, sealed memfd: peers can map it, and write only to what a call that runs has offered them; nothing of it is left when the process is
/// killed. Each takes a file descriptor. A communicator tells its peers of it when a call uses it for the first time,
/// and when it is dropped they give up their mapping at the next chance: when they sleep or map something else.
///
/// It may be dropped at any time outside of a call that uses it. A process that is forked off shares it with its parent.
#[derive(Debug)]
pub struct SharedMemory {
    region: Arc<Region>,
    len: usize,
}

impl SharedMemory {
    /// `len` bytes, all zero.
    pub fn alloc(len: usize) -> Result<SharedMemory> {
        SharedMemory::of(len, Use::Buffer)
    }

    /// For the preloaded heap, which gives a forked process a copy.
    pub(super) fn for_heap(len: usize) -> Result<SharedMemory> {
        SharedMemory::of(len, Use::Heap)
    }

    fn of(len: usize, of: Use) -> Result<SharedMemory> {
        let too_long = || Error::invalid(format!("{len} bytes of shared memory"), "ask for less than 2^47");
        let mapped = len.max(1).checked_next_multiple_of(HUGE_PAGE).filter(|m| *m < 1 << 47);
        let region = Arc::new(Region::create(mapped.ok_or_else(too_long)?, of)?);
        let mut registry = registry();
        registry.regions.insert(region.address(), Arc::downgrade(&region));
        CHANGES.fetch_add(1, Ordering::Release);
        drop(registry);
        Ok(SharedMemory { region, len })
    }

    /// Where it begins. Valid for reads and writes of its length until it is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.mapping.base().as_ptr()
    }

    /// All of it, to be registered; it stays there as long as that lasts. Nobody reads through it.
    pub fn memory(&self) -> UserMemory {
        Region::memory(&self.region, self.len)
    }

    /// Its descriptor, as long as it is there.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.region.fd.as_raw_fd()
    }

    /// All of this process, for networks, which may use it without being told of each. Not the heap's: a network would keep
    /// all of it in memory, and pages that the heap gives back.
    pub fn known() -> KnownMemory {
        let all = || {
            let regions = regions();
            let buffers = regions.iter().filter(|region| region.of == Use::Buffer);
            buffers.map(|region| Region::memory(region, region.len())).collect()
        };
        KnownMemory { changes, all }
    }
}

impl Deref for SharedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is at least as long, lives as long as `self`, and this process writes to it through
        // `self` only; peers write only to what a call that borrows it exclusively has offered.
        unsafe { std::slice::from_raw_parts(self.as_mut_ptr(), self.len) }
    }
}

impl DerefMut for SharedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively. A peer reads and writes only what a call that borrows it has lent and offered.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.regions.remove(&self.region.address());
        CHANGES.fetch_add(1, Ordering::Release);
        drop(registry);
        self.region.retire();
    }
}

/// The shared memory of this process, and under which numbers its ranks have lent it.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry { regions: BTreeMap::new(), lent: BTreeMap::new() });

/// How often [`Registry::regions`] has changed: what a rank knows of it is right while this stays the same. Counted with
/// Release under the registry's lock, where it is read with Acquire too: so ThreadSanitizer, which does not see the lock's
/// own order where that is inside the standard library, sees what is behind it.
static CHANGES: AtomicU64 = AtomicU64::new(0);

struct Registry {
    /// By address.
    regions: BTreeMap<usize, Weak<Region>>,
    /// By the lender's segment and the number: for borrowers in this process, which use the same mapping.
    lent: BTreeMap<(u128, u32), Weak<Region>>,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`CHANGES`].
#[inline]
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// All shared memory of this process, by address.
pub(crate) fn regions() -> Vec<Arc<Region>> {
    let registry = registry();
    changes();
    let all = registry.regions.values().filter_map(Weak::upgrade);
    // In place of its parent's heap a forked process has memory of its own, which nobody can map.
    let process = std::process::id();
    all.filter(|region| region.of == Use::Buffer || region.process == process).collect()
}

/// What a rank of this process has lent.
pub(crate) fn lent_here(segment: u128, number: u32) -> Option<Arc<Region>> {
    registry().lent.get(&(segment, number))?.upgrade()
}

/// Forgets what was lent from this segment, which is gone.
pub(super) fn forget_lender(segment: u128) {
    registry().lent.retain(|(lender, _), _| *lender != segment);
}

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Calls, whose buffers its user takes from it.
    Buffer,
    /// The preloaded heap, for anything.
    Heap,
}

/// A sealed memfd and its mapping.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    fd: OwnedFd,
    of: Use,
    /// The process that made it.
    process: u32,
    /// Whose ledgers list it; `None` once it is freed.
    lenders: Mutex<Option<Vec<Lender>>>,
}

/// A segment and the number under which its ledger lists a region.
type Lender = (Weak<Segment>, u32);

impl Region {
    fn create(len: usize, of: Use) -> Result<Region> {
        let name = if of == Use::Heap { "rdmaccl-heap" } else { "rdmaccl-buffer" };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(|e| {
            Error::system("memfd_create for shared memory", e, "raise the limit of open files (ulimit -n)")
        })?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| {
            let what = format!("ftruncate of shared memory to {len} bytes");
            Error::system(what, e, "free memory, or raise the file size limit (ulimit -f)")
        })?;
        let mapping = mapped(&fd, len)?;
        // SAFETY: a new mapping, whose bytes the advice does not change. Memory without huge pages is as good, only slower.
        let _ = unsafe { rustix::mm::madvise(mapping.base().as_ptr().cast(), len, Advice::LinuxHugepage) };
        // A peer cannot take memory away under a reader, which would be a SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| Error::system("sealing shared memory", e, "the kernel must support memfd seals"))?;
        Ok(Region { mapping, fd, of, process: std::process::id(), lenders: Mutex::new(Some(Vec::new())) })
    }

    fn memory(region: &Arc<Region>, len: usize) -> UserMemory {
        // SAFETY: the bytes are there as long as the owner. Whoever reads them through a call that borrows them has the
        // word of that call.
        let piece = unsafe { Piece::new(region.mapping.base().as_ptr(), len) };
        UserMemory { piece, owner: Some(Arc::clone(region) as _) }
    }

    pub(crate) fn address(&self) -> usize {
        self.mapping.base().as_ptr().addr()
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The descriptor, for peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Lists it in the ledger of a rank; false if it is freed already.
    pub(crate) fn lend(self: &Arc<Region>, by: &Arc<Segment>, number: u32) -> bool {
        let mut lenders = self.lenders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lenders) = &mut *lenders else { return false };
        // Ranks come and go, memory may stay.
        lenders.retain(|(lender, _)| lender.strong_count() > 0);
        lenders.push((Arc::downgrade(by), number));
        registry().lent.insert((by.id(), number), Arc::downgrade(self));
        by.ledger().list(number);
        true
    }

    /// Its user has freed it: strikes it off every ledger. A copy that a forked process frees is not listed there.
    fn retire(&self) {
        if self.process != std::process::id() {
            return;
        }
        let lenders = self.lenders.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (lender, number) in lenders.into_iter().flatten() {
            if let Some(lender) = lender.upgrade() {
                registry().lent.remove(&(lender.id(), number));
                lender.ledger().strike(number);
            }
        }
    }
}

/// A region of this process, or a peer's.
fn mapped(fd: &OwnedFd, len: usize) -> Result<Mapping> {
    Mapping::new(fd, len).map_err(|e| {
        let what = format!("mapping {len} bytes of shared memory");
        Error::system(what, e, "raise the address space limit (ulimit -v)")
    })
}

/// What a borrower keeps of lent memory.
#[derive(Debug)]
pub(crate) struct Loan {
    pub(crate) number: u32,
    memory: Borrowed,
}

#[derive(Debug)]
enum Borrowed {
    /// Of this process.
    Here(Arc<Region>),
    /// Of another one.
    There(Mapping),
}

impl Loan {
    /// Memory of this process.
    pub(crate) fn here(number: u32, region: Arc<Region>) -> Loan {
        Loan { number, memory: Borrowed::Here(region) }
    }

    /// A peer's memory, by its descriptor; the text says why it cannot be.
    pub(crate) fn there(number: u32, fd: &OwnedFd) -> Result<Loan, String> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| format!("it lent no memfd: {e}"))?;
        let bytes = rustix::fs::fstat(fd).map_err(|e| format!("fstat of lent memory: {e}"))?.st_size;
        let len = usize::try_from(bytes).ok().filter(|len| *len > 0 && seals.contains(SealFlags::SHRINK));
        let len = len.ok_or_else(|| format!("it lent {bytes} bytes of memory that it can take away"))?;
        let mapping = mapped(fd, len).map_err(|e| e.to_string())?;
        Ok(Loan { number, memory: Borrowed::There(mapping) })
    }

    /// `len` bytes from `offset`, if they lie inside.
    #[inline]
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let mapping = match &self.memory {
            Borrowed::Here(region) => &region.mapping,
            Borrowed::There(mapping) => mapping,
        };
        let offset = usize::try_from(offset).ok()?;
        let inside = offset <= mapping.len() && len <= mapping.len() - offset;
        // SAFETY: just checked that it lies inside of the mapping.
        inside.then(|| unsafe { mapping.base().as_ptr().add(offset) })
    }
}
