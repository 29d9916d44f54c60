//! All that is unsafe: the C types, the library's functions, and owners of what they create.
//!
//! An owner holds an `Arc` of everything that must outlive it, so objects are destroyed in the right order whatever order
//! they are dropped in. Its methods are sound for any argument; what an argument means, which errors can come and
//! what to do about them is `verbs`' part.
//!
//! Every object may be used by any thread: libibverbs locks where it must.
//!
//! # Memory that a device touches
//!
//! A device reads and writes memory while no Rust code is involved. That is sound here because it can reach only what is
//! *registered*: an [`Mr`] keeps the pages that it covers pinned until it is deregistered, after which the device cannot reach
//! them, whatever is still queued. Who may touch which bytes in between is the contract of
//! [`Piece`](ccl_core::kernels::Piece), with the device as one more party: the bytes of a send belong to it from posting to
//! completion, the bytes of a receive too, and what a peer may write belongs to that peer until the protocol hands it over.

mod abi;
mod completion;
mod constants;
mod context;
mod device;
#[cfg(test)]
mod header_tests;
mod memory;
mod queue_pair;
mod table;

pub(crate) use abi::*;
pub use completion::Completion;
pub(crate) use completion::{Channel, Cq};
pub(crate) use constants::*;
pub(crate) use context::{Context, Element, firmware};
pub(crate) use device::Device;
pub(crate) use memory::{Ah, Mapping, Mr, Pd};
pub(crate) use queue_pair::{Qp, Receive, SGES, Send, SendTo};
pub(crate) use table::Table;

use std::io;

/// The errno of a call that returned a null pointer, or -1.
fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Verbs return 0, an errno, or -1 with `errno` set, depending on their age.
fn checked(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(last()),
    }
}
