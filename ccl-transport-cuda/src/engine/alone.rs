//! What a rank has that is alone in its communicator: copies by the driver, in place of kernels.
//!
//! A collective of one rank takes its send buffer to its receive buffer, and so does a send to oneself. What scales its elements is left to a
//! kernel; so is what goes from pinned memory to pinned memory, since the driver makes such a copy at once, and its caller waits for all
//! that the stream has.

use super::Task;
use super::prepared::{Terms, rule};
use crate::driver::{Driver, Kind};
use crate::sys::Stream;
use ccl_core::Result;
use ccl_core::engine::Layout;
use ccl_core::kernels::Buffers;
use ccl_core::plan::Spec;

/// Bytes, by their addresses: from here to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: usize,
}

impl Copied {
    /// What a collective comes to on these buffers, which the device finds there, if it is a copy.
    pub(super) fn of(
        task: &Task,
        terms: &Terms,
        buffers: &Buffers<'_>,
        [input, output]: [u64; 2],
    ) -> Result<Option<Copied>> {
        let (Task::Even(call) | Task::Uneven(call, _)) = task else { return Ok(None) };
        if terms.placement.ranks > 1 || rule(call, terms)?.scales() {
            return Ok(None);
        }
        let spec = Spec::placed(call.collective, terms.placement, call.root, 1);
        let tile = terms.arena.links.slot_bytes;
        let layout = match task {
            Task::Uneven(_, blocks) => Layout::uneven(&spec, terms.rank, blocks, call.dtype, tile)?,
            _ => Layout::new(&spec, terms.rank, call.count, call.dtype, tile)?,
        };
        layout.check(buffers)?;
        let (from, to) = (layout.input_chunk(0), layout.output_chunk(0));
        let copy = Copied { from: input + from.start as u64, to: output + to.start as u64, bytes: to.len() };
        // Blocks that differ are no call: the kernel's program says so.
        Ok((from.len() == to.len()).then_some(copy))
    }

    fn is_nothing(&self) -> bool {
        self.bytes == 0 || self.from == self.to
    }

    /// Whether the driver makes it when the stream comes to it.
    pub(super) fn is_on_stream(&self, driver: Driver) -> Result<bool> {
        let is_on_device =
            |at: u64| Ok::<_, ccl_core::Error>(matches!(driver.kind(at as usize)?, Kind::Device(_)));
        Ok(self.is_nothing() || is_on_device(self.from)? || is_on_device(self.to)?)
    }

    /// Puts it on a stream.
    pub(super) fn put(&self, caller: &Stream) -> Result<()> {
        if self.is_nothing() {
            return Ok(());
        }
        caller.copy_bytes(self.from, self.to, self.bytes)
    }
}
