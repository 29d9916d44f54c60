//! Streams and events: what happens on a device after what.

use super::abi::*;
use super::context::Primary;
use super::memory::{DeviceMemory, Flags};
use crate::driver::Driver;
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::{Error, Result};
use std::ops::Range;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// A queue of work on a device: the caller's, or one of our own, which no default stream waits for.
pub struct Stream {
    primary: Arc<Primary>,
    stream: CUstream,
    is_own: bool,
}

// SAFETY: a stream is no thread's: the driver locks for itself.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new one.
    pub fn new(primary: &Arc<Primary>) -> Result<Stream> {
        let _entered = primary.enter()?;
        let mut stream = null_mut();
        // SAFETY: room for a handle.
        let code = unsafe { (primary.table().cuStreamCreate)(&mut stream, CU_STREAM_NON_BLOCKING) };
        primary.driver().check(code, || "cuStreamCreate".into())?;
        Ok(Stream { primary: Arc::clone(primary), stream, is_own: true })
    }

    /// The caller's, by its handle; NULL is the default stream of the device. It must be of the device's primary context.
    pub(crate) fn borrowed(primary: &Arc<Primary>, handle: usize) -> Result<Stream> {
        let handle = if handle == 0 { CU_STREAM_LEGACY } else { handle };
        let stream =
            Stream { primary: Arc::clone(primary), stream: without_provenance_mut(handle), is_own: false };
        if handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD {
            let context = Stream::context(primary.driver(), handle)?;
            if !primary.is(context) {
                return Err(Error::invalid(
                    format!(
                        "stream {handle:#x} is not of the primary context of device {}, where the buffers are",
                        primary.ordinal()
                    ),
                    "give a stream of the buffers' device, made with its primary context as cudaStreamCreate makes it",
                ));
            }
        }
        Ok(stream)
    }

    /// The context of the caller's stream.
    pub(super) fn context(driver: Driver, handle: usize) -> Result<CUcontext> {
        let mut context = null_mut();
        // SAFETY: room for a handle. That the stream is one the caller of the library vouches for: the C header says that
        // what is no host stream is taken as a CUDA stream.
        let code = unsafe { (driver.table.cuStreamGetCtx)(without_provenance_mut(handle), &mut context) };
        if code == CUDA_SUCCESS {
            return Ok(context);
        }
        // An error that is not about the stream is one of work before, which the driver tells whoever asks next.
        if !matches!(code, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_INVALID_HANDLE)
        {
            driver.check(code, || format!("cuStreamGetCtx of stream {handle:#x}"))?;
        }
        let (name, _) = driver.table.words(code);
        let what = format!("stream {handle:#x} is no stream: the CUDA driver says {name} ({code})");
        Err(Error::invalid(what, "give NULL, a stream from cclHostStreamCreate, or a CUDA stream"))
    }

    /// A number that no other stream of this process ever has.
    pub(crate) fn id(&self) -> Result<u64> {
        let _entered = self.primary.enter()?;
        let mut id = 0;
        // SAFETY: a stream that lives, and room for a number.
        let code = unsafe { (self.primary.table().cuStreamGetId)(self.stream, &mut id) };
        self.check(code, "cuStreamGetId")?;
        Ok(id)
    }

    pub(super) fn check(&self, code: CUresult, call: &str) -> Result<()> {
        self.primary.driver().check(code, || format!("{call} on device {}", self.primary.ordinal()))
    }

    /// Whether what is put on it now becomes part of a graph.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        let _entered = self.primary.enter()?;
        let mut status = 0;
        // SAFETY: a stream that lives, and room for a number.
        let code = unsafe { (self.primary.table().cuStreamIsCapturing)(self.stream, &mut status) };
        if code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.check(code, "cuStreamIsCapturing")?;
        Ok(status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Copies, when what was put on it before is done. Both stay where they are until that copy is done.
    pub(crate) fn copy(&self, from: Piece, to: PieceMut) -> Result<()> {
        assert!(from.len() == to.len(), "a piece is copied to one of another length");
        if from.is_empty() {
            return Ok(());
        }
        let _entered = self.primary.enter()?;
        let (into, of) = (to.as_mut_ptr().addr() as u64, from.as_ptr().addr() as u64);
        // SAFETY: who made the pieces vouches for the bytes, and that nobody else uses them meanwhile.
        let code = unsafe { (self.primary.table().cuMemcpyAsync)(into, of, from.len(), self.stream) };
        self.check(code, "cuMemcpyAsync")
    }

    /// Has it wait for what an event has recorded last.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: both live.
        self.check(
            unsafe { (self.primary.table().cuStreamWaitEvent)(self.stream, event.event, 0) },
            "cuStreamWaitEvent",
        )
    }

    /// Has it wait until a flag has reached a number, or passed it, counting round.
    pub(crate) fn wait_for(&self, flags: &Flags, index: usize, value: u32) -> Result<()> {
        let _entered = self.primary.enter()?;
        let how = CU_STREAM_WAIT_VALUE_GEQ;
        // SAFETY: a stream that lives, and a number in pinned memory, whose owner keeps it until the stream has passed.
        let code = unsafe {
            (self.primary.table().cuStreamWaitValue32)(self.stream, flags.address(index), value, how)
        };
        self.check(code, "cuStreamWaitValue32")
    }

    /// Whether all that was put on it is done.
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.primary.enter()?;
        // SAFETY: a stream that lives.
        done(unsafe { (self.primary.table().cuStreamQuery)(self.stream) }, |code| {
            self.check(code, "cuStreamQuery")
        })
    }

    /// Waits until all that was put on it is done.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: a stream that lives.
        self.check(unsafe { (self.primary.table().cuStreamSynchronize)(self.stream) }, "cuStreamSynchronize")
    }

    pub(crate) fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    pub(super) fn raw(&self) -> CUstream {
        self.stream
    }

    /// Fills memory with a byte, when what was put on it before is done.
    pub fn fill(&self, memory: &mut DeviceMemory, byte: u8) -> Result<()> {
        let _entered = self.primary.enter()?;
        let (at, len) = (memory.address() as u64, memory.len());
        // SAFETY: inside of memory that is borrowed exclusively; the driver frees it only when what is on streams is done.
        let code = unsafe { (self.primary.table().cuMemsetD8Async)(at, byte, len, self.stream) };
        self.check(code, "cuMemsetD8Async")
    }

    /// Fills a part of memory with zeros, when what was put on it before is done.
    pub(crate) fn clear(&self, memory: &mut DeviceMemory, part: Range<usize>) -> Result<()> {
        assert!(part.start <= part.end && part.end <= memory.len(), "cleared past the end");
        let _entered = self.primary.enter()?;
        let at = (memory.address() + part.start) as u64;
        // SAFETY: inside of memory that is borrowed exclusively; the driver frees it only when what is on streams is done.
        let code = unsafe { (self.primary.table().cuMemsetD8Async)(at, 0, part.len(), self.stream) };
        self.check(code, "cuMemsetD8Async")
    }

    /// Copies words between addresses of devices' and pinned memory, when what was put on it before is done. The caller vouches for
    /// both, as for what a kernel touches.
    pub(crate) fn copy_words(&self, from: u64, to: u64, count: usize) -> Result<()> {
        self.copy_bytes(from, to, 8 * count)
    }

    /// The same of bytes.
    pub(crate) fn copy_bytes(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: the caller vouches for the memory.
        let code = unsafe { (self.primary.table().cuMemcpyAsync)(to, from, bytes, self.stream) };
        self.check(code, "cuMemcpyAsync")
    }

    /// Its handle, as a program gives it to a call.
    pub fn handle(&self) -> usize {
        self.stream.addr()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (true, Ok(_entered)) = (self.is_own, self.primary.enter()) {
            // SAFETY: of our own, destroyed once; the driver finishes what is on it.
            unsafe { (self.primary.table().cuStreamDestroy)(self.stream) };
        }
    }
}

fn done(code: CUresult, check: impl FnOnce(CUresult) -> Result<()>) -> Result<bool> {
    if code == CUDA_ERROR_NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}

/// A place in a stream's work that others can wait for, or that has a time.
pub struct Event {
    primary: Arc<Primary>,
    event: CUevent,
}

// SAFETY: an event is no thread's: the driver locks for itself.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that is done: nothing was recorded.
    pub(crate) fn new(primary: &Arc<Primary>) -> Result<Event> {
        Event::with(primary, CU_EVENT_DISABLE_TIMING)
    }

    /// One that notes the time when it is reached.
    pub fn timed(primary: &Arc<Primary>) -> Result<Event> {
        Event::with(primary, CU_EVENT_DEFAULT)
    }

    fn with(primary: &Arc<Primary>, flags: u32) -> Result<Event> {
        let _entered = primary.enter()?;
        let mut event = null_mut();
        // SAFETY: room for a handle.
        let code = unsafe { (primary.table().cuEventCreate)(&mut event, flags) };
        primary.driver().check(code, || "cuEventCreate".into())?;
        Ok(Event { primary: Arc::clone(primary), event })
    }

    /// It now stands for all that was put on the stream so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: both live.
        stream.check(
            unsafe { (self.primary.table().cuEventRecord)(self.event, stream.stream) },
            "cuEventRecord",
        )
    }

    /// Milliseconds from this to a later one. Both were made with [`timed`](Event::timed), recorded, and are done.
    pub fn until(&self, later: &Event) -> Result<f32> {
        let _entered = self.primary.enter()?;
        let mut time = 0.0;
        // SAFETY: room for a number, and events that live.
        let code = unsafe { (self.primary.table().cuEventElapsedTime)(&mut time, self.event, later.event) };
        self.primary.driver().check(code, || "cuEventElapsedTime".into())?;
        Ok(time)
    }

    /// Whether that is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: an event that lives.
        let code = unsafe { (self.primary.table().cuEventQuery)(self.event) };
        let what = || format!("work on device {} that cuEventQuery was asked about", self.primary.ordinal());
        done(code, |code| self.primary.driver().check(code, what))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: of our own, destroyed once; the driver keeps what it still needs of it.
        unsafe { (self.primary.table().cuEventDestroy)(self.event) };
    }
}
