//! Ending a communicator's calls from outside.

use crate::bootstrap::Health;
use crate::control::EndKind;
use crate::error::Error;
use crate::flight::Reason;
use std::sync::Arc;

/// Aborts a communicator from any thread, at any time, more than once; also while it is still joining.
///
/// The call that runs ends with [`ErrorKind::Aborted`](crate::ErrorKind::Aborted) at its next wait, later ones do not
/// begin. The peers are told, and their calls end with [`ErrorKind::Ended`](crate::ErrorKind::Ended).
#[derive(Clone, Debug, Default)]
pub struct AbortHandle {
    health: Arc<Health>,
}

impl From<Arc<Health>> for AbortHandle {
    fn from(health: Arc<Health>) -> AbortHandle {
        AbortHandle { health }
    }
}

impl AbortHandle {
    /// Where the communicator that is made with it keeps how it is.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Ends the call that runs, and all later ones.
    pub fn abort(&self) {
        self.health.abort();
    }

    /// Ends the communicator for all ranks, for this reason: their calls, those that run and later ones, end with
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended). Agreeing and shrinking work from then on.
    pub fn revoke(&self, reason: &str) {
        self.health.end(EndKind::Revoked, reason);
    }

    /// Ends the communicator for all ranks, because this rank cannot go on.
    pub fn fail(&self, reason: &str) {
        self.health.end(EndKind::Failed, reason);
    }

    /// Has all ranks asked what they do, and waits for the verdict; `None` if there is none within a few seconds.
    pub fn inquire(&self, reason: &Reason) -> Option<Error> {
        self.health.inquire(reason)
    }

    /// Whether somebody has aborted.
    pub fn is_aborted(&self) -> bool {
        self.health.is_aborted()
    }

    /// Why calls cannot end right any more, if so: a peer is lost or has ended the communicator, say. It asks nobody
    /// and waits for nothing; a death is known to it within milliseconds, whether calls are made or not.
    pub fn error(&self) -> Option<Error> {
        self.health.error()
    }
}
