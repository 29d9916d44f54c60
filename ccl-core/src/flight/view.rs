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

/// An entry with its place in the order of its ring.
struct Numbered {
    order: u64,
    recorded: Recorded,
}

/// Calls and waits in a state: what fits a message.
const MOST_RUNNING: usize = 12;
const MOST_TRANSFERS: usize = 4;

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
        let collectives = entries(self.collectives);
        let newest = collectives.last();
        let last = collectives.iter().rev().find(|entry| entry.recorded.status != Status::Running);
        let last = last.map(|entry| {
            let head = &self.lines[WHO];
            let seen_idle = (head.get(IDLE_AFTER) == entry.order).then(|| head.get(IDLE_SINCE));
            let call = entry.recorded.call.clone();
            CallState { ended_ns: call.ended_ns.or(seen_idle), ..call }
        });
        let running = |entry: &&Numbered| entry.recorded.status == Status::Running;
        let transfers = entries(self.transfers);
        let ended = transfers.iter().rev().filter(|entry| entry.recorded.status != Status::Running);
        let ended = ended.take(MOST_TRANSFERS).map(|entry| entry.recorded.call.clone()).collect();
        let running = collectives.iter().filter(running).chain(transfers.iter().filter(running));
        let running: Vec<CallState> =
            running.take(MOST_RUNNING).map(|entry| entry.recorded.call.clone()).collect();
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
            calls: newest.map_or(0, |entry| entry.recorded.call.sequence.saturating_add(1)),
            running,
            last,
            transfers: ended,
            waits,
            progress,
            broken: self.broken(),
        }
    }

    /// The calls that are kept, oldest first; transfers after collectives.
    pub fn calls(&self) -> Vec<Recorded> {
        let rings = [self.collectives, self.transfers];
        rings.into_iter().flat_map(entries).map(|entry| entry.recorded).collect()
    }

    /// The collective after which the rank is in none, in the order of the ring.
    pub(super) fn idle_after(&self) -> Option<u64> {
        let newest = entries(self.collectives).pop()?;
        (newest.recorded.status != Status::Running).then_some(newest.order)
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
        let on = match about as u16 {
            0 => WaitFor::Piece,
            1 => WaitFor::Credit,
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
fn entries(ring: &[Line]) -> Vec<Numbered> {
    let mut entries: Vec<Numbered> = ring.iter().filter_map(entry).collect();
    entries.sort_by_key(|entry| entry.order);
    entries
}

fn entry(line: &Line) -> Option<Numbered> {
    let (word, about, [sequence, started, ended]) = line
        .whole(|word| {
            let about = About {
                what: line.get(WHAT),
                count: line.get(COUNT),
                bytes: line.get(BYTES),
                fingerprint: line.get(FINGERPRINT),
            };
            (word, about, [SEQUENCE, STARTED, ENDED].map(|at| line.get(at)))
        })
        .filter(|(word, ..)| *word != 0)?;
    let status = match word & STATE {
        RUNNING => Status::Running,
        DONE => Status::Done,
        FAILED => Status::Failed,
        _ => return None,
    };
    let stamp = |ns: u64| (ns != 0).then_some(ns);
    let call = CallState {
        sequence,
        started_ns: stamp(started),
        ended_ns: stamp(ended),
        failed: status == Status::Failed,
        ..about.describe()?
    };
    Some(Numbered { order: word >> STATE.count_ones(), recorded: Recorded { call, status } })
}
