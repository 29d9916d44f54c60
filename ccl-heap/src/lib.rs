//! # `librdmaccl_heap.so`
//!
//! Preloaded (`LD_PRELOAD`), it stands in for the C library's `malloc` and the like. As soon as the process has loaded
//! `librdmaccl`, which gives it shared memory, allocations from `RDMACCL_HEAP_MIN` bytes on come from there: ranks of the
//! same host map them, as they do `cclMemAlloc`'s, and no program need be changed for it. Shorter ones, and those that
//! no shared memory is left for, are the C library's.
//!
//! - `room`: which bytes of a slab are taken.
//! - `sys`: slabs, the heap of them, and what becomes of it in a forked child.
//! - `ffi`: the functions that programs call.
//!
//! It knows no crate of the library, and the library finds it by one symbol, [`ffi::rdmaccl_heap_attach_1`]: so it may be
//! preloaded into programs that never load the library, and costs them one comparison for each allocation.
#![warn(missing_docs)]

// The test program keeps the C library's.
#[cfg(not(test))]
#[allow(unsafe_code)]
pub mod ffi;
mod room;
// There nobody calls what only `ffi` does.
#[cfg_attr(test, allow(dead_code))]
#[allow(unsafe_code)]
mod sys;
