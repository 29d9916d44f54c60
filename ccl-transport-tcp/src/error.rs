//! Errors in this transport's words.

use ccl_core::error::ErrorKind;
use ccl_core::transport::LinkKey;
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

#[cold]
pub(crate) fn no_such_end(id: u32) -> Error {
    Error::invalid(format!("link end {id}"), "an id that `sender` or `receiver` gave")
}

#[cold]
pub(crate) fn not_held(call: &str) -> Error {
    Error::invalid(format!("{call} with nothing to {call}"), "reserve before publish, peek before release")
}

#[cold]
pub(crate) fn reserved_twice(peer: Rank) -> Error {
    Error::invalid(
        format!("two reservations on one link to rank {peer}"),
        "publish through the one sending end before reserving through the other",
    )
}

#[cold]
pub(crate) fn too_long(len: usize, slot_bytes: usize) -> Error {
    Error::invalid(format!("a piece of {len} bytes"), format!("at most {slot_bytes} bytes, the slots' size"))
}

pub(crate) fn not_open(link: LinkKey) -> Error {
    Error::invalid(
        format!("no open link from rank {} to rank {} on channel {}", link.from, link.to, link.channel),
        "connect it first",
    )
}
