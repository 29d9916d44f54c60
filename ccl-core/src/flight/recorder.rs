//! Writing a record.

use super::about::About;
use super::format::*;
use super::memory::{Line, Memory};
use super::state::{Progress, RankState};
use super::view::{Recorded, View};
use crate::engine::{Wait, WaitOn};
use crate::plan::Rank;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank's record: written by the thread that makes the calls, read by anybody at any moment.
///
/// Who writes and who reads never wait for each other. Only one thread may write at a time; if two did, the record
/// would be wrong, and nothing else.
#[derive(Debug)]
pub struct Recorder {
    memory: Memory,
    /// Calls that a ring has; a power of two.
    calls: usize,
    /// Those of collectives and of transfers.
    rings: [Ring; 2],
}

/// The calls of one kind.
#[derive(Debug)]
struct Ring {
    /// Its first line.
    first: usize,
    /// Calls that it has seen. Written by the calling thread only.
    seen: AtomicU64,
}

/// Whose record it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Names the communicator: the same on all its ranks.
    pub communicator: u64,
    /// The rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: u32,
    /// Its host's name.
    pub host: String,
    /// Its process.
    pub pid: u32,
}

/// A call in the record, from its begin to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that is begun must end"]
pub struct Entry {
    line: u32,
    /// Its first word, without a state.
    ticket: u64,
}

impl Recorder {
    /// An empty record with rings of `calls` calls, a power of two in [`RING_LENGTHS`]; `memory` has
    /// [`lines_for`] so many. Memory that is too short holds shorter rings.
    pub fn new(memory: Memory, who: &Identity, calls: usize) -> Recorder {
        let room = memory.lines().len().saturating_sub(RINGS) / 2;
        let calls = calls.clamp(*RING_LENGTHS.start(), *RING_LENGTHS.end()).min(room);
        // The power of two below it.
        let calls = if calls == 0 { 0 } else { 1 << calls.ilog2() };
        if calls < *RING_LENGTHS.start() {
            let least = *RING_LENGTHS.start();
            return Recorder::new(Memory::heap(lines_for(least)), who, least);
        }
        let lines = memory.lines();
        put_text(&words(&lines[HOST..HOST + 1]), &who.host);
        let line = &lines[WHO];
        line.put(1, super::about::vocabulary());
        line.put(2, who.communicator);
        line.put(3, u64::from(who.rank) | u64::from(who.ranks) << 32);
        line.put(4, u64::from(who.pid) | (calls as u64) << 32);
        line.publish(MAGIC);
        let rings = [0, 1].map(|ring| Ring { first: RINGS + ring * calls, seen: AtomicU64::new(0) });
        Recorder { memory, calls, rings }
    }

    /// A call begins. `now_ns` where the clock was looked at.
    #[inline(always)]
    pub fn begin(&self, about: &About, sequence: u64, now_ns: Option<u64>) -> Entry {
        let ring = &self.rings[usize::from(about.is_transfer())];
        let seen = ring.seen.load(Ordering::Relaxed) + 1;
        ring.seen.store(seen, Ordering::Relaxed);
        let at = ring.first + (seen as usize & (self.calls - 1));
        let ticket = seen << STATE.count_ones();
        let line = &self.lines()[at];
        line.open(0);
        line.put(SEQUENCE, sequence);
        line.put(WHAT, about.what);
        line.put(COUNT, about.count);
        line.put(BYTES, about.bytes);
        line.put(FINGERPRINT, about.fingerprint);
        line.put(STARTED, now_ns.unwrap_or(0));
        line.put(ENDED, 0);
        line.publish(ticket | RUNNING);
        Entry { line: at as u32, ticket }
    }

    /// The clock was looked at while the call waits; it counts as its begin if that had none.
    #[cold]
    pub fn stamp(&self, entry: Entry, now_ns: u64) {
        if let Some(line) = self.running(entry)
            && line.get(STARTED) == 0
        {
            line.put(STARTED, now_ns);
        }
    }

    /// Whether the call's begin has a stamp, so that its end will have one.
    pub fn is_stamped(&self, entry: Entry) -> bool {
        self.lines()[entry.line as usize].get(STARTED) != 0
    }

    /// A call has ended right. `now_ns` is asked if the call's begin has a stamp; then what was waited for is forgotten too.
    #[inline(always)]
    pub fn end(&self, entry: Entry, now_ns: impl FnOnce() -> u64) {
        let Some(line) = self.running(entry) else { return };
        if line.get(STARTED) != 0 {
            return self.end_late(line, entry, now_ns());
        }
        line.publish(entry.ticket | DONE);
    }

    #[inline(never)]
    fn end_late(&self, line: &Line, entry: Entry, now_ns: u64) {
        line.put(ENDED, now_ns);
        line.publish(entry.ticket | DONE);
        self.moved();
    }

    /// The call that began last is not made after all, or begins again.
    #[cold]
    pub fn withdraw(&self, entry: Entry) {
        let Some(line) = self.running(entry) else { return };
        let ring = (entry.line as usize - RINGS) / self.calls;
        line.publish(0);
        self.rings[ring].seen.store((entry.ticket >> STATE.count_ones()) - 1, Ordering::Relaxed);
    }

    /// The call's line, unless so many calls began since that it was taken for another one.
    #[inline(always)]
    fn running(&self, entry: Entry) -> Option<&Line> {
        let line = &self.lines()[entry.line as usize];
        (line.get(0) == entry.ticket | RUNNING).then_some(line)
    }

    /// What the running calls wait for, in place of what was said before. Waits past the first few are left out.
    #[cold]
    pub fn wait<'w>(&self, since_ns: u64, progress: Progress, waits: impl IntoIterator<Item = Wait<'w>>) {
        let lines = self.lines();
        let head = &lines[WAITING];
        let version = head.get(0) | 1;
        head.open(version);
        let mut count = 0;
        for (line, wait) in lines[WAITS..WAITS + MOST_WAITS].iter().zip(waits) {
            let (on, channel) = match wait.on {
                WaitOn::Piece { channel, .. } => (PIECE, channel),
                WaitOn::Credit { channel, .. } => (CREDIT, channel),
            };
            let peers = wait.on.peers();
            let peers = &peers[..peers.len().min(MOST_PEERS)];
            line.put(0, wait.lane as u64 | (wait.mv as u64) << 32);
            line.put(1, wait.tile as u64);
            line.put(2, on | u64::from(channel) << 16 | (peers.len() as u64) << 32);
            for (at, pair) in peers.chunks(2).enumerate() {
                line.put(3 + at, u64::from(pair[0]) | u64::from(*pair.get(1).unwrap_or(&0)) << 32);
            }
            count += 1;
        }
        head.put(1, count);
        head.put(2, since_ns);
        head.put(3, progress.done);
        head.put(4, progress.total);
        head.publish(version + 1);
    }

    /// Something has moved: nothing is waited for.
    #[cold]
    pub fn moved(&self) {
        let head = &self.lines()[WAITING];
        let version = head.get(0) | 1;
        head.open(version);
        head.put(1, 0);
        head.put(4, 0);
        head.publish(version + 1);
    }

    /// No more calls are taken, for this reason, and those that run have failed. The first reason stays.
    #[cold]
    pub fn broken(&self, cause: &str, now_ns: u64) {
        for line in &self.lines()[RINGS..lines_for(self.calls)] {
            let word = line.get(0);
            if word & STATE == RUNNING {
                line.put(ENDED, now_ns);
                line.publish(word | FAILED);
            }
        }
        let lines = &self.lines()[BROKEN..BROKEN + BROKEN_LINES];
        if lines[0].get(0) == 0 {
            let len = put_text(&words(lines)[1..], cause);
            lines[0].publish(len.max(1) as u64);
        }
    }

    /// What this rank does at this moment. Whoever asks now and then, as control threads do, lets the record know since when
    /// about the rank has been out of calls.
    pub fn state(&self, now_ns: u64) -> RankState {
        let Some(view) = self.view() else { return RankState::default() };
        let head = &self.lines()[WHO];
        let over = view.idle_after().filter(|order| head.get(IDLE_AFTER) != *order);
        if let Some(order) = over {
            head.put(IDLE_SINCE, now_ns);
            head.put(IDLE_AFTER, order);
        }
        view.state(now_ns)
    }

    /// The calls that are kept, oldest first.
    pub fn calls(&self) -> Vec<Recorded> {
        self.view().map(|view| view.calls()).unwrap_or_default()
    }

    /// Whether other processes can see it.
    pub fn is_shared(&self) -> bool {
        self.memory.is_lent()
    }

    fn view(&self) -> Option<View<'_>> {
        View::open(self.lines())
    }

    #[inline(always)]
    pub(super) fn lines(&self) -> &[Line] {
        self.memory.lines()
    }
}

/// A record that is no more is no record.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.lines()[WHO].publish(0);
    }
}

fn words(lines: &[Line]) -> Vec<&AtomicU64> {
    lines.iter().flat_map(|line| &line.0).collect()
}
