//! The end of communicators: in order, or by an abort.

use crate::comm::{COMMS, Comm, Content, cclComm_t, face, last_turn, turn};
use crate::handles::Slot;
use crate::pointers::store;
use crate::result::{cclResult_t, code_of, guard};
use ccl::{Entered, Error, Result, spawn_quiet};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long an abort waits for the calls that it ends.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// Waits for all calls that were issued, and takes no more. What is left to do is `cclCommDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommFinalize(comm: cclComm_t) -> cclResult_t {
    guard(|| {
        let face = face(comm)?;
        face.usable()?;
        let (slot, turn) = turn(comm)?;
        slot.held.finalize(&face);
        let mut content = turn.enter();
        *content = match std::mem::replace(&mut *content, Content::Nothing) {
            Content::Ready(communicator) => Content::Finalized(communicator),
            other => other,
        };
        Ok(())
    })
}

/// Waits for all calls that were issued, leaves in order and frees the communicator. All ranks must do it; a process
/// that just ends is dead in the eyes of the others.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommDestroy(comm: cclComm_t) -> cclResult_t {
    guard(|| {
        let face = face(comm)?;
        if face.is_joining() {
            face.usable()?;
        }
        remove(comm)
    })
}

/// Ends the communicator at once, from any thread, also while others are in calls on it or make it, which return with an
/// error; then frees it. Its peers are told, and their calls end with an error too. It waits for no peer. Aborting again does
/// no harm.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommAbort(comm: cclComm_t) -> cclResult_t {
    guard(|| {
        let handle = comm as usize;
        let slot = COMMS.slot(handle)?;
        let Ok(face) = face(comm) else {
            return if slot.held.aborted.load(Ordering::Relaxed) == handle as u64 {
                Ok(())
            } else {
                Err(COMMS.foreign(handle))
            };
        };
        face.alarm.abort();
        slot.held.aborted.store(handle as u64, Ordering::Relaxed);
        if !slot.retire(handle) {
            return Ok(()); // another thread is at it
        }
        match last_turn(slot).enter_within(ABORT_PATIENCE) {
            Ok(content) => end(slot, content),
            // A stream has yet to come to its calls. That they find the abort then is enough, nobody has to wait.
            Err(turn) => {
                let waiting = spawn_quiet("ccl-abort", move || end(slot, turn.enter()));
                waiting.map_err(|cause| {
                    Error::system("starting a thread that aborts", cause, "raise the limit of threads")
                })?;
            }
        }
        Ok(())
    })
}

/// Takes a communicator out when its turn comes; the handle is dead from now on.
pub(crate) fn remove(comm: cclComm_t) -> Result<()> {
    let slot = COMMS.slot(comm as usize)?;
    if !slot.retire(comm as usize) {
        return Err(COMMS.foreign(comm as usize));
    }
    end(slot, last_turn(slot).enter());
    Ok(())
}

fn end(slot: &'static Slot<Comm>, mut content: Entered<'static, Content>) {
    let ended = slot.held.clear(&mut content);
    drop(content);
    drop(ended);
    COMMS.release(slot);
}

/// How the communicator is, without waiting: `cclInProgress` while it joins; the first error of a call on a stream, or
/// that broke it; what has happened between calls: the death of a peer, that a rank has aborted or revoked it, a verdict;
/// otherwise `cclSuccess`. A death on this host is known to it within milliseconds.
///
/// # Safety
/// `asyncError` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommGetAsyncError(comm: cclComm_t, asyncError: *mut cclResult_t) -> cclResult_t {
    guard(|| {
        let face = face(comm)?;
        let state = match face.error() {
            Some(error) => code_of(&error),
            None if face.is_joining() => cclResult_t::cclInProgress,
            None => cclResult_t::cclSuccess,
        };
        // SAFETY: the function's contract.
        unsafe { store(asyncError, state, "asyncError") }
    })
}
