//! Where shared memory is mapped.
//!
//! AMD's processors look for a line in the first cache by a hash of its address before they know its physical one (bits 12 to 27, of
//! which each of 12 to 19 meets one of 20 to 27; M. Lipp et al., "Take A Way", ASIA CCS 2020, section 3). Two addresses of the same place
//! within a page and the same hash drive each other out, and those that are a multiple of 256 MiB apart always have the same. The kernel puts
//! equally long mappings one below the other, and what ranks combine lies at the same place of each: of heaps of 256 MiB nothing else would be read.
//! So each mapping begins on another huge page of 256 MiB than the 127 before it.

use crate::sync::{AtomicU32, Ordering};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::{NonNull, null_mut};

/// Mappings begin on a huge page, so that the kernel may back them with huge pages.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Addresses so far apart have the same hash.
const PERIOD: usize = 256 << 20;

/// Huge pages from where one mapping begins to where the next does: odd, so that all of a period have their turn; and neighbours are far apart,
/// as what lies behind each other in one mapping must not meet what lies in the next one either.
const STEP: usize = 37;

/// How many mappings there were.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// All of a memfd, for reading and writing.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process and stays until drop. What lies in it is atomics, payload, the user's memory or a
// peer's: who may touch which bytes when is the contract of `Piece` and of the ring, whatever the thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The memfd has that many bytes. While it is mapped, it takes a period of address space more.
    pub(super) fn new(fd: &OwnedFd, len: usize) -> Result<Mapping, Errno> {
        let count = COUNT.fetch_add(1, Ordering::Relaxed) as usize;
        let place = count * STEP % (PERIOD / HUGE_PAGE) * HUGE_PAGE;
        // Room in which an address of that place has enough behind it: the two ends are given back below, whatever happens.
        let pages = len.next_multiple_of(rustix::param::page_size());
        let room = pages + PERIOD;
        // SAFETY: a new mapping at an address that the kernel picks.
        let start =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let head = place.wrapping_sub(start.addr()) % PERIOD;
        let at = start.cast::<u8>().wrapping_add(head);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: inside the room just made, which belongs to nobody else.
        let mapped = unsafe { rustix::mm::mmap(at.cast(), len, protection, flags, fd, 0) };
        let rest = if mapped.is_ok() { pages } else { 0 };
        // SAFETY: the ends of the room, outside of the new mapping; all are whole pages, and `head` is less than the period.
        unsafe {
            if head > 0 {
                let _ = rustix::mm::munmap(start, head);
            }
            let _ = rustix::mm::munmap(at.wrapping_add(rest).cast(), room - head - rest);
        }
        let base = NonNull::new(mapped?.cast()).expect("the kernel maps nothing at address 0 unasked");
        Ok(Mapping { base, len })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length; whoever holds addresses in it holds its owner.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::collections::BTreeSet;

    /// Of the huge page that an address lies in, what the hash has of it besides what lies within.
    fn hash(address: usize) -> usize {
        address % PERIOD / HUGE_PAGE
    }

    #[test]
    fn mappings_begin_on_different_huge_pages_of_a_period() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
        let len = 3 * 4096 - 5;
        rustix::fs::ftruncate(&fd, len as u64).expect("as long");
        // Other tests map meanwhile: a period has more huge pages than these are.
        let mappings: Vec<Mapping> = (0..24).map(|_| Mapping::new(&fd, len).expect("mapped")).collect();
        let bases: Vec<usize> = mappings.iter().map(|mapping| mapping.base().as_ptr().addr()).collect();
        assert!(bases.iter().all(|base| base.is_multiple_of(HUGE_PAGE)));
        let hashes: BTreeSet<usize> = bases.iter().copied().map(hash).collect();
        assert!(hashes.len() >= 20, "of {} only {}", bases.len(), hashes.len());
        // All of it is there, and the same memory.
        // SAFETY: inside of mappings that this test has alone.
        unsafe {
            mappings[0].base().add(len - 1).write(7);
            assert!(mappings.iter().all(|mapping| mapping.base().add(len - 1).read() == 7));
        }
    }
}
