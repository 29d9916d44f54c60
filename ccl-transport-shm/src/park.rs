//! Sleeping on a bell and waking the sleeper: the futex between processes.

use crate::bell::Bell;
use rustix::thread::futex;
use std::time::Duration;

/// Sleeps while the bell's word is `armed`, at most for `limit`.
pub(crate) fn sleep(bell: &Bell, armed: u32, limit: Duration) {
    let limit = futex::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // Every outcome means "look again": woken, a changed word, the limit, a signal.
    let _ = futex::wait(bell.word(), futex::Flags::empty(), armed, Some(&limit));
}

/// Wakes the owner of the bell.
#[cold]
pub(crate) fn wake(bell: &Bell) {
    // The one sleeper is the owner; it fails only for a bad address.
    let _ = futex::wake(bell.word(), futex::Flags::empty(), 1);
}
