//! libibverbs' types and constants: the very files of the transport, whose test compares them with the header.

#[allow(dead_code)]
#[path = "../../ccl-transport-ibverbs/src/sys/constants.rs"]
mod constants;
#[allow(dead_code)]
#[path = "../../ccl-transport-ibverbs/src/sys/abi.rs"]
mod types;

pub(crate) use constants::*;
pub(crate) use types::*;
