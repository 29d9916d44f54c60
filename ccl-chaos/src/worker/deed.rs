//! What culprits do.

use super::say;
use crate::event::{Event, now};
use crate::fault::Deed;
use ccl::AbortHandle;
use rustix::process::{Signal, getpid, kill_process};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Does it, on this thread. What is done at another place than here does nothing.
pub(crate) fn commit(deed: Deed, abort: Option<&AbortHandle>) {
    match deed {
        Deed::Leave | Deed::Stay | Deed::Sleep | Deed::None => {}
        _ => say(&Event::Fault { at: now() }),
    }
    match deed {
        Deed::Kill => signal(Signal::KILL),
        Deed::Stop(_) => signal(Signal::STOP),
        // What is tested is an end that asks nobody.
        #[allow(clippy::exit)]
        Deed::Exit => std::process::exit(0),
        // Without the message of a panic that nobody wanted.
        Deed::Panic => std::panic::resume_unwind(Box::new("by order")),
        Deed::Abort => {
            if let Some(handle) = abort {
                handle.abort();
            }
        }
        _ => {}
    }
}

/// A process may always signal itself.
fn signal(signal: Signal) {
    let _ = kill_process(getpid(), signal);
}

/// A deed that a thread of its own will do.
pub(crate) struct Armed(Option<JoinHandle<()>>);

impl Armed {
    /// Nothing.
    pub(crate) fn not() -> Armed {
        Armed(None)
    }

    /// In so long from now: to the microsecond, so it spins.
    pub(crate) fn with(deed: Deed, delay: Duration, abort: Option<AbortHandle>) -> Armed {
        let at = Instant::now() + delay;
        let thread = thread::spawn(move || {
            while Instant::now() < at {
                std::hint::spin_loop();
            }
            commit(deed, abort.as_ref());
        });
        Armed(Some(thread))
    }

    /// Returns when it is done; not at all where it ends the process.
    pub(crate) fn wait(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the thread is the process's own business.
            let _ = thread.join();
        }
    }
}
