//! The driver's functions for streams and events: what happens after what.

use super::functions::{Handle, give, handle};
use super::{call, current};
use crate::work::Work;
use crate::world::code;
use libc::{c_int, c_uint};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> c_int {
    call("cuStreamCreate", |world| {
        let context = current()?;
        let made = world.make_stream(context);
        // SAFETY: as the caller vouches.
        unsafe { give(stream, handle(made)) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    call("cuStreamDestroy", |world| world.destroy_stream(stream.addr()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> c_int {
    call("cuStreamGetCtx", |world| {
        let of = world.named_stream(stream.addr())?.context;
        // SAFETY: as the caller vouches.
        unsafe { give(context, handle(of)) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetId(stream: Handle, id: *mut u64) -> c_int {
    call("cuStreamGetId", |world| {
        let (at, context) = (stream.addr(), current()?);
        world.stream(at, context)?;
        // No handle is given out twice; default streams are each context's.
        let of = if at <= 2 { 4 * context + at.max(1) } else { 4 * at };
        // SAFETY: as the caller vouches.
        unsafe { give(id, of as u64) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int {
    call("cuStreamIsCapturing", |world| {
        world.stream(stream.addr(), current()?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(status, world.is_capturing(stream.addr()).into()) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    call("cuStreamQuery", |world| {
        let is_done = world.stream(stream.addr(), current()?)?.is_done();
        if is_done { Ok(()) } else { Err(code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
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
pub(super) unsafe extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", |world| {
        let event = world.event(event.addr())?;
        let generation = event.recorded();
        world.submit(stream.addr(), current()?, Work::Wait { event, generation })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: Handle,
    at: u64,
    value: u32,
    flags: c_uint,
) -> c_int {
    call("cuStreamWaitValue32", |world| {
        let (_, at) = world.find(at, 4).filter(|_| flags == 0).ok_or(code::INVALID_VALUE)?;
        world.submit(stream.addr(), current()?, Work::WaitValue { at, value })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventCreate(event: *mut Handle, _flags: c_uint) -> c_int {
    call("cuEventCreate", |world| {
        world.device_of(current()?)?;
        // SAFETY: as the caller vouches.
        unsafe { give(event, handle(world.make_event())) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    call("cuEventDestroy", |world| world.destroy_event(event.addr()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventQuery(event: Handle) -> c_int {
    call(
        "cuEventQuery",
        |world| if world.event(event.addr())?.is_done() { Ok(()) } else { Err(code::NOT_READY) },
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    call("cuEventRecord", |world| {
        let event = world.event(event.addr())?;
        let generation = event.record();
        world.submit(stream.addr(), current()?, Work::Record { event, generation })
    })
}
