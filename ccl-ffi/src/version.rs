//! The version of the library and of its header.

use crate::pointers::store;
use crate::result::{cclResult_t, guard};
use std::ffi::c_int;

/// The first number of the header's version.
pub const CCL_MAJOR: c_int = 0;
/// The second.
pub const CCL_MINOR: c_int = 1;
/// The third.
pub const CCL_PATCH: c_int = 0;

const _: () = {
    const fn number(text: &str) -> c_int {
        match c_int::from_str_radix(text, 10) {
            Ok(number) => number,
            Err(_) => panic!("cargo's versions are numbers"),
        }
    }
    assert!(number(env!("CARGO_PKG_VERSION_MAJOR")) == CCL_MAJOR);
    assert!(number(env!("CARGO_PKG_VERSION_MINOR")) == CCL_MINOR);
    assert!(number(env!("CARGO_PKG_VERSION_PATCH")) == CCL_PATCH);
};

/// The version of the library: `CCL_VERSION(major, minor, patch)`.
///
/// # Safety
/// `version` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGetVersion(version: *mut c_int) -> cclResult_t {
    // SAFETY: the function's contract.
    guard(|| unsafe { store(version, CCL_MAJOR * 10_000 + CCL_MINOR * 100 + CCL_PATCH, "version") })
}
