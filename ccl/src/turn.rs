//! Waiting for a turn, and taking several.

use crate::{Entered, Turn};
#[cfg(not(loom))]
use crate::{Guard, Monitor};
use std::time::{Duration, Instant};

impl<'a, T> Turn<'a, T> {
    /// Waits until all turns before this one are over.
    #[inline]
    pub fn enter(self) -> Entered<'a, T> {
        match self.try_enter() {
            Ok(entered) => entered,
            Err(turn) => turn.wait(None).unwrap_or_else(|_| unreachable!("it waits without a limit")),
        }
    }

    /// [`enter`](Turn::enter), or gives the turn back when it has waited so long.
    pub fn enter_within(self, limit: Duration) -> Result<Entered<'a, T>, Turn<'a, T>> {
        self.wait(Some(limit))
    }

    /// Leaving is a plain store that wakes nobody, so this looks again and again, ever more rarely.
    #[cold]
    fn wait(mut self, limit: Option<Duration>) -> Result<Entered<'a, T>, Turn<'a, T>> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut pause = Pause::default();
        loop {
            match self.try_enter() {
                Ok(entered) => return Ok(entered),
                Err(turn) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => return Err(turn),
                Err(turn) => self = turn,
            }
            pause.next();
            self.stile().pass_left();
        }
    }
}

/// Spins for as long as a short call takes, yields, then sleeps in growing steps.
#[derive(Default)]
struct Pause {
    rounds: u32,
}

impl Pause {
    const SPINS: u32 = 32;
    const YIELDS: u32 = 64;
    const SHORTEST: Duration = Duration::from_micros(10);
    const LONGEST: Duration = Duration::from_micros(500);

    #[cfg(not(loom))]
    fn next(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= Pause::SPINS {
            std::hint::spin_loop();
        } else if self.rounds <= Pause::YIELDS {
            std::thread::yield_now();
        } else {
            let doubled = Pause::SHORTEST * (1 << (self.rounds - Pause::YIELDS).min(6));
            std::thread::sleep(doubled.min(Pause::LONGEST));
        }
    }

    #[cfg(loom)]
    fn next(&mut self) {
        loom::thread::yield_now();
    }
}

/// While a thread holds this, no other takes turns of several turnstiles, or puts turns into queues.
///
/// Two calls that need the same two turnstiles, or a turnstile and a [`Stream`](crate::Stream), would wait for each other for
/// ever if each was the first at one of them. Hold it while the turns of one call are taken and submitted, not longer.
#[cfg(not(loom))]
pub fn together() -> Guard<'static, ()> {
    static ORDER: Monitor<()> = Monitor::new(());
    ORDER.lock()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Turnstile;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn turns_are_entered_in_the_order_in_which_they_were_taken() {
        let stile = Turnstile::new(Vec::new());
        let turns: Vec<_> = (0..8).map(|i| (i, stile.take())).collect();
        std::thread::scope(|scope| {
            let stile = &stile;
            let threads = turns.into_iter().rev().map(|(i, turn)| {
                scope.spawn(move || {
                    turn.enter().push(i);
                    stile.take().enter().push(100);
                })
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        });
        let list = stile.take().enter();
        let first: Vec<_> = list.iter().filter(|i| **i < 100).copied().collect();
        assert_eq!((first, list.len()), ((0..8).collect(), 16));
    }

    #[test]
    fn a_turn_that_is_dropped_passes_its_place_on() {
        let stile = Turnstile::new(0);
        let (a, b, c, d) = (stile.take(), stile.take(), stile.take(), stile.take());
        drop(c);
        assert!(stile.take().try_enter().is_err());
        drop(a);
        *b.enter() += 1;
        *d.enter() += 1;
        assert_eq!(*stile.take().enter(), 2);
    }

    #[test]
    fn a_panic_loses_no_turn() {
        let stile = Turnstile::new(0);
        let (entered, unused) = (stile.take(), stile.take());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _unused = unused;
            *entered.enter() += 1;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(*stile.take().enter(), 1);
    }

    #[test]
    fn a_limited_wait_gives_the_turn_back() {
        let stile = Turnstile::new(());
        let first = stile.take().enter();
        let second = stile.take();
        let Err(second) = second.enter_within(Duration::from_millis(1)) else {
            panic!("it was not its turn");
        };
        drop(first);
        assert!(second.enter_within(Duration::from_secs(10)).is_ok());
    }
}
