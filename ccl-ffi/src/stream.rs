//! `cclStream_t`.

use ccl::{Error, Result};
use std::ffi::c_void;

/// What a call is ordered on. NULL: the call returns when the result is there.
pub type cclStream_t = *mut c_void;

/// Only the synchronous way is built.
pub(crate) fn check(stream: cclStream_t) -> Result<()> {
    if stream.is_null() {
        return Ok(());
    }
    Err(Error::unsupported(
        "a stream",
        "pass NULL: this version makes synchronous calls on host buffers only",
    ))
}
