//! Errors in this transport's words.

use ccl_core::error::ErrorKind;
use ccl_core::{Error, Rank};
use std::io;

/// A peer or the way to it is at fault.
pub(crate) fn broken(peer: Rank, what: impl Into<String>) -> Error {
    ErrorKind::Transport { transport: "tcp", peer: Some(peer), what: what.into(), source: None }.into()
}

/// The system has given up a connection to a peer.
pub(crate) fn system(peer: Rank, what: String, source: io::Error) -> Error {
    ErrorKind::Transport { transport: "tcp", peer: Some(peer), what, source: Some(source) }.into()
}
