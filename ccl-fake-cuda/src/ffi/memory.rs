//! The driver's functions for memory of a device and of the host: what it is, making it, and copies.

use super::functions::{Handle, give};
use super::{call, current, with};
use crate::world::{Kind, code};
use libc::{c_int, c_uint, c_void, size_t};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    data: *mut *mut c_void,
    at: u64,
) -> c_int {
    call("cuPointerGetAttributes", |world| {
        let kind = world.kind(at);
        for place in 0..count as usize {
            // SAFETY: as the caller vouches, and each has room for what it asks for.
            let (attribute, into) = unsafe { (attributes.add(place).read(), data.add(place).read()) };
            let value: u32 = match (attribute, kind) {
                (2, None) => 0,
                (2, Some(Kind::Pinned)) => 1,
                (2, Some(_)) => 2,
                (8, _) => u32::from(kind == Some(Kind::Managed)),
                (9, Some(Kind::Device(ordinal))) => ordinal,
                (9, Some(_)) => 0,
                (9, None) => u32::MAX - 1,
                _ => return Err(code::INVALID_VALUE),
            };
            // SAFETY: as above. One is a byte.
            unsafe {
                if attribute == 8 {
                    into.cast::<u8>().write(value as u8)
                } else {
                    into.cast::<u32>().write(value)
                }
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: size_t) -> c_int {
    call("cuMemAlloc", |world| {
        let device = world.device_of(current()?)?;
        let made = world.alloc(Kind::Device(device), len)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, made) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFree_v2(at: u64) -> c_int {
    call("cuMemFree", |world| world.free(at, false))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostAlloc(at: *mut Handle, len: size_t, _flags: c_uint) -> c_int {
    let before =
        with(|world| current().map(|context| world.awaited_by_allocations(context)).unwrap_or_default());
    before.iter().for_each(|stream| stream.synchronize());
    call("cuMemHostAlloc", |world| {
        world.device_of(current()?)?;
        let made = world.alloc(Kind::Pinned, len)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, std::ptr::with_exposed_provenance_mut(made as usize)) }
    })
}

/// For tests: the library has no use for such memory.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocManaged(at: *mut u64, len: size_t, _flags: c_uint) -> c_int {
    call("cuMemAllocManaged", |world| {
        world.device_of(current()?)?;
        let made = world.alloc(Kind::Managed, len)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, made) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    at: *mut u64,
    host: Handle,
    _flags: c_uint,
) -> c_int {
    call("cuMemHostGetDevicePointer", |world| match world.kind(host.addr() as u64) {
        // SAFETY: as the caller vouches.
        Some(Kind::Pinned) => unsafe { give(at, host.addr() as u64) },
        _ => Err(code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeHost(at: Handle) -> c_int {
    call("cuMemFreeHost", |world| world.free(at.addr() as u64, true))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: size_t) -> c_int {
    call("cuMemcpyHtoD", |world| {
        world.device_of(current()?)?;
        let (_, span) = world.find(to, len).ok_or(code::INVALID_VALUE)?;
        // SAFETY: as the caller vouches.
        span.mapping.write(span.offset, unsafe { std::slice::from_raw_parts(from.cast(), len) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: size_t) -> c_int {
    call("cuMemcpyDtoH", |world| {
        world.device_of(current()?)?;
        let (_, span) = world.find(from, len).ok_or(code::INVALID_VALUE)?;
        // SAFETY: as the caller vouches.
        span.mapping.read(span.offset, unsafe { std::slice::from_raw_parts_mut(to.cast(), len) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: size_t, stream: Handle) -> c_int {
    let mut awaited = None;
    let code = call("cuMemcpyAsync", |world| {
        let work = world.copy(to, from, len)?;
        world.submit(stream.addr(), current()?, work)?;
        if !world.is_on_device(to) && !world.is_on_device(from) {
            awaited = Some(world.stream(stream.addr(), current()?)?);
        }
        Ok(())
    });
    // As the manual says: from host memory to host memory it waits for all that is on the stream.
    if let Some(stream) = awaited {
        stream.synchronize();
    }
    code
}
