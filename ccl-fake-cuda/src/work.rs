//! Streams: work in order, done by threads.

use crate::ffi::{Kernel, Mapping};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a mapping.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: usize,
}

/// The driver's number for a launch that went wrong.
const LAUNCH_FAILED: i32 = 719;

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    Copy { to: Span, from: Span, len: usize, spoiled: Option<i32> },
    Record { event: Arc<Event>, generation: u64 },
    Wait { event: Arc<Event>, generation: u64 },
    WaitValue { at: Span, value: u32 },
    Fill { at: Span, byte: u8, len: usize },
    Launch(Launch),
}

/// A kernel with its parameter.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) parameter: Vec<u8>,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

/// How often an event was recorded, and how much of that was reached.
#[derive(Default)]
pub(crate) struct Event {
    state: Mutex<(u64, u64)>,
    changed: Condvar,
    /// When it was last reached.
    time: Mutex<Option<Instant>>,
}

impl Event {
    /// The number of a new recording.
    pub(crate) fn record(&self) -> u64 {
        let mut state = lock(&self.state);
        state.0 += 1;
        state.0
    }

    pub(crate) fn recorded(&self) -> u64 {
        lock(&self.state).0
    }

    pub(crate) fn is_done(&self) -> bool {
        let state = lock(&self.state);
        state.1 >= state.0
    }

    /// Seconds from when this was reached to when another was.
    pub(crate) fn until(&self, later: &Event) -> Option<f64> {
        let (from, to) = ((*lock(&self.time))?, (*lock(&later.time))?);
        Some(to.saturating_duration_since(from).as_secs_f64())
    }

    fn reach(&self, generation: u64) {
        *lock(&self.time) = Some(Instant::now());
        let mut state = lock(&self.state);
        state.1 = state.1.max(generation);
        self.changed.notify_all();
    }

    fn wait(&self, generation: u64, broken: &AtomicI32) {
        let mut state = lock(&self.state);
        while state.1 < generation && broken.load(Ordering::Relaxed) == 0 {
            let waited = self.changed.wait_timeout(state, Duration::from_millis(5));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a stream knows of itself.
pub(crate) struct Stream {
    pub(crate) context: usize,
    pub(crate) queue: Arc<Queue>,
    /// Pieces of work that were issued, and that are done.
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Stream {
    pub(crate) fn new(context: usize, queue: Arc<Queue>) -> Arc<Stream> {
        Arc::new(Stream { context, queue, counts: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn submit(self: &Arc<Stream>, work: Work) {
        lock(&self.counts).0 += 1;
        lock(&self.queue.line).push_back((Arc::clone(self), work));
        self.queue.changed.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        let counts = lock(&self.counts);
        counts.0 == counts.1
    }

    pub(crate) fn synchronize(&self) {
        let mut counts = lock(&self.counts);
        while counts.0 != counts.1 {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Work that is done in the order in which it was issued, of one stream or of several.
pub(crate) struct Queue {
    line: Mutex<VecDeque<(Arc<Stream>, Work)>>,
    changed: Condvar,
    /// Seed and longest time of its delays.
    delay: (u64, u64),
    /// The error that has ended all work.
    broken: Arc<AtomicI32>,
}

impl Queue {
    /// With its thread, which ends when nobody can submit any more.
    pub(crate) fn start(delay: (u64, u64), broken: &Arc<AtomicI32>) -> Arc<Queue> {
        let queue = Arc::new(Queue {
            line: Mutex::default(),
            changed: Condvar::new(),
            delay,
            broken: Arc::clone(broken),
        });
        let there = Arc::downgrade(&queue);
        let run = move || {
            let mut random = delay.0;
            while let Some(queue) = there.upgrade() {
                queue.next(&mut random);
            }
        };
        std::thread::Builder::new().name("fake-cuda".into()).spawn(run).expect("a thread for a stream");
        queue
    }

    /// Does one piece of work, or looks up after a while.
    fn next(&self, random: &mut u64) {
        let mut line = lock(&self.line);
        if line.is_empty() {
            let waited = self.changed.wait_timeout(line, Duration::from_millis(5));
            line = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some((stream, work)) = line.pop_front() else { return };
        drop(line);
        if self.delay.1 > 0 {
            std::thread::sleep(Duration::from_micros(next_random(random) % (self.delay.1 + 1)));
        }
        self.work(work);
        lock(&stream.counts).1 += 1;
        stream.changed.notify_all();
    }

    fn work(&self, work: Work) {
        let is_broken = || self.broken.load(Ordering::Relaxed) != 0;
        match work {
            Work::Record { event, generation } => event.reach(generation),
            Work::Wait { event, generation } => event.wait(generation, &self.broken),
            Work::Copy { spoiled: Some(code), .. } => self.broken.store(code, Ordering::Relaxed),
            Work::Copy { to, from, len, .. } if !is_broken() => to.mapping.copy(to.offset, &from, len),
            Work::Fill { at, byte, len } if !is_broken() => at.mapping.fill(at.offset, byte, len),
            Work::Launch(launch) if !is_broken() => {
                let failed = launch.kernel.run(&launch.parameter, launch.blocks, launch.threads);
                if failed != 0 {
                    self.broken.store(LAUNCH_FAILED, Ordering::Relaxed);
                }
            }
            Work::Copy { .. } | Work::Fill { .. } | Work::Launch(_) => {}
            Work::WaitValue { at, value } => {
                // Reached, or passed, counting round.
                while !is_broken() && at.mapping.load(at.offset).wrapping_sub(value).cast_signed() < 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        }
    }
}

/// SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
