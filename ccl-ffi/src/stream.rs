//! `cclStream_t`.

use ccl::{Error, Result};

/// Never defined: nothing is behind it yet.
pub struct cclStream {
    _never: (),
}

/// What a call is ordered on. NULL: the call returns when the result is there; this version takes no other.
pub type cclStream_t = *mut cclStream;

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
