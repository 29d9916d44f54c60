//! How slots are written: into the caches, or past them.
//!
//! A slot's lines lie in the cache of the rank that read them last. A rank on a near core takes them over for next to nothing, and its
//! peer reads the new bytes from cache to cache. Between far cores (two sockets, two dies) each line makes the trip twice, and waits for it:
//! bytes that go to main memory, and come from there, take a fifth of that time. Near cores lose with main memory.
//!
//! Nobody can be asked which of the two it is: a guest does not see where its host runs it, and is moved about. So it is tried, now and then,
//! on the start of a slot that is about to be written anyway, once each way, until the bytes have left the core. Between near cores stores into the
//! caches take a third of the time of those past them, between far ones two to eight times as long: so no constant is needed.

use ccl_core::simd::{Buffers, PieceMut, Store};
use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Bytes that a trial writes each way. It asks for a piece of twice as many.
pub(crate) const TRIED_BYTES: usize = 8192;

/// Slots that are written from one trial to the next: a trial takes about half as long as a piece of 64 KiB between near cores.
const SLOTS_A_TRIAL: u32 = 256;

/// The same as long as nothing is known, or the last trial said something new.
const SLOTS_IN_DOUBT: u32 = 16;

/// So many trials in a row must say so: a single one may have been interrupted.
const IN_A_ROW: u32 = 3;

/// What is copied in a trial; it stays in the first cache meanwhile.
static NOTHING: [u8; TRIED_BYTES] = [0; TRIED_BYTES];

/// When the next trial is due.
#[derive(Debug)]
pub(crate) struct Trials {
    left: u32,
}

impl Trials {
    pub(crate) fn new() -> Trials {
        Trials { left: SLOTS_IN_DOUBT }
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

    /// A trial was made: begins to count anew.
    pub(crate) fn done(&mut self, in_doubt: bool) {
        self.left = if in_doubt { SLOTS_IN_DOUBT } else { SLOTS_A_TRIAL };
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

    /// Whether the last trial said otherwise.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.against > 0
    }

    /// Takes note of what the same bytes took into the caches and past them; whether that changes anything.
    pub(crate) fn note(&mut self, cached: Duration, streamed: Duration) -> bool {
        if (cached > streamed) == self.is_far {
            self.against = 0;
            return false;
        }
        self.against += 1;
        if self.against < IN_A_ROW {
            return false;
        }
        *self = Pace { is_far: !self.is_far, against: 0 };
        true
    }
}

/// Writes the start of `piece`, whose bytes nobody needs, into the caches and past them: what each took.
pub(crate) fn attempt(piece: PieceMut) -> (Duration, Duration) {
    // What is read must not decide: it is fetched first.
    black_box(NOTHING.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
    let streamed = fill(piece.slice(0, TRIED_BYTES).stored(Store::Streaming));
    let cached = fill(piece.slice(TRIED_BYTES, TRIED_BYTES).stored(Store::Cached));
    (cached, streamed)
}

fn fill(piece: PieceMut) -> Duration {
    let nothing = Buffers::new(&NOTHING, &mut []).input();
    let start = Instant::now();
    piece.copy_from(nothing);
    // Until all of it has left the core's store buffer.
    fence(Ordering::SeqCst);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: (u64, u64) = (200, 550);
    const APART: (u64, u64) = (2500, 1000);

    fn noted(pace: &mut Pace, (cached, streamed): (u64, u64)) -> bool {
        pace.note(Duration::from_nanos(cached), Duration::from_nanos(streamed))
    }

    #[test]
    fn three_trials_in_a_row_decide() {
        let mut pace = Pace::default();
        let trials =
            [NEAR, APART, APART, NEAR, APART, APART, APART, APART, NEAR, NEAR, APART, NEAR, NEAR, NEAR];
        let far = trials.map(|trial| {
            noted(&mut pace, trial);
            u8::from(pace.is_far())
        });
        assert_eq!(far, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn a_change_is_told_once() {
        let mut pace = Pace::default();
        assert_eq!([APART; 5].map(|trial| noted(&mut pace, trial)), [false, false, true, false, false]);
    }

    #[test]
    fn a_trial_is_due_once_in_so_many_slots_and_then_until_it_is_done() {
        let mut trials = Trials::new();
        let mut due = |slots: u32| (0..slots).filter(|_| trials.count()).count();
        assert_eq!(due(SLOTS_IN_DOUBT + 2), 3);
        let mut after = |in_doubt: bool, slots: u32| {
            trials.done(in_doubt);
            (0..slots).filter(|_| trials.count()).count()
        };
        assert_eq!((after(true, SLOTS_IN_DOUBT), after(false, SLOTS_A_TRIAL)), (1, 1));
        assert_eq!(after(false, SLOTS_A_TRIAL - 1), 0);
    }

    #[test]
    fn an_attempt_writes_its_bytes_and_no_others() {
        let mut memory = vec![7u8; 2 * TRIED_BYTES + 100];
        let piece = Buffers::new(&[], &mut memory).output();
        let (cached, streamed) = attempt(piece);
        assert!(cached > Duration::ZERO && streamed > Duration::ZERO);
        let (tried, rest) = memory.split_at(2 * TRIED_BYTES);
        assert!(tried.iter().all(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 7));
    }
}
