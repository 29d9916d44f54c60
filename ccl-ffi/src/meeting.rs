//! Several streams that wait at one call.

use ccl::{Error, ErrorKind, Monitor, Result};
use std::sync::Arc;

/// The leader does the work when all guests are there; the guests wait for its result. Nobody waits for one who
/// will never come: dropping a guest is its coming, dropping the leader is a failure.
pub(crate) struct Meeting(Arc<Monitor<State>>);

/// A place at a [`Meeting`].
pub(crate) struct Guest {
    state: Arc<Monitor<State>>,
    has_come: bool,
}

#[derive(Default)]
struct State {
    awaited: usize,
    result: Option<Result<()>>,
}

impl Meeting {
    pub(crate) fn new() -> Meeting {
        Meeting(Arc::default())
    }

    pub(crate) fn invite(&self) -> Guest {
        self.0.lock().awaited += 1;
        Guest { state: Arc::clone(&self.0), has_come: false }
    }

    /// Does the work when all guests are there, and tells them its result.
    pub(crate) fn lead(self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        drop(self.0.wait_until(None, |state| state.awaited == 0));
        let result = work();
        self.0.lock().result = Some(result.clone());
        result
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let lost = || Err(ErrorKind::Panicked("the thread that made a group's calls".to_string()).into());
        let mut state = self.0.lock();
        state.result.get_or_insert_with(lost);
        state.notify();
    }
}

impl Guest {
    /// Waits for the leader's result.
    pub(crate) fn attend(mut self) -> Result<()> {
        self.come();
        let state = self.state.wait_until(None, |state| state.result.is_some());
        state.result.clone().unwrap_or_else(|| Err(Error::unsupported("a meeting without a result", "none")))
    }

    fn come(&mut self) {
        if !self.has_come {
            self.has_come = true;
            let mut state = self.state.lock();
            state.awaited -= 1;
            state.notify();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.come();
    }
}
