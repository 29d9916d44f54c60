//! A lock that can be waited in.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A value under a lock, and threads that wait for it to change.
///
/// What it guards is never left half changed, so a panic of a holder does not poison it.
#[derive(Default)]
pub struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
    /// ThreadSanitizer does not see what the standard library's lock orders, which was built without it; this says
    /// it again: written with Release before each unlocking, read with Acquire after each locking.
    #[cfg(tsan)]
    order: std::sync::atomic::AtomicBool,
}

/// The use of a [`Monitor`]'s value, until it is dropped.
pub struct Guard<'a, T> {
    monitor: &'a Monitor<T>,
    // `None` while it waits.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> Monitor<T> {
    /// A monitor of this value.
    pub const fn new(value: T) -> Monitor<T> {
        Monitor {
            value: Mutex::new(value),
            changed: Condvar::new(),
            #[cfg(tsan)]
            order: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> Guard<'_, T> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.locked();
        Guard { monitor: self, value: Some(value) }
    }

    /// Holds it when `reached` is true of its value, whoever makes it so; or, at the deadline, as it is then.
    pub fn wait_until(&self, deadline: Option<Instant>, reached: impl Fn(&T) -> bool) -> Guard<'_, T> {
        let mut guard = self.lock();
        while !reached(&guard) {
            let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if limit == Some(Duration::ZERO) {
                break;
            }
            guard.wait(limit);
        }
        guard
    }

    #[cfg(tsan)]
    fn locked(&self) {
        self.order.load(std::sync::atomic::Ordering::Acquire);
    }

    #[cfg(not(tsan))]
    fn locked(&self) {}

    #[cfg(tsan)]
    fn unlocks(&self) {
        self.order.store(true, std::sync::atomic::Ordering::Release);
    }

    #[cfg(not(tsan))]
    fn unlocks(&self) {}
}

impl<T> Guard<'_, T> {
    /// Wakes all who wait, when this is dropped or before.
    pub fn notify(&self) {
        self.monitor.changed.notify_all();
    }

    /// Lets others hold it until one of them notifies, or for so long, or for no reason.
    pub fn wait(&mut self, limit: Option<Duration>) {
        let Some(value) = self.value.take() else { return };
        self.monitor.unlocks();
        let changed = &self.monitor.changed;
        self.value = Some(match limit {
            None => changed.wait(value).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => changed.wait_timeout(value, limit).unwrap_or_else(PoisonError::into_inner).0,
        });
        self.monitor.locked();
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there but within `wait`")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there but within `wait`")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.monitor.unlocks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_woken_and_a_limit_ends_a_wait() {
        let monitor = Monitor::new(0);
        let soon = Some(Instant::now() + Duration::from_millis(1));
        assert_eq!(*monitor.wait_until(soon, |value| *value == 3), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let mut guard = monitor.lock();
                    *guard += 1;
                    guard.notify();
                }
            });
            assert_eq!(*monitor.wait_until(None, |value| *value == 3), 3);
        });
    }
}
