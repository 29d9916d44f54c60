//! `cclUniqueId`.

use crate::pointers;
use crate::result::{cclResult_t, guard};
use ccl::{Result, UNIQUE_ID_BYTES, UniqueId};
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
///
/// # Safety
/// `uniqueId` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGetUniqueId(uniqueId: *mut cclUniqueId) -> cclResult_t {
    guard(|| {
        pointers::check(uniqueId, "uniqueId", "give the address of a cclUniqueId")?;
        let config = crate::init::environment()?;
        let id = UniqueId::create(&config)?;
        let internal = id.as_bytes().map(|b| b.cast_signed());
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { uniqueId.write(cclUniqueId { internal }) };
        Ok(())
    })
}
