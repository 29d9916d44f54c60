//! Ending a communicator's calls from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Aborts a communicator from any thread, at any time, more than once.
///
/// The call that runs ends with [`ErrorKind::Aborted`](crate::ErrorKind::Aborted) at its next wait, later ones do not
/// begin. The peers notice when the communicator is dropped.
#[derive(Clone, Debug, Default)]
pub struct AbortHandle {
    // Nothing is published by it: whoever sees it set only stops.
    aborted: Arc<AtomicBool>,
}

impl From<Arc<AtomicBool>> for AbortHandle {
    /// Aborts by setting this, which others look at too.
    fn from(aborted: Arc<AtomicBool>) -> AbortHandle {
        AbortHandle { aborted }
    }
}

impl AbortHandle {
    /// Ends the call that runs, and all later ones.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has aborted.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}
