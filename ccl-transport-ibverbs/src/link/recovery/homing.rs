//! The way back to the rail that a lane belongs to, where no port says that it works again.
//!
//! What lies between two ports can fail and be mended while both stay active. So of a lane that is elsewhere, though its rail
//! looks well, the end that leads asks the other one over that rail, now and then. An answer over it is the proof that it
//! works in both directions, and the lane is called back. A rail may bring words and nothing longer: a lane that has to leave
//! its rail again soon is asked for ever more rarely.

use super::word::Says;
use crate::link::transport::IbTransport;
use std::time::{Duration, Instant};

/// Until the first question, and between two; each time twice as long, up to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(256);
/// A lane that was back for so many pauses had not come back too soon.
const SETTLED: u32 = 4;

/// When the other end of a lane is asked over the rail that the lane belongs to.
#[derive(Debug, Default)]
pub(crate) struct Homing {
    pause: Duration,
    /// When next, if the lane is elsewhere.
    next: Option<Instant>,
    /// Whether it was asked since the lane came where it is.
    asked: bool,
    /// Since when the lane is back.
    back: Option<Instant>,
}

impl Homing {
    /// The lane is open on the rail that it belongs to.
    pub(super) fn came_back(&mut self, now: Instant) {
        (self.next, self.back) = (None, Some(now));
    }

    /// The lane is open elsewhere.
    pub(super) fn is_away(&mut self, now: Instant) {
        if self.next.is_none() {
            let stayed = self.back.map(|back| now.saturating_duration_since(back));
            let left_soon = stayed.is_some_and(|stayed| stayed < self.pause * SETTLED);
            self.pause = if left_soon { (self.pause * 2).min(LAST_PAUSE) } else { FIRST_PAUSE };
        }
        (self.next, self.asked) = (Some(now + self.pause), false);
    }

    /// Whether it is time to ask; if so, it is counted as done.
    fn asks(&mut self, now: Instant) -> bool {
        let is_time = self.next.is_some_and(|next| next <= now);
        if is_time {
            (self.next, self.asked) = (Some(now + self.pause), true);
        }
        is_time
    }

    /// Whether what comes now may be an answer.
    fn has_asked(&self) -> bool {
        self.next.is_some() && self.asked
    }
}

impl IbTransport {
    /// Asks over the rails that lanes have left, where it is time.
    pub(in crate::link) fn ask_after_rails(&mut self) {
        let now = Instant::now();
        for at in 0..self.lanes.len() {
            if self.lanes[at].homing.asks(now)
                && let Some(home) = self.rails_left(at)
            {
                self.tell(at, home, Says::Asks);
            }
        }
    }

    /// The other end says over a pair of rails that it is open too.
    pub(super) fn is_answered(&mut self, at: usize, via: usize) {
        if self.lanes[at].homing.has_asked() && self.rails_left(at) == Some(via) {
            self.go_home(at);
        }
    }

    /// The pair of rails that a lane belongs to, where it is open elsewhere and this end is the one that asks.
    fn rails_left(&self, at: usize) -> Option<usize> {
        let lane = &self.lanes[at];
        let home = self.connections[&lane.peer].pair_of(lane.place);
        (lane.open && lane.seat.rails != home && self.leads(lane.peer)).then_some(home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_fails_again_and_again_is_asked_after_ever_more_rarely() {
        let (mut homing, mut now) = (Homing::default(), Instant::now());
        assert!(!homing.asks(now) && !homing.has_asked(), "it is at home");
        let mut trip = |stays: Duration| {
            homing.is_away(now);
            let left = now;
            assert!(!homing.asks(now) && !homing.has_asked());
            while !homing.asks(now) {
                now += Duration::from_secs(1);
            }
            assert!(homing.has_asked() && !homing.asks(now), "and once only");
            let waited = (now - left).as_secs();
            homing.came_back(now);
            assert!(!homing.has_asked() && !homing.asks(now + LAST_PAUSE));
            now += stays;
            waited
        };
        let soon = Duration::from_secs(1);
        assert_eq!([soon; 9].map(&mut trip), [2, 4, 8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(trip(LAST_PAUSE * SETTLED), 256);
        assert_eq!([soon; 2].map(&mut trip), [2, 4], "it was well for long");
    }

    #[test]
    fn a_lane_that_moves_on_elsewhere_is_asked_for_at_the_same_pace() {
        let (mut homing, now) = (Homing::default(), Instant::now());
        homing.is_away(now);
        homing.is_away(now + FIRST_PAUSE);
        assert!(!homing.asks(now + FIRST_PAUSE) && homing.asks(now + 2 * FIRST_PAUSE));
    }
}
