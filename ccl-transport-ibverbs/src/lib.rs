//! # ccl-transport-ibverbs: links over RDMA
//!
//! For InfiniBand, RoCE and SoftRoCE, through libibverbs, which is opened at run time: a program that links this crate starts
//! on any machine, and one without RDMA gets an [`Error`](ccl_core::Error) that says what is missing.
//!
//! # How it is built
//!
//! `sys` holds all that is unsafe: the C types, the library's functions, owners of what they create. [`verbs`] gives them a
//! meaning: typed attributes and states, errors with the device, the port and the cure. [`choice`] decides which devices,
//! GIDs and packet sizes are used, as pure functions over a survey of the host, each with its reason. `link` is the
//! transport: connections, slots and credits. [`gpudirect`] looks at what NICs can do with the memory of GPUs.

#![deny(unsafe_code)]

pub mod choice;
mod config;
pub mod gpudirect;
mod link;
#[allow(unsafe_code)]
mod sys;
pub mod verbs;

pub use config::IbConfig;

pub use link::{IbTransport, Work, survey};
