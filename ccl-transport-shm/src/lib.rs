//! # ccl-transport-shm: links in shared memory
//!
//! Links between the ranks of one host, processes or threads. It implements the contract of
//! [`ccl_core::transport`] and promises:
//!
//! - *Nothing is left behind.* Memory is an unnamed, sealed memfd, passed by descriptor over an abstract
//!   socket. Nothing is in `/dev/shm`, whose size does not matter; a killed process leaves nothing.
//! - *The data path makes no system call*, no allocation, takes no lock and executes no fence beyond acquire
//!   and release. Only waking a rank that sleeps is a call.
//! - *A short message is one cache line* written by the sender and read by the receiver: flag, tag
//!   and bytes together.
//! - *A piece for several peers is written once.*
//! - *Far cores exchange bytes through main memory*, near ones from cache to cache, whichever they are found to be (`pace`).
//! - *Memory of the user that peers can map* ([`SharedMemory`]) travels by reference, and results are written straight to it: no byte
//!   goes through a slot.
//! - *A peer cannot crash us through the shared memory*: each word that comes from there is checked before
//!   it is used, and a wrong one is an error that names the peer. (A peer that scribbles over payloads
//!   corrupts data, as it could by sending wrong data.)
//!
//! # How it is built
//!
//! Each rank owns one segment: a bell, a ledger, the links that it sends on, and a pool of payload slots
//! that they share. Peers map it whole. Per link there is a ring of entries and a line through which the
//! receiver returns credits (`ring`), and one in which it offers memory (`offer`); the sender alone keeps account of the slots (`pool`), but for those
//! that it has handed over to a peer that sends to it, too (`passing`); a rank that sleeps is woken by its bell (`bell`). The ring, offers, the pool and the bell run under
//! loom exactly as in production.
//!
//! Shared memory of the user is *lent* (`lending`, `borrowing`) under a number that the lender's ledger lists
//! (`ledger`). Before the first message that names it the lender puts the descriptor into the peer's mailbox; a peer that
//! reads a number which it does not know looks there. When the memory is freed its number leaves the ledger. Memory that is *offered* to senders
//! (`offering`) is named in the same way.
//!
//! # Checks
//!
//! ```text
//! cargo xtask loom    # every interleaving of the link, its offers, the pool and the bell
//! cargo xtask tsan    # these tests and the collectives under ThreadSanitizer
//! cargo xtask counts  # no system call and no allocation on the data path
//! ```

#![deny(unsafe_code)]

// Under `--cfg loom` the protocol alone is explored: what the mapped memory and the transport call of it is not used.
#[cfg_attr(loom, allow(dead_code))]
mod bell;
#[cfg_attr(loom, allow(dead_code))]
mod ledger;
#[cfg_attr(loom, allow(dead_code))]
mod offer;
#[cfg_attr(loom, allow(dead_code))]
mod pool;
#[cfg_attr(loom, allow(dead_code))]
mod ring;
mod sync;

#[cfg(not(loom))]
mod blob;
#[cfg(not(loom))]
mod borrowing;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod fabric;
mod flow;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod lending;
#[cfg(not(loom))]
mod loans;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod offering;
#[cfg(not(loom))]
mod pace;
#[cfg(not(loom))]
mod park;
mod passing;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod shm;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod sys;
#[cfg(not(loom))]
mod transport;

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod loom_tests;

#[cfg(not(loom))]
pub use {config::ShmConfig, shm::PreloadedHeap, shm::SharedMemory, transport::ShmTransport};
