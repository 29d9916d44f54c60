//! Memory of users that the network may use where it lies.

use super::adapter::Adapter;
use crate::verbs::{Extent, Region};
use ccl_core::simd::Piece;
use ccl_core::transport::UserMemory;

/// All memory that was registered with the transport.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    entries: Vec<Entry>,
    /// The one that the last piece was found in: calls mostly use one after the other of few.
    last: usize,
}

/// The regions go before what keeps the memory.
#[derive(Debug)]
struct Entry {
    /// By adapter.
    grants: Vec<Grant>,
    extent: Extent,
    /// What keeps it there.
    _memory: UserMemory,
}

/// Whether a device may use the memory.
#[derive(Debug)]
enum Grant {
    /// Nobody has wanted it to.
    Unasked,
    Given(Region),
    /// It cannot.
    Refused,
}

impl Registered {
    pub(crate) fn add(&mut self, memory: &UserMemory) {
        let extent = Extent::of(memory.piece);
        self.entries.push(Entry { grants: Vec::new(), extent, _memory: memory.clone() });
    }

    /// Takes back one registration of just these bytes.
    pub(crate) fn remove(&mut self, piece: Piece) {
        let extent = Extent::of(piece);
        if let Some(at) = self.entries.iter().rposition(|entry| entry.extent == extent) {
            self.entries.remove(at);
        }
    }

    /// Devices do not touch any of it any more.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The region of an adapter in which a piece lies, if it is registered there or can be.
    #[inline]
    pub(crate) fn find(&mut self, piece: Piece, adapter: usize, adapters: &[Adapter]) -> Option<&Region> {
        if self.entries.is_empty() {
            return None;
        }
        let extent = Extent::of(piece);
        let around = |entry: &Entry| entry.extent.covers(extent);
        if !self.entries.get(self.last).is_some_and(around) {
            self.last = self.entries.iter().position(around)?;
        }
        self.entries[self.last].region(adapter, adapters)
    }
}

impl Entry {
    fn region(&mut self, adapter: usize, adapters: &[Adapter]) -> Option<&Region> {
        if !matches!(self.grants.get(adapter), Some(Grant::Given(_) | Grant::Refused)) {
            self.ask(adapter, adapters);
        }
        match &self.grants[adapter] {
            Grant::Given(region) => Some(region),
            Grant::Unasked | Grant::Refused => None,
        }
    }

    #[cold]
    fn ask(&mut self, adapter: usize, adapters: &[Adapter]) {
        self.grants.resize_with(adapters.len(), || Grant::Unasked);
        self.grants[adapter] = match adapters[adapter].register_user(self.extent) {
            Ok(region) => Grant::Given(region),
            Err(error) => {
                tracing::warn!(target: "net", %error, "calls on registered memory go through slots");
                Grant::Refused
            }
        };
    }
}
