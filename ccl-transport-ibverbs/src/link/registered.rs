//! Memory of users that the network may use where it lies.

use super::adapter::Adapter;
use crate::verbs::{Extent, Region};
use ccl_core::kernels::Piece;
use ccl_core::transport::{KnownMemory, UserMemory};
use std::any::Any;
use std::sync::{Arc, Weak};

/// All memory that was registered with the transport, and what is known without.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    entries: Vec<Entry>,
    /// The one that the last piece was found in: calls mostly use one after the other of few.
    last: usize,
    known: Option<KnownMemory>,
    /// Its changes when it was looked through; none: never.
    seen: Option<u64>,
}

/// The regions go before what keeps the memory.
#[derive(Debug)]
struct Entry {
    /// By adapter.
    grants: Vec<Grant>,
    extent: Extent,
    memory: Memory,
}

/// Whose word it is that the memory is there.
#[derive(Debug)]
enum Memory {
    /// The user's who registered it, or what keeps it there.
    Registered(#[expect(dead_code, reason = "it is kept")] UserMemory),
    /// Its own: it is gone when this is not among what is known any more. Of another allocation at the same place the owner is another one.
    Known(Weak<dyn Any + Send + Sync>),
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
        self.push(memory, Memory::Registered(memory.clone()));
    }

    fn push(&mut self, memory: &UserMemory, word: Memory) {
        self.entries.push(Entry { grants: Vec::new(), extent: Extent::of(memory.piece), memory: word });
    }

    /// Takes back one registration of just these bytes.
    pub(crate) fn remove(&mut self, piece: Piece) {
        let extent = Extent::of(piece);
        let is_it = |entry: &Entry| entry.extent == extent && matches!(entry.memory, Memory::Registered(_));
        if let Some(at) = self.entries.iter().rposition(is_it) {
            self.entries.remove(at);
        }
    }

    /// This memory need not be registered.
    pub(crate) fn know(&mut self, memory: KnownMemory) {
        self.known = Some(memory);
    }

    /// Whether known memory has come or gone.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.known.is_some_and(|known| Some((known.changes)()) != self.seen)
    }

    /// Goes through what is known now; where memory has gone.
    #[cold]
    pub(crate) fn catch_up(&mut self) -> Vec<Extent> {
        let Some(known) = self.known else { return Vec::new() };
        // What changes from here on is seen the next time.
        self.seen = Some((known.changes)());
        let mut new = (known.all)();
        let mut gone = Vec::new();
        self.entries.retain(|entry| {
            let Memory::Known(owner) = &entry.memory else { return true };
            let is_owner = |memory: &UserMemory| memory.owner.as_ref().is_some_and(|o| same(owner, o));
            let still = new.iter().position(is_owner);
            match still {
                Some(at) => drop(new.swap_remove(at)),
                None => gone.push(entry.extent),
            }
            still.is_some()
        });
        for memory in &new {
            if let Some(owner) = &memory.owner {
                self.push(memory, Memory::Known(Arc::downgrade(owner)));
            }
        }
        gone
    }

    /// Devices do not touch any of it any more.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.known = None;
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

fn same(one: &Weak<dyn Any + Send + Sync>, other: &Arc<dyn Any + Send + Sync>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
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
                tracing::warn!(target: "net", %error, "calls on this memory go through slots");
                Grant::Refused
            }
        };
    }
}
