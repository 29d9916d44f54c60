//! Mapped memory: the only part of this crate, besides [`sys`](crate::sys), with unsafe code.
//!
//! [`Mapping`](mapping::Mapping) decides where memory is mapped; [`Segment`] owns one and knows what lies where in it; [`Outgoing`] and [`Incoming`] are the
//! two ends of a link over it, and turn the ring's entries, slots and lent memory into pieces; [`Region`] is memory
//! of the user, and [`Loan`] what a borrower keeps of it. What makes them sound:
//! every address is computed from checked offsets inside a mapping that the end keeps alive; shared
//! words are atomics; and the protocol of [`ring`](crate::ring) gives a payload to one side at a time.

mod heap;
mod incoming;
mod mapping;
mod outgoing;
pub(crate) mod region;
mod segment;
#[cfg(test)]
mod tests;

pub use heap::PreloadedHeap;
pub(crate) use incoming::{Incoming, Look};
pub(crate) use outgoing::Outgoing;
pub use region::SharedMemory;
pub(crate) use region::{Loan, Region};
pub(crate) use segment::{Geometry, Segment, Words};
