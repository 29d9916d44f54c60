//! How deep in groups the calling thread is.
//!
//! Every call asks whether its thread is in a group, and a thread-local in a shared library is a call away. So two flags are looked at
//! first, which no thread writes but the only one that has groups, or each of several once: most programs make their groups on one
//! thread, and pay neither for the others' groups nor, outside of groups, for their own.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the first thread that had a group is in one. Written by that thread alone.
static FIRST_IS_IN: AtomicBool = AtomicBool::new(false);
/// Whether other threads than the first have had groups.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// Whether there is a first.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// What a thread knows of itself. What it has written to the flags it reads there itself, so Relaxed is enough for them.
struct Own {
    depth: Cell<u32>,
    /// Whether it is the first, once it has had a group.
    is_first: Cell<Option<bool>>,
}

thread_local! {
    static OWN: Own = const { Own { depth: Cell::new(0), is_first: Cell::new(None) } };
}

/// Whether this thread is in a group.
#[inline]
pub(crate) fn is_in_group() -> bool {
    (FIRST_IS_IN.load(Ordering::Relaxed) || SEVERAL.load(Ordering::Relaxed)) && is_deep()
}

/// Out of line, or the thread-local would be looked up before the flags are asked.
#[inline(never)]
fn is_deep() -> bool {
    OWN.with(|own| own.depth.get() > 0)
}

/// One group more.
pub(crate) fn enter() {
    OWN.with(|own| {
        own.depth.set(own.depth.get() + 1);
        if own.is_first.get().unwrap_or_else(|| own.choose()) {
            FIRST_IS_IN.store(true, Ordering::Relaxed);
        }
    });
}

/// One group less; how many are left. `None` if there was none.
pub(crate) fn leave() -> Option<u32> {
    OWN.with(|own| {
        let left = own.depth.get().checked_sub(1)?;
        own.depth.set(left);
        if left == 0 && own.is_first.get() == Some(true) {
            FIRST_IS_IN.store(false, Ordering::Relaxed);
        }
        Some(left)
    })
}

impl Own {
    #[cold]
    fn choose(&self) -> bool {
        let is_first = !TAKEN.swap(true, Ordering::Relaxed);
        if !is_first {
            SEVERAL.store(true, Ordering::Relaxed);
        }
        self.is_first.set(Some(is_first));
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever thread of the test program is the first.
    #[test]
    fn each_thread_knows_of_its_own_groups_only() {
        let others = || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(!is_in_group());
                    enter();
                    assert!(is_in_group());
                    assert_eq!((leave(), is_in_group(), leave()), (Some(0), false, None));
                });
            });
        };
        assert!(!is_in_group() && leave().is_none());
        enter();
        enter();
        others();
        assert!(is_in_group());
        assert_eq!((leave(), is_in_group()), (Some(1), true));
        others();
        assert_eq!((leave(), is_in_group(), leave()), (Some(0), false, None));
        enter();
        assert!(is_in_group());
        leave();
    }
}
