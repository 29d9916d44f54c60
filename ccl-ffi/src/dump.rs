//! `cclCommDump`.

use crate::comm::{self, Face, cclComm_t};
use crate::pointers;
use crate::result::{cclResult_t, guard};
use ccl::Error;
use std::ffi::c_char;

/// Writes what this rank does and has done to `text`, in JSON: the calls that run and what they wait for, the last calls, the
/// error if there is one; it is what `rdmaccl flight` reads. While it joins, it says no more than that. It waits for nothing and
/// asks nobody, so it also works while a call is stuck.
///
/// `size` says how many bytes there are at `text`, and then how many are needed, with the 0 at the end. `text` may be
/// NULL, to ask for that. If there are too few, nothing is written, and the call is refused; since the state changes, ask
/// for some more than was needed a moment ago (not in NCCL).
///
/// # Safety
/// `size` is NULL or can be read and written; `text` is NULL, or as long as `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommDump(comm: cclComm_t, text: *mut c_char, size: *mut usize) -> cclResult_t {
    guard(|| {
        pointers::check(size, "size", "give the address of a size_t")?;
        let dump = describe(&*comm::face(comm)?).into_bytes();
        // SAFETY: not NULL, aligned, and readable and writable by the function's contract.
        let room = unsafe { size.replace(dump.len() + 1) };
        if text.is_null() {
            return Ok(());
        }
        if room <= dump.len() {
            let what = format!("{room} bytes for a dump of {}", dump.len() + 1);
            return Err(Error::invalid(what, "give as many as *size says now, and some more"));
        }
        // SAFETY: there is room for it and the byte behind it, by the function's contract.
        unsafe {
            text.copy_from_nonoverlapping(dump.as_ptr().cast(), dump.len());
            text.add(dump.len()).write(0);
        }
        Ok(())
    })
}

fn describe(face: &Face) -> String {
    let error = face.error().map(|error| error.to_string());
    match face.record() {
        Some(record) => record.dump(error),
        None => serde_json::json!({ "joining": face.is_joining(), "rank": face.rank, "ranks": face.size, "cause": error })
            .to_string(),
    }
}
