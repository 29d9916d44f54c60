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
pub struct Memory(Lines);

enum Lines {
    Heap(Box<[Line]>),
    Lent {
        lines: &'static [Line],
        /// Takes the lines back when it is dropped.
        _back: Box<dyn Send + Sync>,
    },
}

impl Memory {
    /// Memory that nobody else sees.
    pub fn heap(lines: usize) -> Memory {
        Memory(Lines::Heap((0..lines).map(|_| Line::default()).collect()))
    }

    /// Lines of a page, all zero, and what takes them back when it is dropped.
    pub fn lent(lines: &'static [Line], back: impl Send + Sync + 'static) -> Memory {
        Memory(Lines::Lent { lines, _back: Box::new(back) })
    }

    /// Whether other processes see it.
    pub fn is_lent(&self) -> bool {
        matches!(self.0, Lines::Lent { .. })
    }

    #[inline(always)]
    pub(super) fn lines(&self) -> &[Line] {
        match &self.0 {
            Lines::Heap(lines) => lines,
            Lines::Lent { lines, .. } => lines,
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
