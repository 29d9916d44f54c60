//! Who shares this rank's core, and whether another one has more room.
//!
//! Linux chooses a thread's core when it wakes, and moves threads later that have not run for half a millisecond. Ranks that hand a core to each other
//! every few microseconds are neither: once three of four ranks are on one of two cores, they may stay there for 0.2 s and longer, and a call takes
//! up to twice as long. The ranks know better where they all are, as long as nobody else wants the cores: of others only the kernel knows.

use super::Communicator;
use super::cores::allowed;
use crate::plan::Rank;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

/// Waits from one look at how the ranks are spread to the next: some 0.2 ms.
const WAITS_PER_LOOK: u32 = 64;
/// From one time that a rank finds its core too full to the next: a move takes some 40 µs, and to see that there are others 5 µs.
const REST: Duration = Duration::from_millis(10);

/// Where a rank waits that may have to share its core.
#[derive(Debug)]
pub(super) struct Seat {
    /// Where the peers of this host believe that this rank runs.
    core: Option<u32>,
    /// Ranks on this host, and for each core if they are spread.
    ranks: u32,
    share: u32,
    waits: u32,
    /// Whether there were more at the last look.
    was_full: bool,
    /// Since when it rests.
    rested: Option<Instant>,
}

impl Seat {
    /// Of one of so many ranks on so many cores.
    pub(super) fn of(ranks: u32, cores: u32) -> Seat {
        Seat { core: None, ranks, share: ranks.div_ceil(cores), waits: 0, was_full: false, rested: None }
    }

    /// Whether it is time to look.
    fn is_due(&mut self) -> bool {
        self.waits = self.waits.wrapping_add(1);
        self.waits.is_multiple_of(WAITS_PER_LOOK)
    }

    /// The core to move to, if there are more ranks on this one than its share for the second time, and as many threads `running` on this host as there are
    /// ranks at the most: of those that are allowed the one with the fewest ranks, where it has at least two fewer.
    fn better<Allowed: Iterator<Item = usize>>(
        &mut self,
        core: u32,
        peers: impl Iterator<Item = u32> + Clone,
        allowed: impl FnOnce() -> Allowed,
        running: impl FnOnce() -> Option<u32>,
    ) -> Option<u32> {
        let on = |core: u32| peers.clone().filter(|peer| *peer == core).count() as u32;
        let here = on(core) + 1;
        let is_full = here > self.share;
        if !std::mem::replace(&mut self.was_full, is_full) || !is_full {
            return None;
        }
        if self.rested.is_some_and(|since| since.elapsed() < REST) {
            return None;
        }
        self.rested = Some(Instant::now());
        let (ranks, least) = allowed().map(|core| (on(core as u32), core as u32)).min()?;
        (ranks + 2 <= here && running()? <= self.ranks).then_some(least)
    }
}

impl Communicator {
    /// Whether a running call waits for a rank that was last seen on this very core, and so is not running now.
    /// Tells the peers where this rank is, if it has moved. An error shows at the next step.
    #[inline(never)]
    pub(super) fn awaits_neighbour(&mut self, running: &[usize]) -> bool {
        let core = self.seated();
        let routes = &mut self.routes;
        running.iter().any(|&index| {
            let schedule = &self.plans.schedules[index];
            schedule.awaits(routes, |routes, peer| routes.core_of(peer) == Some(core)).unwrap_or(false)
        })
    }

    /// Goes to a core with fewer ranks, where this one has more than its share: for a thread that runs this rank alone.
    #[inline]
    pub(super) fn find_room(&mut self) {
        if self.seat.is_due() {
            self.look_for_room();
        }
    }

    #[cold]
    fn look_for_room(&mut self) {
        let core = self.seated();
        let routes = &self.routes;
        let peers = (0..self.ranks).filter_map(|peer: Rank| routes.core_of(peer));
        let Some(better) = self.seat.better(core, peers, allowed, running) else { return };
        match visit(better) {
            Ok(()) => tracing::debug!(rank = self.rank, core, better, "moved to a core with fewer ranks"),
            Err(error) => tracing::debug!(rank = self.rank, core, better, %error, "cannot move"),
        }
        self.seated();
    }

    /// The core that this rank runs on, as the peers know from now on.
    fn seated(&mut self) -> u32 {
        let core = sched_getcpu() as u32;
        if self.seat.core.replace(core) != Some(core) {
            self.routes.set_core(core);
        }
        core
    }
}

/// Threads that have or want a core of this host at this moment, as `proc_loadavg(5)` has it. Allocates nothing: a call asks.
fn running() -> Option<u32> {
    let mut load = [0; 128];
    let length = File::open("/proc/loadavg").ok()?.read(&mut load).ok()?;
    let load = str::from_utf8(&load[..length]).ok()?;
    load.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// Brings this thread to a core that it may run on, and leaves it free to go elsewhere.
fn visit(core: u32) -> rustix::io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(core as usize);
    sched_setaffinity(None, &only)?;
    sched_setaffinity(None, &allowed).inspect_err(|error| {
        tracing::warn!(core, %error, "this thread stays bound to that core: what it was allowed before is refused")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With as many threads running as there are ranks, and rested.
    fn looks(seat: &mut Seat, core: u32, peers: &[u32], allowed: &[usize]) -> Option<u32> {
        seat.rested = None;
        seat.better(core, peers.iter().copied(), || allowed.iter().copied(), || Some(peers.len() as u32 + 1))
    }

    #[test]
    fn who_is_on_a_full_core_twice_goes_to_the_emptiest() {
        let mut seat = Seat::of(4, 3);
        assert_eq!(looks(&mut seat, 0, &[0, 0, 1], &[0, 1, 2]), None, "it may pass");
        assert_eq!(looks(&mut seat, 0, &[0, 0, 1], &[0, 1, 2]), Some(2));
        assert_eq!(looks(&mut seat, 0, &[0, 0, 1], &[0, 1]), Some(1), "where the third is not allowed");
        assert_eq!(looks(&mut seat, 0, &[0, 0, 1], &[0]), None, "it is bound");
        assert_eq!(looks(&mut seat, 0, &[0, 1, 2], &[0, 1, 2]), None, "two are its share");
        assert_eq!(looks(&mut seat, 0, &[0, 0, 1], &[0, 1, 2]), None, "for the first time again");
    }

    #[test]
    fn nobody_moves_where_that_only_fills_another_core() {
        // Ranks may run on two of four cores.
        let mut seat = Seat::of(4, 4);
        for _ in 0..3 {
            assert_eq!(looks(&mut seat, 1, &[0, 0, 1], &[0, 1]), None);
        }
    }

    #[test]
    fn a_rank_stays_where_others_want_the_cores_and_rests_after_each_try() {
        let mut seat = Seat::of(4, 2);
        let mut asked = 0;
        let mut look = |seat: &mut Seat, running| {
            let peers = [0, 0, 1].into_iter();
            let allowed = || [0, 1].into_iter();
            seat.better(0, peers, allowed, || {
                asked += 1;
                running
            })
        };
        assert_eq!(look(&mut seat, Some(5)), None, "the first time");
        assert_eq!(look(&mut seat, Some(5)), None);
        assert_eq!(look(&mut seat, Some(4)), None, "it rests");
        seat.rested = Instant::now().checked_sub(REST);
        assert_eq!(look(&mut seat, None), None, "nobody knows");
        seat.rested = Instant::now().checked_sub(REST);
        assert_eq!(look(&mut seat, Some(4)), Some(1));
        assert_eq!(look(&mut seat, Some(4)), None);
        assert_eq!(asked, 3);
    }

    #[test]
    fn a_thread_that_was_brought_to_a_core_may_still_run_on_all() {
        let before: Vec<usize> = allowed().collect();
        for core in &before {
            visit(*core as u32).unwrap();
            assert!(allowed().eq(before.iter().copied()));
        }
        assert!(running() >= Some(1), "this thread runs");
        visit(CpuSet::MAX_CPU as u32 - 1).unwrap_err();
        assert!(allowed().eq(before));
    }
}
