//! The C side: libibverbs' functions over the world, and the few that steer it.
//!
//! # Safety
//! Every function has the contract of its namesake in libibverbs: pointers are those that the library gave and that
//! were not given back, or point to what the manual page says. The functions trust that; what they check is what a kernel or
//! a device checks.

mod device;
mod dma_buf;
mod fake;
mod objects;
mod queue_pair;
mod steering;

pub use fake::Fake;

use crate::world::{Errno, Mover, World};
use libc::c_int;
use std::mem::zeroed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Its own C objects carry their key in the world as their handle.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The world; at the first time as `RDMACCL_FAKE_IBVERBS` says.
fn with<R>(act: impl FnOnce(&mut World) -> R) -> R {
    let mut world = lock();
    let world = world.get_or_insert_with(|| {
        let mut world = World::new(MOVER);
        if let Ok(script) = std::env::var("RDMACCL_FAKE_IBVERBS") {
            let run = crate::script::parse(&script).and_then(|commands| world.run(commands));
            run.unwrap_or_else(|why| panic!("RDMACCL_FAKE_IBVERBS: {why}"));
        }
        world
    });
    act(world)
}

fn lock() -> MutexGuard<'static, Option<World>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

const MOVER: Mover = Mover {
    read: |from, len| {
        let mut bytes = vec![0; len];
        // SAFETY: the range lies in a region that is registered, which its owner keeps mapped; who writes it now breaks
        // the contract of the send.
        unsafe { std::ptr::copy_nonoverlapping(pointer(from), bytes.as_mut_ptr(), len) };
        bytes
    },
    write: |to, bytes| {
        // SAFETY: the range lies in a region that is registered for writing, which its owner keeps mapped.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(to), bytes.len()) };
    },
    note: dma_buf::note,
};

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Leaves the errno for the caller, and gives what such a call returns.
fn fail<R>(errno: Errno, returned: R) -> R {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    returned
}

/// 0 or the errno, as newer verbs return.
fn status(result: Result<(), Errno>) -> c_int {
    result.err().unwrap_or(0)
}

/// A C object with everything zero; locks and conditions are valid so.
fn blank<T>() -> Box<T> {
    // SAFETY: only C structs of numbers, pointers, optional functions, locks and conditions are made so.
    Box::new(unsafe { zeroed() })
}
