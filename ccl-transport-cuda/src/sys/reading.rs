//! Whether the CPU can read an address, without reading it.

use libc::{EFAULT, c_void, iovec};

/// Asks the kernel, by a system call. Where a sandbox forbids the question the answer is yes.
pub(crate) fn is_readable(address: usize) -> bool {
    let mut byte = 0u8;
    let into = iovec { iov_base: (&raw mut byte).cast::<c_void>(), iov_len: 1 };
    let from = iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: one byte of our own to write; what is at the other address, if anything, only the kernel looks at.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &into, 1, &from, 1, 0) };
    read >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_or_not_for_reading_is_told_apart() {
        let here = 1u8;
        assert!(is_readable((&raw const here).addr()));
        assert!(!is_readable(8));
        // SAFETY: a new mapping, which nobody touches.
        let closed = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(!is_readable(closed.addr()));
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(closed, 4096) };
    }
}
