//! What the calling thread tells its flight record.

use super::{Communicator, KernelObserver};
use crate::clock::{monotonic_ns, wall_ns};
use crate::error::Error;
use crate::flight::{self, About, Dump, Entry, RankState, Recorder};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Calls of at least so many bytes have stamps: they take a microsecond and more, and the two looks at the clock 25 ns each.
const STAMPED_FROM: u64 = 128 << 10;

/// A communicator's flight record for other threads than the one that makes its calls: reading it waits for nothing.
#[derive(Clone)]
pub struct Record {
    recorder: Arc<Recorder>,
    kernels: Arc<OnceLock<KernelObserver>>,
}

/// What a rank's control thread sees of it, as long as there is something to see.
pub(super) struct Observed {
    recorder: Weak<Recorder>,
    kernels: Weak<OnceLock<KernelObserver>>,
}

impl Observed {
    pub(super) fn new(recorder: &Arc<Recorder>, kernels: &Arc<OnceLock<KernelObserver>>) -> Observed {
        Observed { recorder: Arc::downgrade(recorder), kernels: Arc::downgrade(kernels) }
    }

    pub(super) fn state(&self) -> RankState {
        let (Some(recorder), Some(kernels)) = (self.recorder.upgrade(), self.kernels.upgrade()) else {
            return RankState::default();
        };
        state(&recorder, &kernels)
    }
}

/// What a rank does, by itself and by its kernels.
fn state(recorder: &Recorder, kernels: &OnceLock<KernelObserver>) -> RankState {
    RankState { kernels: kernels.get().map(|observe| observe()), ..recorder.state(monotonic_ns()) }
}

impl Record {
    /// [`Communicator::dump`] at this moment; `cause` is why it broke, if so.
    pub fn dump(&self, cause: Option<String>) -> String {
        self.make_dump(cause).to_json()
    }

    fn make_dump(&self, cause: Option<String>) -> Dump {
        Dump::new(wall_ns(), cause, state(&self.recorder, &self.kernels), self.recorder.calls())
    }
}

impl Communicator {
    /// Its flight record, for other threads.
    pub fn record(&self) -> Record {
        Record { recorder: Arc::clone(&self.recorder), kernels: Arc::clone(&self.kernels) }
    }

    /// What this rank does and has done. Others may read it at any moment.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// What this rank does at this moment.
    pub fn state(&self) -> RankState {
        state(&self.recorder, &self.kernels)
    }

    /// What this rank does and has done, as a file of JSON has it.
    pub fn dump(&self) -> String {
        self.record().dump(self.broken.as_ref().map(Error::cause))
    }

    /// The communicator breaks for this reason: the record says so, and goes into a file if somebody wants it.
    #[cold]
    pub(super) fn record_end(&self, cause: &str) {
        self.recorder.broken(cause, monotonic_ns());
        if let Some(folder) = &self.config.flight_dir
            && self.broken.is_none()
            && let Err(error) = leave(folder, &self.record().make_dump(Some(cause.to_string())))
        {
            tracing::warn!(folder, %error, "the flight record could not be written");
        }
    }

    /// Prepares calls, which may wait for the peers: meanwhile the record has them, with their numbers, as ones that run.
    pub(super) fn recorded<T>(&mut self, calls: &[(About, u64)], prepare: impl FnOnce(&mut Self) -> T) -> T {
        let begin =
            |(about, number): &(About, u64)| self.recorder.begin(about, *number, Some(monotonic_ns()));
        let entries: Vec<Entry> = calls.iter().map(begin).collect();
        let prepared = prepare(self);
        // The last begun goes first: what is withdrawn must be the last of its ring.
        entries.into_iter().rev().for_each(|entry| self.recorder.withdraw(entry));
        prepared
    }

    /// What the running calls wait for, before a sleep.
    #[cold]
    pub(super) fn record_waits(&self, running: &[usize], waited: Duration) {
        let since_ns = monotonic_ns().saturating_sub(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        let schedules = || self.schedules_of(running);
        let waits = schedules().flat_map(|schedule| schedule.waits());
        let progress = schedules().map(|schedule| schedule.progress());
        let (done, total) = progress.fold((0, 0), |sum, (done, total)| (sum.0 + done, sum.1 + total));
        self.recorder.wait(since_ns, flight::Progress { done, total }, waits);
    }
}

/// Writes a dump into a folder: whole or not at all.
fn leave(folder: &str, dump: &Dump) -> io::Result<()> {
    let path = Path::new(folder).join(dump.file_name());
    let part = path.with_extension("part");
    std::fs::write(&part, dump.to_json())?;
    std::fs::rename(&part, &path)
}

/// A call begins.
#[inline(always)]
pub(super) fn begin(recorder: &Recorder, about: &About, sequence: u64) -> Entry {
    let now = if about.bytes() >= STAMPED_FROM { Some(monotonic_ns()) } else { None };
    recorder.begin(about, sequence, now)
}

/// A call has waited longer than peers take that are in step with it.
#[cold]
pub(super) fn waits(recorder: &Recorder, entry: Entry) {
    if !recorder.is_stamped(entry) {
        recorder.stamp(entry, monotonic_ns());
    }
}
