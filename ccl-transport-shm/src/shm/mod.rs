//! Mapped memory: the only part of this crate, besides [`sys`](crate::sys), with unsafe code.
//!
//! [`Segment`] owns a mapping and knows what lies where in it; [`Outgoing`] and [`Incoming`] are the
//! two ends of a link over it, and turn the ring's entries and slots into pieces. What makes them sound:
//! every address is computed from checked offsets inside a mapping that the end keeps alive; shared
//! words are atomics; and the protocol of [`ring`](crate::ring) gives a payload to one side at a time.

mod incoming;
mod outgoing;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::Outgoing;
pub(crate) use segment::{Geometry, Segment};
