//! The C library's allocation functions, as programs call them, and what `librdmaccl` calls.

use crate::sys::heap::{self, Allocate, Release};
use libc::{EINVAL, ENOMEM, c_int, c_void, size_t};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// glibc's own, under the names that it keeps for those who stand in for `malloc`.
mod glibc {
    use super::{c_void, size_t};

    unsafe extern "C" {
        #[link_name = "__libc_malloc"]
        pub(super) fn malloc(size: size_t) -> *mut c_void;
        #[link_name = "__libc_calloc"]
        pub(super) fn calloc(count: size_t, size: size_t) -> *mut c_void;
        #[link_name = "__libc_realloc"]
        pub(super) fn realloc(block: *mut c_void, size: size_t) -> *mut c_void;
        #[link_name = "__libc_memalign"]
        pub(super) fn memalign(alignment: size_t, size: size_t) -> *mut c_void;
        #[link_name = "__libc_free"]
        pub(super) fn free(block: *mut c_void);
    }
}

/// glibc's `malloc_usable_size`, which has no other name.
fn glibc_usable_size(block: *mut c_void) -> size_t {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a name that ends with 0.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        FOUND.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        return 0;
    }
    // SAFETY: the function of this name has this type.
    let usable = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> size_t>(found) };
    usable(block)
}

fn set_errno(error: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = error };
}

/// `librdmaccl` gives the heap its shared memory: allocations from `least` bytes on come from there. 1: they do; 0: another
/// copy of the library has given its own before, or forks could not be watched.
///
/// The number in the name is that of this agreement: arguments, and what `Allocate` and `Release` do.
#[unsafe(no_mangle)]
pub extern "C" fn rdmaccl_heap_attach_1(least: size_t, allocate: Allocate, release: Release) -> c_int {
    c_int::from(heap::supplied(least, allocate, release))
}

/// See malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: size_t) -> *mut c_void {
    if heap::wants(size)
        && let Some(block) = heap::take(size, 1)
    {
        return block;
    }
    // SAFETY: always allowed.
    unsafe { glibc::malloc(size) }
}

/// See malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    if let Some(bytes) = count.checked_mul(size)
        && heap::wants(bytes)
        && let Some(block) = heap::take_zeroed(bytes)
    {
        return block;
    }
    // SAFETY: always allowed; it refuses what overflows.
    unsafe { glibc::calloc(count, size) }
}

/// See malloc(3).
///
/// # Safety
/// `block` is NULL or was allocated, and is not used if another one is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if !heap::is_here(block) {
        if block.is_null() || !heap::wants(size) {
            // SAFETY: glibc's, or NULL.
            return if block.is_null() { malloc(size) } else { unsafe { glibc::realloc(block, size) } };
        }
        let Some(longer) = heap::take(size, 1) else {
            // SAFETY: glibc's.
            return unsafe { glibc::realloc(block, size) };
        };
        let known = glibc_usable_size(block).min(size);
        // SAFETY: both are at least as long; glibc's is not used any more.
        unsafe {
            longer.cast::<u8>().copy_from_nonoverlapping(block.cast(), known);
            glibc::free(block);
        }
        return longer;
    }
    if size == 0 {
        heap::give(block);
        return null_mut();
    }
    if heap::wants(size) && heap::resize(block, size) {
        return block;
    }
    let other = malloc(size);
    if !other.is_null() {
        let known = heap::length(block).min(size);
        // SAFETY: both are at least as long; the old one is not used any more.
        unsafe { other.cast::<u8>().copy_from_nonoverlapping(block.cast(), known) };
        heap::give(block);
    }
    other
}

/// See free(3); `errno` stays.
///
/// # Safety
/// `block` is NULL or was allocated, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if heap::is_here(block) {
        // SAFETY: this thread's own.
        let error = unsafe { *libc::__errno_location() };
        heap::give(block);
        return set_errno(error);
    }
    // SAFETY: glibc's, or NULL.
    unsafe { glibc::free(block) }
}

/// See posix_memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    if heap::wants(size)
        && let Some(alignment) = alignment.checked_next_power_of_two()
        && let Some(block) = heap::take(size, alignment)
    {
        return block;
    }
    // SAFETY: always allowed; it refuses what cannot be.
    unsafe { glibc::memalign(alignment, size) }
}

/// See posix_memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    memalign(alignment, size)
}

/// See posix_memalign(3).
///
/// # Safety
/// `block` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(block: *mut *mut c_void, alignment: size_t, size: size_t) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return EINVAL;
    }
    // SAFETY: this thread's own.
    let error = unsafe { *libc::__errno_location() };
    let found = memalign(alignment, size);
    set_errno(error);
    if found.is_null() {
        return ENOMEM;
    }
    // SAFETY: writable by the contract.
    unsafe { *block = found };
    0
}

/// See posix_memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: size_t) -> *mut c_void {
    memalign(page(), size)
}

/// See posix_memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    let Some(whole) = size.checked_next_multiple_of(page()) else {
        set_errno(ENOMEM);
        return null_mut();
    };
    memalign(page(), whole)
}

fn page() -> usize {
    // SAFETY: always allowed.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// See malloc_usable_size(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc_usable_size(block: *mut c_void) -> size_t {
    match heap::is_here(block) {
        true => heap::length(block),
        false => glibc_usable_size(block),
    }
}
