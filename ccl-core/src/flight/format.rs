//! How a record is laid out in lines of eight words, and how torn reads are told from whole ones.
//!
//! | lines | what |
//! | --- | --- |
//! | 0 | who: magic, vocabulary, communicator, rank and ranks, process and length of the rings; seen idle after which call, when |
//! | 1 | the host's name |
//! | 2-5 | why it takes no more calls |
//! | 6 | of the waits: version, how many, since when, how far the call is |
//! | 7-22 | one wait each |
//! | then | the ring of collectives, one line each |
//! | then | the ring of transfers |

use super::memory::Line;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The format's name and version, in the first word once all others are there.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"ccl-fr01");

pub(super) const WHO: usize = 0;
pub(super) const HOST: usize = 1;
pub(super) const BROKEN: usize = 2;
/// Lines of the text; its length is the first word.
pub(super) const BROKEN_LINES: usize = 4;
pub(super) const WAITING: usize = BROKEN + BROKEN_LINES;
pub(super) const WAITS: usize = WAITING + 1;
/// Waits that are kept; a call with more lanes that wait shows the first.
pub(super) const MOST_WAITS: usize = 16;
/// Peers that are kept of a wait.
pub(super) const MOST_PEERS: usize = 8;
pub(super) const RINGS: usize = WAITS + MOST_WAITS;

/// Lines of a record with rings of so many calls.
pub const fn lines_for(calls: usize) -> usize {
    RINGS + 2 * calls
}

/// Lengths of rings that a record may have.
pub const RING_LENGTHS: std::ops::RangeInclusive<usize> = 4..=4096;

/// In the first line: which collective of the ring was over when the record was looked at, and when that was first so. It
/// stands in for the stamp that a short call does not have. Written by who looks in the rank's own process.
pub(super) const IDLE_AFTER: usize = 5;
pub(super) const IDLE_SINCE: usize = 6;

/// The state of a call, in the lowest bits of its entry's first word; above them is which call of the ring it is,
/// from 1. The word is 0 while the entry is being written.
pub(super) const STATE: u64 = 3;
pub(super) const RUNNING: u64 = 1;
pub(super) const DONE: u64 = 2;
pub(super) const FAILED: u64 = 3;

/// What a wait is for.
pub(super) const PIECE: u64 = 0;
pub(super) const CREDIT: u64 = 1;

/// The words of an entry.
pub(super) const SEQUENCE: usize = 1;
pub(super) const WHAT: usize = 2;
pub(super) const COUNT: usize = 3;
pub(super) const BYTES: usize = 4;
pub(super) const FINGERPRINT: usize = 5;
pub(super) const STARTED: usize = 6;
pub(super) const ENDED: usize = 7;

impl Line {
    #[inline(always)]
    pub(super) fn put(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn get(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    /// The word that says whether the others are whole: stored last, and read first.
    #[inline(always)]
    pub(super) fn publish(&self, value: u64) {
        self.0[0].store(value, Ordering::Release);
    }

    /// Makes it known that the other words change. A reader that sees one of the new words sees this too.
    #[inline(always)]
    pub(super) fn open(&self, value: u64) {
        self.0[0].store(value, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// What `read` makes of words that `word` guards, if they did not change meanwhile. A writer is done after some
    /// nanoseconds, unless it was stopped in the middle of them: then there is nothing to read.
    pub(super) fn whole<T>(&self, read: impl Fn(u64) -> T) -> Option<T> {
        const TRIES: usize = 64;
        let guard: &AtomicU64 = &self.0[0];
        (0..TRIES).find_map(|_| {
            let before = guard.load(Ordering::Acquire);
            let value = read(before);
            fence(Ordering::Acquire);
            (guard.load(Ordering::Relaxed) == before).then_some(value)
        })
    }
}

/// Text into words, as much as fits; returns how many bytes that are.
pub(super) fn put_text(words: &[&AtomicU64], text: &str) -> usize {
    let mut end = text.len().min(8 * words.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (word, bytes) in words.iter().zip(text.as_bytes()[..end].chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
    end
}

/// Text from words, up to its end or a zero.
pub(super) fn text(words: &[&AtomicU64], len: usize) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let bytes = &bytes[..len.min(bytes.len())];
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}
