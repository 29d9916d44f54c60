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

/// A work request that failed: both ends, the status, and the state of the port.
#[cold]
pub(crate) fn of_completion(lane: &Lane, adapter: &Adapter, completion: &Completion) -> String {
    let status = completion.status();
    let port = of_port(adapter, lane.seat.port);
    // A queue pair that the device moved to error by itself flushes without another word.
    let cause = match status {
        Status::Flushed => "the device gave the connection up; see its events in the log (RDMACCL_DEBUG=net)",
        status => status.cause(),
    };
    let (number, code, vendor) = (completion.queue_pair(), completion.0.status, completion.vendor_error());
    let said =
        format!("queue pair {number:#x}: {status} (status {code}, vendor {vendor:#x}): {cause}; {port}");
    format!("{}, {said}", lane.seat.ends)
}

/// What a port is like now.
#[cold]
pub(crate) fn of_port(adapter: &Adapter, port: u8) -> String {
    match adapter.context.port(port) {
        _ if adapter.dead => format!("the device {} has failed", adapter.context.name()),
        Ok(port) => format!("the port here is {} (physically {})", port.state, port.physical_state),
        Err(error) => format!("the port here cannot be asked: {error}"),
    }
}

/// Whether a request that ends so has broken a rule: that would happen again over any other queue pair.
pub(crate) fn is_fault(status: Status) -> bool {
    matches!(
        status,
        Status::LocalLength
            | Status::LocalProtection
            | Status::LocalAccess
            | Status::RemoteInvalidRequest
            | Status::RemoteAccess
            | Status::ReceiverNotReady
    )
}

/// Counters of a port that say that something is wrong: `symbol_error 3, link_downed 1`.
#[cold]
pub(crate) fn of_counters(adapter: &Adapter, port: u8) -> String {
    const SIGNS: [&str; 9] =
        ["err", "discard", "drop", "retry", "retries", "down", "timeout", "seq", "recover"];
    let counters = adapter.context.counters(port).into_iter();
    let told = counters.filter(|(name, value)| *value > 0 && SIGNS.iter().any(|sign| name.contains(sign)));
    let told: Vec<_> = told.take(MOST_COUNTERS).map(|(name, value)| format!("{name} {value}")).collect();
    if told.is_empty() { "none".into() } else { told.join(", ") }
}

/// Counters that an error names.
const MOST_COUNTERS: usize = 12;

/// Bytes that no correct peer sends.
#[cold]
pub(crate) fn corrupt(lane: &Lane, Corrupt(what): Corrupt) -> String {
    format!("{}: the peer breaks the protocol: {what}", lane.seat.ends)
}
