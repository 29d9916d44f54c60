//! Waiting that adapts: spin while it pays, then yield, then sleep.
//!
//! With a core for each rank, whoever is waited for is running, so the wait is short, and to spin is best. With more
//! ranks than cores it depends on where the peer is. One that was last seen on the waiting rank's own core cannot be
//! running now: every look is lost time, and the core is handed over at once. One of another core may well be
//! running, so it is looked for about as long as a handover takes.
//!
//! A thread that makes calls in the background shares the core with one that computes, unless there are cores for both. It
//! looks a little, yields for a little, and sleeps soon: who wakes it gives it the core at once, whereas a core that it only yields
//! may come back after a scheduler's slice, milliseconds later. To sleep at once was measured to be worse: where peers share the
//! core, or have theirs to themselves for a moment, what is waited for comes sooner than a sleeper wakes.

use std::time::{Duration, Instant};

/// Whose the core is on which a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// Its own.
    Own,
    /// There are more ranks than cores.
    Crowded,
    /// That of a thread which computes, while this one makes calls in the background.
    Lent,
}

impl Room {
    /// Of so many threads on so many cores.
    pub(super) fn of(threads: u32, cores: u32) -> Room {
        if threads > cores { Room::Crowded } else { Room::Own }
    }

    /// The same for as many threads more.
    pub(super) fn in_background(threads: u32, cores: u32) -> Room {
        if 2 * threads > cores { Room::Lent } else { Room::Own }
    }

    /// How often a short call that has sent all looks for a piece before it waits.
    pub(super) fn looks(self) -> u32 {
        if self == Room::Own { LOOKS } else { 0 }
    }
}

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
/// The looks of a short call, before it is stepped and is looked for in the rounds above. A peer that is in step has sent its
/// part by then, and it is found sooner than between two steps: all-reduces of 8 bytes and 1 KiB between two ranks take 0.92 of
/// the time; half as many do a little less, eight times as many no more. Who only receives does not look so: it would
/// take the line from under the sender's hands (broadcasts 1.04).
const LOOKS: u32 = 32;
/// Spins that bridge a peer that is running: about 90 µs, since the hint takes some 45 ns. Where other programs keep
/// the cores busy this is what a call costs when both ranks share a core; yielding sooner was measured to cost a
/// scheduler's slice (0.1 to 0.7 ms) each time the core goes to another program.
const SPINS: u32 = 2_000;
/// The same where there are more ranks than cores and the peer is on another core: about 1 µs, which is less than the
/// 1.3 µs of a handover. Measured: twice as many make calls of 64 KiB and more slower, half as many those of 8 bytes.
const SPINS_IN_A_CROWD: u32 = 50;
/// The same on a core that is lent: about 1 µs. Measured with training steps: four times as many gained nothing.
const SPINS_ON_LENT: u32 = 50;
/// Yields between two looks at the clock, after the first few: about 50 µs when nobody takes the core. Where others
/// take it each yield may last a slice of theirs, milliseconds; that shows in the first few.
const YIELDS_PER_LOOK: u32 = 128;
/// How long to yield before sleeping. A sleeper costs its peer a system call and itself tens of
/// microseconds of waking up, so this is far above any wait inside a collective.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// The same on a core that is lent. Measured with training steps of 2 and of 4 ranks on two cores: between 100 and 300 µs it
/// makes no difference; with 0 what communication adds to a step is up to twice as much, with 2 ms too.
const YIELD_TIME_ON_LENT: Duration = Duration::from_micros(200);
/// The longest sleep: also the time between two looks at the peers' health.
const PARK_TIME: Duration = Duration::from_millis(20);

/// The state of one wait.
#[derive(Debug)]
pub(super) struct Patience {
    room: Room,
    /// In a crowd 0 until it is decided: for each wait, and anew after each yield.
    spin_limit: u32,
    spins: u32,
    yields: u32,
    /// When yielding began; the clock is not read before.
    since: Option<Instant>,
}

impl Patience {
    #[inline]
    pub(super) fn new(room: Room) -> Patience {
        let spin_limit = match room {
            Room::Own => SPINS,
            Room::Crowded => 0,
            Room::Lent => SPINS_ON_LENT,
        };
        Patience { room, spin_limit, spins: 0, yields: 0, since: None }
    }

    /// Something moved: patience is fresh again. Whether it had come to yielding.
    #[inline]
    pub(super) fn reset(&mut self) -> bool {
        self.spins = 0;
        self.yields = 0;
        if self.room == Room::Crowded {
            self.spin_limit = 0;
        }
        self.since.take().is_some()
    }

    /// What to do now that nothing moved. `awaits_neighbour` says whether what is waited for is on this very core; it is
    /// asked in a crowd only, once for each wait and after each yield.
    #[inline]
    pub(super) fn next(&mut self, awaits_neighbour: impl FnOnce() -> bool) -> Wait {
        if self.spins >= self.spin_limit {
            if self.spin_limit > 0 || awaits_neighbour() {
                return self.after_spinning();
            }
            self.spin_limit = SPINS_IN_A_CROWD;
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
        if self.room == Room::Crowded {
            (self.spin_limit, self.spins) = (0, 0);
        }
        self.yields += 1;
        let (longest, per_look) = match self.room {
            Room::Lent => (YIELD_TIME_ON_LENT, 1),
            Room::Own | Room::Crowded => (YIELD_TIME, YIELDS_PER_LOOK),
        };
        let look = self.yields.is_power_of_two() || self.yields.is_multiple_of(per_look);
        if !look || since.elapsed() < longest {
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

    fn nobody_near() -> bool {
        false
    }

    fn not_asked() -> bool {
        panic!("who is near does not matter here")
    }

    /// What comes before the first wait of another kind, and that one.
    fn run_of(patience: &mut Patience, kind: Wait, near: fn() -> bool) -> (u32, Wait) {
        let mut run = 0;
        loop {
            match patience.next(near) {
                wait if wait == kind => run += 1,
                other => return (run, other),
            }
        }
    }

    #[test]
    fn with_a_core_each_it_spins_then_yields_then_parks() {
        let mut patience = Patience::new(Room::Own);
        assert_eq!(run_of(&mut patience, Wait::Spin, not_asked), (SPINS, Wait::Yield));
        assert_eq!(run_of(&mut patience, Wait::Yield, not_asked).1, Wait::Park(PARK_TIME));
        assert_eq!(patience.next(not_asked), Wait::Park(PARK_TIME), "who woke for nothing sleeps again");
        assert!(patience.waited() >= YIELD_TIME);
        assert!(patience.reset(), "it had waited");
        assert_eq!(patience.waited(), Duration::ZERO);
        assert_eq!(run_of(&mut patience, Wait::Spin, not_asked), (SPINS, Wait::Yield));
    }

    #[test]
    fn a_core_is_handed_at_once_to_the_peer_that_waits_for_it() {
        let mut patience = Patience::new(Room::Crowded);
        assert_eq!(run_of(&mut patience, Wait::Yield, || true).1, Wait::Park(PARK_TIME));
        assert!(patience.waited() >= YIELD_TIME);
        assert!(patience.reset());
        assert_eq!(patience.next(|| true), Wait::Yield);
    }

    #[test]
    fn a_core_is_lent_where_there_is_none_for_a_ranks_stream() {
        let rooms = [1, 2, 3, 4].map(|cores| (Room::of(2, cores), Room::in_background(2, cores)));
        let shared = (Room::Own, Room::Lent);
        assert_eq!(rooms, [(Room::Crowded, Room::Lent), shared, shared, (Room::Own, Room::Own)]);
    }

    #[test]
    fn on_a_core_that_is_lent_it_sleeps_soon() {
        let mut patience = Patience::new(Room::Lent);
        assert_eq!(run_of(&mut patience, Wait::Spin, not_asked), (SPINS_ON_LENT, Wait::Yield));
        assert_eq!(run_of(&mut patience, Wait::Yield, not_asked).1, Wait::Park(PARK_TIME));
        assert!(patience.waited() >= YIELD_TIME_ON_LENT);
        assert!(patience.reset());
        assert_eq!(run_of(&mut patience, Wait::Spin, not_asked), (SPINS_ON_LENT, Wait::Yield));
        // As if others had had the core for a slice: no second one is spent.
        patience.since = Some(Instant::now() - YIELD_TIME_ON_LENT);
        assert_eq!(patience.next(not_asked), Wait::Park(PARK_TIME));
    }

    #[test]
    fn yields_that_last_long_are_few() {
        let mut patience = Patience::new(Room::Crowded);
        assert_eq!(patience.next(|| true), Wait::Yield);
        // As if others had kept the core for that long.
        patience.since = Some(Instant::now() - YIELD_TIME);
        assert!(run_of(&mut patience, Wait::Yield, || true).0 < 4);
    }

    #[test]
    fn in_a_crowd_a_peer_of_another_core_is_looked_for_before_each_yield() {
        let mut patience = Patience::new(Room::Crowded);
        assert_eq!(run_of(&mut patience, Wait::Spin, nobody_near), (SPINS_IN_A_CROWD, Wait::Yield));
        assert_eq!(run_of(&mut patience, Wait::Spin, nobody_near), (SPINS_IN_A_CROWD, Wait::Yield));
        assert_eq!(patience.next(|| true), Wait::Yield, "meanwhile it has come to this core");
        assert_eq!(patience.next(nobody_near), Wait::Spin);
        assert!(patience.reset());
        assert_eq!(patience.next(|| true), Wait::Yield, "another wait is another decision");
        assert!(patience.reset());
        assert_eq!(patience.next(nobody_near), Wait::Spin);
        assert!(!patience.reset(), "it only spun");
    }
}
