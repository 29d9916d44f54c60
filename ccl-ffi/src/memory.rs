//! `cclMemAlloc`, `cclMemFree`.

use crate::result::{cclResult_t, guard};
use ccl::Error;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Allocations and their lengths.
static ALLOCATED: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// Allocations begin on a huge page, so that the kernel may back them with huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Allocates zeroed host memory that is good for collectives: aligned to 2 MiB and backed by huge pages
/// where the system has them. Free it with `cclMemFree`.
///
/// # Safety
/// `ptr` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclMemAlloc(ptr: *mut *mut c_void, size: usize) -> cclResult_t {
    guard(|| {
        if ptr.is_null() {
            return Err(Error::invalid("ptr is NULL", "give the address of a pointer"));
        }
        let too_long = || Error::invalid(format!("{size} bytes"), "ask for less than 2^63");
        let len = size.max(1).checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_long)?;
        let mapped = len.checked_add(HUGE_PAGE).filter(|m| *m <= isize::MAX as usize).ok_or_else(too_long)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(Error::system(
                format!("mmap of {size} bytes"),
                cause,
                "free memory or raise the limit",
            ));
        }
        let at = base.wrapping_byte_add((base as usize).wrapping_neg() % HUGE_PAGE);
        let head = at as usize - base as usize;
        // SAFETY: `at .. at + len` and the ends to both sides lie inside the mapping just made.
        unsafe {
            if head > 0 {
                libc::munmap(base, head);
            }
            if mapped - head > len {
                libc::munmap(at.wrapping_byte_add(len), mapped - head - len);
            }
            // Advice: memory without huge pages is as good, only slower.
            libc::madvise(at, len, libc::MADV_HUGEPAGE);
        }
        ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).insert(at as usize, len);
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { ptr.write(at) };
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
        let known = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).remove(&(ptr as usize));
        let len = known.ok_or_else(|| {
            Error::invalid(format!("{ptr:p} is not from cclMemAlloc, or free already"), "free it once")
        })?;
        // SAFETY: exactly what cclMemAlloc mapped, and it is taken off the list, so only once.
        unsafe { libc::munmap(ptr, len) };
        Ok(())
    })
}
