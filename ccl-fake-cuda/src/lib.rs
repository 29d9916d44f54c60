//! # ccl-fake-cuda: a CUDA driver for tests
//!
//! The C functions of libcuda that the library calls, over devices that exist in this process only. The address of device
//! memory is a mapping without rights: code that reads or writes it on the host dies at once, as it would not do
//! everywhere with a real device. The fake reaches the bytes over a second mapping of the same memory. Streams are
//! asynchronous and in order, each with a thread of its own, or several sharing one, as streams share a device's queues.
//! What the driver would refuse is refused: a missing or wrong current context, foreign handles, copies of memory
//! that it does not know or that was freed, work on a stream that captures a graph, but launches and copies.
//!
//! It knows kernels if a script names them: a shared object with the kernels of ccl-transport-cuda for threads of the CPU
//! (`kernels/emulate/object.cpp`). A module is then the family that its PTX names in the first line, a launch has a thread
//! for each thread of all blocks at once, and graphs record launches and copies. Of machine code it takes what [`machine_code`] makes for the kind of its devices. Device memory that is made from then on has rights, as kernels
//! follow its addresses.
//!
//! Processes share device memory: what one has made another opens by a handle, and both have the same bytes. Memory that is freed while a
//! process has it open stays, and is counted as `freed while open`. Memory of `cuMemCreate` is shared by file descriptors, lies where it is
//! mapped, and cannot be touched there before a device may; whoever lets go of it first, it stays for the others.
//!
//! What a kernel stores to the address of a multicast object goes to the memory that each device has bound to it, in all processes, and is counted as `multicast stores`.
//! Where the driver would wait for devices that were not added, the fake refuses (`would wait`). An object is bound as a whole, once for each device.
//!
//! Device memory is given out as a dma-buf, if attribute 124 says so: a file with its bytes, which ccl-fake-ibverbs registers. Unless attribute 118 says that writes
//! of other devices are in order (100), they wait there until `cuFlushGPUDirectRDMAWrites`.
//!
//! A program opens it as it opens the real one, by `RDMACCL_CUDA=…/libccl_fake_cuda.so`, with the script in
//! `RDMACCL_FAKE_CUDA`. A test takes a [`Fake`], which finds the file beside the test's program, loads it, runs scripts, and
//! does what a program does with CUDA: makes memory and streams.
//!
//! # Scripts
//!
//! One command a line, or with `;` between; `#` begins a comment.
//!
//! | command | what it does |
//! | --- | --- |
//! | `devices N` | so many devices; 1 if it is not said |
//! | `version NUMBER` | the driver's version: 1000 × major + 10 × minor; 13000 if it is not said |
//! | `missing NAME` | the driver has no function of this name (without `_v2`) |
//! | `fail NAME code=C [nth=1] [times=1]` | the nth call of a function from now on fails, and as many after it |
//! | `spoil code=C [nth=1]` | the nth copy from now on goes wrong when its turn comes, and with it all later work |
//! | `delay SEED MICROSECONDS` | each piece of work on a stream waits for a random time up to this before it begins |
//! | `queues N` | streams of a device that are made from now on share N queues, which do their work in the order in which it was issued |
//! | `kernels FILE` | the shared object with the kernels, which must be named before memory is made |
//! | `attribute NUMBER VALUE [device=D]` | what devices, or this one, say when they are asked for this attribute |
//! | `no-peers` | no device reaches the memory of another |
//! | `allocations-wait` | an allocation of pinned memory waits until all streams of its device are done |

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod ffi;
mod multicast;
mod object;
mod script;
mod sharing;
mod virtual_memory;
mod work;
mod world;

pub use ffi::{Fake, Memory};
pub use object::{compile_kernels, machine_code};
