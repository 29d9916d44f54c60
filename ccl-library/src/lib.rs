//! `librdmaccl.so` and `librdmaccl.a`: what [`ccl_ffi`] exports. A crate of its own, for its crate types; see its Cargo.toml.

pub use ccl_ffi::*;
