//! The driver's functions.

use super::launching::*;
use super::naming::*;
use super::sharing::*;
use super::{CONTEXTS, call, current, with};
use crate::work::Work;
use crate::world::{Kind, Outcome, code};
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
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    call("cuDeviceGetAttribute", |world| {
        let known = match attribute {
            _ if world.attributes.contains_key(&attribute) => world.attributes[&attribute],
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

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
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
unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: size_t) -> c_int {
    call("cuMemAlloc", |world| {
        let device = world.device_of(current()?)?;
        let made = world.alloc(Kind::Device(device), len)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, made) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(at: u64) -> c_int {
    call("cuMemFree", |world| world.free(at, false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(at: *mut Handle, len: size_t, _flags: c_uint) -> c_int {
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
unsafe extern "C" fn cuMemAllocManaged(at: *mut u64, len: size_t, _flags: c_uint) -> c_int {
    call("cuMemAllocManaged", |world| {
        world.device_of(current()?)?;
        let made = world.alloc(Kind::Managed, len)?;
        // SAFETY: as the caller vouches.
        unsafe { give(at, made) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(at: *mut u64, host: Handle, _flags: c_uint) -> c_int {
    call("cuMemHostGetDevicePointer", |world| match world.kind(host.addr() as u64) {
        // SAFETY: as the caller vouches.
        Some(Kind::Pinned) => unsafe { give(at, host.addr() as u64) },
        _ => Err(code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(at: Handle) -> c_int {
    call("cuMemFreeHost", |world| world.free(at.addr() as u64, true))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: size_t) -> c_int {
    call("cuMemcpyHtoD", |world| {
        world.device_of(current()?)?;
        let (_, span) = world.find(to, len).ok_or(code::INVALID_VALUE)?;
        // SAFETY: as the caller vouches.
        span.mapping.write(span.offset, unsafe { std::slice::from_raw_parts(from.cast(), len) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: size_t) -> c_int {
    call("cuMemcpyDtoH", |world| {
        world.device_of(current()?)?;
        let (_, span) = world.find(from, len).ok_or(code::INVALID_VALUE)?;
        // SAFETY: as the caller vouches.
        span.mapping.read(span.offset, unsafe { std::slice::from_raw_parts_mut(to.cast(), len) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: size_t, stream: Handle) -> c_int {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> c_int {
    call("cuStreamCreate", |world| {
        let context = current()?;
        let made = world.make_stream(context);
        // SAFETY: as the caller vouches.
        unsafe { give(stream, handle(made)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    call("cuStreamDestroy", |world| world.destroy_stream(stream.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> c_int {
    call("cuStreamGetCtx", |world| {
        let of = world.named_stream(stream.addr())?.context;
        // SAFETY: as the caller vouches.
        unsafe { give(context, handle(of)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int {
    call("cuStreamIsCapturing", |world| {
        world.stream(stream.addr(), current()?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(status, world.is_capturing(stream.addr()).into()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    call("cuStreamQuery", |world| {
        let is_done = world.stream(stream.addr(), current()?)?.is_done();
        if is_done { Ok(()) } else { Err(code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
    let mut found = None;
    let first = call("cuStreamSynchronize", |world| {
        found = Some(world.stream(stream.addr(), current()?)?);
        Ok(())
    });
    if let Some(stream) = found {
        stream.synchronize();
        // What went wrong meanwhile.
        return call("cuStreamSynchronize", |_| Ok(()));
    }
    first
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", |world| {
        let event = world.event(event.addr())?;
        let generation = event.recorded();
        world.submit(stream.addr(), current()?, Work::Wait { event, generation })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitValue32_v2(stream: Handle, at: u64, value: u32, flags: c_uint) -> c_int {
    call("cuStreamWaitValue32", |world| {
        let (_, at) = world.find(at, 4).filter(|_| flags == 0).ok_or(code::INVALID_VALUE)?;
        world.submit(stream.addr(), current()?, Work::WaitValue { at, value })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut Handle, _flags: c_uint) -> c_int {
    call("cuEventCreate", |world| {
        world.device_of(current()?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(event, handle(world.make_event())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    call("cuEventDestroy", |world| world.destroy_event(event.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: Handle) -> c_int {
    call(
        "cuEventQuery",
        |world| if world.event(event.addr())?.is_done() { Ok(()) } else { Err(code::NOT_READY) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    call("cuEventRecord", |world| {
        let event = world.event(event.addr())?;
        let generation = event.record();
        world.submit(stream.addr(), current()?, Work::Record { event, generation })
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
        "cuDeviceCanAccessPeer" = cuDeviceCanAccessPeer;
        "cuCtxEnablePeerAccess" = cuCtxEnablePeerAccess;
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
