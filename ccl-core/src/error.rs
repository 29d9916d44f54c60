//! What can go wrong, who is to blame, and what to do about it.

use crate::flight::Verdict;
use crate::plan::{Collective, Rank};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: one pointer in size, so that the data path can return it for free. A clone is the same error, for a
/// second one who has to know of it.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

enum Inner {
    Kind(ErrorKind),
    /// An error, and what else its reader has to know.
    Noted(Error, String),
}

/// The cases of [`Error`]. Each text says what was wrong and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed something that cannot be: a count, a rank, a buffer, a variable.
    #[error("invalid argument: {what}; {remedy}")]
    InvalidArgument {
        /// What was passed.
        what: String,
        /// What would be right.
        remedy: String,
    },

    /// A valid request for something that this build or this machine does not do.
    #[error("unsupported: {what}; {remedy}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to use instead, or what is missing.
        remedy: String,
    },

    /// A plan that the verifier rejected; it was not run.
    #[error("plan rejected: {0}")]
    PlanRejected(String),

    /// A file or message that does not parse.
    #[error("malformed {what}: {cause}")]
    Malformed {
        /// What was read.
        what: String,
        /// Where it stopped making sense.
        cause: String,
    },

    /// A peer is in another call than this rank.
    #[error(
        "rank {peer} is in another call: this rank is in {here} (#{sequence}) and got a message of a call \
         with fingerprint {theirs:#018x} where its own is {ours:#018x}; all ranks must make the same calls in \
         the same order with the same count, type, operator and root"
    )]
    Mismatch {
        /// The peer whose message does not fit.
        peer: Rank,
        /// This rank's collective.
        here: Collective,
        /// This rank's call number on the communicator, from 0.
        sequence: u64,
        /// Fingerprint of this rank's call.
        ours: u64,
        /// Fingerprint in the peer's message.
        theirs: u64,
    },

    /// A peer is dead, or was declared so.
    #[error("rank {peer}{place} is lost: {cause}{}; shrink the communicator or destroy it", last_call(last))]
    PeerLost {
        /// Who.
        peer: Rank,
        /// Its process and host in parentheses, with a space in front, where they are known.
        place: String,
        /// How it was noticed.
        cause: String,
        /// What it was in, or what it did last, where that is known.
        last: Option<String>,
    },

    /// Ranks did not agree, or one did not come: found by an inquest, in the same words on every rank.
    #[error("{}", .0.text)]
    Verdict(Verdict),

    /// A peer has ended the communicator.
    #[error("rank {peer} has {how} the communicator{}; shrink it or destroy it", reason(what))]
    Ended {
        /// Who.
        peer: Rank,
        /// `aborted`, `revoked` or `broken`.
        how: &'static str,
        /// Why, in that rank's words.
        what: String,
    },

    /// The others have declared this rank lost.
    #[error("this rank was declared lost by the others: {cause}; it can only destroy the communicator")]
    Excluded {
        /// Why.
        cause: String,
    },

    /// A phase of initialisation or of a call passed its deadline.
    #[error("{phase} timed out after {:.1} s; absent ranks: {}; {remedy}", waited.as_secs_f64(), RankList(absent))]
    Timeout {
        /// What was waited for.
        phase: String,
        /// For how long.
        waited: Duration,
        /// The ranks that did not show up.
        absent: Vec<Rank>,
        /// What to check.
        remedy: String,
    },

    /// No transport connects two ranks.
    #[error("no transport reaches rank {peer}: {reasons}")]
    Unreachable {
        /// The peer.
        peer: Rank,
        /// Each transport with why it cannot.
        reasons: String,
    },

    /// A transport failed.
    #[error("{transport}: {what}{}", with_peer(*peer))]
    Transport {
        /// Its name.
        transport: &'static str,
        /// The other end, where there is one.
        peer: Option<Rank>,
        /// What it was doing and what happened.
        what: String,
        /// The system's word, where there is one.
        #[source]
        source: Option<io::Error>,
    },

    /// The bootstrap failed in another way than by a deadline.
    #[error("bootstrap: {what}")]
    Bootstrap {
        /// What happened, with the address or rank concerned.
        what: String,
        /// The system's word, where there is one.
        #[source]
        source: Option<io::Error>,
    },

    /// A system call failed.
    #[error("{call} failed: {source}; {remedy}")]
    System {
        /// The call, with what it was for.
        call: String,
        /// What to check.
        remedy: String,
        /// The system's word.
        #[source]
        source: io::Error,
    },

    /// A function of a device's driver failed.
    #[error("{call} failed: {cause}; {remedy}")]
    Device {
        /// The driver's function, with what it was for.
        call: String,
        /// The driver's word: the error's name and number.
        cause: String,
        /// What to do.
        remedy: String,
    },

    /// Somebody aborted the communicator.
    #[error("the communicator was aborted; destroy it")]
    Aborted,

    /// The communicator cannot be used any more, because of an earlier error or an abort.
    #[error("the communicator is unusable since: {0}")]
    Broken(String),

    /// A job panicked: a fault of the library, or of the job's own code.
    #[error("a job panicked: {0}; report it with the steps that led there")]
    Panicked(String),
}

impl Error {
    /// Which case it is, with its details.
    pub fn kind(&self) -> &ErrorKind {
        match &*self.0 {
            Inner::Kind(kind) => kind,
            Inner::Noted(error, _) => error.kind(),
        }
    }

    /// What is told of it where it has to be said that it ended something.
    pub(crate) fn cause(&self) -> String {
        match &*self.0 {
            Inner::Kind(ErrorKind::Broken(cause)) => cause.clone(),
            _ => self.to_string(),
        }
    }

    /// The same case, whose text goes on with this.
    pub(crate) fn noting(self, note: impl Into<String>) -> Error {
        Error(Arc::new(Inner::Noted(self, note.into())))
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub fn invalid(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        ErrorKind::InvalidArgument { what: what.into(), remedy: remedy.into() }.into()
    }

    /// An [`ErrorKind::Unsupported`].
    pub fn unsupported(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        ErrorKind::Unsupported { what: what.into(), remedy: remedy.into() }.into()
    }

    /// An [`ErrorKind::PeerLost`] of which no more is known than this.
    pub fn lost(peer: Rank, cause: impl Into<String>) -> Error {
        ErrorKind::PeerLost { peer, place: String::new(), cause: cause.into(), last: None }.into()
    }

    /// An [`ErrorKind::System`].
    pub fn system(call: impl Into<String>, source: impl Into<io::Error>, remedy: impl Into<String>) -> Error {
        ErrorKind::System { call: call.into(), remedy: remedy.into(), source: source.into() }.into()
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Error {
        Error(Arc::new(Inner::Kind(kind)))
    }
}

impl From<ccl_kernels::Error> for Error {
    #[cold]
    fn from(refused: ccl_kernels::Error) -> Error {
        match refused {
            ccl_kernels::Error::Invalid { what, remedy } => Error::invalid(what, remedy),
            ccl_kernels::Error::Unsupported { what, remedy } => Error::unsupported(what, remedy),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::Kind(kind) => kind.fmt(f),
            Inner::Noted(error, note) => write!(f, "{error}; {note}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::Kind(kind) => fmt::Debug::fmt(kind, f),
            Inner::Noted(error, note) => f.debug_tuple("Noted").field(error).field(note).finish(),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind().source()
    }
}

/// Ranks as people write them: `0, 3-7, 12`.
pub struct RankList<'a>(pub &'a [Rank]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranks = self.0.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.is_empty() {
            return f.write_str("none");
        }
        let mut runs = ranks.chunk_by(|a, b| a + 1 == *b).peekable();
        while let Some(run) = runs.next() {
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
            if runs.peek().is_some() {
                f.write_str(", ")?;
            }
        }
        Ok(())
    }
}

/// What somebody else wrote, for an error: on one line, and without its middle where it is long.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 300;
    let one_line = |part: &str| {
        let mut line = String::new();
        for c in part.chars() {
            if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
        }
        line
    };
    if text.len() <= MOST {
        return one_line(text);
    }
    let (head, tail) = (text.floor_char_boundary(MOST / 2), text.ceil_char_boundary(text.len() - MOST / 2));
    format!("{} … {}", one_line(&text[..head]), one_line(&text[tail..]))
}

fn last_call(last: &Option<String>) -> String {
    last.as_ref().map_or_else(String::new, |last| format!("; {last}"))
}

fn reason(what: &str) -> String {
    if what.is_empty() { String::new() } else { format!(": {what}") }
}

fn with_peer(peer: Option<Rank>) -> String {
    peer.map_or_else(String::new, |p| format!(" (peer: rank {p})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn a_note_changes_the_text_alone() {
        let noted = Error::lost(3, "killed").noting("mind the gap").noting("and the step");
        assert!(matches!(noted.kind(), ErrorKind::PeerLost { peer: 3, .. }));
        let text = noted.to_string();
        assert!(
            text.starts_with("rank 3 is lost: killed") && text.ends_with("; mind the gap; and the step"),
            "{text}"
        );
    }

    #[test]
    fn what_others_wrote_is_one_short_line() {
        assert_eq!(excerpt("a\nb\u{1b}[2Jä"), "a\\nb\\u{1b}[2Jä");
        let long = excerpt(&format!("start{}end", "ä".repeat(10_000)));
        assert!(long.len() < 400 && long.starts_with("startä") && long.ends_with("äend"), "{long}");
    }

    #[test]
    fn ranks_are_listed_in_runs() {
        assert_eq!(RankList(&[7, 0, 3, 5, 4]).to_string(), "0, 3-5, 7");
        assert_eq!(RankList(&[]).to_string(), "none");
    }
}
