//! # ccl-transport-tcp: links over sockets
//!
//! Links between hosts that have no RDMA. It implements the contract of [`ccl_core::transport`] and promises:
//!
//! - *Only ranks of the job connect.* The sockets come from the bootstrap, through the one port that a rank listens on: both ends
//!   have proved that they know the job's secret before this crate sees them. What follows is neither encrypted nor signed.
//! - *A piece is copied by the kernel alone.* A long one is written straight from its slot, or from the user's buffer, and
//!   read straight into the slot where the receiver looks at it. Only what comes along with a header is copied once more.
//! - *One system call for a piece*, at each end. Several short ones that have come are read together.
//! - *No message of its own per step.* Credits ride on the pieces that go the other way; where none do, half of them go back
//!   in one frame.
//! - *What a peer sends is checked before it is used*, and a wrong word is an error that names the peer.
//!
//! # How it is built
//!
//! Two ranks share a few sockets, and a link keeps to one of them by its channel, so that the stream's order is the link's.
//! A piece travels in a frame: its header, then its bytes. Links have room at the receiver for all that may be on
//! its way (`incoming`), so whatever has come can be read at any time, and a link that nobody looks at does
//! not hold up the others of its socket. Nobody waits in the kernel but in `park`, and no thread works behind the
//! caller: whoever looks for a piece or a credit and finds none reads the socket (`socket`). What a socket does not take
//! at once stays in its slot until `flush`.

#![deny(unsafe_code)]

mod address;
mod blob;
mod config;
mod connect;
mod error;
mod fabric;
mod frame;
mod incoming;
mod outgoing;
mod slots;
mod socket;
#[allow(unsafe_code)]
mod sys;
mod transport;

pub use config::TcpConfig;
pub use socket::SystemCalls;
pub use transport::TcpTransport;
