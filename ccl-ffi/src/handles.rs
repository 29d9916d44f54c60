//! Communicators behind numbers.
//!
//! A handle is a slot's number and the slot's generation, dressed as a pointer that is never followed. So a
//! foreign, freed or doubly freed handle is found out by comparing numbers. Slots are never given back to the
//! allocator, so a look-up needs no lock on the table.

use crate::comm::cclComm_t;
use ccl::{Communicator, Error, Result};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Communicators that may live at once in a process.
const SLOTS: usize = 1 << 14;
const SLOT_BITS: u32 = 14;

#[derive(Default)]
struct Slot {
    /// How many communicators this slot has held, the present one included.
    generation: usize,
    communicator: Option<Communicator>,
}

/// A slot and its lock. Threads hardly ever meet here, and each collective takes it: so taking it is one
/// atomic exchange, giving it back a plain store (a `Mutex` needs an exchange for that too, to find its
/// sleepers), and who finds it taken looks again now and then.
#[derive(Default)]
struct Guarded {
    /// Set, with Acquire, by who takes the slot; cleared, with Release, which publishes what was done to it.
    taken: AtomicBool,
    slot: UnsafeCell<Slot>,
}

// SAFETY: the slot is reached through `with` only, by one thread at a time; what is in it may move to another
// thread.
unsafe impl Sync for Guarded where Slot: Send {}

impl Guarded {
    #[inline]
    fn with<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> T {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        /// Gives the slot back, also when `work` panics.
        struct Taken<'a>(&'a AtomicBool);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let _taken = Taken(&self.taken);
        // SAFETY: `taken` was clear and is now set by this thread, so no other thread is here until it is
        // cleared at the end of this function; `work` cannot reach this slot again, since it would wait.
        work(unsafe { &mut *self.slot.get() })
    }

    /// Another thread is in a call on this communicator, which may take as long as its peers do.
    #[cold]
    fn wait(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

static TABLE: [OnceLock<Guarded>; SLOTS] = [const { OnceLock::new() }; SLOTS];

/// Slots that are free again, and how many were ever used.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

pub(crate) fn insert(communicator: Communicator) -> Result<cclComm_t> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = match free.0.pop() {
        Some(index) => index,
        None if free.1 < SLOTS => {
            free.1 += 1;
            free.1 - 1
        }
        None => {
            let what = format!("more than {SLOTS} communicators in a process");
            return Err(Error::unsupported(what, "destroy those that are not used"));
        }
    };
    TABLE[index].get_or_init(Guarded::default).with(|slot| {
        slot.generation += 1;
        slot.communicator = Some(communicator);
        Ok(((slot.generation << SLOT_BITS) | index) as cclComm_t)
    })
}

/// Works with the communicator of a handle; other threads' calls on it wait.
#[inline]
pub(crate) fn with<T>(comm: cclComm_t, work: impl FnOnce(&mut Communicator) -> Result<T>) -> Result<T> {
    let (index, generation) = (comm as usize & (SLOTS - 1), comm as usize >> SLOT_BITS);
    let Some(slot) = TABLE[index].get() else { return Err(foreign(comm)) };
    slot.with(|slot| match slot {
        Slot { generation: of, communicator: Some(communicator) } if *of == generation => work(communicator),
        _ => Err(foreign(comm)),
    })
}

/// Takes the communicator out; the handle is dead from now on.
pub(crate) fn remove(comm: cclComm_t) -> Result<Communicator> {
    let (index, generation) = (comm as usize & (SLOTS - 1), comm as usize >> SLOT_BITS);
    let Some(slot) = TABLE[index].get() else { return Err(foreign(comm)) };
    let taken = slot.with(|slot| slot.communicator.take_if(|_| slot.generation == generation));
    let communicator = taken.ok_or_else(|| foreign(comm))?;
    FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(index);
    Ok(communicator)
}

#[cold]
fn foreign(comm: cclComm_t) -> Error {
    let what =
        if comm.is_null() { "a NULL communicator".to_string() } else { format!("communicator {comm:p}") };
    Error::invalid(what, "give a handle that cclCommInitRank has returned and that was not destroyed")
}
