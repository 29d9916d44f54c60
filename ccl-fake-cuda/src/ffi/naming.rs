//! What errors are called.

use libc::{c_char, c_int};
use std::ffi::CStr;

fn name_of(error: c_int) -> &'static CStr {
    match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        205 => c"CUDA_ERROR_MAP_FAILED",
        217 => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        218 => c"CUDA_ERROR_INVALID_PTX",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        401 => c"CUDA_ERROR_ILLEGAL_STATE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        704 => c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        720 => c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        _ => c"CUDA_ERROR_UNKNOWN",
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { name.write(name_of(error).as_ptr()) };
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { text.write(c"as a script says".as_ptr()) };
    0
}
