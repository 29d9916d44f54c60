//! The protocol of a [`Turnstile`].

use super::cell::{AtomicU64, Cell, MutPtr, Mutex, Ordering};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Something that is used by one at a time, in the order in which the turns were taken.
///
/// A turn is taken when a call is issued, and entered where and when it is carried out, maybe by another thread. So the
/// order of issue is the order of execution. Taking one is a single atomic exchange and leaving a plain store, unlike a
/// `Mutex`, which needs a second exchange to find its sleepers: who finds that it is not its turn yet looks again
/// now and then.
///
/// A turn that is dropped without being entered passes its place on, whenever that comes up.
///
/// ```
/// let list = ccl::Turnstile::new(Vec::new());
/// let (first, second) = (list.take(), list.take());
/// std::thread::scope(|scope| {
///     scope.spawn(|| second.enter().push("second"));
///     scope.spawn(|| first.enter().push("first"));
/// });
/// assert_eq!(*list.take().enter(), ["first", "second"]);
/// ```
pub struct Turnstile<T> {
    /// The next number to give out. Taking one is AcqRel: whatever a thread did before it took a turn is known to
    /// those who take a later one.
    issued: AtomicU64,
    /// Whose turn it is. Written by who holds that turn, with Release when it leaves, which publishes what it did;
    /// read with Acquire by those who wait.
    now: AtomicU64,
    /// Numbers that nobody will enter. A number is either in a `Turn`, in an `Entered` or here, so that `now` has
    /// one writer: the holder, or whoever finds the number here, under the lock.
    left: Mutex<Vec<u64>>,
    content: Cell<T>,
}

// SAFETY: the content is reached through `Entered` only. There is one at a time: numbers are given out once,
// `Entered` is made for the number in `now` only, and `now` moves on when it is dropped. So sharing the turnstile
// hands the content from thread to thread, which is `Send`.
unsafe impl<T: Send> Sync for Turnstile<T> {}

/// A place in the order of a [`Turnstile`].
#[must_use = "a turn that is dropped passes its place on"]
pub struct Turn<'a, T> {
    stile: &'a Turnstile<T>,
    number: u64,
}

/// The use of what is behind a [`Turnstile`], until it is dropped.
pub struct Entered<'a, T> {
    stile: &'a Turnstile<T>,
    number: u64,
    content: MutPtr<T>,
}

impl<T> Turnstile<T> {
    /// With nobody in front of it.
    #[cfg(not(loom))]
    pub const fn new(content: T) -> Turnstile<T> {
        Turnstile {
            issued: AtomicU64::new(0),
            now: AtomicU64::new(0),
            left: Mutex::new(Vec::new()),
            content: Cell::new(content),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(content: T) -> Turnstile<T> {
        Turnstile {
            issued: AtomicU64::new(0),
            now: AtomicU64::new(0),
            left: Mutex::new(Vec::new()),
            content: Cell::new(content),
        }
    }

    /// Takes the next turn, without waiting.
    ///
    /// A thread that takes turns of several turnstiles for one call holds [`together`](crate::together) meanwhile.
    #[inline]
    pub fn take(&self) -> Turn<'_, T> {
        Turn { stile: self, number: self.issued.fetch_add(1, Ordering::AcqRel) }
    }

    /// Passes on the places at the front that nobody will enter. Who waits must call it now and then.
    #[cold]
    pub(crate) fn pass_left(&self) {
        self.pass(&mut self.left.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn pass(&self, left: &mut Vec<u64>) {
        loop {
            let now = self.now.load(Ordering::Acquire);
            let Some(at) = left.iter().position(|number| *number == now) else { return };
            left.swap_remove(at);
            self.now.store(now + 1, Ordering::Release);
        }
    }
}

impl<'a, T> Turn<'a, T> {
    /// Enters if it is this turn's time.
    #[inline]
    pub fn try_enter(self) -> Result<Entered<'a, T>, Turn<'a, T>> {
        if self.stile.now.load(Ordering::Acquire) != self.number {
            return Err(self);
        }
        let turn = ManuallyDrop::new(self);
        Ok(Entered { stile: turn.stile, number: turn.number, content: turn.stile.content.get_mut() })
    }

    pub(crate) fn stile(&self) -> &'a Turnstile<T> {
        self.stile
    }
}

impl<T> Drop for Turn<'_, T> {
    #[cold]
    fn drop(&mut self) {
        let mut left = self.stile.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(self.number);
        self.stile.pass(&mut left);
    }
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the only `Entered` of its turnstile, see `Sync`, and borrowed like the reference.
        unsafe { self.content.deref() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, exclusively.
        unsafe { self.content.deref() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.stile.now.store(self.number + 1, Ordering::Release);
    }
}

// SAFETY: shared, it gives `&T` only.
unsafe impl<T: Sync> Sync for Entered<'_, T> {}
// SAFETY: it is the exclusive use of a `T`; leaving is a store, which any thread may make.
unsafe impl<T: Send> Send for Entered<'_, T> {}
