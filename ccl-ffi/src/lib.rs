//! # The C ABI
//!
//! What `librdmaccl.so.0` and `librdmaccl.a` export and `include/ccl.h` declares: [`ccl`] in NCCL's shapes, one file per C type. The
//! crate `ccl-library` makes libraries of it.
//! It promises:
//!
//! - *No unwinding* into C: a panic becomes `cclInternalError`.
//! - *Handles are checked*: a NULL, foreign, freed or doubly freed communicator or stream is `cclInvalidArgument`,
//!   never undefined behaviour; a handle is a number, not an address. One of a parent process is `cclInvalidUsage`.
//! - *Any thread, one order*: calls on one communicator are made in the order of issue (`comm`, `launch`). What
//!   can be said without the communicator's turn (`comm::Face`) never waits for one.
//! - *Arguments are checked*: counts, types, operators, roots, NULL and partly overlapping buffers. What
//!   cannot be checked is that a buffer is as long as the count says.
//! - *Errors have words*: `cclGetLastError` says what failed, on which rank, with which peer, and what to do.
//!
//! # How a call goes
//!
//! Without a stream and outside of groups, a call takes its turn, waits for it and runs on the caller's thread: one
//! thread-local read, one atomic exchange, no allocation. Otherwise its arguments are checked and it becomes an
//! `Issued`; a `launch` takes the turns of one or more of them together, and carries them out on the caller's thread or
//! on a stream's.
//!
//! It prints nothing, unless `RDMACCL_DEBUG` asks for the log on standard error.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)] // the names are C's

mod buffers;
mod collectives;
mod comm;
mod config;
mod data_type;
mod depth;
mod device;
mod dump;
mod ending;
mod fork;
mod group;
mod handles;
mod heap;
mod init;
mod launch;
mod meeting;
mod memory;
mod pointers;
mod properties;
mod recovery;
mod red_op;
mod result;
mod split;
mod stream;
mod transfers;
mod uneven;
mod unique_id;
mod version;

pub use collectives::*;
pub use comm::*;
pub use config::*;
pub use data_type::*;
pub use dump::*;
pub use ending::*;
pub use group::*;
pub use init::*;
pub use memory::*;
pub use properties::*;
pub use recovery::*;
pub use red_op::*;
pub use result::*;
pub use split::*;
pub use stream::*;
pub use transfers::*;
pub use uneven::*;
pub use unique_id::*;
pub use version::*;
