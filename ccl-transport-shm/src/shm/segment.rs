//! A rank's shared memory: one sealed memfd, mapped whole, touched as needed.

use super::mapping::{HUGE_PAGE, Mapping};
use crate::bell::Bell;
use crate::connect::GLANCE;
use crate::ledger::Ledger;
use crate::offer::Offering;
use crate::passing::MOST_AWAY;
use crate::ring::{Credit, Entry, Laps, ROOM_BYTES};
use ccl_core::transport::{Exchange, SLOTS_PER_LINK};
use ccl_core::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The ledger follows the bell; both, and room for more words of the rank, lie in the first page.
const LEDGER_AT: usize = size_of::<Bell>();
const LINKS_AT: usize = 4096;
const _: () = assert!(LEDGER_AT + size_of::<Ledger>() <= LINKS_AT);
/// The entries follow the other words of a link.
const ENTRIES_AT: usize = size_of::<Credit>() + size_of::<Offering>();
/// Rooms begin on a page.
const ROOMS_ALIGN: usize = 4096;

/// What decides where things lie; the same on all ranks.
///
/// ```text
/// 0              LINKS_AT                               rooms_at              slots_at
/// | bell, ledger | link 0: credit, offering, entries… | link 1: … | rooms of link 0 | … | slot 0 | slot 1 | …
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Entries of a link.
    pub(crate) laps: Laps,
    pub(crate) slot_bytes: usize,
    pub(crate) max_links: u32,
}

/// In place of [`SLOTS_PER_LINK`] where ranks share cores. With 8 a root waits for receivers that wait for a core: broadcasts of 256 KiB to
/// 16 MiB between 4 ranks on 2 cores took up to a half longer than with 16, and these up to a fifth longer than with 32; 64 are no better.
const SLOTS_IN_A_CROWD: u32 = 32;

impl Geometry {
    /// Bytes of a link's lines with so many entries.
    pub(crate) fn line_bytes(entries: u32) -> usize {
        ENTRIES_AT + entries as usize * size_of::<Entry>()
    }

    /// Bytes of a link's lines.
    fn link_bytes(&self) -> usize {
        Geometry::line_bytes(self.laps.most + self.skew())
    }

    /// Bytes of the rooms of a link's entries.
    fn room_bytes(&self) -> usize {
        (self.laps.most + self.skew()) as usize * ROOM_BYTES
    }

    /// Entries between one link's and the next one's that nobody uses: so that those of the shortest laps, which are used most, have
    /// places of their own in the caches.
    fn skew(&self) -> u32 {
        if self.laps.most > self.laps.least { self.laps.least } else { 0 }
    }

    fn rooms_at(&self) -> usize {
        (LINKS_AT + self.max_links as usize * self.link_bytes()).next_multiple_of(ROOMS_ALIGN)
    }

    fn slots_at(&self) -> usize {
        (self.rooms_at() + self.max_links as usize * self.room_bytes()).next_multiple_of(HUGE_PAGE)
    }

    /// Messages of a link that may be in slots at a time; in a crowd ranks share cores.
    pub(crate) fn slots_per_link(&self, is_crowded: bool) -> u32 {
        self.laps.least.min(if is_crowded { SLOTS_IN_A_CROWD } else { SLOTS_PER_LINK })
    }

    /// Slots in a segment.
    pub(crate) fn slots(&self) -> u32 {
        self.max_links * self.slots_per_link(true) + MOST_AWAY
    }

    /// Length of a segment.
    pub(crate) fn bytes(&self) -> usize {
        self.slots_at() + self.slots() as usize * self.slot_bytes
    }
}

/// Where the words of a link lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) credit: NonNull<Credit>,
    pub(crate) offering: NonNull<Offering>,
    /// The first of them.
    pub(crate) entries: NonNull<Entry>,
}

/// A mapped segment, one's own or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    id: u128,
    fd: OwnedFd,
    mapping: Mapping,
    geometry: Geometry,
}

/// The segments made by this process, for ranks that are threads of it: they use the same mapping.
static OURS: Mutex<Ours> = Mutex::new(Ours { segments: BTreeMap::new(), taken: BTreeSet::new() });
/// Something was added to [`Ours::taken`].
static TAKEN: Condvar = Condvar::new();

struct Ours {
    segments: BTreeMap<u128, Weak<Segment>>,
    /// Pairs of a segment and the segment of the rank that has taken it, until the owner has noticed.
    taken: BTreeSet<(u128, u128)>,
}

impl Segment {
    /// A new one, of zero bytes. Takes no memory until it is touched.
    pub(crate) fn create(id: u128, geometry: Geometry) -> Result<Arc<Segment>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("rdmaccl", flags).map_err(|e| {
            Error::system("memfd_create for the links", e, "raise the limit of open files (ulimit -n)")
        })?;
        rustix::fs::ftruncate(&fd, geometry.bytes() as u64).map_err(|e| {
            let what = format!("ftruncate of the links' memory to {} bytes", geometry.bytes());
            Error::system(what, e, "raise the file size limit (ulimit -f), or lower slot size or credits")
        })?;
        // Nobody can take the memory away under a reader, which would be a SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(
            |e| Error::system("sealing the links' memory", e, "the kernel must support memfd seals"),
        )?;
        let segment = Arc::new(Segment::map(id, fd, geometry)?);
        ours().segments.insert(id, Arc::downgrade(&segment));
        Ok(segment)
    }

    /// The segment that another rank of this process made, for the rank that owns the segment `taker`.
    pub(crate) fn of_this_process(id: u128, taker: u128) -> Option<Arc<Segment>> {
        let mut ours = ours();
        let segment = ours.segments.get(&id)?.upgrade()?;
        ours.taken.insert((id, taker));
        TAKEN.notify_all();
        Some(segment)
    }

    /// Waits until the rank that owns the segment `taker`, in this process too, has taken this one: an owner that
    /// went on could be done and gone before. (A descriptor, once sent, stays.) False at the deadline.
    pub(crate) fn wait_until_taken(&self, taker: u128, exchange: &dyn Exchange) -> Result<bool> {
        let mut ours = ours();
        while !ours.taken.remove(&(self.id, taker)) {
            let left = exchange.deadline().saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Ok(false);
            }
            exchange.check()?;
            ours = TAKEN.wait_timeout(ours, left.min(GLANCE)).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    /// A peer's, by its descriptor; the text says why it cannot be one.
    pub(crate) fn attach(id: u128, fd: OwnedFd, geometry: Geometry) -> Result<Arc<Segment>, String> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|e| format!("no memfd came: {e}"))?;
        let bytes = rustix::fs::fstat(&fd).map_err(|e| format!("fstat: {e}"))?.st_size;
        if !seals.contains(SealFlags::SHRINK) || bytes as u64 != geometry.bytes() as u64 {
            return Err(format!("its memory has {bytes} bytes where {} are right", geometry.bytes()));
        }
        Segment::map(id, fd, geometry).map(Arc::new).map_err(|e| e.to_string())
    }

    fn map(id: u128, fd: OwnedFd, geometry: Geometry) -> Result<Segment> {
        let mapping = Mapping::new(&fd, geometry.bytes()).map_err(|e| {
            let what = format!("mapping {} bytes of the links' memory", geometry.bytes());
            Error::system(what, e, "raise the address space limit (ulimit -v), or lower slot size or credits")
        })?;
        Ok(Segment { id, fd, mapping, geometry })
    }

    pub(crate) fn id(&self) -> u128 {
        self.id
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The descriptor, for peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The owner's bell.
    pub(crate) fn bell(&self) -> &Bell {
        // SAFETY: the mapping is longer than a bell, page-aligned, lives as long as `self`, and any bytes
        // are a valid bell.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// What the owner says of the memory that it lends.
    #[inline]
    pub(crate) fn ledger(&self) -> &Ledger {
        // SAFETY: it lies behind the bell in the first page of the mapping, which lives as long as `self`, at a
        // multiple of its alignment; any bytes are a valid ledger.
        unsafe { self.mapping.base().add(LEDGER_AT).cast().as_ref() }
    }

    /// Where the words of a link lie.
    pub(crate) fn link(&self, link: u32) -> Words {
        assert!(link < self.geometry.max_links, "link outside the segment");
        let at = LINKS_AT + link as usize * self.geometry.link_bytes();
        // SAFETY: all links of the geometry lie inside the mapping; 128 divides all offsets.
        unsafe {
            let credit = self.mapping.base().add(at);
            let offering = credit.add(size_of::<Credit>());
            let entries = credit.add(ENTRIES_AT).cast();
            Words { credit: credit.cast(), offering: offering.cast(), entries }
        }
    }

    /// Where the room of a link's first entry begins; the others follow.
    pub(crate) fn rooms(&self, link: u32) -> NonNull<u8> {
        assert!(link < self.geometry.max_links, "link outside the segment");
        // SAFETY: the rooms of all links of the geometry lie inside the mapping.
        unsafe {
            self.mapping.base().add(self.geometry.rooms_at() + link as usize * self.geometry.room_bytes())
        }
    }

    /// Where a slot begins.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> NonNull<u8> {
        assert!(slot < self.geometry.slots(), "slot outside the segment");
        // SAFETY: all slots of the geometry lie inside the mapping.
        unsafe {
            self.mapping.base().add(self.geometry.slots_at() + slot as usize * self.geometry.slot_bytes)
        }
    }

    /// Asks for the memory of a link's lines now, those of its shortest lap, so that the lack of it is an error and not a signal.
    pub(crate) fn populate_link(&self, link: u32) -> Result<()> {
        let Words { credit, .. } = self.link(link);
        self.populate(credit.cast(), Geometry::line_bytes(self.geometry.laps.least))
    }

    /// The same for some of its entries.
    #[cold]
    pub(crate) fn populate_entries(&self, link: u32, which: Range<u32>) -> Result<()> {
        assert!(which.end <= self.geometry.laps.most, "entries outside the link");
        let Words { entries, .. } = self.link(link);
        // SAFETY: the link has them.
        let first = unsafe { entries.add(which.start as usize) };
        self.populate(first.cast(), which.len() * size_of::<Entry>())
    }

    /// The same for the rooms of some of its entries.
    #[cold]
    pub(crate) fn populate_rooms(&self, link: u32, which: Range<u32>) -> Result<()> {
        assert!(which.end <= self.geometry.laps.most, "rooms outside the link");
        // SAFETY: the link's entries have them.
        let first = unsafe { self.rooms(link).add(which.start as usize * ROOM_BYTES) };
        self.populate(first, which.len() * ROOM_BYTES)
    }

    /// The same for a row of slots.
    #[cold]
    pub(crate) fn populate_slots(&self, slots: Range<u32>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        self.populate(self.slot(slots.start), slots.len() * self.geometry.slot_bytes)
    }

    fn populate(&self, at: NonNull<u8>, len: usize) -> Result<()> {
        let page = rustix::param::page_size();
        let start = at.as_ptr().map_addr(|a| a & !(page - 1));
        let len = (at.as_ptr().addr() + len).next_multiple_of(page) - start.addr();
        // SAFETY: the range lies in our mapping, whose ends are page-aligned; the advice changes no bytes.
        match unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know the advice: the pages come when they are touched.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(e) => {
                let what = format!("getting {len} bytes of shared memory");
                Err(Error::system(what, e, "raise the memory limit, or lower slot size or credits"))
            }
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mut ours = ours();
        // A peer's segment has the same id in its own process only.
        if ours.segments.get(&self.id).is_some_and(|s| s.strong_count() == 0) {
            ours.segments.remove(&self.id);
            ours.taken.retain(|(id, _)| *id != self.id);
            super::region::forget_lender(self.id);
        }
    }
}

fn ours() -> MutexGuard<'static, Ours> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}
