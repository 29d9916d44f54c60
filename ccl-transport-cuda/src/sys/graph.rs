//! Graphs: work that a stream has recorded, to be launched as often as one likes.

use super::abi::*;
use super::context::Primary;
use super::ordering::Stream;
use ccl_core::Result;
use libc::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// While it lives, this thread may do what a capture anywhere would forbid: work on streams of our own, which no graph records.
pub(crate) struct Relaxed {
    primary: Arc<Primary>,
    before: c_int,
}

impl Relaxed {
    pub(crate) fn new(primary: &Arc<Primary>) -> Result<Relaxed> {
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a number to be swapped.
        let code = unsafe { (primary.table().cuThreadExchangeStreamCaptureMode)(&mut mode) };
        primary.driver().check(code, || "cuThreadExchangeStreamCaptureMode".into())?;
        Ok(Relaxed { primary: Arc::clone(primary), before: mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above. It cannot fail with a mode that the driver has given.
        unsafe { (self.primary.table().cuThreadExchangeStreamCaptureMode)(&mut self.before) };
    }
}

/// Recorded work, ready to be launched. What it uses must live as long.
pub struct Graph {
    primary: Arc<Primary>,
    ready: CUgraphExec,
}

// SAFETY: a graph is no thread's; the driver locks for itself.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `act` puts on the stream, and runs none of it.
    pub fn record(stream: &Stream, act: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let primary = stream.primary();
        let _entered = primary.enter()?;
        let table = primary.table();
        let mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream that lives.
        stream.check(unsafe { (table.cuStreamBeginCapture)(stream.raw(), mode) }, "cuStreamBeginCapture")?;
        let acted = act();
        let mut graph = null_mut();
        // SAFETY: a stream that records, and room for a handle.
        let ended = unsafe { (table.cuStreamEndCapture)(stream.raw(), &mut graph) };
        let ready = acted.and_then(|()| {
            stream.check(ended, "cuStreamEndCapture")?;
            let mut ready = null_mut();
            // SAFETY: a graph that was just recorded, and room for a handle.
            let code = unsafe { (table.cuGraphInstantiateWithFlags)(&mut ready, graph, 0) };
            stream.check(code, "cuGraphInstantiateWithFlags")?;
            Ok(Graph { primary: Arc::clone(primary), ready })
        });
        if !graph.is_null() {
            // SAFETY: of our own, destroyed once; what was made of it does not need it.
            unsafe { (table.cuGraphDestroy)(graph) };
        }
        ready
    }

    /// Runs all of it, when what was put on the stream before is done.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: both live.
        let code = unsafe { (self.primary.table().cuGraphLaunch)(self.ready, stream.raw()) };
        stream.check(code, "cuGraphLaunch")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_entered) = self.primary.enter() {
            // SAFETY: of our own, destroyed once; the driver finishes what runs.
            unsafe { (self.primary.table().cuGraphExecDestroy)(self.ready) };
        }
    }
}
