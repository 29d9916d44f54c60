//! The driver's functions for memory and addresses that are made apart.

use super::functions::give;
use super::{call, current};
use crate::virtual_memory::GRAIN;
use crate::world::{Outcome, code};
use libc::{c_int, size_t};

/// A kind of place, and the number of a device.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// What is to be made.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct About {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) windows: u64,
    pub(super) flags: [u8; 8],
}

/// Who may do what.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Access {
    pub(super) location: Location,
    pub(super) flags: c_int,
}

/// The kind of a place that is a device; of memory that is pinned; and of handles that are file descriptors.
const DEVICE: c_int = 1;
const PINNED: c_int = 1;
const DESCRIPTOR: c_int = 1;
const READ_AND_WRITE: c_int = 3;

/// The device of a place.
fn device(location: Location) -> Outcome<u32> {
    if location.kind == DEVICE { Ok(location.id as u32) } else { Err(code::INVALID_VALUE) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    len: size_t,
    about: *const About,
    flags: u64,
) -> c_int {
    call("cuMemCreate", |world| {
        // SAFETY: as the caller vouches.
        let about = unsafe { about.read() };
        let device = device(about.location)?;
        if flags != 0 || about.kind != PINNED || device >= world.devices {
            return Err(code::INVALID_VALUE);
        }
        let made = world.virtual_memory.create(len, device, about.handle_types & DESCRIPTOR != 0)?;
        // SAFETY: as the caller vouches.
        unsafe { give(handle, made) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRelease(handle: u64) -> c_int {
    call("cuMemRelease", |world| world.virtual_memory.release(handle))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAllocationGranularity(
    grain: *mut size_t,
    about: *const About,
    _option: c_int,
) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuMemGetAllocationGranularity", |_| unsafe {
        device(about.read().location)?;
        give(grain, GRAIN)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAddressReserve(
    at: *mut u64,
    len: size_t,
    alignment: size_t,
    _wish: u64,
    flags: u64,
) -> c_int {
    call("cuMemAddressReserve", |world| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let reserved = world.virtual_memory.reserve(len, alignment)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, reserved) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAddressFree(at: u64, len: size_t) -> c_int {
    call("cuMemAddressFree", |world| world.unreserve(at, len))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemMap(
    at: u64,
    len: size_t,
    offset: size_t,
    handle: u64,
    flags: u64,
) -> c_int {
    call("cuMemMap", |world| {
        if flags != 0 || offset != 0 {
            return Err(code::INVALID_VALUE);
        }
        world.map(at, len, handle)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemUnmap(at: u64, len: size_t) -> c_int {
    call("cuMemUnmap", |world| world.unmap(at, len))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemSetAccess(
    at: u64,
    len: size_t,
    access: *const Access,
    count: size_t,
) -> c_int {
    call("cuMemSetAccess", |world| {
        (0..count).try_for_each(|place| {
            // SAFETY: as the caller vouches.
            let access = unsafe { access.add(place).read() };
            if access.flags != READ_AND_WRITE {
                return Err(code::INVALID_VALUE);
            }
            world.allow(at, len, device(access.location)?)
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut u64,
    at: *mut libc::c_void,
) -> c_int {
    call("cuMemRetainAllocationHandle", |world| {
        let held = world.hold_at(at.addr() as u64)?;
        // SAFETY: as the caller vouches.
        unsafe { give(handle, held) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    about: *mut About,
    handle: u64,
) -> c_int {
    call("cuMemGetAllocationPropertiesFromHandle", |world| {
        let backing = world.virtual_memory.find(handle)?;
        let (location, handle_types) =
            (Location { kind: DEVICE, id: backing.device as c_int }, c_int::from(backing.is_exportable));
        let known = About { kind: PINNED, handle_types, location, windows: 0, flags: [0; 8] };
        // SAFETY: as the caller vouches.
        unsafe { give(about, known) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemExportToShareableHandle(
    into: *mut c_int,
    handle: u64,
    kind: c_int,
    flags: u64,
) -> c_int {
    call("cuMemExportToShareableHandle", |world| {
        if kind != DESCRIPTOR || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let descriptor = world.virtual_memory.export(handle)?;
        // SAFETY: as the caller vouches.
        unsafe { give(into, descriptor) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut u64,
    given: *mut libc::c_void,
    kind: c_int,
) -> c_int {
    call("cuMemImportFromShareableHandle", |world| {
        world.device_of(current()?)?;
        if kind != DESCRIPTOR {
            return Err(code::INVALID_VALUE);
        }
        let imported = world.virtual_memory.import(given.addr() as i32)?;
        // SAFETY: as the caller vouches.
        unsafe { give(handle, imported) }
    })
}
