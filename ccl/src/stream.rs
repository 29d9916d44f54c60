//! Ordered work in the background.

use crate::Monitor;
use crate::sys::{spawn_quiet, take_short_turns};
use ccl_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

enum Job {
    Work(Box<dyn FnOnce() -> Result<()> + Send>),
    /// Told how the jobs since the last one of these ended: their first error.
    Callback(Box<dyn FnOnce(Result<()>) + Send>),
}

/// An ordered queue of jobs with a thread of its own, which sleeps while there is nothing to do.
///
/// Jobs are run one after another in the order in which they were submitted. The first error is kept until
/// [`synchronize`](Stream::synchronize) or [`wait`](Stream::wait) reports it; a job that panics is an error. Jobs after a
/// failed one are run all the same: whether they can still work is theirs to know.
///
/// Dropping a stream runs out its queue and joins the thread, except on that thread itself, which then ends by itself
/// when the queue is empty.
///
/// ```
/// let stream = ccl::Stream::new()?;
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let other = sender.clone();
/// stream.submit(move || Ok(sender.send(1).unwrap_or_default()));
/// stream.submit(move || Ok(other.send(2).unwrap_or_default()));
/// stream.synchronize()?;
/// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
/// # Ok::<(), ccl::Error>(())
/// ```
pub struct Stream {
    state: Arc<Monitor<State>>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Jobs since the beginning.
    submitted: u64,
    done: u64,
    closing: bool,
    error: Option<Error>,
}

impl Stream {
    /// An empty one; starts its thread, `ccl-stream`, which takes no signals.
    pub fn new() -> Result<Stream> {
        let state = Arc::new(Monitor::default());
        let there = Arc::clone(&state);
        let worker = spawn_quiet("ccl-stream", move || work(&there)).map_err(|cause| {
            Error::system("starting a stream's thread", cause, "raise the limit of threads (ulimit -u)")
        })?;
        Ok(Stream { state, worker: Some(worker) })
    }

    /// Appends a job and returns at once.
    pub fn submit(&self, job: impl FnOnce() -> Result<()> + Send + 'static) {
        self.append(Job::Work(Box::new(job)));
    }

    /// Appends a function that the stream's thread calls when the jobs before it are done, with the first error of those
    /// since the last such function. It takes nothing away from [`synchronize`](Stream::synchronize), which reports
    /// that error too.
    pub fn submit_callback(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        self.append(Job::Callback(Box::new(callback)));
    }

    fn append(&self, job: Job) {
        let mut state = self.state.lock();
        state.queue.push_back(job);
        state.submitted += 1;
        state.notify();
    }

    /// Whether all jobs are done; or the first error, which stays for [`synchronize`](Stream::synchronize).
    pub fn query(&self) -> Result<bool> {
        let state = self.state.lock();
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state.done == state.submitted),
        }
    }

    /// Waits until all jobs submitted so far are done; reports the first error, and only once.
    pub fn synchronize(&self) -> Result<()> {
        self.wait_until(None).map(drop)
    }

    /// [`synchronize`](Stream::synchronize) for at most so long; `false`: not done yet, and no error so far.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        // A time too far to be reckoned never comes.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<bool> {
        self.refuse_own_thread()?;
        let target = self.state.lock().submitted;
        let mut state = self.state.wait_until(deadline, |state| state.done >= target);
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state.done >= target),
        }
    }

    /// A job that waited for its own stream would wait for ever.
    fn refuse_own_thread(&self) -> Result<()> {
        if self.is_own_thread() {
            return Err(Error::invalid("a job that waits for its own stream", "wait on another thread"));
        }
        Ok(())
    }

    fn is_own_thread(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.thread().id() == std::thread::current().id())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let own = self.is_own_thread();
        let mut state = self.state.lock();
        state.closing = true;
        state.notify();
        drop(state);
        if let Some(worker) = self.worker.take().filter(|_| !own) {
            // Its jobs' panics are caught; there is nothing to report.
            let _ = worker.join();
        }
    }
}

/// The thread.
fn work(state: &Monitor<State>) {
    if !take_short_turns() {
        tracing::debug!(
            "this stream's thread has turns like any other: beside computation its peers wait for it longer"
        );
    }
    let mut since_callback = Ok(());
    loop {
        let mut waiting = state.wait_until(None, |state| !state.queue.is_empty() || state.closing);
        let Some(job) = waiting.queue.pop_front() else { return };
        drop(waiting);
        // A job consumes what it owns before it counts as done.
        let result = catch_unwind(AssertUnwindSafe(|| match job {
            Job::Work(job) => job(),
            Job::Callback(callback) => {
                callback(std::mem::replace(&mut since_callback, Ok(())));
                Ok(())
            }
        }));
        let result = result.unwrap_or_else(|panic| Err(panicked(&*panic)));
        if let (Err(error), Ok(())) = (&result, &since_callback) {
            since_callback = Err(error.clone());
        }
        let mut state = state.lock();
        state.done += 1;
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        state.notify();
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    ErrorKind::Panicked(text.unwrap_or("no message").to_string()).into()
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Stream").field("submitted", &state.submitted).field("done", &state.done).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SHORT: Duration = Duration::from_millis(1);

    fn failure(what: &str) -> Error {
        Error::invalid(what, "none")
    }

    #[test]
    fn jobs_run_in_order_on_one_quiet_thread_of_that_name() {
        let stream = Stream::new().unwrap();
        let (sender, receiver) = channel();
        for i in 0..100 {
            let sender = sender.clone();
            stream.submit(move || {
                sender.send((i, std::thread::current().name().map(str::to_string))).unwrap();
                Ok(())
            });
        }
        stream.synchronize().unwrap();
        let name = Some("ccl-stream".to_string());
        let expected: Vec<_> = (0..100).map(|i| (i, name.clone())).collect();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), expected);
        assert!(stream.query().unwrap());
    }

    #[test]
    fn a_wait_ends_at_its_limit_and_a_query_at_once() {
        let stream = Stream::new().unwrap();
        let (open, gate) = channel::<()>();
        stream.submit(move || {
            gate.recv().unwrap();
            Ok(())
        });
        assert!(!stream.query().unwrap());
        assert!(!stream.wait(SHORT).unwrap());
        open.send(()).unwrap();
        assert!(stream.wait(Duration::MAX).unwrap());
    }

    #[test]
    fn the_first_error_is_kept_for_one_synchronize_and_later_jobs_run() {
        let stream = Stream::new().unwrap();
        let (sender, receiver) = channel();
        stream.submit(|| Err(failure("first")));
        stream.submit(|| panic!("second"));
        stream.submit(move || {
            sender.send(()).unwrap();
            Ok(())
        });
        receiver.recv().unwrap();
        for _ in 0..2 {
            assert!(stream.query().unwrap_err().to_string().contains("first"));
        }
        assert!(stream.synchronize().unwrap_err().to_string().contains("first"));
        stream.synchronize().unwrap();
    }

    #[test]
    fn a_callback_is_told_the_first_error_since_the_last_one() {
        let stream = Stream::new().unwrap();
        let (sender, receiver) = channel();
        let tell = || {
            let sender = sender.clone();
            stream.submit_callback(move |result| {
                sender.send(result.map_err(|error| error.to_string())).unwrap()
            });
        };
        tell();
        stream.submit(|| Err(failure("first")));
        stream.submit(|| Err(failure("second")));
        tell();
        stream.submit(|| Ok(()));
        tell();
        stream.submit_callback(|_| panic!("on purpose"));
        tell();
        assert!(stream.synchronize().unwrap_err().to_string().contains("first"));
        let told: Vec<_> = receiver.try_iter().collect();
        assert_eq!((&told[0], &told[2]), (&Ok(()), &Ok(())));
        for (at, words) in [(1, "first"), (3, "on purpose")] {
            assert!(told[at].as_ref().is_err_and(|text| text.contains(words)), "{told:?}");
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let stream = Stream::new().unwrap();
        stream.submit(|| panic!("on {}", "purpose"));
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Panicked(text) if text == "on purpose"), "{error}");
    }

    #[test]
    fn dropping_runs_the_queue_out() {
        let (sender, receiver) = channel();
        let stream = Stream::new().unwrap();
        for i in 0..50 {
            let sender = sender.clone();
            stream.submit(move || {
                sender.send(i).unwrap();
                Ok(())
            });
        }
        drop(stream);
        assert_eq!(receiver.try_iter().count(), 50);
    }

    #[test]
    fn a_stream_that_waits_for_itself_or_drops_itself_does_not_hang() {
        let stream = Arc::new(Stream::new().unwrap());
        let (sender, receiver) = channel();
        let (own, more) = (Arc::clone(&stream), sender.clone());
        let (open, gate) = channel::<()>();
        stream.submit(move || {
            gate.recv().unwrap();
            sender.send(own.synchronize().is_err() && own.wait(SHORT).is_err()).unwrap();
            own.submit(move || {
                more.send(true).unwrap();
                Ok(())
            });
            drop(own); // the last one
            Ok(())
        });
        drop(stream);
        open.send(()).unwrap();
        assert!(receiver.recv().unwrap() && receiver.recv().unwrap());
    }
}
