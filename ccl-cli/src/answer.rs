//! What a command comes to, and how it reaches whoever asked.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status where the answer is bad news.
const BAD_NEWS: u8 = 1;
/// Exit status where there is no answer.
const FAILED: u8 = 2;

/// The whole output of a command.
pub(crate) struct Answer {
    text: String,
    to: Option<PathBuf>,
    good: bool,
}

/// Why there is no answer, with what would be right.
pub(crate) struct Failure(String);

impl Answer {
    /// For standard output.
    pub(crate) fn new(text: String) -> Answer {
        Answer { text, to: None, good: true }
    }

    /// Into this file instead, where one is named.
    pub(crate) fn into_file(self, path: Option<&Path>) -> Answer {
        Answer { to: path.map(Path::to_path_buf), ..self }
    }

    /// Says by the exit status whether this is good news.
    pub(crate) fn with_verdict(self, good: bool) -> Answer {
        Answer { good, ..self }
    }

    /// Writes it. A reader that has left needs no more of it, which is no error.
    pub(crate) fn give(self) -> Result<ExitCode, Failure> {
        match &self.to {
            Some(path) => std::fs::write(path, &self.text)
                .map_err(|e| Failure(format!("cannot write {}: {e}", path.display())))?,
            None => {
                let mut out = std::io::stdout().lock();
                match out.write_all(self.text.as_bytes()).and_then(|()| out.flush()) {
                    Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                        return Err(Failure(format!("cannot write to standard output: {e}")));
                    }
                    _ => {}
                }
            }
        }
        Ok(if self.good { ExitCode::SUCCESS } else { ExitCode::from(BAD_NEWS) })
    }
}

impl Failure {
    /// Writes it to standard error; there is nobody to tell where that is closed.
    pub(crate) fn tell(&self) -> ExitCode {
        let _ = writeln!(std::io::stderr(), "error: {}", self.0);
        ExitCode::from(FAILED)
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure(why)
    }
}

impl From<ccl::Error> for Failure {
    fn from(error: ccl::Error) -> Failure {
        Failure(error.to_string())
    }
}
