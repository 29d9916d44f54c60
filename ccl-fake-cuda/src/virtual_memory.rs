//! Memory and addresses that programs make apart, and bring together.

use crate::ffi::multicast::Object;
use crate::ffi::{Backing, Mapping, give_back, reserve};
use crate::multicast::Multicasts;
use crate::world::{Kind, Outcome, Region, World, code};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All of that memory has a multiple of this.
pub(crate) const GRAIN: usize = 1 << 16;

/// What there is of it.
#[derive(Default)]
pub(crate) struct VirtualMemory {
    /// Handles that are held.
    held: BTreeMap<u64, Arc<Backing>>,
    /// Addresses that are reserved.
    ranges: BTreeMap<u64, usize>,
    next: u64,
    /// What stands for memory of several devices.
    pub(crate) multicasts: Multicasts,
}

/// A mapping of such memory: what is behind it, and which devices may touch it.
pub(crate) struct Virtual {
    backing: Arc<Backing>,
    access: BTreeSet<u32>,
}

impl Virtual {
    pub(crate) fn is_closed(&self) -> bool {
        self.access.is_empty()
    }
}

impl VirtualMemory {
    /// Handles and ranges; mappings are counted as memory.
    pub(crate) fn live(&self) -> usize {
        self.held.len() + self.ranges.len() + self.multicasts.live()
    }

    /// A new handle.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next += 1;
        0xa110_c000_0000 + self.next
    }

    /// Whether these addresses are reserved.
    pub(crate) fn has_range(&self, at: u64, len: usize) -> bool {
        self.ranges.get(&at) == Some(&len)
    }

    fn hold(&mut self, backing: Arc<Backing>) -> u64 {
        let handle = self.fresh();
        self.held.insert(handle, backing);
        handle
    }

    pub(crate) fn create(&mut self, len: usize, device: u32, is_exportable: bool) -> Outcome<u64> {
        if len == 0 || !len.is_multiple_of(GRAIN) {
            return Err(code::INVALID_VALUE);
        }
        let backing = Backing::new(len, device, is_exportable).ok_or(code::OUT_OF_MEMORY)?;
        Ok(self.hold(Arc::new(backing)))
    }

    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        let was_held = self.held.remove(&handle).is_some() || self.multicasts.release(handle);
        if was_held { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    pub(crate) fn find(&self, handle: u64) -> Outcome<&Arc<Backing>> {
        self.held.get(&handle).ok_or(code::INVALID_VALUE)
    }

    /// A descriptor, which is the program's.
    pub(crate) fn export(&self, handle: u64) -> Outcome<i32> {
        if let Some(object) = self.multicasts.find(handle) {
            return object.descriptor().ok_or(code::OUT_OF_MEMORY);
        }
        let backing = self.find(handle)?;
        if !backing.is_exportable {
            return Err(code::INVALID_VALUE);
        }
        backing.descriptor().ok_or(code::OUT_OF_MEMORY)
    }

    pub(crate) fn import(&mut self, descriptor: i32) -> Outcome<u64> {
        if let Some(object) = Object::open(descriptor) {
            return Ok(self.hold_object(object));
        }
        let backing = Backing::of(descriptor).ok_or(code::INVALID_VALUE)?;
        Ok(self.hold(Arc::new(backing)))
    }

    pub(crate) fn reserve(&mut self, len: usize, alignment: usize) -> Outcome<u64> {
        if len == 0 || !len.is_multiple_of(GRAIN) {
            return Err(code::INVALID_VALUE);
        }
        let at = reserve(len, alignment.max(GRAIN)).ok_or(code::OUT_OF_MEMORY)? as u64;
        self.ranges.insert(at, len);
        Ok(at)
    }
}

impl World {
    /// Gives addresses back, at which nothing is mapped.
    pub(crate) fn unreserve(&mut self, at: u64, len: usize) -> Outcome {
        let is_mapped = self.memory.contains_key(&at) || self.virtual_memory.multicasts.is_mapped(at);
        if !self.virtual_memory.has_range(at, len) || is_mapped {
            return Err(code::INVALID_VALUE);
        }
        self.virtual_memory.ranges.remove(&at);
        give_back(at as usize, len);
        Ok(())
    }

    /// Maps all of an allocation to all of a range.
    pub(crate) fn map(&mut self, at: u64, len: usize, handle: u64) -> Outcome {
        if self.virtual_memory.multicasts.find(handle).is_some() {
            return self.map_multicast(at, len, handle);
        }
        let backing = Arc::clone(self.virtual_memory.find(handle)?);
        let is_range = self.virtual_memory.ranges.get(&at) == Some(&len) && !self.memory.contains_key(&at);
        if !is_range || backing.len != len {
            return Err(code::INVALID_VALUE);
        }
        let mapping = Mapping::at(at as usize, &backing).ok_or(code::OUT_OF_MEMORY)?;
        let kind = Kind::Device(backing.device);
        let behind = Virtual { backing, access: BTreeSet::new() };
        let region = Region { kind, mapping: Arc::new(mapping), import: None, behind: Some(behind) };
        self.memory.insert(at, region);
        Ok(())
    }

    pub(crate) fn unmap(&mut self, at: u64, len: usize) -> Outcome {
        if self.virtual_memory.multicasts.is_mapped(at) {
            return self.unmap_multicast(at, len);
        }
        let region = self.memory.get(&at).filter(|region| region.behind.is_some());
        region.filter(|region| region.mapping.len() == len).ok_or(code::INVALID_VALUE)?;
        self.memory.remove(&at);
        Ok(())
    }

    /// Lets a device touch a mapping.
    pub(crate) fn allow(&mut self, at: u64, len: usize, device: u32) -> Outcome {
        if device >= self.devices {
            return Err(code::INVALID_DEVICE);
        }
        if self.virtual_memory.multicasts.is_mapped(at) {
            return self.allow_multicast(at, len, device);
        }
        let (is_hidden, no_peers) = (self.hides(), self.no_peers);
        let region = self.memory.get_mut(&at).filter(|region| region.mapping.len() == len);
        let behind = region.and_then(|region| Some((&region.mapping, region.behind.as_mut()?)));
        let (mapping, behind) = behind.ok_or(code::INVALID_VALUE)?;
        if device != behind.backing.device && no_peers {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        behind.access.insert(device);
        if !is_hidden {
            mapping.show();
        }
        Ok(())
    }

    /// Holds what is mapped at an address.
    pub(crate) fn hold_at(&mut self, at: u64) -> Outcome<u64> {
        let (start, region) = self.memory.range(..=at).next_back().ok_or(code::INVALID_VALUE)?;
        let is_inside = at - start < region.mapping.len() as u64;
        let behind = region.behind.as_ref().filter(|_| is_inside).ok_or(code::INVALID_VALUE)?;
        let backing = Arc::clone(&behind.backing);
        Ok(self.virtual_memory.hold(backing))
    }
}
