//! Knowing a forked child from its parent.
//!
//! A child has the parent's memory but not its threads, and shares its sockets: a communicator used on both sides would
//! corrupt the job. So every handle holds the number of forks that lie above the process which made it, counted by a
//! handler that the C library calls in the child. (Comparing process numbers would be a system call in every
//! collective.)

use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

/// Forks above this process since the library was first used. Written between `fork` and its return only, when the
/// child has one thread.
static DEPTH: AtomicU8 = AtomicU8::new(0);

#[inline]
pub(crate) fn depth() -> u8 {
    DEPTH.load(Ordering::Relaxed)
}

/// Counts forks from now on.
pub(crate) fn watch() {
    extern "C" fn in_child() {
        DEPTH.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler touches an atomic only, which is allowed in a child of many threads. It fails without
        // memory only, and then forks are not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
