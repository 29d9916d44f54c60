//! Reading a record, one's own or that of another process, which may hold anything.

use super::about::{About, vocabulary};
use super::format::*;
use super::memory::Line;
use super::recorder::Identity;
use super::state::{CallState, Progress, RankState, WaitFor, WaitState};
use crate::plan::Rank;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// A record as it can be read at any moment, also in the memory of a process that is stopped, dead, or mad: every number is
/// checked, and a line that is being written is left out.
#[derive(Clone, Debug)]
pub struct View<'a> {
    who: Identity,
    collectives: &'a [Line],
    transfers: &'a [Line],
    lines: &'a [Line],
}

/// A call in the ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The call.
    #[serde(flatten)]
    pub call: CallState,
    /// How far it is.
    pub status: Status,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It runs.
    Running,
    /// It has ended right.
    Done,
    /// It has ended with an error.
    Failed,
}

/// An entry as it lies there.
#[derive(Clone, Copy)]
struct Entry {
    /// Its place in the order of its ring.
    order: u64,
    status: Status,
    about: About,
    sequence: u64,
    started: u64,
    ended: u64,
}

/// Calls and waits in a state: what fits a message.
const MOST_RUNNING: usize = 12;
const MOST_TRANSFERS: usize = 4;
/// Collectives that a state tells of beside the last: as many as ranks are ahead of each other where calls are small.
const MOST_EARLIER: usize = 16;

impl<'a> View<'a> {
    /// The record that begins at the first line; `None` if there is none, or one of another version.
    pub fn open(lines: &'a [Line]) -> Option<View<'a>> {
        let line = lines.first()?;
        let who = line.whole(|magic| {
            let (rank, process) = (line.get(3), line.get(4));
            let known = magic == MAGIC && line.get(1) == vocabulary();
            let identity = Identity {
                communicator: line.get(2),
                rank: rank as u32,
                ranks: (rank >> 32) as u32,
                host: text(&lines.get(HOST)?.0.each_ref(), Line::BYTES),
                pid: process as u32,
            };
            known.then_some((identity, (process >> 32) as usize))
        });
        let (who, calls) = who.flatten()?;
        if who.rank >= who.ranks || !calls.is_power_of_two() || !RING_LENGTHS.contains(&calls) {
            return None;
        }
        let lines = lines.get(..lines_for(calls))?;
        let (collectives, transfers) = lines[RINGS..].split_at(calls);
        Some(View { who, collectives, transfers, lines })
    }

    /// Whose it is.
    pub fn who(&self) -> &Identity {
        &self.who
    }

    /// What the rank does at this moment.
    pub fn state(&self, now_ns: u64) -> RankState {
        let (collectives, transfers) = (entries(self.collectives), entries(self.transfers));
        let last = collectives.iter().rev().find(|entry| !entry.is_running()).and_then(|entry| {
            let head = &self.lines[WHO];
            let seen_idle = (head.get(IDLE_AFTER) == entry.order).then(|| head.get(IDLE_SINCE));
            let call = entry.call()?;
            Some(CallState { ended_ns: call.ended_ns.or(seen_idle), ..call })
        });
        let earlier = collectives.iter().rev().filter(|entry| !entry.is_running()).skip(1);
        let earlier = earlier.take(MOST_EARLIER).filter_map(Entry::call).collect();
        let ended = transfers.iter().rev().filter(|entry| !entry.is_running());
        let ended = ended.filter_map(Entry::call).take(MOST_TRANSFERS).collect();
        let running = collectives.iter().chain(&transfers).filter(|entry| entry.is_running());
        let running: Vec<CallState> = running.filter_map(Entry::call).take(MOST_RUNNING).collect();
        let (mut waits, mut progress) = self.waits();
        if running.is_empty() {
            (waits, progress) = (Vec::new(), None);
        }
        let Identity { communicator, rank, ranks, host, pid } = self.who.clone();
        RankState {
            communicator,
            rank,
            ranks,
            host,
            pid,
            now_ns,
            calls: collectives.last().map_or(0, |entry| entry.sequence.saturating_add(1)),
            running,
            last,
            earlier,
            transfers: ended,
            waits,
            progress,
            kernels: None,
            broken: self.broken(),
        }
    }

    /// The calls that are kept, oldest first; transfers after collectives.
    pub fn calls(&self) -> Vec<Recorded> {
        let rings = [self.collectives, self.transfers];
        let recorded = |entry: Entry| Some(Recorded { call: entry.call()?, status: entry.status });
        rings.into_iter().flat_map(entries).filter_map(recorded).collect()
    }

    /// The collective after which the rank is in none, in the order of the ring.
    pub(super) fn idle_after(&self) -> Option<u64> {
        let entries = self.collectives.iter().filter_map(Entry::read);
        let newest = entries.max_by_key(|entry| entry.order)?;
        (!newest.is_running()).then_some(newest.order)
    }

    fn waits(&self) -> (Vec<WaitState>, Option<Progress>) {
        let head = &self.lines[WAITING];
        let read = head.whole(|version| {
            let done = version & 1 == 0;
            let count = if done { head.get(1).min(MOST_WAITS as u64) } else { 0 };
            let since_ns = head.get(2);
            let lines = &self.lines[WAITS..][..count as usize];
            let waits = lines.iter().filter_map(|line| self.wait(line, since_ns)).collect();
            let progress = Progress { done: head.get(3), total: head.get(4) };
            (waits, Some(progress).filter(|progress| done && progress.total > 0))
        });
        read.unwrap_or_default()
    }

    fn wait(&self, line: &Line, since_ns: u64) -> Option<WaitState> {
        let (place, about) = (line.get(0), line.get(2));
        let on = match about & 0xffff {
            PIECE => WaitFor::Piece,
            CREDIT => WaitFor::Credit,
            _ => return None,
        };
        let peers = ((about >> 32) as usize).min(MOST_PEERS);
        let peers = (0..peers).map(|at| (line.get(3 + at / 2) >> (32 * (at % 2))) as Rank);
        Some(WaitState {
            lane: place as u32,
            mv: (place >> 32) as u32,
            tile: line.get(1),
            on,
            peers: peers.filter(|peer| *peer < self.who.ranks).collect(),
            channel: (about >> 16) as u16,
            since_ns,
        })
    }

    fn broken(&self) -> Option<String> {
        let lines = &self.lines[BROKEN..BROKEN + BROKEN_LINES];
        let len = lines[0].0[0].load(Ordering::Acquire) as usize;
        let words: Vec<&AtomicU64> = lines.iter().flat_map(|line| &line.0).skip(1).collect();
        (len > 0).then(|| text(&words, len))
    }
}

/// The whole entries of a ring, oldest first.
fn entries(ring: &[Line]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = ring.iter().filter_map(Entry::read).collect();
    entries.sort_unstable_by_key(|entry| entry.order);
    entries
}

impl Entry {
    fn read(line: &Line) -> Option<Entry> {
        let (word, entry) = line.whole(|word| {
            let about = About {
                what: line.get(WHAT),
                count: line.get(COUNT),
                bytes: line.get(BYTES),
                fingerprint: line.get(FINGERPRINT),
            };
            let [sequence, started, ended] = [SEQUENCE, STARTED, ENDED].map(|at| line.get(at));
            let order = word >> STATE.count_ones();
            (word, Entry { order, status: Status::Running, about, sequence, started, ended })
        })?;
        let status = match word & STATE {
            RUNNING => Status::Running,
            DONE => Status::Done,
            FAILED => Status::Failed,
            _ => return None,
        };
        Some(Entry { status, ..entry })
    }

    fn is_running(&self) -> bool {
        self.status == Status::Running
    }

    /// In words; `None` if no call has its numbers.
    fn call(&self) -> Option<CallState> {
        let stamp = |ns: u64| (ns != 0).then_some(ns);
        Some(CallState {
            sequence: self.sequence,
            started_ns: stamp(self.started),
            ended_ns: stamp(self.ended),
            failed: self.status == Status::Failed,
            ..self.about.describe()?
        })
    }
}
