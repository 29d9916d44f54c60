//! Errors of links: who is at both ends, what the device said, and what to look at.

use super::adapter::Adapter;
use super::lane::Lane;
use super::outgoing::Corrupt;
use crate::verbs::{Completion, Status};
use ccl_core::error::ErrorKind;
use ccl_core::{Error, Rank};

/// How the transport is called.
pub(crate) const NAME: &str = "ib";

/// An error that concerns a peer.
#[cold]
pub(crate) fn of_peer(peer: Rank, what: impl Into<String>) -> Error {
    ErrorKind::Transport { transport: NAME, peer: Some(peer), what: what.into(), source: None }.into()
}

/// A work request that failed.
#[cold]
pub(crate) fn of_completion(lane: &Lane, adapter: &Adapter, completion: &Completion) -> Error {
    let status = completion.status();
    let port = match adapter.context.port(lane.port) {
        Ok(port) => format!("the port here is {} (physically {})", port.state, port.physical_state),
        Err(error) => format!("the port here cannot be asked: {error}"),
    };
    // A queue pair that the device moved to error by itself flushes without another word.
    let cause = match status {
        Status::Flushed => "the device gave the connection up; see its events in the log (RDMACCL_DEBUG=net)",
        status => status.cause(),
    };
    let (number, code, vendor) = (completion.queue_pair(), completion.0.status, completion.vendor_error());
    let said =
        format!("queue pair {number:#x}: {status} (status {code}, vendor {vendor:#x}): {cause}; {port}");
    of_peer(lane.peer, format!("{}, {said}", lane.ends))
}

/// Bytes that no correct peer sends.
#[cold]
pub(crate) fn corrupt(lane: &Lane, Corrupt(what): Corrupt) -> Error {
    of_peer(lane.peer, format!("{}: the peer breaks the protocol: {what}", lane.ends))
}
