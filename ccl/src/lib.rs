//! # ccl: collectives for Rust programs
//!
//! A [`Communicator`] is one rank's membership of a group of processes or threads that make the same
//! calls in the same order. The calls work on slices:
//!
//! ```
//! use ccl::{Communicator, ReduceOp};
//!
//! // Three ranks as threads of this process. Processes use `Communicator::builder()` or `from_env()`.
//! let results: Vec<f32> = std::thread::scope(|scope| {
//!     let ranks = Communicator::local(3).expect("three local ranks");
//!     let handles = ranks.into_iter().map(|mut comm| {
//!         scope.spawn(move || {
//!             let send = [comm.rank() as f32 + 1.0];
//!             let mut sum = [0.0];
//!             comm.all_reduce(&send, &mut sum, ReduceOp::Sum).expect("all_reduce");
//!             sum[0]
//!         })
//!     });
//!     let handles: Vec<_> = handles.collect();
//!     handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
//! });
//! assert_eq!(results, [6.0, 6.0, 6.0]);
//! ```
//!
//! Calls of several communicators that need each other go into a [`Batch`]. A [`Stream`] carries out work in order in the
//! background, and a [`Turnstile`] keeps a communicator's calls in the order of issue, whatever thread or stream makes them.
//!
//! Buffers on CUDA devices are the business of [`device`].
//!
//! This crate puts [`ccl_core`] and the transports together and gives the calls their types. It promises
//! what the core promises: a call ends right, or with an error that says who and why; results do not depend
//! on timing; nothing is printed. The [`Communicator`]'s methods document each collective.

#![deny(unsafe_code)]

// Under `--cfg loom` there is no shared-memory transport, and nothing but the turnstile to explore.
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod communicator;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod device_code;
#[cfg(not(loom))]
mod element;
#[cfg(not(loom))]
pub mod flight;
#[cfg(not(loom))]
mod gpudirect;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod shrink;
#[cfg(not(loom))]
mod split;
#[cfg(not(loom))]
mod stream;
#[allow(unsafe_code)]
mod sys;
#[cfg(not(loom))]
mod transports;
#[cfg_attr(loom, allow(dead_code))]
mod turn;
#[cfg(not(loom))]
mod uneven;

#[cfg(all(test, loom))]
mod loom_tests;

pub use ccl_core::bootstrap::{UNIQUE_ID_BYTES, UniqueId, launch};
pub use ccl_core::communicator::{AbortHandle, Call, Explanation, Operation, Record, Route};
pub use ccl_core::config::{self, Config};
pub use ccl_core::control::Agreement;
pub use ccl_core::engine::Blocks;
pub use ccl_core::error::RankList;
pub use ccl_core::flight::{Blame, Verdict};
pub use ccl_core::kernels::{Buffers, Level, Piece};
pub use ccl_core::transport::{Counters, LinkKey, SLOTS_PER_LINK, UserMemory, slot_bytes_of};
pub use ccl_core::{Collective, DataType, Error, ErrorKind, Factor, Rank, ReduceOp, Result};
pub use ccl_core::{algorithms, cost, plan, verify};
pub use half::{bf16, f16};
pub use sys::{Entered, Turn, Turnstile};
#[cfg(not(loom))]
pub use {
    builder::Builder,
    ccl_core::monitor::{Guard, Monitor},
    ccl_transport_shm::{PreloadedHeap, SharedMemory},
    communicator::{Communicator, Description},
    device_code::device_code,
    element::{Element, F8E4M3, F8E5M2},
    gpudirect::gpudirect,
    group::{Batch, run_together},
    stream::Stream,
    sys::spawn_quiet,
    transports::rdma_rails,
    turn::together,
};

/// The names of all algorithms.
pub fn algorithm_names() -> impl Iterator<Item = &'static str> {
    ccl_core::algorithms::all().iter().map(|algorithm| algorithm.name())
}

/// Whether the algorithm of this name does a collective for ranks that lie like this, in place or not.
pub fn algorithm_does(
    name: &str,
    collective: Collective,
    placement: impl Into<plan::Placement>,
    in_place: bool,
) -> bool {
    let placement = placement.into();
    ccl_core::algorithms::by_name(name).is_some_and(|algorithm| {
        algorithm.parts(collective, placement).is_some()
            && (!in_place || algorithm.in_place_safe(collective, placement))
    })
}
