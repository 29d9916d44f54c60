//! How fast a lane turns out to be.
//!
//! Bytes and the time that they took, both fading, so that the last MiB counts. When a piece was through is known no better than by
//! the polls around it: not before the one that did not find its completion, nor after the one that did. In between it is taken
//! to have been as fast as expected. So a rank that does not look for a while makes no lane slow.

use std::collections::VecDeque;

/// Bytes that count; older ones fade.
const MEMORY: f64 = (1 << 20) as f64;
/// What a lane's nominal speed counts for before anything was measured.
const FAITH: f64 = (64 << 10) as f64;
/// Gigabits per second of a port that does not know its speed.
const UNKNOWN: f64 = 10.0;
/// A lane that had nothing to do for so many times as long as a piece takes gets one: the others lose at most that part.
const REST: f64 = 16.0;

/// A lane's speed, and what it has to do. Times are in nanoseconds since some moment.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    bytes: f64,
    nanos: f64,
    /// Bytes that were posted and are not through.
    in_flight: u64,
    /// The pieces that they belong to, oldest first.
    pieces: VecDeque<u32>,
    /// Since when the oldest of them is on its way alone, or when the last was through.
    since: u64,
}

impl Pace {
    /// Of a lane between ports of so many gigabits per second, which may have so many pieces on their way.
    pub(crate) fn new(gbps: f64, pieces: usize) -> Pace {
        let gbps = if gbps > 0.0 { gbps } else { UNKNOWN };
        let pieces = VecDeque::with_capacity(pieces);
        Pace { bytes: FAITH, nanos: FAITH * 8.0 / gbps, in_flight: 0, pieces, since: 0 }
    }

    /// A piece was posted.
    pub(crate) fn post(&mut self, len: usize, now: u64) {
        if self.in_flight == 0 {
            self.since = now;
        }
        self.in_flight += len as u64;
        self.pieces.push_back(len as u32);
    }

    /// The oldest piece is through, as a poll at `now` has found, and one at `looked` has not. False: there is none.
    pub(crate) fn done(&mut self, looked: u64, now: u64) -> bool {
        let Some(piece) = self.pieces.pop_front() else { return false };
        self.in_flight -= u64::from(piece);
        let (len, expected) = (f64::from(piece), self.expected(piece as usize));
        let at_least = looked.saturating_sub(self.since) as f64;
        let at_most = now.saturating_sub(self.since) as f64;
        let took = expected.max(at_least).min(at_most);
        if at_most < expected / 2.0 {
            // Proof that it is faster than it was; what it was does not count any more.
            (self.bytes, self.nanos) = (len, at_most.max(1.0));
        } else {
            self.bytes += len;
            self.nanos += took;
        }
        if self.bytes > MEMORY {
            (self.bytes, self.nanos) = (self.bytes / 2.0, self.nanos / 2.0);
        }
        self.since += took as u64;
        true
    }

    /// Forgets what was posted; how many pieces.
    pub(crate) fn clear(&mut self) -> u32 {
        let pieces = self.pieces.len() as u32;
        self.pieces.clear();
        self.in_flight = 0;
        pieces
    }

    fn expected(&self, len: usize) -> f64 {
        len as f64 * self.nanos / self.bytes
    }

    /// How long it will take until a piece is through that is posted now, in nanoseconds. One that was late already at the last
    /// look makes the lane slower.
    pub(crate) fn until_done(&self, len: usize, looked: u64) -> f64 {
        let waited = if self.in_flight > 0 { looked.saturating_sub(self.since) } else { 0 };
        (self.in_flight as f64 + len as f64) * (self.nanos + waited as f64) / self.bytes
    }

    /// Whether it has rested for so long that a piece may be spent on finding out how fast it is now.
    pub(crate) fn is_worth_a_try(&self, len: usize, now: u64) -> bool {
        self.in_flight == 0 && now.saturating_sub(self.since) as f64 > REST * self.expected(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 65536;

    /// Lanes that take so many nanoseconds for a piece each; what they carried of so many pieces, `depth` at a time, with a
    /// look every `look` nanoseconds.
    fn shares(lanes: &mut [(Pace, u64)], pieces: u32, depth: usize, look: u64) -> Vec<u32> {
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); lanes.len()];
        let mut carried = vec![0; lanes.len()];
        let mut now = 1_000_000_000;
        let (mut left, mut looked) = (pieces, 0);
        while left > 0 {
            while left > 0 && ends.iter().map(Vec::len).sum::<usize>() < depth {
                let at = (0..lanes.len()).find(|at| lanes[*at].0.is_worth_a_try(PIECE, now));
                let best = |a: &usize, b: &usize| {
                    lanes[*a].0.until_done(PIECE, looked).total_cmp(&lanes[*b].0.until_done(PIECE, looked))
                };
                let at = at.unwrap_or_else(|| (0..lanes.len()).min_by(best).unwrap());
                let start = ends[at].last().copied().unwrap_or(now).max(now);
                ends[at].push(start + lanes[at].1);
                lanes[at].0.post(PIECE, now);
                carried[at] += 1;
                left -= 1;
            }
            now += look;
            for (at, (pace, _)) in lanes.iter_mut().enumerate() {
                while ends[at].first().is_some_and(|end| *end <= now) {
                    ends[at].remove(0);
                    assert!(pace.done(looked, now));
                }
            }
            looked = now;
        }
        carried
    }

    fn lanes(nanos: &[u64]) -> Vec<(Pace, u64)> {
        nanos.iter().map(|nanos| (Pace::new(100.0, 64), *nanos)).collect()
    }

    #[test]
    fn shares_follow_the_speed() {
        for look in [100, 1_000, 5_000] {
            let equal = shares(&mut lanes(&[5_000, 5_000]), 10_000, 16, look);
            assert!(equal.iter().all(|carried| (4_500..5_500).contains(carried)), "{look}: {equal:?}");
            let third = shares(&mut lanes(&[5_000, 10_000]), 9_000, 16, look);
            assert!((2_400..3_600).contains(&third[1]), "{look}: {third:?}");
            let tenth = shares(&mut lanes(&[5_000, 50_000]), 11_000, 16, look);
            assert!((600..1_500).contains(&tenth[1]), "{look}: {tenth:?}");
        }
    }

    #[test]
    fn a_lane_that_was_slow_for_a_while_gets_its_share_back() {
        let mut lanes = lanes(&[5_000, 5_000]);
        lanes[1].1 = 5_000_000;
        let slow = shares(&mut lanes, 5_000, 16, 500);
        assert!(slow[1] < 200, "{slow:?}");
        for (pace, _) in &mut lanes {
            pace.clear();
        }
        lanes[1].1 = 5_000;
        // All that was in flight is forgotten, and the clock begins anew.
        let again = shares(&mut lanes, 40_000, 16, 500);
        assert!(again[1] > 10_000, "{again:?}");
    }

    #[test]
    fn who_does_not_look_makes_no_lane_slow() {
        let mut pace = Pace::new(100.0, 1);
        let before = pace.until_done(PIECE, 0);
        for round in 1..100 {
            let start = round * 1_000_000_000;
            pace.post(PIECE, start);
            // Nothing was polled for a second.
            pace.done(start, start + 900_000_000);
        }
        assert!((pace.until_done(PIECE, 0) / before - 1.0).abs() < 0.01);
        // The same with somebody who looked all the time.
        pace.post(PIECE, 0);
        assert!(pace.until_done(PIECE, 899_000_000) > 100.0 * before, "late already");
        pace.done(899_000_000, 900_000_000);
        assert!(pace.until_done(PIECE, 0) > 100.0 * before);
        // One that is fast says so at once.
        pace.post(PIECE, 1_000_000_000);
        pace.done(0, 1_000_006_000);
        assert!(pace.until_done(PIECE, 0) < 2.0 * before);
    }
}
