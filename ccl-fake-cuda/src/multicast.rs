//! Memory that stands for that of several devices: what a driver refuses, and where it would wait for ever.
//!
//! An object of the real driver waits in `cuMulticastBindMem` and in `cuMemMap` until all of its devices were added. Here that is refused, and
//! counted as `would wait`.

use crate::ffi::Backing;
use crate::ffi::multicast::{self, DEVICES, Object};
use crate::virtual_memory::VirtualMemory;
use crate::world::{Outcome, World, code};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All sizes and places of multicast memory are multiples of this.
pub(crate) const GRAIN: usize = 2 << 20;

/// Attribute: whether a device has it.
const SUPPORTED: i32 = 132;

/// Memory that is bound, of which device, where.
struct Bound {
    object: Arc<Object>,
    device: u32,
    at: usize,
    bytes: usize,
    /// By its descriptor all processes find it.
    _backing: Arc<Backing>,
}

/// What there is of it.
#[derive(Default)]
pub(crate) struct Multicasts {
    /// Handles that are held.
    held: BTreeMap<u64, Arc<Object>>,
    /// Memory that this process has bound.
    bound: Vec<Bound>,
    /// Addresses at which objects are mapped, and how many bytes.
    mapped: BTreeMap<u64, usize>,
    /// Those of them that no device may touch yet.
    waiting: BTreeMap<u64, Arc<Object>>,
}

impl Multicasts {
    pub(crate) fn live(&self) -> usize {
        self.held.len() + self.bound.len() + self.mapped.len()
    }

    pub(crate) fn find(&self, handle: u64) -> Option<&Arc<Object>> {
        self.held.get(&handle)
    }

    pub(crate) fn release(&mut self, handle: u64) -> bool {
        self.held.remove(&handle).is_some()
    }

    pub(crate) fn is_mapped(&self, at: u64) -> bool {
        self.mapped.contains_key(&at)
    }
}

impl VirtualMemory {
    /// Holds an object.
    pub(crate) fn hold_object(&mut self, object: Object) -> u64 {
        let handle = self.fresh();
        self.multicasts.held.insert(handle, Arc::new(object));
        handle
    }
}

impl World {
    pub(crate) fn need_multicast(&self, device: u32) -> Outcome {
        if self.says(device, SUPPORTED) == Some(1) { Ok(()) } else { Err(code::NOT_SUPPORTED) }
    }

    fn object(&self, handle: u64) -> Outcome<Arc<Object>> {
        self.virtual_memory.multicasts.find(handle).cloned().ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn create_multicast(&mut self, devices: u32, bytes: usize) -> Outcome<u64> {
        let is_good = (1..=DEVICES as u32).contains(&devices) && bytes > 0 && bytes.is_multiple_of(GRAIN);
        let object = is_good.then(|| Object::new(devices, bytes)).ok_or(code::INVALID_VALUE)?;
        Ok(self.virtual_memory.hold_object(object.ok_or(code::OUT_OF_MEMORY)?))
    }

    pub(crate) fn add_to_multicast(&mut self, handle: u64, device: u32) -> Outcome {
        self.need_multicast(device)?;
        if self.object(handle)?.add(device) { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    /// Refuses what would wait for other devices.
    fn complete(&mut self, handle: u64) -> Outcome<Arc<Object>> {
        let object = self.object(handle)?;
        if object.is_complete() {
            return Ok(object);
        }
        self.count("would wait");
        Err(code::NOT_READY)
    }

    /// Binds so many bytes of an allocation, from a place on, to a place of an object: here all of both, once for each device.
    pub(crate) fn bind_multicast(
        &mut self,
        handle: u64,
        memory: u64,
        (at, from, bytes): (usize, usize, usize),
    ) -> Outcome {
        let object = self.complete(handle)?;
        let backing = Arc::clone(self.virtual_memory.find(memory)?);
        let is_all = at == 0 && from == 0 && bytes == object.bytes() && bytes <= backing.len;
        if !is_all || !backing.is_exportable || !bytes.is_multiple_of(GRAIN) {
            return Err(code::INVALID_VALUE);
        }
        let name = backing.name().ok_or(code::OUT_OF_MEMORY)?;
        if !object.bind(backing.device, name) {
            return Err(code::INVALID_VALUE);
        }
        let device = backing.device;
        let bound = Bound { object, device, at, bytes, _backing: backing };
        self.virtual_memory.multicasts.bound.push(bound);
        Ok(())
    }

    pub(crate) fn unbind_multicast(&mut self, handle: u64, device: u32, place: (usize, usize)) -> Outcome {
        let object = self.object(handle)?;
        let bound = &mut self.virtual_memory.multicasts.bound;
        let is_it = |one: &Bound| {
            Arc::ptr_eq(&one.object, &object) && one.device == device && (one.at, one.bytes) == place
        };
        let found = bound.iter().position(is_it).ok_or(code::INVALID_VALUE)?;
        if !object.unbind(device) {
            return Err(code::INVALID_VALUE);
        }
        bound.swap_remove(found);
        Ok(())
    }

    /// Maps all of an object to all of a range.
    pub(crate) fn map_multicast(&mut self, at: u64, len: usize, handle: u64) -> Outcome {
        let object = self.complete(handle)?;
        let is_free = self.virtual_memory.has_range(at, len) && !self.virtual_memory.multicasts.is_mapped(at);
        if !is_free || len != object.bytes() || !(at as usize).is_multiple_of(GRAIN) {
            return Err(code::INVALID_VALUE);
        }
        self.virtual_memory.multicasts.mapped.insert(at, len);
        self.virtual_memory.multicasts.waiting.insert(at, object);
        Ok(())
    }

    /// Lets a device store there.
    pub(crate) fn allow_multicast(&mut self, at: u64, len: usize, device: u32) -> Outcome {
        self.need_multicast(device)?;
        let multicasts = &mut self.virtual_memory.multicasts;
        if multicasts.mapped.get(&at) != Some(&len) {
            return Err(code::INVALID_VALUE);
        }
        if let Some(object) = multicasts.waiting.remove(&at) {
            multicast::show(at, &object);
        }
        Ok(())
    }

    pub(crate) fn unmap_multicast(&mut self, at: u64, len: usize) -> Outcome {
        let multicasts = &mut self.virtual_memory.multicasts;
        if multicasts.mapped.get(&at) != Some(&len) {
            return Err(code::INVALID_VALUE);
        }
        multicasts.mapped.remove(&at);
        multicasts.waiting.remove(&at);
        multicast::hide(at);
        Ok(())
    }
}
