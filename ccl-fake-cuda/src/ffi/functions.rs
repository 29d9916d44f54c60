//! The driver's functions by their names, and those for devices and contexts.

use super::launching::*;
use super::memory::*;
use super::multicast::*;
use super::naming::*;
use super::ordering::*;
use super::sharing::*;
use super::virtual_memory::*;
use super::{CONTEXTS, call, current, with};
use crate::world::{Outcome, code};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CStr;

pub(super) type Handle = *mut c_void;

/// # Safety
/// It is writable.
pub(super) unsafe fn give<T>(into: *mut T, value: T) -> Outcome {
    // SAFETY: as the caller vouches.
    unsafe { into.write(value) };
    Ok(())
}

pub(super) fn handle(number: usize) -> Handle {
    std::ptr::without_provenance_mut(number)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { version.write(with(|world| world.version)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(_flags: c_uint) -> c_int {
    with(|world| {
        world.begin("cuInit")?;
        if world.devices == 0 {
            return Err(code::NO_DEVICE);
        }
        world.is_initialized = true;
        Ok(())
    })
    .err()
    .unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuDeviceGetCount", |world| unsafe { give(count, world.devices as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    call("cuDeviceGet", |world| {
        if ordinal < 0 || ordinal as u32 >= world.devices {
            return Err(code::INVALID_DEVICE);
        }
        // SAFETY: as the caller vouches.
        unsafe { give(device, ordinal) }
    })
}

/// # Safety
/// There is so much room.
unsafe fn answer(text: String, into: *mut c_char, room: c_int) -> Outcome {
    let len = text.len().min((room as usize).saturating_sub(1));
    // SAFETY: as the caller vouches.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, len);
        into.add(len).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuDeviceGetName", |_| unsafe { answer(format!("Fake {device}"), name, room) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuDeviceGetPCIBusId", |_| unsafe { answer(format!("0000:{:02X}:00.0", device + 10), text, room) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuDeviceGetUuid", |_| unsafe { give(uuid, [device as u8; 16]) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", |world| {
        let known = match attribute {
            _ if world.says(device as u32, attribute).is_some() => {
                world.says(device as u32, attribute).unwrap_or_default()
            }
            16 => MULTIPROCESSORS as c_int,
            75 => 9,
            76 => 0,
            95 | 122 => 1,
            ..=140 => 0,
            _ => return Err(code::INVALID_VALUE),
        };
        // SAFETY: as the caller vouches.
        unsafe { give(value, known) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut size_t, _device: c_int) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuDeviceTotalMem", |_| unsafe { give(bytes, MEMORY) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", |world| {
        let retained = world.retain(device as u32)?;
        // SAFETY: as the caller vouches.
        unsafe { give(context, handle(retained)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease", |world| world.release(device as u32))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> c_int {
    call("cuCtxPushCurrent", |world| {
        world.device_of(context.addr())?;
        CONTEXTS.with_borrow_mut(|stack| stack.push(context.addr()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> c_int {
    call("cuCtxPopCurrent", |_| {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
        // SAFETY: as the caller vouches.
        unsafe { give(context, handle(popped)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuCtxGetCurrent", |_| unsafe { give(context, handle(current().unwrap_or(0))) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    call("cuDevicePrimaryCtxGetState", |world| {
        let is_active = world.is_retained(device as u32);
        // SAFETY: as the caller vouches.
        unsafe {
            give(flags, 0)?;
            give(active, is_active.into())
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    call("cuCtxGetDevice", |world| {
        let found = world.device_of(current()?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(device, found as c_int) }
    })
}

/// The functions by the names that they have in every version.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    at: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    _status: *mut c_int,
) -> c_int {
    macro_rules! find {
        ($wanted:expr, $($name:literal = $function:ident;)*) => {
            match $wanted {
                $($name => $function as *mut c_void,)*
                _ => std::ptr::null_mut(),
            }
        };
    }
    // SAFETY: as the caller vouches.
    let wanted = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = find! { &*wanted,
        "cuInit" = cuInit;
        "cuGetErrorName" = cuGetErrorName;
        "cuGetErrorString" = cuGetErrorString;
        "cuDeviceGetCount" = cuDeviceGetCount;
        "cuDeviceGet" = cuDeviceGet;
        "cuDeviceGetName" = cuDeviceGetName;
        "cuDeviceGetUuid" = cuDeviceGetUuid_v2;
        "cuDeviceGetPCIBusId" = cuDeviceGetPCIBusId;
        "cuDeviceGetAttribute" = cuDeviceGetAttribute;
        "cuDeviceTotalMem" = cuDeviceTotalMem_v2;
        "cuDevicePrimaryCtxRetain" = cuDevicePrimaryCtxRetain;
        "cuDevicePrimaryCtxRelease" = cuDevicePrimaryCtxRelease_v2;
        "cuCtxPushCurrent" = cuCtxPushCurrent_v2;
        "cuCtxPopCurrent" = cuCtxPopCurrent_v2;
        "cuCtxGetCurrent" = cuCtxGetCurrent;
        "cuCtxGetDevice" = cuCtxGetDevice;
        "cuDevicePrimaryCtxGetState" = cuDevicePrimaryCtxGetState;
        "cuThreadExchangeStreamCaptureMode" = cuThreadExchangeStreamCaptureMode;
        "cuMemGetAddressRange" = cuMemGetAddressRange_v2;
        "cuIpcGetMemHandle" = cuIpcGetMemHandle;
        "cuIpcOpenMemHandle" = cuIpcOpenMemHandle_v2;
        "cuIpcCloseMemHandle" = cuIpcCloseMemHandle;
        "cuMulticastCreate" = cuMulticastCreate;
        "cuMulticastAddDevice" = cuMulticastAddDevice;
        "cuMulticastBindMem" = cuMulticastBindMem;
        "cuMulticastUnbind" = cuMulticastUnbind;
        "cuMulticastGetGranularity" = cuMulticastGetGranularity;
        "cuMemCreate" = cuMemCreate;
        "cuMemRelease" = cuMemRelease;
        "cuMemGetAllocationGranularity" = cuMemGetAllocationGranularity;
        "cuMemAddressReserve" = cuMemAddressReserve;
        "cuMemAddressFree" = cuMemAddressFree;
        "cuMemMap" = cuMemMap;
        "cuMemUnmap" = cuMemUnmap;
        "cuMemSetAccess" = cuMemSetAccess;
        "cuMemRetainAllocationHandle" = cuMemRetainAllocationHandle;
        "cuMemGetAllocationPropertiesFromHandle" = cuMemGetAllocationPropertiesFromHandle;
        "cuMemExportToShareableHandle" = cuMemExportToShareableHandle;
        "cuMemImportFromShareableHandle" = cuMemImportFromShareableHandle;
        "cuDeviceCanAccessPeer" = cuDeviceCanAccessPeer;
        "cuCtxEnablePeerAccess" = cuCtxEnablePeerAccess;
        "cuMemGetHandleForAddressRange" = cuMemGetHandleForAddressRange;
        "cuFlushGPUDirectRDMAWrites" = cuFlushGPUDirectRDMAWrites;
        "cuPointerGetAttributes" = cuPointerGetAttributes;
        "cuMemAlloc" = cuMemAlloc_v2;
        "cuMemFree" = cuMemFree_v2;
        "cuMemHostAlloc" = cuMemHostAlloc;
        "cuMemHostGetDevicePointer" = cuMemHostGetDevicePointer_v2;
        "cuMemFreeHost" = cuMemFreeHost;
        "cuMemcpyHtoD" = cuMemcpyHtoD_v2;
        "cuMemcpyDtoH" = cuMemcpyDtoH_v2;
        "cuMemcpyAsync" = cuMemcpyAsync;
        "cuStreamCreate" = cuStreamCreate;
        "cuStreamDestroy" = cuStreamDestroy_v2;
        "cuStreamGetCtx" = cuStreamGetCtx;
        "cuStreamGetId" = cuStreamGetId;
        "cuStreamIsCapturing" = cuStreamIsCapturing;
        "cuStreamQuery" = cuStreamQuery;
        "cuStreamSynchronize" = cuStreamSynchronize;
        "cuStreamWaitEvent" = cuStreamWaitEvent;
        "cuStreamWaitValue32" = cuStreamWaitValue32_v2;
        "cuEventCreate" = cuEventCreate;
        "cuEventDestroy" = cuEventDestroy_v2;
        "cuEventQuery" = cuEventQuery;
        "cuEventRecord" = cuEventRecord;
        "cuEventElapsedTime" = cuEventElapsedTime;
        "cuMemGetInfo" = cuMemGetInfo_v2;
        "cuMemsetD8Async" = cuMemsetD8Async;
        "cuModuleLoadDataEx" = cuModuleLoadDataEx;
        "cuModuleGetFunction" = cuModuleGetFunction;
        "cuModuleUnload" = cuModuleUnload;
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" = cuOccupancyMaxActiveBlocksPerMultiprocessor;
        "cuLaunchKernel" = cuLaunchKernel;
        "cuLaunchCooperativeKernel" = cuLaunchCooperativeKernel;
        "cuStreamBeginCapture" = cuStreamBeginCapture_v2;
        "cuStreamEndCapture" = cuStreamEndCapture;
        "cuGraphInstantiateWithFlags" = cuGraphInstantiateWithFlags;
        "cuGraphLaunch" = cuGraphLaunch;
        "cuGraphExecDestroy" = cuGraphExecDestroy;
        "cuGraphDestroy" = cuGraphDestroy;
    };
    let is_there = !found.is_null() && with(|world| world.has(&wanted) && version <= world.version);
    // SAFETY: as the caller vouches.
    unsafe { at.write(if is_there { found } else { std::ptr::null_mut() }) };
    if is_there { 0 } else { code::NOT_FOUND }
}
