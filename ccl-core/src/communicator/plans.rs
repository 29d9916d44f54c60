//! Plans that a communicator has made, bound to its links; calls that it has prepared.

use super::{Call, fingerprint};
use crate::cost::Candidates;
use crate::engine::{Layout, Schedule, Streams, Task};
use crate::error::Result;
use crate::flight::About;
use crate::kernels::Reducer;
use crate::plan::{Collective, Rank};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// What a program depends on, beside the rank and the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub(super) collective: Collective,
    pub(super) root: Rank,
    pub(super) algorithm: &'static str,
}

/// A call with everything worked out that does not change from one call to the next.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) schedule: usize,
    pub(super) task: Arc<Task>,
    /// The same for the other threads that it is shared out to, if it is.
    pub(super) shared: Option<Arc<[Arc<Task>]>>,
    /// For the flight record; with the fingerprint, on top of which comes the call's number.
    pub(super) about: About,
}

impl Prepared {
    /// A call that the caller's thread runs alone.
    pub(super) fn unshared(schedule: usize, task: Arc<Task>, about: About) -> Prepared {
        Prepared { schedule, task, shared: None, about }
    }

    /// The tag of the call with this number.
    #[inline(always)]
    pub(super) fn tag(&self, sequence: u64) -> u64 {
        fingerprint::tag(self.about.fingerprint(), sequence)
    }
}

/// The cache. A job makes the same few calls over and over; the last one is found without hashing.
#[derive(Default)]
pub(super) struct Plans {
    /// Profiles of the algorithms for a collective and root.
    pub(super) candidates: HashMap<(Collective, Rank), Candidates>,
    pub(super) schedules: Vec<Schedule>,
    by_plan: HashMap<PlanKey, usize>,
    pub(super) prepared: Vec<Prepared>,
    by_call: HashMap<(Call, bool), usize, BuildHasherDefault<CallHasher>>,
    /// The call that was made last, and where it is kept.
    last: Option<((Call, bool), usize)>,
}

/// Prepared calls kept; with more the cache starts anew, so that a job whose sizes never repeat does not
/// grow. Schedules stay: there are few, and they hold link ends.
const MOST_PREPARED: usize = 4096;

impl Plans {
    /// The prepared call, if there is one.
    #[inline(always)]
    pub(super) fn find(&mut self, call: &Call, in_place: bool) -> Option<usize> {
        match &self.last {
            Some(((last, was_in_place), index)) if last == call && *was_in_place == in_place => Some(*index),
            _ => self.find_among_all(call, in_place),
        }
    }

    #[inline(never)]
    fn find_among_all(&mut self, call: &Call, in_place: bool) -> Option<usize> {
        let (known, index) = self.by_call.get_key_value(&(*call, in_place))?;
        self.last = Some((*known, *index));
        Some(*index)
    }

    pub(super) fn add(&mut self, call: &Call, in_place: bool, prepared: Prepared) -> usize {
        if self.prepared.len() == MOST_PREPARED {
            self.forget_calls();
        }
        self.prepared.push(prepared);
        let index = self.prepared.len() - 1;
        self.by_call.insert((*call, in_place), index);
        index
    }

    /// Drops prepared calls, for a change of what they were prepared with.
    pub(super) fn forget_calls(&mut self) {
        self.prepared.clear();
        self.by_call.clear();
        self.last = None;
    }

    /// The schedule of a plan, if it was made before.
    pub(super) fn schedule(&self, key: &PlanKey) -> Option<usize> {
        self.by_plan.get(key).copied()
    }

    pub(super) fn add_schedule(&mut self, key: PlanKey, schedule: Schedule) -> usize {
        let index = self.keep(schedule);
        self.by_plan.insert(key, index);
        index
    }

    /// A task of one of the schedules.
    pub(super) fn task(
        &self,
        schedule: usize,
        layout: Layout,
        reducer: Reducer,
        caching: Caching,
    ) -> Result<Arc<Task>> {
        task(&self.schedules[schedule], layout, reducer, caching)
    }

    /// Keeps a schedule that its maker finds by itself.
    pub(super) fn keep(&mut self, schedule: Schedule) -> usize {
        self.schedules.push(schedule);
        self.schedules.len() - 1
    }
}

/// How a call makes use of the caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caching {
    /// Bytes that are sent before as many are taken, unless the call is long; `None`: as ever.
    pub(super) lead: Option<usize>,
    /// What goes past the caches, where anything does.
    pub(super) streams: Option<Streams>,
}

/// A task of a schedule.
pub(super) fn task(
    schedule: &Schedule,
    layout: Layout,
    reducer: Reducer,
    caching: Caching,
) -> Result<Arc<Task>> {
    let mut task = schedule.task(layout, reducer)?;
    if let Some(bytes) = caching.lead {
        task = task.led_by(bytes);
    }
    if let Some(streams) = caching.streams {
        task = task.streaming(schedule, streams);
    }
    Ok(Arc::new(task))
}

/// Multiplies and rotates word by word: calls are few words of our own making, so no attacker picks them
/// and the standard hasher's strength would only cost time.
#[derive(Default)]
pub(super) struct CallHasher(u64);

impl Hasher for CallHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}
