//! What is known of a lane that is being repaired.

use super::word::{Counts, Offer, Says, Word};
use std::time::{Duration, Instant};

/// Until the first word is said again; each time twice as long, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(128);

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its queue pair is in error, and not all receives have come back.
    Draining,
    /// They have.
    Drained,
    /// It has another queue pair, which sends with this number first.
    Prepared { first_packet: u32 },
}

/// A repair.
#[derive(Debug)]
pub(crate) struct Repair {
    pub(crate) stage: Stage,
    /// Since when.
    pub(crate) since: Instant,
    /// The pair of rails on which the last queue pair failed.
    pub(crate) avoid: Option<usize>,
    /// What has come here, once the old queue pair is drained.
    pub(crate) counts: Counts,
    /// Pairs of rails over which the other end was heard to be drained, as bits, and since when.
    pub(crate) heard: u32,
    pub(crate) heard_since: Option<Instant>,
    /// The other end's new queue pair, and what has come there.
    pub(crate) offer: Option<(Offer, Counts)>,
    /// Whether it is known what the other end has got by the old queue pair, and the rest goes by others.
    pub(crate) is_settled: bool,
    /// Whether the other end sends already.
    pub(crate) ready: bool,
    /// Whether the rail that the lane belongs to has come back since, so that it is gone back to once this is done.
    pub(crate) home_is_back: bool,
    /// When it is said again how far this end is.
    pub(crate) next_word: Instant,
    /// Nothing is said before.
    pub(crate) quiet_until: Instant,
    pause: Duration,
}

impl Repair {
    /// One that says nothing for a while.
    pub(crate) fn new(now: Instant, avoid: Option<usize>, silence: Duration) -> Repair {
        Repair {
            stage: Stage::Draining,
            since: now,
            avoid,
            counts: Counts::default(),
            heard: 0,
            heard_since: None,
            offer: None,
            is_settled: false,
            ready: false,
            home_is_back: false,
            next_word: now + silence,
            quiet_until: now + silence,
            pause: FIRST_PAUSE,
        }
    }

    /// Whether the device may still have something of the old queue pair.
    pub(crate) fn is_draining(&self) -> bool {
        self.stage == Stage::Draining
    }

    /// Whether the lane has its new queue pair.
    pub(crate) fn is_prepared(&self) -> bool {
        matches!(self.stage, Stage::Prepared { .. })
    }

    /// Goes on to another stage, of which the other end is told at once.
    pub(crate) fn enter(&mut self, stage: Stage, now: Instant) {
        (self.stage, self.since) = (stage, now);
        self.pause = FIRST_PAUSE;
        self.next_word = now.max(self.quiet_until);
    }

    /// It was just said; when again.
    pub(crate) fn said(&mut self, now: Instant) {
        self.next_word = now + self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }

    /// Takes in what the other end says of the same generation.
    pub(crate) fn note(&mut self, word: &Word, now: Instant) {
        match word.says {
            Says::Drained { avoid } => {
                self.avoid = self.avoid.or(avoid.map(usize::from));
                self.heard |= 1u32.checked_shl(word.via.into()).unwrap_or(0);
                self.heard_since.get_or_insert(now);
            }
            Says::Prepared(offer) => self.offer = Some((offer, word.counts)),
            Says::Ready => self.ready = true,
            Says::Draining | Says::GivenUp | Says::Asks => {}
        }
    }

    /// The pair of rails to go on with, of so many, where the lane belongs to `home`: the first that is heard, from there
    /// on, and the one that has just failed last. Better ones may take a little longer to be heard.
    pub(crate) fn choose(
        &self,
        home: usize,
        of: usize,
        usable: impl Fn(usize) -> bool,
        waited: bool,
    ) -> Option<usize> {
        let mut order: Vec<usize> = (0..of).map(|k| (home + k) % of).filter(|rails| usable(*rails)).collect();
        order.sort_by_key(|rails| self.avoid == Some(*rails));
        let is_heard = |rails: &usize| self.heard >> *rails & 1 == 1;
        match order.first() {
            Some(best) if is_heard(best) => Some(*best),
            _ if waited => order.into_iter().find(is_heard),
            _ => None,
        }
    }
}

/// A failure, from the first on after which nothing has got through.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// What the device said of it.
    pub(crate) cause: String,
    /// Since when it is being repaired.
    pub(crate) since: Instant,
    /// How long it was tried to repair it; the time in which the rank made no call does not count, nor that in which others
    /// did its work.
    pub(crate) spent: Duration,
    /// When that was last looked at.
    pub(crate) looked: Instant,
    /// Queue pairs that were made because of it.
    pub(crate) tries: u32,
    /// Messages that had come and were released in all when the last of them was opened.
    pub(crate) mark: u64,
}

/// Between two looks more time than this has passed elsewhere.
const LOOK: Duration = Duration::from_millis(100);

impl Trouble {
    pub(crate) fn new(cause: String, now: Instant) -> Trouble {
        Trouble { cause, since: now, spent: Duration::ZERO, looked: now, tries: 0, mark: 0 }
    }

    /// Counts the time since the last look.
    pub(crate) fn look(&mut self, now: Instant, is_spared: bool) {
        if !is_spared {
            self.spent += now.saturating_duration_since(self.looked).min(LOOK);
        }
        self.looked = now;
    }

    /// After a try that came to nothing: how long to wait.
    pub(crate) fn back_off(&self) -> Duration {
        match self.tries {
            0 => Duration::ZERO,
            tries => Duration::from_millis(10 << tries.min(7)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_goes_home_if_it_can_and_not_where_it_has_failed() {
        let choose = |avoid, heard: &[usize], waited| {
            let mut repair = Repair::new(Instant::now(), avoid, Duration::ZERO);
            repair.heard = heard.iter().map(|rails| 1 << rails).sum();
            repair.choose(1, 4, |rails| rails != 2, waited)
        };
        assert_eq!(choose(None, &[0, 1, 3], false), Some(1));
        assert_eq!((choose(None, &[0, 3], false), choose(None, &[0, 3], true)), (None, Some(3)));
        assert_eq!(choose(Some(1), &[0, 1, 3], false), Some(3));
        assert_eq!((choose(Some(1), &[1], false), choose(Some(1), &[1], true)), (None, Some(1)));
        assert_eq!(choose(None, &[2], true), None, "its port is down");
    }

    #[test]
    fn words_are_said_ever_more_rarely() {
        let now = Instant::now();
        let mut repair = Repair::new(now, None, Duration::ZERO);
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                repair.said(now);
                (repair.next_word - now).as_millis()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 128]);
    }
}
