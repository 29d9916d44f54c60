//! What the host sees of a rank's kernels while they run.

use super::prepared::Prepared;
use crate::gang::peer_of;
use crate::program::{Failure, Mark, Program, Report};
use crate::sys::{Primary, Words};
use ccl_core::clock::monotonic_ns;
use ccl_core::flight::{CallState, KernelState};
use ccl_core::plan::Rank;
use ccl_core::{ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The word that ends all waits.
const ALARM: usize = 0;
/// The rank's mark.
const MARK: usize = 1;
/// Where reports begin.
const REPORTS: usize = 2;

/// Words in memory of the host that kernels write, with what they mean.
pub(super) struct Watch {
    words: Words,
    blocks: usize,
    calls: Mutex<HashMap<u32, Known>>,
    /// The mark that was seen last, and since when it has been that.
    seen: AtomicU64,
    since_ns: AtomicU64,
    /// When the alarm was raised; 0: it was not.
    alarmed_ns: AtomicU64,
}

/// How long kernels may take to end when the alarm is raised: some hundred looks at a flag.
const GRACE_NS: u64 = 200_000_000;

/// A call by its tag.
struct Known {
    about: CallState,
    program: Option<Arc<Program>>,
}

/// A block of this rank that has given up.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// What it says.
    pub report: Report,
    /// For whom it waited, or whose piece was wrong.
    pub peer: Option<Rank>,
    /// The call, as far as it is known.
    pub call: Option<CallState>,
}

impl Watch {
    pub(super) fn new(primary: &Arc<Primary>, blocks: u32) -> Result<Watch> {
        let words = Words::new(primary, REPORTS + blocks as usize * Report::WORDS)?;
        Ok(Watch {
            words,
            blocks: blocks as usize,
            calls: Mutex::default(),
            seen: AtomicU64::new(0),
            since_ns: AtomicU64::new(monotonic_ns()),
            alarmed_ns: AtomicU64::new(0),
        })
    }

    pub(super) fn alarm_address(&self) -> u64 {
        self.words.address(ALARM)
    }

    pub(super) fn mark_address(&self) -> u64 {
        self.words.address(MARK)
    }

    pub(super) fn reports_address(&self) -> u64 {
        self.words.address(REPORTS)
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u32, Known>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a mark with this call's tag is understood.
    pub(super) fn learn(&self, call: &Prepared) {
        let program = || call.program.clone().map(Arc::new);
        let known = || Known { about: call.about.clone(), program: program() };
        self.calls().entry(call.tag).or_insert_with(known);
    }

    /// Ends all waits of kernels, now and later.
    pub(super) fn alarm(&self) {
        self.words.store(ALARM, 1);
        let _ = self.alarmed_ns.compare_exchange(0, monotonic_ns(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether no kernel runs, of a graph's neither. One that was ended has not said so, and has had time to end.
    pub(super) fn is_quiet(&self) -> bool {
        let alarmed = self.alarmed_ns.load(Ordering::Relaxed);
        let has_ended = alarmed != 0 && monotonic_ns().saturating_sub(alarmed) > GRACE_NS;
        has_ended || !self.mark().0.is_inside
    }

    /// Where the rank is, and since when in nanoseconds of the host's clock, as far as somebody has looked.
    pub(super) fn mark(&self) -> (Mark, u64) {
        let word = self.words.load(MARK);
        if self.seen.swap(word, Ordering::Relaxed) != word {
            self.since_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
        (Mark::read(word), self.since_ns.load(Ordering::Relaxed))
    }

    /// What this rank's peers are told.
    pub(super) fn state(&self) -> KernelState {
        let (mark, since) = self.mark();
        let number = u64::from(mark.calls);
        let call = self.calls().get(&mark.tag).map(|known| CallState {
            sequence: number.saturating_sub(1),
            started_ns: mark.is_inside.then_some(since),
            ended_ns: (!mark.is_inside).then_some(since),
            ..known.about.clone()
        });
        let call = call.filter(|_| number > 0);
        let (running, last) = if mark.is_inside { (call, None) } else { (None, call) };
        KernelState { calls: number, running, last }
    }

    /// The first block that has given up; one that was not told to, if there is one.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let reports = (0..self.blocks).filter_map(|block| {
            let words = std::array::from_fn(|word| self.words.load(REPORTS + block * Report::WORDS + word));
            Report::read(words)
        });
        let report = reports.min_by_key(|report| report.failure == Failure::Aborted)?;
        let (mark, _) = self.mark();
        let calls = self.calls();
        // A wrong tag is said beside the right one, perhaps the lower part of it.
        let own = |tag: u32| match report.failure {
            Failure::Mismatch => {
                u64::from(tag) == report.expected || u64::from(tag & 0xff_ffff) == report.expected
            }
            _ => tag == mark.tag,
        };
        let known = calls.get(&mark.tag).filter(|_| own(mark.tag));
        let known = known.or_else(|| calls.iter().find(|(tag, _)| own(**tag)).map(|(_, known)| known));
        let call = known.map(|known| CallState {
            sequence: u64::from(mark.calls).saturating_sub(1),
            ..known.about.clone()
        });
        let peer = known.and_then(|known| match &known.program {
            Some(program) => peer_of(program, &report),
            None => Some(report.operand),
        });
        Some(Trouble { report, peer, call })
    }
}

impl Trouble {
    /// What `rank` says of it, where nobody knows better.
    pub fn error(&self, rank: Rank) -> ccl_core::Error {
        let Trouble { report, peer, call } = self;
        let call = call.as_ref().map_or_else(|| "a call".to_string(), CallState::to_string);
        let who = peer.map_or_else(String::new, |peer| format!(" for rank {peer}"));
        let what = match report.failure {
            Failure::Aborted => format!("{call} of rank {rank} was ended while its kernel waited{who}"),
            Failure::Late => format!("{call} of rank {rank} waited{who} for too long"),
            Failure::Mismatch => format!(
                "{call} of rank {rank} got a piece of another call{}",
                peer.map_or_else(String::new, |peer| format!(" from rank {peer}"))
            ),
            Failure::Length => format!(
                "{call} of rank {rank} got {} bytes in place of {}{}",
                report.found,
                report.expected,
                peer.map_or_else(String::new, |peer| format!(" from rank {peer}"))
            ),
        };
        ErrorKind::Broken(what).into()
    }
}
