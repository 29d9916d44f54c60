//! `cclMemAlloc`, `cclMemFree`, `cclCommRegister`, `cclCommDeregister`.

use crate::comm::{self, cclComm_t};
use crate::handles::Table;
use crate::pointers;
use crate::result::{cclResult_t, guard};
use ccl::{Error, Piece, Result, SharedMemory, UserMemory};
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Allocations, by address.
static ALLOCATED: Mutex<BTreeMap<usize, Arc<SharedMemory>>> = Mutex::new(BTreeMap::new());

fn allocated() -> MutexGuard<'static, BTreeMap<usize, Arc<SharedMemory>>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates zeroed host memory that is good for collectives: ranks on the same host map it, and over RDMA the network
/// reads and writes it where it lies, so that large calls need no copy into the library's own memory. It need not be
/// registered. Aligned to 2 MiB and backed by huge pages where the system has them for shared memory. Each allocation
/// takes a file descriptor. Free it with `cclMemFree`.
///
/// # Safety
/// `ptr` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclMemAlloc(ptr: *mut *mut c_void, size: usize) -> cclResult_t {
    guard(|| {
        pointers::check(ptr, "ptr", "give the address of a pointer")?;
        let memory = SharedMemory::alloc(size)?;
        let at = memory.as_mut_ptr();
        allocated().insert(at.addr(), Arc::new(memory));
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { ptr.write(at.cast()) };
        Ok(())
    })
}

/// Frees what `cclMemAlloc` gave. NULL is nothing to free.
///
/// # Safety
/// Nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclMemFree(ptr: *mut c_void) -> cclResult_t {
    guard(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let known = allocated().remove(&ptr.addr());
        known.map(drop).ok_or_else(|| {
            Error::invalid(format!("{ptr:p} is not from cclMemAlloc, or free already"), "free it once")
        })
    })
}

/// What was registered: the communicator's handle, and the bytes. Published with the registration's own handle.
#[derive(Default)]
struct Registered {
    comm: AtomicUsize,
    at: AtomicUsize,
    size: AtomicUsize,
}

impl Registered {
    fn set(&self, comm: usize, at: usize, size: usize) {
        self.comm.store(comm, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
    }

    fn piece(&self) -> Piece {
        let at = with_exposed_provenance(self.at.load(Ordering::Relaxed));
        // SAFETY: the caller of `cclCommRegister` has vouched for it. Nobody reads through it.
        unsafe { Piece::new(at, self.size.load(Ordering::Relaxed)) }
    }
}

static REGISTRATIONS: Table<Registered> = Table::new(0xc9, "registration", "cclCommRegister");

/// Registers a buffer with a communicator.
///
/// Over RDMA the network reads and writes memory from `cclMemAlloc`, and registered memory of any kind, where it lies;
/// other memory goes through the library's own. Memory from `cclMemAlloc` that is registered is made known to peers on the
/// same host that are connected, so that the first call on it need not do it; such calls find it by themselves. Ranks of one host cannot map memory of another
/// kind: between them it makes no difference. Deregister a buffer before it is freed; one from `cclMemAlloc` that
/// is freed before stays there until then.
///
/// Memory of the communicator's device may be registered where kernels make its calls and all ranks are on one host. Long
/// all-reduces whose two buffers all ranks have registered are then made where they lie; other calls find no
/// difference, nor do results. It is refused elsewhere, and where other ranks are processes to which the driver does not give
/// that memory.
///
/// # Safety
/// `handle` is NULL or writable. The `size` bytes at `buff` are readable and writable until they are deregistered or the
/// communicator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommRegister(
    comm: cclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> cclResult_t {
    guard(|| {
        if buff.is_null() || size == 0 {
            return Err(Error::invalid(format!("a buffer of {size} bytes at {buff:p}"), "give some memory"));
        }
        pointers::check(handle, "handle", "give the address of a pointer")?;
        let memory = containing(buff.addr(), size)?;
        let number = REGISTRATIONS.insert(|held| held.set(comm.addr(), buff.expose_provenance(), size))?;
        let slot = REGISTRATIONS.find(number)?;
        let owner = memory.map(|memory| memory as Arc<dyn Any + Send + Sync>);
        let registered = UserMemory { piece: slot.held.piece(), owner };
        comm::with(comm, |communicator| communicator.register(&registered)).inspect_err(|_| {
            if slot.retire(number) {
                REGISTRATIONS.release(slot);
            }
        })?;
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { handle.write(without_provenance_mut(number)) };
        Ok(())
    })
}

/// Ends a registration. The memory stays what it is; peers of the same host have it mapped until it is freed. With memory of
/// a device it waits until this rank's calls are over and no peer has the memory any more. NULL is no registration.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommDeregister(comm: cclComm_t, handle: *mut c_void) -> cclResult_t {
    guard(|| {
        if handle.is_null() {
            return Ok(());
        }
        comm::face(comm)?;
        let slot = REGISTRATIONS.find(handle.addr())?;
        if slot.held.comm.load(Ordering::Relaxed) != comm.addr() {
            let what = format!("registration {handle:p} is of another communicator");
            return Err(Error::invalid(what, "give the communicator that it was made with"));
        }
        if !slot.retire(handle.addr()) {
            return Err(REGISTRATIONS.foreign(handle.addr()));
        }
        let piece = slot.held.piece();
        REGISTRATIONS.release(slot);
        comm::with(comm, |communicator| communicator.deregister(piece))
    })
}

/// The allocation that holds these bytes; none for other memory, an error for bytes of which it holds a part.
fn containing(at: usize, size: usize) -> Result<Option<Arc<SharedMemory>>> {
    let allocated = allocated();
    let end =
        at.checked_add(size).ok_or_else(|| Error::invalid(format!("{size} bytes"), "less than 2^63"))?;
    let Some((start, memory)) = allocated.range(..end).next_back() else { return Ok(None) };
    let stop = start + memory.len();
    if stop <= at {
        return Ok(None);
    }
    if *start <= at && end <= stop {
        return Ok(Some(Arc::clone(memory)));
    }
    Err(Error::invalid(
        format!(
            "{size} bytes at {at:#x}, partly in the {} bytes from cclMemAlloc at {start:#x}",
            memory.len()
        ),
        "register bytes of one allocation, or of none",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unique_id::{cclGetUniqueId, cclUniqueId};
    use crate::{cclCommDestroy, cclCommInitRank};
    use std::ptr::null_mut;

    /// One of these tests frees memory twice: an allocation that another made in between may lie at the same address.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alloc(size: usize) -> *mut c_void {
        let mut at = null_mut();
        // SAFETY: `at` is writable.
        assert_eq!(unsafe { cclMemAlloc(&mut at, size) }, cclResult_t::cclSuccess);
        at
    }

    fn free(at: *mut c_void) -> cclResult_t {
        // SAFETY: nobody uses it.
        unsafe { cclMemFree(at) }
    }

    /// A communicator of one rank.
    fn communicator() -> cclComm_t {
        let mut id = cclUniqueId { internal: [0; 128] };
        let mut comm = null_mut();
        // SAFETY: both are writable.
        unsafe {
            assert_eq!(cclGetUniqueId(&mut id), cclResult_t::cclSuccess);
            assert_eq!(cclCommInitRank(&mut comm, 1, id, 0), cclResult_t::cclSuccess);
        }
        comm
    }

    fn register(comm: cclComm_t, at: *mut c_void, size: usize) -> Option<*mut c_void> {
        let mut handle = null_mut();
        // SAFETY: `handle` is writable.
        let result = unsafe { cclCommRegister(comm, at, size, &mut handle) };
        (result == cclResult_t::cclSuccess).then_some(handle)
    }

    #[test]
    fn memory_is_zero_aligned_and_freed_once() {
        let _alone = alone();
        for size in [0, 1, 5 << 20] {
            let at = alloc(size);
            assert!(at.addr().is_multiple_of(2 << 20));
            // SAFETY: `size` bytes of our own.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), size) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(1);
            assert_ne!(free(at.wrapping_byte_add(1)), cclResult_t::cclSuccess);
            assert_eq!(free(at), cclResult_t::cclSuccess);
            assert_ne!(free(at), cclResult_t::cclSuccess, "freed twice");
        }
        assert_eq!(free(null_mut()), cclResult_t::cclSuccess);
        // SAFETY: `at` is writable.
        assert_ne!(unsafe { cclMemAlloc(&mut null_mut(), usize::MAX) }, cclResult_t::cclSuccess);
    }

    #[test]
    fn registrations_are_checked() {
        let _alone = alone();
        let (comm, other) = (communicator(), communicator());
        let (mapped, mut plain) = (alloc(10_000), [0u8; 100]);
        let plain_at = plain.as_mut_ptr().cast();
        let one = register(comm, mapped.wrapping_byte_add(16), 10_000 - 16).expect("within");
        let two = register(comm, plain_at, 100).expect("ordinary memory has a handle too");
        assert_ne!(one, two);
        assert_eq!(register(comm, mapped.wrapping_byte_add(16), 10_000), None, "it ends outside");
        assert_eq!(register(comm, mapped.wrapping_byte_sub(16), 100), None, "it begins outside");
        assert_eq!(register(comm, mapped, 0), None);
        assert_eq!(register(comm, null_mut(), 8), None);
        assert_eq!(register(null_mut(), plain_at, 8), None, "no communicator");

        assert_ne!(cclCommDeregister(other, one), cclResult_t::cclSuccess, "of another communicator");
        assert_ne!(
            cclCommDeregister(comm, without_provenance_mut(1 << 40)),
            cclResult_t::cclSuccess,
            "foreign"
        );
        for handle in [one, two] {
            assert_eq!(cclCommDeregister(comm, handle), cclResult_t::cclSuccess);
            assert_ne!(cclCommDeregister(comm, handle), cclResult_t::cclSuccess, "twice");
        }
        assert_eq!(cclCommDeregister(comm, null_mut()), cclResult_t::cclSuccess);
        assert_eq!(free(mapped), cclResult_t::cclSuccess);
        assert_eq!(cclCommDestroy(comm), cclResult_t::cclSuccess);
        assert_eq!(cclCommDestroy(other), cclResult_t::cclSuccess);
    }
}
