//! Domains, regions, address handles, channels, completion queues.

use super::device::key;
use super::{blank, dma_buf, fail, pointer, status, with};
use crate::abi::*;
use crate::world::{DmaBuf, Errno, World};
use libc::{c_int, c_uint, c_void, size_t};
use rustix::fd::AsRawFd;
use std::ptr::null_mut;

/// Takes one from a descriptor that counts; blocks if it was not told otherwise.
pub(super) fn take_one(fd: c_int) -> bool {
    let mut count = 0u64;
    // SAFETY: eight bytes of ours.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: an open context.
    let owner = unsafe { key(context) };
    match with(|world| world.alloc_pd(owner)) {
        Ok(handle) => Box::into_raw(Box::new(ibv_pd { context, handle })),
        Err(errno) => fail(errno, null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a live domain.
    let handle = unsafe { (*pd).handle };
    let freed = with(|world| world.dealloc_pd(handle));
    if freed.is_ok() {
        // SAFETY: boxed by ibv_alloc_pd.
        drop(unsafe { Box::from_raw(pd) });
    }
    status(freed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    at: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    let counted = |world: &mut World| world.call("reg_mr").map(|()| None);
    // SAFETY: a live domain.
    unsafe { register(pd, (at.addr() as u64, length), access.cast_unsigned(), counted) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    at: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != at.addr() as u64 {
        return fail(libc::EOPNOTSUPP, null_mut());
    }
    let counted = |world: &mut World| world.call("reg_mr_iova2").map(|()| None);
    // SAFETY: a live domain.
    unsafe { register(pd, (iova, length), access, counted) }
}

/// Takes what ccl-fake-cuda gives out as a dma-buf: a file with the memory's bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let mapped = with(|world| world.call("reg_dmabuf_mr")).and_then(|()| dma_buf::map(fd, offset, length));
    let mapped = match mapped {
        Ok(mapped) => mapped,
        Err(errno) => return fail(errno, null_mut()),
    };
    // SAFETY: a live domain.
    let mr = unsafe { register(pd, (iova, length), access.cast_unsigned(), |_| Ok(Some(mapped))) };
    if mr.is_null() {
        dma_buf::unmap(mapped);
    }
    mr
}

/// # Safety
/// A live domain.
unsafe fn register(
    pd: *mut ibv_pd,
    (start, length): (u64, size_t),
    access: u32,
    begin: impl FnOnce(&mut World) -> Result<Option<DmaBuf>, Errno>,
) -> *mut ibv_mr {
    // SAFETY: as the caller vouches.
    let (context, domain) = unsafe { ((*pd).context, (*pd).handle) };
    let registered = with(|world| {
        let dma_buf = begin(world)?;
        world.reg_mr(domain, (start, length as u64), access, dma_buf)
    });
    match registered {
        Ok(handle) => {
            let addr = pointer(start).cast();
            let mr = ibv_mr { context, pd, addr, length, handle, lkey: handle, rkey: handle };
            Box::into_raw(Box::new(mr))
        }
        Err(errno) => fail(errno, null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a live region, boxed by `register`.
    let mr = unsafe { Box::from_raw(mr) };
    let gone = with(|world| world.mrs.remove(&mr.handle));
    if let Some(mapped) = gone.and_then(|mr| mr.dma_buf) {
        dma_buf::unmap(mapped);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a live domain and the caller's struct.
    let (context, domain, attributes) = unsafe { ((*pd).context, (*pd).handle, &*attributes) };
    match with(|world| world.create_ah(domain, attributes)) {
        Ok(handle) => Box::into_raw(Box::new(ibv_ah { context, pd, handle })),
        Err(errno) => fail(errno, null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: a live handle, boxed by ibv_create_ah.
    let ah = unsafe { Box::from_raw(ah) };
    with(|world| world.ahs.remove(&ah.handle));
    0
}

/// A channel, and its key behind what C knows of it.
#[repr(C)]
struct Channel {
    c: ibv_comp_channel,
    key: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: an open context.
    let owner = unsafe { key(context) };
    let created = with(|world| {
        let key = world.create_channel(owner)?;
        Ok((key, world.channels[&key].events.fd.as_raw_fd()))
    });
    match created {
        Ok((key, fd)) => {
            let channel = Channel { c: ibv_comp_channel { context, fd, refcnt: 0 }, key };
            Box::into_raw(Box::new(channel)).cast()
        }
        Err(errno) => fail(errno, null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let channel = channel.cast::<Channel>();
    // SAFETY: a live channel.
    let key = unsafe { (*channel).key };
    let destroyed = with(|world| world.destroy_channel(key));
    if destroyed.is_ok() {
        // SAFETY: boxed by ibv_create_comp_channel.
        drop(unsafe { Box::from_raw(channel) });
    }
    status(destroyed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: an open context.
    let owner = unsafe { key(context) };
    // SAFETY: none, or a live channel.
    let waker = (!channel.is_null()).then(|| unsafe { (*channel.cast::<Channel>()).key });
    if !(0..4).contains(&vector) {
        return fail(libc::EINVAL, null_mut());
    }
    let mut cq = blank::<ibv_cq>();
    (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, channel, cq_context, entries);
    let cq = Box::into_raw(cq);
    match with(|world| world.create_cq(owner, entries, waker, cq.expose_provenance())) {
        Ok(handle) => {
            // SAFETY: just boxed.
            unsafe { (*cq).handle = handle };
            cq
        }
        Err(errno) => {
            // SAFETY: just boxed, and given to nobody.
            drop(unsafe { Box::from_raw(cq) });
            fail(errno, null_mut())
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live queue.
    let handle = unsafe { (*cq).handle };
    let destroyed = with(|world| world.destroy_cq(handle));
    if destroyed.is_ok() {
        // SAFETY: boxed by ibv_create_cq.
        drop(unsafe { Box::from_raw(cq) });
    }
    status(destroyed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel; its descriptor counts the events that wait.
    let (key, fd) = unsafe { ((*channel.cast::<Channel>()).key, (*channel).fd) };
    if !take_one(fd) {
        return -1;
    }
    let pointer = with(|world| {
        let of = world.channels.get_mut(&key)?.events.pop()?;
        let queue = world.cqs.get_mut(&of)?;
        queue.unacknowledged += 1;
        Some(queue.pointer)
    });
    let Some(pointer) = pointer else { return fail(libc::EAGAIN, -1) };
    let queue: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(pointer);
    // SAFETY: the queue cannot be destroyed before the event is acknowledged; the rest is the caller's.
    unsafe {
        *cq = queue;
        *cq_context = (*queue).cq_context;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: a queue with events that were got.
    let handle = unsafe { (*cq).handle };
    with(|world| world.cqs.get_mut(&handle).map(|cq| cq.unacknowledged -= events));
}
