//! Devices: lists, contexts, queries, events.

use super::{blank, fail, queue_pair, status, with};
use crate::abi::*;
use crate::world::World;
use libc::{c_char, c_int, size_t, ssize_t};
use rustix::fd::AsRawFd;
use std::ptr::null_mut;

fn set(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

fn describe(world: &World, index: usize) -> Box<ibv_device> {
    let mut device = blank::<ibv_device>();
    device.node_type = 1;
    set(&mut device.name, &world.devices[index].name);
    set(&mut device.dev_name, &format!("uverbs{index}"));
    set(&mut device.dev_path, &format!("/nonexistent/infiniband_verbs/uverbs{index}"));
    set(&mut device.ibdev_path, &world.devices[index].sysfs);
    device
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let listed = with(|world| {
        world.call("get_device_list")?;
        world.lists += 1;
        Ok((0..world.devices.len()).map(|index| Box::into_raw(describe(world, index))).collect::<Vec<_>>())
    });
    let mut pointers = match listed {
        Ok(pointers) => pointers,
        Err(errno) => return fail(errno, null_mut()),
    };
    if !count.is_null() {
        // SAFETY: the caller's number.
        unsafe { *count = pointers.len() as c_int };
    }
    // The list's length is known by the null at its end.
    pointers.push(null_mut());
    Box::into_raw(pointers.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    with(|world| world.lists -= 1);
    let mut devices = 0;
    // SAFETY: a list that ends in null, boxed with that null, of devices that were boxed.
    unsafe {
        while !(*list.add(devices)).is_null() {
            drop(Box::from_raw(*list.add(devices)));
            devices += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, devices + 1)));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a listed device.
    let index = unsafe { number(&*device) };
    with(|world| world.devices.get(index).map_or(0, |device| device.guid.to_be()))
}

/// Which device it is: what follows `uverbs`.
fn number(device: &ibv_device) -> usize {
    let digits = device.dev_name.iter().skip("uverbs".len()).take_while(|c| **c != 0);
    digits.fold(0, |number, digit| number * 10 + (*digit as u8 - b'0') as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a listed device.
    let index = unsafe { number(&*device) };
    let opened = with(|world| {
        let key = world.open(index)?;
        Ok((key, world.contexts[&key].events.fd.as_raw_fd(), describe(world, index)))
    });
    let (key, fd, device) = match opened {
        Ok(opened) => opened,
        Err(errno) => return fail(errno, null_mut()),
    };
    let mut context = blank::<ibv_context>();
    context.device = Box::into_raw(device);
    context.cmd_fd = key.cast_signed();
    context.async_fd = fd;
    context.num_comp_vectors = 4;
    context.ops.poll_cq = Some(queue_pair::poll_cq);
    context.ops.req_notify_cq = Some(queue_pair::req_notify_cq);
    context.ops.post_send = Some(queue_pair::post_send);
    context.ops.post_recv = Some(queue_pair::post_recv);
    Box::into_raw(context)
}

/// The key of a context.
///
/// # Safety
/// An open context.
pub(super) unsafe fn key(context: *mut ibv_context) -> u32 {
    // SAFETY: as the caller vouches.
    unsafe { (*context).cmd_fd }.cast_unsigned()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: an open context.
    let key = unsafe { key(context) };
    let closed = with(|world| world.close(key));
    if closed.is_ok() {
        // SAFETY: boxed by ibv_open_device, both.
        unsafe {
            drop(Box::from_raw((*context).device));
            drop(Box::from_raw(context));
        }
    }
    status(closed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: an open context and the caller's struct.
    let (key, into) = unsafe { (key(context), &mut *into) };
    status(with(|world| world.device_attributes(key, into)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, into: *mut ibv_port_attr) -> c_int {
    // SAFETY: an open context and the caller's struct.
    let (key, into) = unsafe { (key(context), &mut *into) };
    status(with(|world| world.port_attributes(key, port, into)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    // SAFETY: an open context.
    let key = unsafe { key(context) };
    match with(|world| world.gid(key, port, index.cast_unsigned())) {
        Ok(raw) => {
            // SAFETY: the caller's GID.
            unsafe { (*into).raw = raw };
            0
        }
        Err(errno) => fail(errno, -1),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    into: *mut ibv_gid_entry,
    most: size_t,
    _flags: u32,
    entry_size: size_t,
) -> ssize_t {
    if entry_size != size_of::<ibv_gid_entry>() {
        return -(libc::EINVAL as ssize_t);
    }
    // SAFETY: an open context.
    let key = unsafe { key(context) };
    match with(|world| world.gids(key)) {
        Ok(entries) if entries.len() > most => -(libc::EINVAL as ssize_t),
        Ok(entries) => {
            // SAFETY: the caller has room for `most` entries.
            unsafe { std::ptr::copy_nonoverlapping(entries.as_ptr(), into, entries.len()) };
            entries.len() as ssize_t
        }
        Err(errno) => -(errno as ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut u16,
) -> c_int {
    // SAFETY: an open context.
    let key = unsafe { key(context) };
    match with(|world| world.pkey(key, port, index)) {
        Ok(pkey) => {
            // SAFETY: the caller's number.
            unsafe { *into = pkey.to_be() };
            0
        }
        Err(errno) => fail(errno, -1),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, into: *mut ibv_async_event) -> c_int {
    // SAFETY: an open context; the descriptor counts the events that wait.
    let (key, fd) = unsafe { (key(context), (*context).async_fd) };
    if !super::objects::take_one(fd) {
        return -1;
    }
    let event = with(|world| {
        let (code, about) = world.contexts.get_mut(&key)?.events.pop()?;
        let element = if let Some(qp) = world.qps.get_mut(&about).filter(|_| is_of_queue_pair(code)) {
            qp.unacknowledged += 1;
            ibv_async_element { qp: qp.pointer as *mut ibv_qp }
        } else if let Some(cq) = world.cqs.get_mut(&about).filter(|_| code == IBV_EVENT_CQ_ERR) {
            cq.unacknowledged += 1;
            ibv_async_element { cq: cq.pointer as *mut ibv_cq }
        } else {
            ibv_async_element { port_num: about.cast_signed() }
        };
        Some(ibv_async_event { element, event_type: code })
    });
    let Some(event) = event else { return fail(libc::EAGAIN, -1) };
    // SAFETY: the caller's struct.
    unsafe { *into = event };
    0
}

fn is_of_queue_pair(code: u32) -> bool {
    (IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR).contains(&code) || code == IBV_EVENT_QP_LAST_WQE_REACHED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that was got; its type says which field counts, and its object cannot have been destroyed.
    unsafe {
        let event = &*event;
        if is_of_queue_pair(event.event_type) {
            let key = (*event.element.qp).qp_num;
            with(|world| world.qps.get_mut(&key).map(|qp| qp.unacknowledged -= 1));
        } else if event.event_type == IBV_EVENT_CQ_ERR {
            let key = (*event.element.cq).handle;
            with(|world| world.cqs.get_mut(&key).map(|cq| cq.unacknowledged -= 1));
        }
    }
}
