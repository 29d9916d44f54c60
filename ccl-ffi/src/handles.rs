//! Things behind numbers.
//!
//! A handle is a number, dressed as a pointer that is never followed: the kind of thing, the process that made it, a slot
//! and how often that was used. So a foreign, freed or doubly freed handle, one of another kind or of a parent process,
//! is found out by comparing numbers. Slots are never given back to the allocator, so a look-up needs no lock.

use crate::fork;
use ccl::{Error, Monitor, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Things of one kind that may live at once in a process.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;
/// Where a handle holds its process's depth in forks, and its kind, whose highest bit no address of a program has.
const DEPTH_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 56;
const _: () = assert!(usize::BITS == 64, "a handle has 64 bits");

/// All things of one kind.
pub(crate) struct Table<T: 'static> {
    kind: u8,
    /// What a thing is called, and where it comes from, for errors.
    name: &'static str,
    maker: &'static str,
    slots: [OnceLock<Slot<T>>; SLOTS],
    free: Monitor<Free>,
}

/// Slots that are free again, and how many were ever used.
struct Free {
    again: Vec<usize>,
    used: usize,
}

/// A place for a thing. What it holds stays when the thing goes.
pub(crate) struct Slot<T> {
    index: usize,
    /// Things that it was used for. Changed under the lock of `free`.
    uses: AtomicU64,
    /// The handle that is valid now; 0 for none. Written with Release when what it holds is ready, or no longer.
    valid: AtomicU64,
    pub(crate) held: T,
}

impl<T: Default> Table<T> {
    pub(crate) const fn new(kind: u8, name: &'static str, maker: &'static str) -> Table<T> {
        assert!(kind >= 0x80, "no address looks like it");
        let free = Monitor::new(Free { again: Vec::new(), used: 0 });
        Table { kind, name, maker, slots: [const { OnceLock::new() }; SLOTS], free }
    }

    /// Puts a thing into a free slot with `fill`, and makes its handle.
    pub(crate) fn insert(&'static self, fill: impl FnOnce(&'static T)) -> Result<usize> {
        fork::watch();
        let mut free = self.free.lock();
        let index = match free.again.pop() {
            Some(index) => index,
            None if free.used < SLOTS => {
                free.used += 1;
                free.used - 1
            }
            None => {
                let what = format!("more than {SLOTS} {}s in a process", self.name);
                return Err(Error::unsupported(what, "destroy those that are not used"));
            }
        };
        let slot = self.slots[index].get_or_init(|| Slot {
            index,
            uses: AtomicU64::new(0),
            valid: AtomicU64::new(0),
            held: T::default(),
        });
        let uses = slot.uses.load(Ordering::Relaxed) + 1;
        slot.uses.store(uses, Ordering::Relaxed);
        drop(free);
        fill(&slot.held);
        let process = u64::from(self.kind) << KIND_SHIFT | u64::from(fork::depth()) << DEPTH_SHIFT;
        let use_mask = (1 << (DEPTH_SHIFT - SLOT_BITS)) - 1;
        let handle = process | (uses & use_mask) << SLOT_BITS | index as u64;
        slot.valid.store(handle, Ordering::Release);
        Ok(handle as usize)
    }

    /// The slot that a handle speaks of, whether it is [valid](Slot::is) or not.
    #[inline]
    pub(crate) fn slot(&'static self, handle: usize) -> Result<&'static Slot<T>> {
        let process = u64::from(self.kind) << 8 | u64::from(fork::depth());
        match self.slots[handle & (SLOTS - 1)].get() {
            Some(slot) if handle as u64 >> DEPTH_SHIFT == process => Ok(slot),
            _ => Err(self.foreign(handle)),
        }
    }

    /// The slot of a valid handle.
    pub(crate) fn find(&'static self, handle: usize) -> Result<&'static Slot<T>> {
        self.slot(handle)?.check(handle, self)
    }

    /// Gives the slot of a handle that was [retired](Slot::retire), and whose thing is gone, to another.
    pub(crate) fn release(&'static self, slot: &'static Slot<T>) {
        self.free.lock().again.push(slot.index);
    }

    #[cold]
    pub(crate) fn foreign(&self, handle: usize) -> Error {
        let name = self.name;
        if handle == 0 {
            return Error::invalid(
                format!("a NULL {name}"),
                format!("give one that {} has made", self.maker),
            );
        }
        let (kind, depth) = ((handle >> KIND_SHIFT) as u8, (handle >> DEPTH_SHIFT) as u8);
        if kind == self.kind && depth != fork::depth() {
            return Error::unsupported(
                format!("the {name} {handle:#x} of a parent process, after fork()"),
                format!("make a {name} of its own in the child"),
            );
        }
        let what = format!("{handle:#x}, which is no {name}");
        let remedy = format!("give a handle that {} has returned and that was not destroyed", self.maker);
        Error::invalid(what, remedy)
    }
}

impl<T: Default> Slot<T> {
    /// Whether this handle is valid.
    #[inline]
    pub(crate) fn is(&self, handle: usize) -> bool {
        self.valid.load(Ordering::Acquire) == handle as u64
    }

    #[inline]
    pub(crate) fn check(&'static self, handle: usize, table: &Table<T>) -> Result<&'static Slot<T>> {
        if self.is(handle) { Ok(self) } else { Err(table.foreign(handle)) }
    }

    /// Makes a handle invalid; whether it was valid until now, which is true for one caller only.
    pub(crate) fn retire(&self, handle: usize) -> bool {
        self.valid.compare_exchange(handle as u64, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
