//! What the host sees of a rank's kernels while they run.

use super::prepared::{NO_PLAN, Prepared};
use crate::gang::peer_of;
use crate::program::{Failure, Mark, Program, Report};
use crate::sys::{Primary, Words};
use ccl_core::Result;
use ccl_core::clock::monotonic_ns;
use ccl_core::engine::mix;
use ccl_core::flight::{CallState, KernelState};
use ccl_core::plan::Rank;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Collectives and transfers are counted apart: only the two ranks of a transfer know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Collectives = 0,
    Transfers = 1,
}

pub(super) const LINES: [Line; 2] = [Line::Collectives, Line::Transfers];

/// What a launch makes, in words.
#[derive(Clone, Debug)]
pub(super) enum About {
    Collective(CallState),
    /// By lane and move of the program.
    Transfers(Vec<Vec<CallState>>),
}

impl About {
    pub(super) fn line(&self) -> Line {
        match self {
            About::Collective(_) => Line::Collectives,
            About::Transfers(_) => Line::Transfers,
        }
    }

    /// All that goes to or comes from other ranks than this one; or enough of it.
    fn calls(&self, rank: Rank) -> Vec<CallState> {
        match self {
            About::Collective(call) => vec![call.clone()],
            About::Transfers(lanes) => {
                let others =
                    lanes.iter().flat_map(|lane| lane.iter().filter(|call| call.peer != Some(rank)).take(2));
                others.take(MOST_TOLD).cloned().collect()
            }
        }
    }

    /// The call that a report is of.
    fn of(&self, report: &Report) -> Option<&CallState> {
        match self {
            About::Collective(call) => Some(call),
            About::Transfers(lanes) => lanes.get(report.lane as usize)?.get(report.mv as usize),
        }
    }
}

/// Transfers of a group that peers are told of at most: with all peers, in both directions.
const MOST_TOLD: usize = 32;

/// The word that ends all waits.
const ALARM: usize = 0;
/// Where marks begin: of each line one for each block.
const MARKS: usize = 1;

/// Words in memory of the host that kernels write, with what they mean.
pub(super) struct Watch {
    rank: Rank,
    words: Words,
    blocks: usize,
    calls: Mutex<Calls>,
    seen: [Seen; 2],
    /// When the alarm was raised; 0: it was not.
    alarmed_ns: AtomicU64,
}

/// What the marks of a line were when somebody looked last, and since when they have been that.
#[derive(Default)]
struct Seen {
    marks: AtomicU64,
    since_ns: AtomicU64,
}

/// How long kernels may take to end when the alarm is raised: some hundred looks at a flag.
const GRACE_NS: u64 = 200_000_000;

/// Calls by the upper halves of their tags.
#[derive(Default)]
struct Calls {
    /// Of graphs, which are replayed at any time.
    captured: HashMap<u32, Known>,
    /// The others: those of late, and those before them.
    recent: [HashMap<u32, Known>; 2],
    /// Where the rank was in both lines when the alarm was raised, and since when: calls behind the one that was ended come and go.
    at_alarm: Option<[(Mark, u64); 2]>,
}

struct Known {
    about: About,
    program: Option<Arc<Program>>,
}

impl Calls {
    fn get(&self, tag: u32) -> Option<&Known> {
        let recent = self.recent.iter().find_map(|calls| calls.get(&tag));
        recent.or_else(|| self.captured.get(&tag))
    }
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
    pub(super) fn new(primary: &Arc<Primary>, rank: Rank, blocks: u32) -> Result<Watch> {
        let blocks = blocks as usize;
        let now = monotonic_ns();
        let seen = || Seen { marks: AtomicU64::new(0), since_ns: AtomicU64::new(now) };
        Ok(Watch {
            rank,
            words: Words::new(primary, MARKS + blocks * (LINES.len() + Report::WORDS))?,
            blocks,
            calls: Mutex::default(),
            seen: [seen(), seen()],
            alarmed_ns: AtomicU64::new(0),
        })
    }

    pub(super) fn alarm_address(&self) -> u64 {
        self.words.address(ALARM)
    }

    fn mark_word(&self, line: Line, block: usize) -> usize {
        MARKS + line as usize * self.blocks + block
    }

    /// The words of a line's logs: the address of a block's mark, and that it has made no call.
    pub(super) fn logs(&self, line: Line) -> Vec<u64> {
        (0..self.blocks).flat_map(|block| [self.words.address(self.mark_word(line, block)), 0]).collect()
    }

    fn report_word(&self, block: usize) -> usize {
        MARKS + LINES.len() * self.blocks + block * Report::WORDS
    }

    pub(super) fn reports_address(&self) -> u64 {
        self.words.address(self.report_word(0))
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a mark with this call's tag is understood; as long as calls of graphs may run, or until it has been
    /// [forgotten](Watch::forget) twice.
    pub(super) fn learn(&self, call: &Prepared, is_captured: bool) {
        let mut calls = self.calls();
        let calls = if is_captured { &mut calls.captured } else { &mut calls.recent[0] };
        let known = || Known { about: call.about.clone(), program: call.program.clone() };
        calls.entry((call.tag >> 32) as u32).or_insert_with(known);
        if call.may_be_mapped {
            let known = || Known { about: call.about.clone(), program: None };
            calls.entry(((call.tag ^ NO_PLAN) >> 32) as u32).or_insert_with(known);
        }
    }

    /// Forgets calls that were learnt long ago.
    pub(super) fn forget(&self) {
        let mut calls = self.calls();
        calls.recent[1] = std::mem::take(&mut calls.recent[0]);
    }

    /// Ends all waits of kernels, now and later.
    pub(super) fn alarm(&self) {
        self.calls().at_alarm.get_or_insert_with(|| LINES.map(|line| self.mark(line)));
        self.words.store(ALARM, 1);
        let _ = self.alarmed_ns.compare_exchange(0, monotonic_ns(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether no kernel runs, of a graph's neither. One that was ended has not said so, and has had time to end.
    pub(super) fn is_quiet(&self) -> bool {
        let alarmed = self.alarmed_ns.load(Ordering::Relaxed);
        let has_ended = alarmed != 0 && monotonic_ns().saturating_sub(alarmed) > GRACE_NS;
        has_ended || self.inside_since().is_none()
    }

    /// Since when a call runs, in nanoseconds of the host's clock, as far as somebody has looked.
    pub(super) fn inside_since(&self) -> Option<u64> {
        let lines = LINES.map(|line| self.mark(line));
        lines.iter().filter(|(mark, _)| mark.is_inside).map(|(_, since)| *since).min()
    }

    /// Where the rank is among the calls of a line, and since when. It is in a call as long as one of its blocks is.
    fn mark(&self, line: Line) -> (Mark, u64) {
        let word = |block| self.words.load(self.mark_word(line, block));
        let first = word(0);
        let words = std::iter::once(first).chain((1..self.blocks).map(word));
        let (mut inside, mut all) = (None, 0);
        for word in words {
            let mark = Mark::read(word);
            inside = inside.or(mark.is_inside.then_some(mark.tag));
            all = mix(all, word);
        }
        let seen = &self.seen[line as usize];
        if seen.marks.swap(all, Ordering::Relaxed) != all {
            seen.since_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
        // The first block has a part in every call.
        let first = Mark::read(first);
        let mark = Mark { tag: inside.unwrap_or(first.tag), is_inside: inside.is_some(), ..first };
        (mark, seen.since_ns.load(Ordering::Relaxed))
    }

    /// Where the rank is in both lines, or was when its calls were ended.
    fn marks(&self, calls: &Calls) -> [(Mark, u64); 2] {
        calls.at_alarm.unwrap_or_else(|| LINES.map(|line| self.mark(line)))
    }

    /// What this rank's peers are told.
    pub(super) fn state(&self) -> KernelState {
        let calls = self.calls();
        let marks = self.marks(&calls);
        let told = |line: Line| {
            let (mark, since) = marks[line as usize];
            let sequence = u64::from(mark.calls).saturating_sub(1);
            let known = calls.get(mark.tag).filter(|known| mark.calls > 0 && known.about.line() == line);
            let mut told = known.map_or_else(Vec::new, |known| known.about.calls(self.rank));
            for call in &mut told {
                call.sequence = sequence;
                *(if mark.is_inside { &mut call.started_ns } else { &mut call.ended_ns }) = Some(since);
            }
            if mark.is_inside { (told, Vec::new()) } else { (Vec::new(), told) }
        };
        let (running, last) = told(Line::Collectives);
        let (transfers, ended) = told(Line::Transfers);
        let awaited = self.reports().filter(|report| report.failure == Failure::Aborted);
        let awaited =
            awaited.filter_map(|report| Some((report.tag, peer_in(calls.get(report.tag)?, &report)?)));
        let own = marks[Line::Transfers as usize].0.tag;
        let mut awaited: Vec<Rank> = awaited.filter(|(tag, _)| *tag == own).map(|(_, peer)| peer).collect();
        awaited.sort_unstable();
        awaited.dedup();
        KernelState {
            calls: marks[Line::Collectives as usize].0.calls.into(),
            running: running.into_iter().next(),
            last: last.into_iter().next(),
            transfers,
            ended,
            awaited,
            mapped: 0,
            multicast: String::new(),
        }
    }

    /// Blocks that have given up.
    fn reports(&self) -> impl Iterator<Item = Report> {
        (0..self.blocks).filter_map(|block| {
            Report::read(std::array::from_fn(|word| self.words.load(self.report_word(block) + word)))
        })
    }

    /// The first block that has given up; one that was not told to, if there is one.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let report = self.reports().min_by_key(|report| report.failure == Failure::Aborted)?;
        let calls = self.calls();
        let known = calls.get(report.tag);
        let call = known.and_then(|known| {
            let number = self.marks(&calls)[known.about.line() as usize].0.calls;
            let call = known.about.of(&report)?.clone();
            Some(CallState { sequence: u64::from(number).saturating_sub(1), ..call })
        });
        let peer = known.and_then(|known| peer_in(known, &report));
        Some(Trouble { report, peer, call })
    }
}

/// Whom a block of a call waited for.
fn peer_in(known: &Known, report: &Report) -> Option<Rank> {
    match &known.program {
        Some(program) => peer_of(program, report),
        None => Some(report.operand),
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
        ccl_core::ErrorKind::Broken(what).into()
    }
}
