//! The one system call without a safe wrapper: `membarrier(2)`.

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
