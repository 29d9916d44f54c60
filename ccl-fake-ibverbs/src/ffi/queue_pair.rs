//! Queue pairs, and what goes through a context's operations.

use super::{blank, fail, pointer, status, with};
use crate::abi::*;
use crate::world::{Payload, Receive, Send, Target};
use libc::c_int;
use std::ptr::null_mut;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: a live domain, the caller's struct, and live queues in it.
    let (context, domain, attributes) = unsafe { ((*pd).context, (*pd).handle, &*attributes) };
    if attributes.send_cq.is_null() || attributes.recv_cq.is_null() || !attributes.srq.is_null() {
        return fail(libc::EINVAL, null_mut());
    }
    // SAFETY: as above.
    let queues = unsafe { ((*attributes.send_cq).handle, (*attributes.recv_cq).handle) };
    let mut qp = blank::<ibv_qp>();
    (qp.context, qp.qp_context, qp.pd) = (context, attributes.qp_context, pd);
    (qp.send_cq, qp.recv_cq, qp.qp_type) = (attributes.send_cq, attributes.recv_cq, attributes.qp_type);
    let qp = Box::into_raw(qp);
    let (kind, cap) = (attributes.qp_type, attributes.cap);
    match with(|world| world.create_qp(domain, kind, queues, cap, qp.expose_provenance())) {
        Ok(key) => {
            // SAFETY: just boxed.
            unsafe { ((*qp).handle, (*qp).qp_num) = (key, key) };
            qp
        }
        Err(errno) => {
            // SAFETY: just boxed, and given to nobody.
            drop(unsafe { Box::from_raw(qp) });
            fail(errno, null_mut())
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a live queue pair.
    let key = unsafe { (*qp).qp_num };
    let destroyed = with(|world| world.destroy_qp(key));
    if destroyed.is_ok() {
        // SAFETY: boxed by ibv_create_qp.
        drop(unsafe { Box::from_raw(qp) });
    }
    status(destroyed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a live queue pair and the caller's struct.
    let (key, attributes) = unsafe { ((*qp).qp_num, &*attributes) };
    let modified = with(|world| world.modify_qp(key, attributes, mask.cast_unsigned()));
    if modified.is_ok() {
        // SAFETY: as above.
        unsafe { (*qp).state = attributes.qp_state };
    }
    status(modified)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    creation: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live queue pair.
    let key = unsafe { (*qp).qp_num };
    match with(|world| world.query_qp(key)) {
        Ok((now, cap)) => {
            // SAFETY: the caller's structs.
            unsafe {
                *attributes = now;
                (*creation).cap = cap;
            }
            0
        }
        Err(errno) => errno,
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue.
    let key = unsafe { (*cq).handle };
    match with(|world| world.poll(key, usize::try_from(entries).unwrap_or(0))) {
        Ok(completions) => {
            // SAFETY: the caller has room for `entries`.
            unsafe { std::ptr::copy_nonoverlapping(completions.as_ptr(), into, completions.len()) };
            completions.len() as c_int
        }
        Err(errno) => -errno,
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue.
    let key = unsafe { (*cq).handle };
    status(with(|world| world.arm(key, solicited_only != 0)))
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let (mut work, mut places) = (Vec::new(), Vec::new());
    let mut at = first;
    while !at.is_null() {
        // SAFETY: a list of requests that ends in null, each with the memory and the address handle that it names.
        unsafe {
            work.push(read_send(&*at));
            places.push(at);
            at = (*at).next;
        }
    }
    // SAFETY: a live queue pair.
    let key = unsafe { (*qp).qp_num };
    match with(|world| world.post_send(key, work)) {
        Ok(()) => 0,
        Err((index, errno)) => {
            // SAFETY: the caller's pointer.
            unsafe { *bad = places[index] };
            errno
        }
    }
}

/// # Safety
/// A request with the memory and the address handle that it names.
unsafe fn read_send(wr: &ibv_send_wr) -> Send {
    // SAFETY: as the caller vouches.
    let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) };
    let payload = if wr.send_flags & IBV_SEND_INLINE != 0 {
        let mut bytes = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            // SAFETY: inline bytes are read where they are, by whatever posts.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(pointer(piece.addr), piece.length as usize)
            });
        }
        Payload::Inline(bytes)
    } else {
        Payload::Memory(pieces)
    };
    // SAFETY: which field counts is known by the opcode and, for sends, by the handle: connections leave it null.
    let target = unsafe {
        match wr.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => {
                Target::Memory { address: wr.wr.rdma.remote_addr, rkey: wr.wr.rdma.rkey }
            }
            _ if wr.wr.ud.ah.is_null() => Target::Peer,
            _ => Target::Datagram {
                ah: (*wr.wr.ud.ah).handle,
                qp: wr.wr.ud.remote_qpn,
                qkey: wr.wr.ud.remote_qkey,
            },
        }
    };
    Send {
        id: wr.wr_id,
        opcode: wr.opcode,
        signaled: wr.send_flags & IBV_SEND_SIGNALED != 0,
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
        immediate: wr.imm_data,
        payload,
        target,
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let (mut work, mut places) = (Vec::new(), Vec::new());
    let mut at = first;
    while !at.is_null() {
        // SAFETY: a list of requests that ends in null.
        unsafe {
            work.push(Receive { id: (*at).wr_id, memory: pieces((*at).sg_list, (*at).num_sge) });
            places.push(at);
            at = (*at).next;
        }
    }
    // SAFETY: a live queue pair.
    let key = unsafe { (*qp).qp_num };
    match with(|world| world.post_receive(key, work)) {
        Ok(()) => 0,
        Err((index, errno)) => {
            // SAFETY: the caller's pointer.
            unsafe { *bad = places[index] };
            errno
        }
    }
}

/// # Safety
/// So many pieces lie there.
unsafe fn pieces(at: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller vouches.
    unsafe { std::slice::from_raw_parts(at, count) }.to_vec()
}
