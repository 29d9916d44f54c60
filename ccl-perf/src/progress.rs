//! One line on the terminal that says what is being measured.

use std::io::{IsTerminal as _, Write as _, stderr};

/// Writes to standard error, and only where a person sees it.
pub(crate) struct Progress {
    on: bool,
}

impl Progress {
    /// Off, unless `speaks` and standard error is a terminal.
    pub(crate) fn new(speaks: bool) -> Progress {
        Progress { on: speaks && stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn show(&self, text: &str) {
        if self.on {
            let _ = write!(stderr(), "\r\x1b[K{text} …");
        }
    }

    /// Takes the line away, so that a row of the table can be printed.
    pub(crate) fn clear(&self) {
        if self.on {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
