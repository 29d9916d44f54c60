//! How slots are written: into the caches, or past them.
//!
//! A slot's lines lie in the cache of the rank that read them last. A rank on a near core takes them over for next to nothing, and its
//! peer reads the new bytes from cache to cache. Between far cores (two sockets, two dies) each line makes the trip twice, and waits for it:
//! bytes that go to main memory, and come from there, take a fourth of that time. Near cores lose with main memory.
//!
//! Nobody can be asked which of the two it is: a guest does not see where its host runs it, and is moved about. So it is tried, now and then:
//! stores into the caches, on the start of a slot that is about to be written anyway, until the bytes have left the core. What they are measured by is
//! the same number of bytes past the caches into memory of our own, which takes the same wherever the peer is. Of that they took, as medians of several kinds
//! of calls, 0.5 to 1.2 times between near cores (2.7 times once slots were written past the caches), 4 to 8 times between far ones.

use ccl_core::simd::{Buffers, PieceMut, Store};
use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Bytes that a trial writes.
pub(crate) const TRIED_BYTES: usize = 8192;

/// What is copied by plain stores.
const PLAIN_BYTES: usize = 1024;

/// Slots that are written from one trial to the next: so many that trials take next to no time.
const SLOTS_A_TRIAL: u32 = 256;

/// The same as long as nothing is known, or the last trial said something new.
const SLOTS_IN_DOUBT: u32 = 16;

/// How many times as long as past the caches stores into them take where the peer is far.
const FAR: u32 = 4;

/// How often the stores past the caches are measured: the least of it counts.
const STREAMED: usize = 8;

/// So many trials in a row must say so: a single one may have been interrupted.
const IN_A_ROW: u32 = 3;

/// What is copied in a trial; it stays in the first cache meanwhile.
static NOTHING: [u8; TRIED_BYTES] = [0; TRIED_BYTES];

/// When the next trial is due, and what it is measured by.
#[derive(Debug)]
pub(crate) struct Trials {
    left: u32,
    /// What stores past the caches take; measured before the first trial.
    streamed: Option<Duration>,
}

impl Trials {
    pub(crate) fn new() -> Trials {
        Trials { left: SLOTS_IN_DOUBT, streamed: None }
    }

    /// Counts a slot that is long enough; whether it is one to try.
    #[inline]
    pub(crate) fn count(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Slots until the next one.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Tries the start of `piece` for its last reader, of whom `pace` tells; whether that changes anything.
    pub(crate) fn make(&mut self, piece: PieceMut, pace: &mut Pace) -> bool {
        let streamed = *self.streamed.get_or_insert_with(streamed);
        let is_news = pace.note(cached(piece) > streamed * FAR);
        self.left = if pace.against > 0 { SLOTS_IN_DOUBT } else { SLOTS_A_TRIAL };
        is_news
    }
}

/// How far a peer's core is, as trials have it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    is_far: bool,
    /// Trials in a row that say otherwise.
    against: u32,
}

impl Pace {
    /// Whether what this peer reads is written past the caches.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Takes note of a trial; whether that changes anything.
    pub(crate) fn note(&mut self, is_far: bool) -> bool {
        if is_far == self.is_far {
            self.against = 0;
            return false;
        }
        self.against += 1;
        if self.against < IN_A_ROW {
            return false;
        }
        *self = Pace { is_far, against: 0 };
        true
    }
}

/// What the bytes of a trial take past the caches, into memory of our own.
fn streamed() -> Duration {
    let mut own = [0; TRIED_BYTES];
    let into = Buffers::new(&[], &mut own).output().stored(Store::Streaming);
    let nothing = Buffers::new(&NOTHING, &mut []).input();
    let times = (0..STREAMED).map(|_| timed(|| into.copy_from(nothing)));
    times.min().unwrap_or_default()
}

/// What they take into the caches, over the start of `piece`, which nobody needs.
fn cached(piece: PieceMut) -> Duration {
    let nothing = Buffers::new(&NOTHING, &mut []).input();
    // What is read must not decide: it is fetched first.
    black_box(NOTHING.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
    // In parts for which the C library does not take `rep movsb`: that is faster than other stores between far cores, so it tells less.
    timed(|| {
        for at in (0..TRIED_BYTES).step_by(PLAIN_BYTES) {
            piece.slice(at, PLAIN_BYTES).stored(Store::Cached).copy_from(nothing.slice(at, PLAIN_BYTES));
        }
    })
}

fn timed(store: impl FnOnce()) -> Duration {
    let start = Instant::now();
    store();
    // Until all of it has left the core's store buffer.
    fence(Ordering::SeqCst);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_trials_in_a_row_decide_and_are_told_once() {
        let mut pace = Pace::default();
        let said = [0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0];
        let told = said.map(|far| u8::from(pace.note(far == 1)));
        assert_eq!(told, [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// What is far depends on what the stores past the caches are said to take.
    fn trial(trials: &mut Trials, pace: &mut Pace, streamed: Duration) -> bool {
        let mut memory = vec![7u8; TRIED_BYTES + 100];
        trials.streamed = Some(streamed);
        trials.make(Buffers::new(&[], &mut memory).output(), pace);
        let (tried, rest) = memory.split_at(TRIED_BYTES);
        assert!(tried.iter().all(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 7));
        pace.is_far()
    }

    #[test]
    fn trials_follow_each_other_sooner_in_doubt() {
        let (mut trials, mut pace) = (Trials::new(), Pace::default());
        let [near, far] = [Duration::from_secs(60), Duration::ZERO];
        let after = [near, far, far, far, far, near].map(|streamed| {
            let is_far = trial(&mut trials, &mut pace, streamed);
            let slots = 1 + (0..1000).take_while(|_| !trials.count()).count();
            assert!(trials.count(), "it stays due until it is made");
            (is_far, slots as u32)
        });
        let [sure, doubt] = [SLOTS_A_TRIAL, SLOTS_IN_DOUBT];
        assert_eq!(
            after,
            [(false, sure), (false, doubt), (false, doubt), (true, sure), (true, sure), (true, doubt)]
        );
    }

    #[test]
    fn the_stores_past_the_caches_are_measured_once() {
        let mut trials = Trials::new();
        let mut memory = vec![7u8; TRIED_BYTES];
        trials.make(Buffers::new(&[], &mut memory).output(), &mut Pace::default());
        let streamed = trials.streamed;
        assert!(streamed.is_some_and(|time| time > Duration::ZERO));
        trials.make(Buffers::new(&[], &mut memory).output(), &mut Pace::default());
        assert_eq!(trials.streamed, streamed);
    }
}
