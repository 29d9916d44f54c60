//! `cclStream_t`.

use crate::handles::Table;
use crate::pointers::store;
use crate::result::{self, cclResult_t, guard, guard_code};
use ccl::{Error, Monitor, Result, Stream, device};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Never defined: a handle is a number, dressed as a pointer that is not followed.
pub struct cclStream {
    _never: (),
}

/// What a call is ordered on. For buffers in host memory NULL: the call returns when the result is there. Or a stream from
/// `cclHostStreamCreate`: the call returns at once, and is made when the calls before it on that stream, and on that
/// communicator, are over. Its buffers belong to the call until the stream has passed it. An error then comes out of the
/// stream, and of `cclCommGetAsyncError`.
///
/// For buffers in the memory of a CUDA device: a `cudaStream_t` or `CUstream` of that device's primary context, cast to this type;
/// NULL is its default stream. The call returns once it is enqueued, and is ordered on that stream as a kernel would be.
/// An error comes out of `cclCommGetAsyncError`; the stream runs on. Where the CUDA driver was found, what is neither NULL nor a
/// host stream is taken as a CUDA stream, and must be one: the driver follows it. Pinned host memory goes with all of them.
pub type cclStream_t = *mut cclStream;

#[derive(Default)]
struct Held(Monitor<Option<Arc<Stream>>>);

impl Held {
    fn set(&self, stream: Option<Arc<Stream>>) -> Option<Arc<Stream>> {
        std::mem::replace(&mut *self.0.lock(), stream)
    }
}

static STREAMS: Table<Held> = Table::new(0xc5, "stream", "cclHostStreamCreate");

/// What a caller has given as a stream.
#[derive(Clone)]
pub(crate) enum Given {
    Nothing,
    Host(Arc<Stream>),
    /// Neither, in a process with a CUDA driver.
    Device(usize),
}

/// What the stream of a handle is.
pub(crate) fn find(stream: cclStream_t) -> Result<Given> {
    if stream.is_null() {
        return Ok(Given::Nothing);
    }
    // A handle of ours has bits that no address has.
    if device::is_here() && stream as usize >> STREAMS_BITS == 0 {
        return Ok(Given::Device(stream as usize));
    }
    existing(stream).map(Given::Host).map_err(|error| match device::driver() {
        Err(why) if stream as usize >> STREAMS_BITS == 0 => {
            let what =
                format!("{stream:p}, which is no stream of the host, and CUDA streams cannot be used: {why}");
            Error::invalid(
                what,
                "give NULL or a handle that cclHostStreamCreate has returned and that was not destroyed",
            )
        }
        _ => error,
    })
}

/// Bits of an address of a program.
const STREAMS_BITS: u32 = 48;

fn existing(stream: cclStream_t) -> Result<Arc<Stream>> {
    let handle = stream as usize;
    let slot = STREAMS.find(handle)?;
    let found = slot.held.0.lock().clone();
    slot.check(handle, &STREAMS)?;
    found.ok_or_else(|| STREAMS.foreign(handle))
}

/// Makes an ordered queue of calls on host memory. It has a thread, which sleeps while there is nothing to do.
///
/// # Safety
/// `stream` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclHostStreamCreate(stream: *mut cclStream_t) -> cclResult_t {
    guard(|| {
        // SAFETY: the function's contract.
        unsafe { store(stream, std::ptr::null_mut(), "stream")? };
        let made = Arc::new(Stream::new()?);
        let handle = STREAMS.insert(|held| drop(held.set(Some(made))))?;
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { stream.write(handle as cclStream_t) };
        Ok(())
    })
}

/// Waits until the stream's calls are over and frees it; reports the first error that was not reported before.
#[unsafe(no_mangle)]
pub extern "C" fn cclHostStreamDestroy(stream: cclStream_t) -> cclResult_t {
    guard(|| {
        let handle = stream as usize;
        let slot = STREAMS.slot(handle)?;
        if !slot.retire(handle) {
            return Err(STREAMS.foreign(handle));
        }
        let stream = slot.held.set(None);
        STREAMS.release(slot);
        // A call that another thread issues at this moment keeps the stream until it is over.
        stream.map_or(Ok(()), |stream| stream.synchronize())
    })
}

/// Whether the stream's calls are over: `cclSuccess`, `cclInProgress`, or the first error, which stays.
#[unsafe(no_mangle)]
pub extern "C" fn cclHostStreamQuery(stream: cclStream_t) -> cclResult_t {
    guard_code(|| existing(stream)?.query().map(finished))
}

/// Waits until all calls that were issued on the stream are over; reports the first error, and only once.
#[unsafe(no_mangle)]
pub extern "C" fn cclHostStreamSynchronize(stream: cclStream_t) -> cclResult_t {
    guard(|| existing(stream)?.synchronize())
}

/// `cclHostStreamSynchronize` for at most `timeout_ms` milliseconds, after which it gives `cclInProgress`.
#[unsafe(no_mangle)]
pub extern "C" fn cclHostStreamWait(stream: cclStream_t, timeout_ms: c_int) -> cclResult_t {
    guard_code(|| {
        let limit = u64::try_from(timeout_ms)
            .map_err(|_| Error::invalid(format!("timeout_ms = {timeout_ms}"), "give milliseconds from 0"))?;
        existing(stream)?.wait(Duration::from_millis(limit)).map(finished)
    })
}

/// A function of the program's that a stream calls, and what it is given.
#[derive(Clone, Copy)]
struct Callback {
    function: extern "C" fn(cclResult_t, *mut c_void),
    data: *mut c_void,
}

// SAFETY: the program has said that the stream's thread may call it so.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self, result: Result<()>) {
        let code = result.map_or_else(|error| result::failed(&error), |()| cclResult_t::cclSuccess);
        (self.function)(code, self.data);
    }
}

/// Has the stream's thread call `callback` when the calls that were issued on the stream before are over. It is given `data`
/// and how the calls since the last callback ended: their first error, whose words `cclGetLastError(NULL)` has
/// inside of the callback. What was issued after waits until it returns. Once this has returned `cclSuccess`, the callback is
/// called exactly once, whatever happens to the stream and its communicators (not in NCCL; `cudaLaunchHostFunc` is alike).
///
/// # Safety
/// `callback` is NULL, or may be called with `data` by another thread. It does not throw, and does not wait for the
/// stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclHostStreamAddCallback(
    stream: cclStream_t,
    callback: Option<extern "C" fn(result: cclResult_t, data: *mut c_void)>,
    data: *mut c_void,
) -> cclResult_t {
    guard(|| {
        let stream = existing(stream)?;
        let function =
            callback.ok_or_else(|| Error::invalid("callback is NULL", "give the address of a function"))?;
        let callback = Callback { function, data };
        stream.submit_callback(move |result| callback.call(result));
        Ok(())
    })
}

fn finished(is: bool) -> cclResult_t {
    if is { cclResult_t::cclSuccess } else { cclResult_t::cclInProgress }
}
