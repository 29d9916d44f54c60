//! `cclResult_t`, and the words behind it.

use crate::comm::{self, cclComm_t};
use crate::group;
use ccl::{Error, ErrorKind};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call came to. The numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum cclResult_t {
    /// It is done.
    cclSuccess = 0,
    /// A function of the CUDA driver failed.
    cclUnhandledDeviceError = 1,
    /// A system call failed.
    cclSystemError = 2,
    /// A fault of the library.
    cclInternalError = 3,
    /// An argument cannot be.
    cclInvalidArgument = 4,
    /// The call is valid, but not now or not with these ranks.
    cclInvalidUsage = 5,
    /// A peer is lost, absent, or in another call.
    cclRemoteError = 6,
    /// Not finished yet.
    cclInProgress = 7,
}

use cclResult_t::*;

thread_local! {
    /// What went wrong last on this thread, and the text that `cclGetLastError` gave out.
    static LAST: RefCell<(String, CString)> = RefCell::default();
}

/// Runs the body of a C function: errors become codes, their texts are kept, panics stop here.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> cclResult_t {
    guard_code(|| body().map(|()| cclSuccess))
}

/// [`guard`] for a call that a group may hold: its error is also the group's.
#[inline(always)]
pub(crate) fn guard_call(body: impl FnOnce() -> Result<(), Error>) -> cclResult_t {
    guard(|| match body() {
        Ok(()) => Ok(()),
        Err(error) => {
            group::note(&error);
            Err(error)
        }
    })
}

/// [`guard`] for a function that has other codes than success to return.
#[inline(always)]
pub(crate) fn guard_code(body: impl FnOnce() -> Result<cclResult_t, Error>) -> cclResult_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => failed(&error),
        Err(panic) => panicked(&*panic),
    }
}

/// Keeps an error's words for `cclGetLastError` on this thread; its code.
#[cold]
#[inline(never)]
pub(crate) fn failed(error: &Error) -> cclResult_t {
    keep(error.to_string());
    code_of(error)
}

#[cold]
#[inline(never)]
fn panicked(panic: &(dyn Any + Send)) -> cclResult_t {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    keep(format!("panic in the library: {}", text.unwrap_or("no message")));
    cclInternalError
}

fn keep(text: String) {
    LAST.with_borrow_mut(|last| last.0 = text);
}

pub(crate) fn code_of(error: &Error) -> cclResult_t {
    match error.kind() {
        ErrorKind::InvalidArgument { .. } | ErrorKind::Malformed { .. } => cclInvalidArgument,
        ErrorKind::Unsupported { .. }
        | ErrorKind::Broken(_)
        | ErrorKind::Aborted
        | ErrorKind::Unreachable { .. } => cclInvalidUsage,
        ErrorKind::Mismatch { .. }
        | ErrorKind::PeerLost { .. }
        | ErrorKind::Verdict(_)
        | ErrorKind::Ended { .. }
        | ErrorKind::Excluded { .. }
        | ErrorKind::Timeout { .. } => cclRemoteError,
        ErrorKind::System { .. } | ErrorKind::Transport { .. } | ErrorKind::Bootstrap { .. } => {
            cclSystemError
        }
        ErrorKind::Device { .. } => cclUnhandledDeviceError,
        _ => cclInternalError,
    }
}

/// A `cclResult_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ResultArg(i32);

/// A few words for a result code. The text lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn cclGetErrorString(result: ResultArg) -> *const c_char {
    let text: &CStr = match result.0 {
        0 => c"no error",
        1 => c"unhandled device error (cclGetLastError has the function and its error)",
        2 => c"system error (cclGetLastError has the call and its cause)",
        3 => c"internal error (cclGetLastError has the message)",
        4 => c"invalid argument (cclGetLastError says which)",
        5 => c"invalid usage (cclGetLastError says why)",
        6 => c"remote error (cclGetLastError names the peer)",
        7 => c"in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// What went wrong last: which call, rank and peer, the cause, and what to do. With a communicator whose
/// `cclCommGetAsyncError` is an error, that one; otherwise the last error on this thread. The text lives until the
/// next call of this function on the same thread.
#[unsafe(no_mangle)]
pub extern "C" fn cclGetLastError(comm: cclComm_t) -> *const c_char {
    let asynchronous = comm::face(comm).ok().and_then(|face| face.error()).map(|error| error.to_string());
    LAST.with_borrow_mut(|last| {
        let text = asynchronous.unwrap_or_else(|| last.0.clone());
        last.1 = c_text(text);
        last.1.as_ptr()
    })
}

/// A text for C.
pub(crate) fn c_text(text: String) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}
