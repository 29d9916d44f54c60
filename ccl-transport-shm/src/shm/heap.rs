//! Shared memory for the heap that programs preload: `librdmaccl_heap.so`, of the crate `ccl-heap`.
//!
//! The two know each other by one symbol and the types of its arguments, whose number stands in its name.

use super::region::SharedMemory;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Allocate = extern "C" fn(usize, *mut c_int) -> *mut c_void;
type Release = extern "C" fn(*mut c_void);
/// From how many bytes on, and from where; 1: from now on, 0: from elsewhere.
type Attach = unsafe extern "C" fn(usize, Allocate, Release) -> c_int;

/// What the heap has of it.
static SLABS: Mutex<Vec<SharedMemory>> = Mutex::new(Vec::new());

fn slabs() -> MutexGuard<'static, Vec<SharedMemory>> {
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The heap that was preloaded, `librdmaccl_heap.so`: longer allocations of the program can come from shared memory.
///
/// Every communicator that is built attaches it, and the C library does when it is loaded. A forked process begins with
/// the C library's allocations, and a copy of what its parent had in the heap.
#[derive(Debug)]
pub struct PreloadedHeap(Attach);

impl PreloadedHeap {
    /// That of this process, if there is one.
    pub fn find() -> Option<PreloadedHeap> {
        // SAFETY: a name that ends with 0.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rdmaccl_heap_attach_1".as_ptr()) };
        // SAFETY: the function of this name has this type.
        (!found.is_null())
            .then(|| PreloadedHeap(unsafe { std::mem::transmute::<*mut c_void, Attach>(found) }))
    }

    /// Allocations of `least` bytes and more come from shared memory from now on. False: they do already, or from that of another
    /// copy of this library, or forks cannot be watched.
    pub fn attach(&self, least: usize) -> bool {
        // SAFETY: both functions stay as long as the process: below.
        let taken = unsafe { (self.0)(least, allocate, release) } == 1;
        if taken {
            stay();
            tracing::debug!(least, "the preloaded heap takes its memory from here");
        }
        taken
    }
}

/// This library is never unloaded from now on: the heap calls it.
fn stay() {
    let mut about = libc::Dl_info {
        dli_fname: null_mut(),
        dli_fbase: null_mut(),
        dli_sname: null_mut(),
        dli_saddr: null_mut(),
    };
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: an address of this library, and what is written to; the name stays as long as the library is loaded. A
    // program that holds the library in itself has nothing that could be unloaded, and is refused.
    unsafe {
        if libc::dladdr(allocate as *const c_void, &mut about) != 0 {
            libc::dlopen(about.dli_fname, flags);
        }
    }
}

extern "C" fn allocate(len: usize, fd: *mut c_int) -> *mut c_void {
    let memory = match SharedMemory::for_heap(len) {
        Ok(memory) => memory,
        Err(error) => {
            tracing::debug!(%error, "the preloaded heap gets no shared memory: the C library's is taken");
            return null_mut();
        }
    };
    // SAFETY: the heap's, writable.
    unsafe { *fd = memory.raw_fd() };
    let at = memory.as_mut_ptr();
    slabs().push(memory);
    at.cast()
}

extern "C" fn release(at: *mut c_void) {
    let mut slabs = slabs();
    if let Some(index) = slabs.iter().position(|memory| memory.as_mut_ptr().addr() == at.addr()) {
        drop(slabs.swap_remove(index));
    }
}
