//! # ccl-core: the library without its devices
//!
//! Every collective is a [plan]; a plan is made of one instruction, the
//! [move](plan::Move); everything else reads plans. This crate holds the instruction, the
//! [algorithms] that write plans, the [verifier](verify) that proves them, the
//! [cost function](cost) that chooses among them, the [engine] that runs them, the
//! [bootstrap] that brings ranks together and the [communicator] that puts the parts in order.
//! It promises:
//!
//! - *Core computes, edges act.* `plan`, `algorithms`, `verify`, `cost`, `engine`, `control`, `flight` and `cluster` make no
//!   system call, read no clock and no environment, and start no thread. Only `bootstrap`,
//!   `communicator` and `config` touch the world.
//! - *It knows no transport.* What moves bytes implements [`transport::Transport`], and lives in a
//!   crate of its own.
//! - *No unsafe code*: memory is touched by the [kernels], a crate of their own, by transports, and by what tests of these have here.
//! - *It never prints, exits or aborts.* Errors are values ([`Error`]); what happens is told by `tracing`.
//!
//! It refuses to run a plan that it could not prove, to guess a peer's arguments, and to wait without
//! knowing for whom.

#![cfg_attr(not(test), deny(unsafe_code))]

pub mod algorithms;
pub mod bootstrap;
pub mod clock;
pub mod cluster;
pub mod communicator;
pub mod config;
pub mod control;
pub mod cost;
pub mod engine;
pub mod error;
pub mod flight;
#[doc(hidden)]
pub mod fuzzing;
pub mod monitor;
pub mod plan;
pub mod transport;
pub mod verify;

pub use ccl_kernels as kernels;
pub use ccl_kernels::{DataType, Factor, ReduceOp};
pub use error::{Error, ErrorKind, Result};
pub use plan::{Collective, Rank};
