//! The only source of atomics, cells and fences in this crate: the machine's, or loom's under
//! `--cfg loom`, so that what loom explores is what production runs.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// Bytes that one side writes before it publishes them and the other reads afterwards.
    pub(crate) type Cell<T> = std::cell::UnsafeCell<T>;

    /// The light side of the asymmetric barrier: it keeps the compiler from moving the load that follows
    /// above the store that precedes. The processor is held in order by the heavy side
    /// ([`sys::heavy_barrier`](crate::sys::heavy_barrier)), which interrupts it.
    #[inline(always)]
    pub(crate) fn light_barrier() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) type Cell<T> = loom::cell::UnsafeCell<T>;

    /// An interrupt on the other core that executes a full fence is, for the program's order, a full fence
    /// on this one too.
    pub(crate) fn light_barrier() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) use imp::*;
