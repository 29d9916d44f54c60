//! What the kernel and the processor offer without a safe wrapper: `membarrier(2)`, and a hint.

use std::sync::OnceLock;

/// Whether this process takes part in the heavy barriers of others, and can make its own.
pub(crate) fn register_barrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED))
}

/// A full memory barrier on every core that runs a registered process, this one included.
pub(crate) fn heavy_barrier() -> bool {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks for the line at an address in a state in which it may be written. A hint: any address will do.
///
/// Not by `_mm_prefetch`: without a target feature that x86-64 does not include it becomes a prefetch for reading, after which a store
/// still has to ask for the line. Processors of x86-64 that lack the instruction pass over it.
#[inline(always)]
pub(crate) fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes no memory and no register, and does not fault.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
