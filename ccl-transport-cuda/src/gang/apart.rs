//! A rank of a gang by itself: its memory is its own, and the others are elsewhere, in other processes too.
//!
//! All ranks lay their memory out alike, so that one address of each is all that they must know of the others.

use super::{Gang, GangError, Kernels, Shape, Streams, Work};
use crate::driver::Device;
use crate::program::Rule;
use crate::sharing::{Handle, Mapped};
use ccl_core::{Error, Result};

impl Gang {
    /// One rank, to [`join`](Gang::join) the others, which are made with the same `work`, `rule` and `shape`.
    ///
    /// Nothing promises that all of them are on their devices at once. Processes that share a device take turns on it, so that
    /// ranks which wait for each other do go on, but slowly.
    pub fn alone(
        device: &Device,
        kernels: &Kernels,
        streams: &Streams,
        work: Work<'_>,
        rule: &Rule,
        shape: &Shape,
        rank: usize,
    ) -> Result<Gang, GangError> {
        Gang::make(device, (kernels, streams), work, rule, shape, Some(rank))
    }

    /// What the others need of this rank: its memory. They must have [left](Gang::leave) when this is dropped.
    pub fn export(&self) -> Result<Handle> {
        self.memory.export()
    }

    /// Opens the memory of the others, given in the order of ranks, and fills its own. No rank may launch until all have done so.
    pub fn join(&mut self, handles: &[Handle]) -> Result<(), GangError> {
        let fits = |handle: &Handle| handle.len() == self.memory.len();
        if handles.len() != self.ranks() || !handles.iter().all(fits) {
            let what = format!("handles for a gang of {} ranks", self.ranks());
            let remedy = "give one of each rank, all made for the same call";
            return Err(Error::invalid(what, remedy).into());
        }
        self.leave()?;
        let mut bases = Vec::new();
        for (rank, handle) in handles.iter().enumerate() {
            if self.present.contains(&rank) {
                bases.push(self.memory.address() as u64);
                continue;
            }
            let mapped = Mapped::open(self.stream.primary(), handle)?;
            bases.push(mapped.address() as u64);
            self.mapped.push(mapped);
        }
        self.assemble(&bases)
    }

    /// Closes the memory of the others, when nothing of this rank runs any more.
    pub fn leave(&mut self) -> Result<()> {
        self.wait()?;
        self.mapped.clear();
        Ok(())
    }
}
