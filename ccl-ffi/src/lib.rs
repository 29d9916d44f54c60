//! # The C ABI
//!
//! `librdmaccl.so.0`, `librdmaccl.a` and `include/ccl.h`: [`ccl`] in NCCL's shapes, one file per C type.
//! It promises:
//!
//! - *No unwinding* into C: a panic becomes `cclInternalError`.
//! - *Handles are checked*: a NULL, foreign, freed or doubly freed communicator is `cclInvalidArgument`,
//!   never undefined behaviour; a handle is a number, not an address.
//! - *Arguments are checked*: counts, types, operators, roots, NULL and partly overlapping buffers. What
//!   cannot be checked is that a buffer is as long as the count says.
//! - *Errors have words*: `cclGetLastError` says what failed, on which rank, with which peer, and what to do.
//!
//! It prints nothing, unless `RDMACCL_DEBUG` asks for the log on standard error.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)] // the names are C's

mod collectives;
mod comm;
mod data_type;
mod handles;
mod memory;
mod red_op;
mod result;
mod stream;
mod unique_id;

pub use collectives::*;
pub use comm::*;
pub use data_type::*;
pub use memory::*;
pub use red_op::*;
pub use result::*;
pub use stream::*;
pub use unique_id::*;
