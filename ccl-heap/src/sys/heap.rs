//! The heap: slabs of shared memory that the library gives, and blocks in them.

use super::fork;
use super::guarded::Guarded;
use super::pages::{self, HUGE_PAGE, owns};
use crate::room::{PAGE, Room, Taken};
use libc::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A block takes its place in a slab of this size, or in one of its own if it is longer: each costs a descriptor, and a
/// mapping in every rank.
const SLAB: usize = 256 << 20;

/// Blocks from here on give their pages back when they are freed, as the C library's do; those of shorter ones wait for the next
/// block, or until their slab is empty.
const EMPTIED: usize = 32 << 20;
/// Blocks from here on are made zero by giving their pages back, which need not be touched then.
const CLEARED: usize = 1 << 20;

/// Zeroed shared memory of whole huge pages, and by the second argument its descriptor; NULL: there is none.
pub(crate) type Allocate = extern "C" fn(usize, *mut c_int) -> *mut c_void;
/// Takes it back.
pub(crate) type Release = extern "C" fn(*mut c_void);

/// Where slabs come from.
#[derive(Clone, Copy)]
struct Supply {
    allocate: Allocate,
    release: Release,
}

/// Shared memory, or in a forked child the copy of its parent's.
pub(super) struct Slab {
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) fd: c_int,
    pub(super) room: Room,
    /// It is a copy of the parent's slab: what is freed there is not given again.
    pub(super) is_inherited: bool,
    /// While the process forks: what its child will have in this place.
    pub(super) copy: Option<usize>,
}

/// All slabs.
pub(super) struct Heap {
    supply: Option<Supply>,
    pub(super) slabs: Vec<Slab>,
}

pub(super) static HEAP: Guarded<Heap> = Guarded::new(Heap { supply: None, slabs: Vec::new() });

/// From how many bytes on allocations are this heap's. None before the library has given it memory.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether an allocation of this size belongs here.
#[inline]
pub(crate) fn wants(size: usize) -> bool {
    size >= LEAST.load(Ordering::Relaxed)
}

/// Whether a block is one of this heap.
#[inline]
pub(crate) fn is_here(block: *mut c_void) -> bool {
    owns(block.addr())
}

/// From now on allocations of `least` bytes and more come from this supply, if there is no other yet.
pub(crate) fn supplied(least: usize, allocate: Allocate, release: Release) -> bool {
    if !fork::is_watched() {
        return false;
    }
    let supply = Supply { allocate, release };
    HEAP.with(|heap| {
        let is_first = heap.supply.is_none();
        if is_first {
            heap.supply = Some(supply);
            LEAST.store(least, Ordering::Relaxed);
        }
        is_first
    })
    .unwrap_or(false)
}

/// A child has no supply before it asks for one.
pub(super) fn cut_off(heap: &mut Heap) {
    heap.supply = None;
    LEAST.store(usize::MAX, Ordering::Relaxed);
}

/// A block of at least this size, aligned to this power of two and to pages; `None` if there is none.
pub(crate) fn take(size: usize, alignment: usize) -> Option<*mut c_void> {
    taken(size, alignment).map(|block| with_exposed_provenance_mut(block.at))
}

/// The same, all zero.
pub(crate) fn take_zeroed(size: usize) -> Option<*mut c_void> {
    let block = taken(size, PAGE)?;
    let at: *mut c_void = with_exposed_provenance_mut(block.at);
    let length = whole(size)?;
    // SAFETY: just taken.
    let is_zero = block.is_fresh || length >= CLEARED && unsafe { pages::empty(block.at, length) };
    if !is_zero {
        // SAFETY: as above.
        unsafe { at.write_bytes(0, size) };
    }
    Some(at)
}

fn taken(size: usize, alignment: usize) -> Option<Taken> {
    let length = whole(size)?;
    HEAP.with(|heap| heap.take(length, alignment.max(PAGE)))?
}

fn whole(size: usize) -> Option<usize> {
    size.max(1).checked_next_multiple_of(PAGE).filter(|length| *length < 1 << 47)
}

/// How long a block is. 0: there is none.
pub(crate) fn length(block: *mut c_void) -> usize {
    HEAP.with(|heap| heap.length(block.addr()).unwrap_or(0)).unwrap_or(0)
}

/// Makes a block shorter or longer where it is, if it can be.
pub(crate) fn resize(block: *mut c_void, size: usize) -> bool {
    let Some(length) = whole(size) else { return false };
    let at = block.addr();
    let in_place = |heap: &mut Heap| {
        heap.slab(at).is_some_and(|slab| !slab.is_inherited && slab.room.resize(at, length))
    };
    HEAP.with(in_place).unwrap_or(false)
}

/// Frees a block; what is none is left alone, and what this thread frees while it is inside, or forks, stays taken.
pub(crate) fn give(block: *mut c_void) {
    let at = block.addr();
    let about =
        HEAP.with(|heap| heap.slab(at).and_then(|slab| Some((slab.room.length(at)?, slab.is_inherited))));
    let Some((length, is_inherited)) = about.flatten() else { return };
    if length >= EMPTIED {
        // It is still taken, and its user is done with it.
        // SAFETY: so nobody uses it.
        unsafe {
            match is_inherited {
                true => pages::empty_private(at, length),
                false => drop(pages::empty(at, length)),
            }
        }
    }
    HEAP.with(|heap| heap.give(at));
}

impl Heap {
    fn slab(&mut self, at: usize) -> Option<&mut Slab> {
        self.slabs.iter_mut().find(|slab| (slab.start..slab.start + slab.length).contains(&at))
    }

    fn length(&mut self, at: usize) -> Option<usize> {
        self.slab(at)?.room.length(at)
    }

    fn take(&mut self, length: usize, alignment: usize) -> Option<Taken> {
        let mut own = self.slabs.iter_mut().filter(|slab| !slab.is_inherited);
        if let Some(block) = own.find_map(|slab| slab.room.take(length, alignment)) {
            return Some(block);
        }
        // Slabs are aligned to huge pages.
        let beside = if alignment > HUGE_PAGE { alignment } else { 0 };
        self.add(length.checked_add(beside)?)?.room.take(length, alignment)
    }

    fn add(&mut self, least: usize) -> Option<&mut Slab> {
        let supply = self.supply?;
        let length = least.checked_next_multiple_of(HUGE_PAGE)?.max(SLAB);
        let mut fd = -1;
        let start = (supply.allocate)(length, &mut fd);
        if start.is_null() {
            return None;
        }
        let start = start.expose_provenance();
        pages::set_owned(start, length, true);
        let room = Room::new(start, length);
        self.slabs.push(Slab { start, length, fd, room, is_inherited: false, copy: None });
        self.slabs.last_mut()
    }

    /// Frees a block, and slabs that are empty then, but one: a program that frees its only long block soon makes another one.
    fn give(&mut self, at: usize) {
        let Some(slab) = self.slab(at) else { return };
        if !slab.room.give(at) || slab.is_inherited || !slab.room.is_empty() {
            return;
        }
        let Some(supply) = self.supply else { return };
        let is_empty = |slab: &Slab| slab.room.is_empty() && !slab.is_inherited;
        let kept =
            self.slabs.iter().find(|slab| is_empty(slab) && slab.length == SLAB).map(|slab| slab.start);
        self.slabs.retain(|slab| {
            let stays = !is_empty(slab) || Some(slab.start) == kept;
            if !stays {
                pages::set_owned(slab.start, slab.length, false);
                (supply.release)(with_exposed_provenance_mut(slab.start));
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    static SLABS: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn allocate(length: usize, fd: *mut c_int) -> *mut c_void {
        SLABS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a new descriptor and a new mapping, cut so that it begins on a huge page; `fd` is writable.
        unsafe {
            *fd = libc::memfd_create(c"slab".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(*fd, length as libc::off_t), 0);
            let (private, shared) =
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::MAP_SHARED | libc::MAP_FIXED);
            let room = libc::mmap(null_mut(), length + HUGE_PAGE, libc::PROT_NONE, private, -1, 0);
            let at = room.wrapping_byte_add(room.addr().wrapping_neg() % HUGE_PAGE);
            libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, shared, *fd, 0)
        }
    }

    extern "C" fn release(_: *mut c_void) {
        SLABS.fetch_sub(1, Ordering::Relaxed);
    }

    fn filled(block: *mut c_void, size: usize, with: u8) {
        // SAFETY: a block of this size.
        unsafe { block.write_bytes(with, size) };
    }

    fn all(block: *mut c_void, size: usize) -> &'static [u8] {
        // SAFETY: as above; looked at before it is written again.
        unsafe { std::slice::from_raw_parts(block.cast(), size) }
    }

    /// One test: there is one heap.
    #[test]
    fn a_heap_of_slabs() {
        const MIB: usize = 1 << 20;
        assert!(!wants(usize::MAX - 1) && take(MIB, PAGE).is_none(), "there is no supply");
        assert!(supplied(32 << 10, allocate, release));
        assert!(!supplied(1, allocate, release), "it has one");
        assert!(wants(32 << 10) && !wants((32 << 10) - 1));

        // Zero, whatever lay there before, short and long.
        for size in [40 << 10, 3 * MIB, 40 * MIB] {
            let block = take_zeroed(size).unwrap();
            assert!(is_here(block) && all(block, size).iter().all(|byte| *byte == 0));
            filled(block, size, 7);
            give(block);
            let again = take_zeroed(size).unwrap();
            assert!(again == block && all(again, size).iter().all(|byte| *byte == 0), "{size}");
            give(again);
        }
        // Where it is wanted.
        for alignment in [PAGE, 64 << 10, 16 * MIB] {
            let block = take(100_000, alignment).unwrap();
            assert!(block.addr().is_multiple_of(alignment) && length(block) == 102_400);
            give(block);
        }
        // Shorter and longer.
        let block = take(MIB, PAGE).unwrap();
        filled(block, MIB, 3);
        assert!(resize(block, 64 << 10) && length(block) == 64 << 10);
        assert!(resize(block, 2 * MIB) && all(block, 64 << 10).iter().all(|byte| *byte == 3));
        assert!(!resize(block, SLAB + 1));

        // A slab of its own for what is longer, which goes with it; another one when the first is full; one stays.
        assert_eq!(SLABS.load(Ordering::Relaxed), 1);
        let long = take(SLAB + 1, PAGE).unwrap();
        let second = take(SLAB, PAGE).unwrap();
        assert_eq!(SLABS.load(Ordering::Relaxed), 3);
        give(long);
        assert_eq!(SLABS.load(Ordering::Relaxed), 2);
        assert!(!is_here(long) && is_here(second));
        give(second);
        assert_eq!(SLABS.load(Ordering::Relaxed), 2, "it is empty, and the first is not");
        give(block);
        assert_eq!(SLABS.load(Ordering::Relaxed), 1);
        give(block);
        assert_eq!(length(block), 0, "freed");
        assert!(take(1 << 47, PAGE).is_none() && take(usize::MAX, PAGE).is_none());
    }
}
