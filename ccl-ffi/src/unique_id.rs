//! `cclUniqueId`.

use crate::pointers;
use crate::result::{cclResult_t, guard};
use ccl::{Config, Error, Result, UNIQUE_ID_BYTES, UniqueId, launch};
use std::ffi::c_char;

/// What rank 0 creates and all ranks are given: where to meet, and a secret.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct cclUniqueId {
    /// Opaque; copy it as a whole.
    pub internal: [c_char; 128],
}

impl cclUniqueId {
    pub(crate) fn parse(&self) -> Result<UniqueId> {
        let bytes: [u8; UNIQUE_ID_BYTES] = self.internal.map(|c| c.cast_unsigned());
        UniqueId::from_bytes(&bytes)
    }
}

/// Creates an id. The process that calls it is where the ranks meet, so it must live until all have joined.
/// Where `RDMACCL_ROOT` or `RDMACCL_ID` is set, beside rank and size, every rank gets the same id by itself, and nothing has to be
/// brought from one to the others; such a job has one communicator that is made by an id.
///
/// # Safety
/// `uniqueId` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGetUniqueId(uniqueId: *mut cclUniqueId) -> cclResult_t {
    guard(|| {
        pointers::check(uniqueId, "uniqueId", "give the address of a cclUniqueId")?;
        let config = crate::init::environment()?;
        let id = id(&config)?;
        let internal = id.as_bytes().map(|b| b.cast_signed());
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { uniqueId.write(cclUniqueId { internal }) };
        Ok(())
    })
}

fn id(config: &Config) -> Result<UniqueId> {
    if config.root.is_none() && config.id.is_none() {
        return UniqueId::create(config);
    }
    let launch = launch::detect(|name| std::env::var(name).ok())?;
    let alone = || Error::invalid("RDMACCL_ROOT without a rank", "set RDMACCL_RANK and RDMACCL_SIZE too");
    launch.ok_or_else(alone)?.unique_id()
}
