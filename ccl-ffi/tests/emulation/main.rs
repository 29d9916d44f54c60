//! Calls that kernels make, over the fake driver with the kernels on threads of the CPU. `cargo xtask kernels` runs it; it needs g++.

#[path = "../common/mod.rs"]
mod common;
#[path = "../cuda/mod.rs"]
mod cuda;

mod calls;
mod failures;
mod processes;
mod world;
