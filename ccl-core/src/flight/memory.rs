//! Where a record lies.

use std::fmt;
use std::sync::atomic::AtomicU64;

/// One cache line of a record.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line(pub(super) [AtomicU64; Line::WORDS]);

impl Line {
    /// Words of a line.
    pub const WORDS: usize = 8;
    /// Bytes of a line.
    pub const BYTES: usize = 64;
}

/// The lines of one record: the process's own, or some of a page that other processes see.
pub struct Memory {
    lines: Lines,
    /// Takes lent lines back when it is dropped.
    back: Option<Box<dyn Send + Sync>>,
}

/// Either way an address and a length at the same place, so that using them takes no branch.
enum Lines {
    Own(Box<[Line]>),
    Lent(&'static [Line]),
}

impl Memory {
    /// Memory that nobody else sees.
    pub fn heap(lines: usize) -> Memory {
        Memory { lines: Lines::Own((0..lines).map(|_| Line::default()).collect()), back: None }
    }

    /// Lines of a page, all zero, and what takes them back when it is dropped.
    pub fn lent(lines: &'static [Line], back: impl Send + Sync + 'static) -> Memory {
        Memory { lines: Lines::Lent(lines), back: Some(Box::new(back)) }
    }

    /// Whether other processes see it.
    pub fn is_lent(&self) -> bool {
        self.back.is_some()
    }

    #[inline(always)]
    pub(super) fn lines(&self) -> &[Line] {
        match &self.lines {
            Lines::Own(lines) => lines,
            Lines::Lent(lines) => lines,
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("lines", &self.lines().len())
            .field("is_lent", &self.is_lent())
            .finish()
    }
}
