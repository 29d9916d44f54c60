//! Flight records that other processes can see.
//!
//! A process has one page for all its communicators: a memfd named `rdmaccl-state`, made with the first communicator
//! and kept for the process's life. It takes 16 MiB of address space, and some 40 KiB of memory for each communicator
//! that there is. Any process of the same user finds it under `/proc/PID/fd` and maps it read-only
//! ([`Page::of_process`]), also when the process is stopped, or stuck. Communicators that find no room in it, or no
//! memfd, keep their records to themselves.

use crate::sys::page::{Foreign, Shared, current};
use crate::{Error, Rank, Result};
use ccl_core::clock::monotonic_ns;
pub use ccl_core::flight::{
    Blame, CallState, Dump, Identity, Progress, RankState, Reason, Recorded, Recorder, Status, Verdict, View,
    WaitFor, WaitState, judge, judge_at, judge_dumps,
};
use ccl_core::flight::{
    Line, Memory, PAGE_HEAD, format_page, lines_for, list_record, records, unlist_record,
};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const NAME: &str = "rdmaccl-state";
const BYTES: usize = 16 << 20;
/// What memory is given out and taken back in.
const PAGE_BYTES: usize = 4096;
const UNIT: usize = PAGE_BYTES / Line::BYTES;

/// Memory for the record of a communicator that keeps so many calls: a part of this process's page, if there is room.
pub(crate) fn memory(calls: usize) -> Memory {
    let lines = lines_for(calls);
    lend(lines).unwrap_or_else(|| Memory::heap(lines))
}

fn lend(wanted: usize) -> Option<Memory> {
    let page = current(NAME, BYTES, format_page)?;
    let len = wanted.next_multiple_of(UNIT);
    let at = {
        let mut taken = page.taken.lock();
        let mut at = PAGE_HEAD.next_multiple_of(UNIT);
        for (from, len_taken) in taken.iter() {
            if at + len <= *from {
                break;
            }
            at = from + len_taken;
        }
        if at + len > page.lines().len() {
            return None;
        }
        taken.insert(at, len);
        at
    };
    let part = Part { page, at, len };
    if let Err(error) = page.populate(at, len) {
        tracing::warn!(%error, "no memory for a flight record that others can see");
        return None;
    }
    list_record(page.lines(), at).then(|| Memory::lent(&page.lines()[at..at + wanted], part))
}

/// A part of the page, until it is dropped.
struct Part {
    page: &'static Shared,
    at: usize,
    len: usize,
}

impl Drop for Part {
    fn drop(&mut self) {
        // A forked child has a copy of this value, but not of the page.
        if !self.page.is_ours() {
            return;
        }
        unlist_record(self.page.lines(), self.at);
        // Gives the memory back; what comes next finds zeros. If that fails, the part is not used again.
        let (from, bytes) = ((self.at * Line::BYTES) as u64, (self.len * Line::BYTES) as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(self.page.fd(), flags, from, bytes).is_ok() {
            let mut taken = self.page.taken.lock();
            taken.remove(&self.at);
        }
    }
}

/// The page of a process on this host, as it changes: what its communicators do.
#[derive(Debug)]
pub struct Page {
    pid: u32,
    /// Tells pages apart; a child that was forked has its parent's descriptors for a moment.
    number: u64,
    memory: Foreign,
}

impl Page {
    /// The page of a process, `None` if it has none: it has made no communicator. It can be looked at also when the process is
    /// stopped, and, once mapped, after it is dead.
    pub fn of_process(pid: u32) -> Result<Option<Page>> {
        let folder = format!("/proc/{pid}/fd");
        let wrap = |error: io::Error| {
            let remedy = "look at processes of your own, or as root";
            Error::system(format!("looking at the descriptors of process {pid}"), error, remedy)
        };
        for entry in std::fs::read_dir(&folder).map_err(wrap)? {
            let Ok(entry) = entry else { continue };
            let is_page = |target: &Path| target.to_string_lossy().starts_with(&format!("/memfd:{NAME}"));
            if !std::fs::read_link(entry.path()).is_ok_and(|target| is_page(&target)) {
                continue;
            }
            let Ok(file) = File::open(entry.path()) else { continue };
            let number = file.metadata().map_err(wrap)?.ino();
            match Foreign::map(&file, BYTES) {
                Ok(memory) => return Ok(Some(Page { pid, number, memory })),
                Err(why) => tracing::debug!(pid, why, "not a page of flight records"),
            }
        }
        Ok(None)
    }

    /// The pages of all processes that this one may look at, in the order of their numbers.
    pub fn of_all_processes() -> Result<Vec<Page>> {
        let listed = std::fs::read_dir("/proc").map_err(|error| {
            Error::system("listing the processes in /proc", error, "mount it, or look at one process")
        })?;
        let names = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = names.collect();
        pids.sort_unstable();
        // Those of other users cannot be looked at, and some end meanwhile.
        let mut pages: Vec<Page> =
            pids.into_iter().filter_map(|pid| Page::of_process(pid).ok().flatten()).collect();
        let mut seen = std::collections::BTreeSet::new();
        pages.retain(|page| seen.insert(page.number));
        Ok(pages)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What each communicator of the process does at this moment.
    pub fn states(&self) -> Vec<RankState> {
        let now = monotonic_ns();
        records(self.memory.lines()).map(|record| record.state(now)).collect()
    }

    /// What one rank of a communicator does, or did last.
    pub fn state(&self, communicator: u64, rank: Rank) -> Option<RankState> {
        let is_it = |who: &Identity| (who.communicator, who.rank) == (communicator, rank);
        let record = records(self.memory.lines()).find(|record| is_it(record.who()))?;
        Some(record.state(monotonic_ns()))
    }

    /// The records of its communicators.
    pub fn records(&self) -> impl Iterator<Item = View<'_>> {
        records(self.memory.lines())
    }
}
