//! Calls that kernels make, over the fake driver with the kernels on threads of the CPU. `cargo xtask kernels` runs it; it needs g++.

#[path = "../common/mod.rs"]
mod common;
#[path = "../cuda/mod.rs"]
mod cuda;

mod alone;
mod calls;
mod failures;
mod hosts;
mod multicast;
mod processes;
mod registered;
mod straying;
mod transfers;
mod uneven;
mod world;
