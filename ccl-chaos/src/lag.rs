//! How far the machine lags behind, and whether that may be why a trial went wrong.

use crate::judge::{Class, Complaint};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What a thread that looks at the lag sleeps at a time.
const NAP: Duration = Duration::from_millis(10);
/// The shortest margin of what trials wait for is twice as long.
const STALL: Duration = Duration::from_millis(200);
/// How often a trial is run at most.
const MOST_RUNS: u32 = 3;

/// Does the work; and how much later than it asked for a thread woke up meanwhile, at most.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let watch = scope.spawn(move || {
            let mut longest = Duration::ZERO;
            loop {
                let begin = Instant::now();
                let woken = ended.recv_timeout(NAP);
                longest = longest.max(begin.elapsed().saturating_sub(NAP));
                if woken == Err(RecvTimeoutError::Disconnected) {
                    return longest;
                }
            }
        });
        let done = work();
        drop(end);
        (done, watch.join().unwrap_or_default())
    })
}

/// Whether a trial is run again after so many runs: the last one went wrong as it may where nobody gets a processor. Wrong results
/// and crashes are wrong on any machine.
pub(crate) fn excuses(lag: Duration, complaints: &[Complaint], runs: u32) -> bool {
    let may_be_late = |complaint: &Complaint| !matches!(complaint.class, Class::Wrong | Class::Crash);
    runs < MOST_RUNS && lag > STALL && !complaints.is_empty() && complaints.iter().all(may_be_late)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(classes: &[Class]) -> Vec<Complaint> {
        classes.iter().map(|class| Complaint { class: *class, rank: None, what: String::new() }).collect()
    }

    #[test]
    fn a_trial_that_went_wrong_in_a_stall_is_run_again_until_the_last_run_counts() {
        let stalled = STALL + NAP;
        let late = complaints(&[Class::Late, Class::FalseAccusation]);
        assert!(excuses(stalled, &late, 1) && excuses(stalled, &late, 2));
        assert!(!excuses(stalled, &late, 3), "the last one");
        assert!(!excuses(STALL, &late, 1), "the machine was there");
        assert!(!excuses(stalled, &[], 1), "it went right");
        for class in [Class::Wrong, Class::Crash] {
            assert!(!excuses(stalled, &complaints(&[Class::Late, class]), 1), "{class:?}");
        }
    }
}
