//! How slots are written: into the caches, or past them; and how they are read.
//!
//! Whoever reads a slot takes its lines over from the core that has written them. Between near cores that costs next to nothing. Between far
//! ones (two sockets, two dies) each line waits for the way from one cache to the other, which takes longer than main memory does: bytes that are
//! written past the caches, and come from there, take a fourth of the time. Near cores lose half of theirs that way.
//!
//! Nobody can be asked which of the two it is: a guest does not see where its host runs it, and is moved about. So it is looked at, now and then:
//! how long the sender waits for a line that the receiver has just written, which is the one with its credits. What bytes take on their way in
//! slots does not tell as well: neighbours on the machine make near cores seem far by it.

use std::time::{Duration, Instant};

/// Slots that are written from one look to the next: so many that looking takes next to no time.
const SLOTS_A_LOOK: u32 = 32;

/// The same as long as nothing is known, or a look has said otherwise since that was decided.
const SLOTS_IN_DOUBT: u32 = 4;

/// What a line takes from a far core, at least, on this machine. It is about half of what a message takes there. AMD: 20 to 30 ns between cores with 45 ns for a message, which exchange
/// pieces of 128 KiB in half the time through the caches, more than 100 between those with 240, which exchange them in half the time past the caches. Intel: some 70
/// to 130 ns between the cores of a processor, with 130 for a message, which exchange them in half the time through the caches all the same.
fn far() -> Duration {
    Duration::from_nanos(if made_by(*b"GenuineIntel") { 150 } else { 70 })
}

/// From how many bytes on pieces are copied by words that lie in a slot which stays with its writer: where the reader has a core for itself, near the writer's, and so
/// on AMD's processors. Else a stream in one direction takes up to twice as long in a third of all runs and more, for seconds on end: who writes slots is slow (Zen 4)
/// while the reader copies by `rep movsb`. Shorter pieces take as long either way, 4 and 8 ranks on 2 cores up to 1.06 of the time by words, and far ones up to 1.25.
pub(crate) fn words_from(is_crowded: bool) -> usize {
    if !is_crowded && made_by(*b"AuthenticAMD") { 8 << 10 } else { usize::MAX }
}

/// Whether the processor gives itself this name.
#[cfg(target_arch = "x86_64")]
fn made_by(name: [u8; 12]) -> bool {
    let own = std::arch::x86_64::__cpuid(0);
    [own.ebx, own.edx, own.ecx].map(u32::to_le_bytes).as_flattened() == name
}

#[cfg(not(target_arch = "x86_64"))]
fn made_by(_: [u8; 12]) -> bool {
    false
}

/// So many looks decide together.
const LOOKS: u32 = 8;

/// So many of them must find a peer far. Where memory is busy one in seven does between near cores.
const LOOKS_AFAR: u32 = 6;

/// So many keep it far, so that cores half way between do not change all the time.
const LOOKS_STILL_AFAR: u32 = 4;

/// How often the clock is measured: the least of it counts.
const CLOCKED: usize = 16;

/// When the next look is due.
#[derive(Debug)]
pub(crate) struct Looks {
    left: u32,
    /// What a look takes that sees nothing; `None` for a clock that is too slow to tell far from near.
    clock: Option<Duration>,
    /// What a line takes [from afar](far), on this machine.
    far: Duration,
}

impl Looks {
    pub(crate) fn new() -> Looks {
        let least = (0..CLOCKED).map(|_| Instant::now().elapsed()).min();
        let far = far();
        Looks { left: SLOTS_IN_DOUBT, clock: least.filter(|least| *least < far), far }
    }

    /// Counts a slot that is written.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// By a clock that takes no time, whatever this machine's does.
    #[cfg(test)]
    pub(crate) fn by_quick_clock() -> Looks {
        Looks { left: SLOTS_IN_DOUBT, clock: Some(Duration::ZERO), far: far() }
    }

    /// No look is ever due, as with a clock that is too slow.
    #[cfg(test)]
    pub(crate) fn none() -> Looks {
        Looks { left: SLOTS_IN_DOUBT, clock: None, far: far() }
    }

    /// Whether a look is due: until one has [seen](Looks::seen) something.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.left == 0 && self.clock.is_some()
    }

    /// Whether a peer's line came from afar, by what a look at it takes. `look` loads it, and says whether it has been written since it was
    /// loaded last: only then it tells.
    pub(crate) fn is_from_afar(&self, look: impl FnOnce() -> bool) -> Option<bool> {
        let clock = self.clock?;
        let start = Instant::now();
        let is_new = look();
        let took = start.elapsed();
        is_new.then(|| took.saturating_sub(clock) > self.far)
    }

    /// Something was seen, which may be news.
    pub(crate) fn seen(&mut self, in_doubt: bool) {
        self.left = if in_doubt { SLOTS_IN_DOUBT } else { SLOTS_A_LOOK };
    }
}

/// How far a peer's core is, as looks have it.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    is_far: bool,
    /// Whether there was a decision.
    is_known: bool,
    /// Looks since the last decision, and how many of them were far.
    looks: u32,
    afar: u32,
}

impl Pace {
    /// Near, until it is known better.
    pub(crate) fn new() -> Pace {
        Pace { is_far: false, is_known: false, looks: 0, afar: 0 }
    }

    /// Whether what this peer reads is written past the caches.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Whether nothing is known yet, or a look has said otherwise since the last decision.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !self.is_known || self.afar != if self.is_far { self.looks } else { 0 }
    }

    /// Takes note of a line, from afar or not; whether that changes anything.
    pub(crate) fn note(&mut self, from_afar: bool) -> bool {
        self.looks += 1;
        self.afar += u32::from(from_afar);
        if self.looks < LOOKS {
            return false;
        }
        let before = self.is_far;
        let wanted = if before { LOOKS_STILL_AFAR } else { LOOKS_AFAR };
        *self = Pace { is_far: self.afar >= wanted, is_known: true, ..Pace::new() };
        self.is_far != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of some looks changes: `n` is a near one, `f` a far one.
    fn told(pace: &mut Pace, looks: &str) -> String {
        looks.chars().map(|look| if pace.note(look == 'f') { '!' } else { '.' }).collect()
    }

    #[test]
    fn six_looks_of_eight_decide_and_are_told_once() {
        let mut pace = Pace::new();
        assert_eq!(told(&mut pace, "nnnnnnnn"), "........");
        assert_eq!(told(&mut pace, "nfffffnn"), "........", "busy memory");
        assert!(!pace.is_far());
        assert_eq!(told(&mut pace, "nfffffnf"), ".......!");
        assert_eq!(told(&mut pace, "fnnfnfnf"), "........", "half of them are enough to stay so");
        assert!(pace.is_far());
        assert_eq!(told(&mut pace, "nnnfnnff"), ".......!");
        assert!(!pace.is_far());
    }

    #[test]
    fn what_contradicts_is_looked_into() {
        let mut pace = Pace::new();
        assert!(pace.is_in_doubt(), "nothing is known");
        let doubts = "nnnnnnnnnfnnnnnnn".chars().map(|look| {
            told(&mut pace, &look.to_string());
            u8::from(pace.is_in_doubt())
        });
        assert_eq!(doubts.collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn a_look_stays_due_until_something_was_seen_and_the_next_comes_sooner_in_doubt() {
        let mut looks = Looks::by_quick_clock();
        let slots = |looks: &mut Looks| {
            let mut before = 0;
            while !looks.is_due() {
                looks.count();
                before += 1;
            }
            looks.count();
            assert!(looks.is_due(), "it stays due until it is made");
            before
        };
        assert_eq!(slots(&mut looks), SLOTS_IN_DOUBT);
        looks.seen(false);
        assert_eq!(slots(&mut looks), SLOTS_A_LOOK);
        looks.seen(true);
        assert_eq!(slots(&mut looks), SLOTS_IN_DOUBT);
    }

    #[test]
    fn only_a_line_that_was_written_tells_and_the_clock_is_taken_off() {
        let pause = Duration::from_millis(2);
        let look = |is_new| {
            move || {
                std::thread::sleep(pause);
                is_new
            }
        };
        let looks = |clock| Looks { left: 0, clock: Some(clock), far: pause / 2 };
        let quick = looks(pause / 4);
        assert_eq!(quick.is_from_afar(look(false)), None);
        assert_eq!(quick.is_from_afar(look(true)), Some(true));
        assert_eq!(quick.is_from_afar(|| true), Some(false));
        assert_eq!(looks(Duration::from_secs(3600)).is_from_afar(look(true)), Some(false));
    }

    #[test]
    fn a_clock_that_is_too_slow_tells_nothing() {
        let mut looks = Looks { left: 1, ..Looks::none() };
        looks.count();
        assert!(!looks.is_due());
        assert_eq!(looks.is_from_afar(|| true), None);
    }
}
