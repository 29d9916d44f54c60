//! The driver's functions for memory of other processes and devices.

use super::functions::{Handle, give};
use super::{call, current};
use crate::sharing;
use crate::world::code;
use libc::{c_int, c_uint, c_ulonglong, c_void, size_t};
use std::os::fd::IntoRawFd;

/// The flag that lets an opened handle's device be another one than the context's.
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// The driver's handle, which goes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcHandle {
    pub(super) bytes: [u8; 64],
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut size_t, at: u64) -> c_int {
    call("cuMemGetAddressRange", |world| {
        world.device_of(current()?)?;
        let (begin, size) = world.range(at)?;
        // SAFETY: as the caller vouches: writable where they are not null.
        unsafe {
            if !base.is_null() {
                give(base, begin)?;
            }
            if !len.is_null() {
                give(len, size)?;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcGetMemHandle(into: *mut IpcHandle, at: u64) -> c_int {
    call("cuIpcGetMemHandle", |world| {
        world.device_of(current()?)?;
        let bytes = world.export(at)?.bytes();
        // SAFETY: as the caller vouches.
        unsafe { give(into, IpcHandle { bytes }) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    at: *mut u64,
    handle: IpcHandle,
    flags: c_uint,
) -> c_int {
    call("cuIpcOpenMemHandle", |world| {
        let of = sharing::Handle::read(&handle.bytes).ok_or(code::INVALID_VALUE)?;
        let opened = world.import(of, current()?, flags & LAZY_ENABLE_PEER_ACCESS != 0)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, opened) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcCloseMemHandle(at: u64) -> c_int {
    call("cuIpcCloseMemHandle", |world| {
        world.device_of(current()?)?;
        world.close(at)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> c_int {
    call("cuDeviceCanAccessPeer", |world| {
        let reaches = world.reaches(device as u32, peer as u32)?;
        // SAFETY: as the caller vouches.
        unsafe { give(can, reaches.into()) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> c_int {
    call("cuCtxEnablePeerAccess", |world| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        world.enable_peer(current()?, peer.addr())
    })
}

/// The kind of handle that is a dma-buf's descriptor.
const DMA_BUF_FD: c_int = 1;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetHandleForAddressRange(
    into: *mut c_void,
    at: u64,
    len: size_t,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    call("cuMemGetHandleForAddressRange", |world| {
        world.device_of(current()?)?;
        if kind != DMA_BUF_FD || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let fd = world.give(at, len)?.into_raw_fd();
        // SAFETY: as the caller vouches: room for a descriptor.
        unsafe { give(into.cast(), fd) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    call("cuFlushGPUDirectRDMAWrites", |world| {
        let context = current()?;
        if target != 0 || ![100, 200].contains(&scope) {
            return Err(code::INVALID_VALUE);
        }
        world.flush(context)
    })
}
