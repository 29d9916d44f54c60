//! The atomics, the lock and the cell of [`line`](super::line): the machine's, or loom's under `--cfg loom`, so that what
//! loom explores is what production runs.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

    /// A value that is reached by whoever has the right to it.
    pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

    /// The right, as an address.
    pub(crate) struct MutPtr<T>(*mut T);

    impl<T> Cell<T> {
        pub(crate) const fn new(value: T) -> Cell<T> {
            Cell(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(crate) fn get_mut(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }
    }

    impl<T> MutPtr<T> {
        /// # Safety
        /// Nobody else has the right as long as the reference lives.
        #[inline]
        #[expect(clippy::mut_from_ref, reason = "loom's signature")]
        pub(crate) unsafe fn deref(&self) -> &mut T {
            // SAFETY: the caller's promise; the address is that of a live cell.
            unsafe { &mut *self.0 }
        }
    }
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::cell::{MutPtr, UnsafeCell as Cell};
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

pub(crate) use imp::*;
