//! Waiting that adapts: spin while it pays, then yield, then sleep.

use std::time::{Duration, Instant};

/// What to do about a blocked step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Look again at once.
    Spin,
    /// Give the core to somebody who is ready, then look again.
    Yield,
    /// Sleep in the transport for at most this long, and look whether the peers live.
    Park(Duration),
}

/// Looks at once after the last, without the hint that lets the core's other thread go first: the hint takes as
/// long as a message between cores, and these few looks bridge just that.
const EAGER: u32 = 100;
/// Spins that bridge a peer that is running: about 90 µs, since the hint takes some 45 ns. Where other programs keep
/// the cores busy this is what a call costs when both ranks share a core; yielding sooner was measured to cost a
/// scheduler's slice (0.1 to 0.7 ms) each time the core goes to another program.
const SPINS: u32 = 2_000;
/// Spins when there are more ranks than cores: the peer is likely waiting for this very core.
const SPINS_OVERSUBSCRIBED: u32 = 20;
/// Yields between two looks at the clock: about 50 µs when nobody takes the core.
const YIELDS_PER_LOOK: u32 = 128;
/// How long to yield before sleeping. A sleeper costs its peer a system call and itself tens of
/// microseconds of waking up, so this is far above any wait inside a collective.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// The longest sleep: also the time between two looks at the peers' health.
const PARK_TIME: Duration = Duration::from_millis(20);

/// The state of one wait.
#[derive(Debug)]
pub(super) struct Patience {
    spin_limit: u32,
    spins: u32,
    yields: u32,
    /// When yielding began; the clock is not read before.
    since: Option<Instant>,
}

impl Patience {
    #[inline]
    pub(super) fn new(oversubscribed: bool) -> Patience {
        let spin_limit = if oversubscribed { SPINS_OVERSUBSCRIBED } else { SPINS };
        Patience { spin_limit, spins: 0, yields: 0, since: None }
    }

    /// Something moved: patience is fresh again. Whether it had come to yielding.
    #[inline]
    pub(super) fn reset(&mut self) -> bool {
        self.spins = 0;
        self.yields = 0;
        self.since.take().is_some()
    }

    /// What to do now that nothing moved.
    #[inline]
    pub(super) fn next(&mut self) -> Wait {
        if self.spins >= self.spin_limit {
            return self.after_spinning();
        }
        self.spins += 1;
        if self.spins > EAGER {
            std::hint::spin_loop();
        }
        Wait::Spin
    }

    #[cold]
    fn after_spinning(&mut self) -> Wait {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.yields += 1;
        if !self.yields.is_multiple_of(YIELDS_PER_LOOK) || since.elapsed() < YIELD_TIME {
            return Wait::Yield;
        }
        self.yields -= 1; // the next look is due at the next call
        Wait::Park(PARK_TIME)
    }

    /// How long nothing has moved, as far as the clock was read.
    pub(super) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_then_parks_and_starts_over_when_something_moved() {
        let mut patience = Patience::new(true);
        for _ in 0..SPINS_OVERSUBSCRIBED {
            assert_eq!(patience.next(), Wait::Spin);
        }
        assert_eq!(patience.next(), Wait::Yield);
        let parked = (0..u64::MAX).map(|_| patience.next()).find(|wait| *wait != Wait::Yield);
        assert_eq!(parked, Some(Wait::Park(PARK_TIME)));
        assert_eq!(patience.next(), Wait::Park(PARK_TIME), "a sleeper that woke for nothing sleeps again");
        assert!(patience.waited() >= YIELD_TIME);
        assert!(patience.reset(), "it had waited");
        assert_eq!(patience.next(), Wait::Spin);
        assert_eq!(patience.waited(), Duration::ZERO);
        assert!(!patience.reset(), "it only spun");
    }
}
