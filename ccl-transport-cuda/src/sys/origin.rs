//! Where this code comes from.

use libc::{Dl_info, c_void};
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The file of the library or program that holds this function.
pub(crate) fn own_file() -> Option<PathBuf> {
    let mut info = MaybeUninit::<Dl_info>::uninit();
    let here = own_file as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: an address of code, and room for what is said of it.
    let known = unsafe { libc::dladdr(here, info.as_mut_ptr()) } != 0;
    // SAFETY: it was filled in if the address is known; the name ends in null, and lives as long as the code.
    known.then(|| unsafe {
        let name = CStr::from_ptr(info.assume_init().dli_fname);
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    })
}
