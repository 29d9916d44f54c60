//! Several streams that wait at one call.

use ccl::{Error, ErrorKind, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The leader does the work when all guests are there; the guests wait for its result. Nobody waits for one who
/// will never come: dropping a guest is its coming, dropping the leader is a failure.
pub(crate) struct Meeting(Arc<Shared>);

/// A place at a [`Meeting`].
pub(crate) struct Guest {
    shared: Arc<Shared>,
    has_come: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
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
        Guest { shared: Arc::clone(&self.0), has_come: false }
    }

    /// Does the work when all guests are there, and tells them its result.
    pub(crate) fn lead(self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        drop(self.0.wait_until(|state| state.awaited == 0));
        let result = work();
        self.0.lock().result = Some(result.clone());
        result
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let lost = || Err(ErrorKind::Panicked("the thread that made a group's calls".to_string()).into());
        self.0.lock().result.get_or_insert_with(lost);
        self.0.changed.notify_all();
    }
}

impl Guest {
    /// Waits for the leader's result.
    pub(crate) fn attend(mut self) -> Result<()> {
        self.come();
        let state = self.shared.wait_until(|state| state.result.is_some());
        state.result.clone().unwrap_or_else(|| Err(Error::unsupported("a meeting without a result", "none")))
    }

    fn come(&mut self) {
        if !self.has_come {
            self.has_come = true;
            self.shared.lock().awaited -= 1;
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.come();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, reached: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), |state| !reached(state)).unwrap_or_else(PoisonError::into_inner)
    }
}
