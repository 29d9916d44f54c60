//! Communicators behind numbers.
//!
//! A handle is a slot's number and the slot's generation, dressed as a pointer that is never followed. So a
//! foreign, freed or doubly freed handle is found out by comparing numbers. Slots are never given back to the
//! allocator, so a look-up needs no lock on the table.

use crate::comm::cclComm_t;
use ccl::{Communicator, Error, Result};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Communicators that may live at once in a process.
const SLOTS: usize = 1 << 14;
const SLOT_BITS: u32 = 14;

#[derive(Default)]
struct Slot {
    /// How many communicators this slot has held, the present one included.
    generation: usize,
    communicator: Option<Communicator>,
}

static TABLE: [OnceLock<Mutex<Slot>>; SLOTS] = [const { OnceLock::new() }; SLOTS];

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
    let slot = TABLE[index].get_or_init(Mutex::default);
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    slot.generation += 1;
    slot.communicator = Some(communicator);
    Ok(((slot.generation << SLOT_BITS) | index) as cclComm_t)
}

/// Works with the communicator of a handle; other threads' calls on it wait.
#[inline]
pub(crate) fn with<T>(comm: cclComm_t, work: impl FnOnce(&mut Communicator) -> Result<T>) -> Result<T> {
    let (index, generation) = (comm as usize & (SLOTS - 1), comm as usize >> SLOT_BITS);
    let Some(slot) = TABLE[index].get() else { return Err(foreign(comm)) };
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *slot {
        Slot { generation: of, communicator: Some(communicator) } if *of == generation => work(communicator),
        _ => Err(foreign(comm)),
    }
}

/// Takes the communicator out; the handle is dead from now on.
pub(crate) fn remove(comm: cclComm_t) -> Result<Communicator> {
    let (index, generation) = (comm as usize & (SLOTS - 1), comm as usize >> SLOT_BITS);
    let Some(slot) = TABLE[index].get() else { return Err(foreign(comm)) };
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.generation != generation {
        return Err(foreign(comm));
    }
    let communicator = slot.communicator.take().ok_or_else(|| foreign(comm))?;
    drop(slot);
    FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(index);
    Ok(communicator)
}

#[cold]
fn foreign(comm: cclComm_t) -> Error {
    let what =
        if comm.is_null() { "a NULL communicator".to_string() } else { format!("communicator {comm:p}") };
    Error::invalid(what, "give a handle that cclCommInitRank has returned and that was not destroyed")
}
