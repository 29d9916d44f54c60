//! A lock that allocates nothing, is held across a fork, and refuses the thread that has it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value for one thread at a time.
pub(super) struct Guarded<T> {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Which thread has it, as `pthread_self` says; 0: none.
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the thread that holds the lock only.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(super) const fn new(value: T) -> Guarded<T> {
        let lock = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
        Guarded { lock, holder: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// `None` where this thread is inside already: it allocates for what it does there, or its process forks.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.enter() {
            return None;
        }
        // SAFETY: this thread holds the lock, and is inside once.
        let result = body(unsafe { &mut *self.value.get() });
        self.leave();
        Some(result)
    }

    /// Goes on inside, in the thread that did not leave.
    ///
    /// # Safety
    /// This thread has entered.
    pub(super) unsafe fn inside<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: it holds the lock, and `with` keeps out what `body` calls.
        body(unsafe { &mut *self.value.get() })
    }

    pub(super) fn enter(&self) -> bool {
        // SAFETY: always allowed.
        let this = unsafe { libc::pthread_self() } as usize;
        if self.holder.load(Ordering::Relaxed) == this {
            return false;
        }
        // SAFETY: an initialised mutex, which this thread does not hold.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
        self.holder.store(this, Ordering::Relaxed);
        true
    }

    /// By the thread that has entered.
    pub(super) fn leave(&self) {
        self.holder.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    /// The same in a child, whose parent has entered: its one thread is another one, and may be all there is of others that wait.
    pub(super) fn leave_in_child(&self) {
        // SAFETY: nobody else runs in this process.
        unsafe { self.lock.get().write(libc::PTHREAD_MUTEX_INITIALIZER) };
        self.holder.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_inside_once() {
        static SUM: Guarded<u32> = Guarded::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        SUM.with(|sum| {
                            assert_eq!(SUM.with(|_| ()), None, "it is inside");
                            *sum += 1;
                        });
                    }
                });
            }
        });
        assert_eq!(SUM.with(|sum| *sum), Some(40_000));
    }
}
