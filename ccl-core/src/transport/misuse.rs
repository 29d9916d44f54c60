//! What a caller of a transport can do wrong, in the same words for every transport.

use super::LinkKey;
use crate::error::Error;
use crate::plan::Rank;

/// An end that nobody was given.
#[cold]
pub fn no_such_end(id: u32) -> Error {
    Error::invalid(format!("link end {id}"), "an id that `sender` or `receiver` gave")
}

/// `publish` without a reservation, `release` without a piece, `send` beside a reservation.
#[cold]
pub fn not_held(call: &str) -> Error {
    Error::invalid(format!("{call} with nothing to {call}"), "reserve before publish, peek before release")
}

/// A link that two sending ends share, and both have reserved.
#[cold]
pub fn reserved_twice(peer: Rank) -> Error {
    Error::invalid(
        format!("two reservations on one link to rank {peer}"),
        "publish through the one sending end before reserving through the other",
    )
}

/// A piece that fits no slot.
#[cold]
pub fn too_long(len: usize, slot_bytes: usize) -> Error {
    Error::invalid(format!("a piece of {len} bytes"), format!("at most {slot_bytes} bytes, the slots' size"))
}

/// A link that was not connected.
#[cold]
pub fn not_open(link: LinkKey) -> Error {
    Error::invalid(
        format!("no open link from rank {} to rank {} on channel {}", link.from, link.to, link.channel),
        "connect it first",
    )
}

/// A window of a transport that has none.
#[cold]
pub fn no_windows() -> Error {
    Error::unsupported(
        "memory of this program as a window of its links",
        "only queue pairs (ib) have windows",
    )
}
