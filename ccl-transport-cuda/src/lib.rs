//! # ccl-transport-cuda: device memory
//!
//! Collectives on buffers in the memory of CUDA devices, through the CUDA driver, which is opened at run time: a program that
//! links this crate starts on any machine, and one without a driver gets an [`Error`](ccl_core::Error) that says what is missing.
//! Of the runtime library (libcudart) it knows nothing, so one binary serves every CUDA from 12.0 on.
//!
//! # How it is built
//!
//! `sys` holds all that is unsafe: the driver's functions as a table, and owners of what they create. [`driver`] gives them a
//! meaning: versions, devices, kinds of memory, errors with their names and cures. [`staging`] makes a host collective
//! of one on device buffers: pieces go through pinned host memory, ordered on the caller's stream. [`program`] writes plans as data for
//! the kernels in `kernels/`, [`sharing`] gives ranks each other's memory, and the [`engine`] of a communicator launches kernels for its calls;
//! [`gang`] launches them for several ranks of one device, to test and measure them.
//!
//! # What it promises
//!
//! It shares the primary context of the program and makes none of its own; the thread's current context is after
//! each call what it was before. It asks the driver for nothing before the program has used it.

#![deny(unsafe_code)]

pub mod code;
pub mod driver;
pub mod engine;
pub mod gang;
mod kernels;
pub mod program;
pub mod sharing;
pub mod staging;
#[allow(unsafe_code)]
mod sys;

pub use sys::{DeviceMemory, Entered, Event, Function, Graph, Module, Primary, Stream};
