//! Queue pairs and what is posted to them.

use super::abi::*;
use super::{Ah, Cq, Pd, checked, last};
use libc::c_int;
use std::io;
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Pieces of memory that one work request can name.
pub(crate) const SGES: usize = 3;

/// A queue pair.
pub(crate) struct Qp {
    pd: Arc<Pd>,
    _send_cq: Arc<Cq>,
    _receive_cq: Arc<Cq>,
    qp: NonNull<ibv_qp>,
    number: u32,
    post_send: PostSend,
    post_receive: PostRecv,
}

// SAFETY: verbs may be called on it by any thread at any time.
unsafe impl std::marker::Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// `cap` is what is wanted, and becomes what there is.
    pub(crate) fn new(
        pd: Arc<Pd>,
        kind: u32,
        send_cq: Arc<Cq>,
        receive_cq: Arc<Cq>,
        cap: &mut ibv_qp_cap,
    ) -> io::Result<Qp> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: receive_cq.raw(),
            srq: null_mut(),
            cap: *cap,
            qp_type: kind,
            sq_sig_all: 0,
        };
        // SAFETY: a live domain and live queues, which the queue pair holds; the attributes are read, and `cap` written.
        let qp = unsafe { (pd.context.table.ibv_create_qp)(pd.raw(), &mut attributes) };
        let qp = NonNull::new(qp).ok_or_else(last)?;
        // SAFETY: just created; the operations are set when a device is opened, and stay.
        let (ops, number) = unsafe { (&(*qp.as_ref().context).ops, qp.as_ref().qp_num) };
        let (Some(post_send), Some(post_receive)) = (ops.post_send, ops.post_recv) else {
            // SAFETY: just created, and given to nobody.
            unsafe { (pd.context.table.ibv_destroy_qp)(qp.as_ptr()) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        *cap = attributes.cap;
        Ok(Qp { pd, _send_cq: send_cq, _receive_cq: receive_cq, qp, number, post_send, post_receive })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Attributes that are all zero, for [`modify`](Qp::modify).
    pub(crate) fn attributes() -> ibv_qp_attr {
        // SAFETY: plain numbers, for which zero is a value.
        unsafe { zeroed() }
    }

    /// Sets the attributes that the mask names.
    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: a live queue pair; the attributes are read.
        checked(unsafe {
            (self.pd.context.table.ibv_modify_qp)(self.qp.as_ptr(), attributes, mask.cast_signed())
        })
    }

    pub(crate) fn query(&self, mask: u32) -> io::Result<ibv_qp_attr> {
        let mut attributes = Qp::attributes();
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut creation: ibv_qp_init_attr = unsafe { zeroed() };
        let query = self.pd.context.table.ibv_query_qp;
        // SAFETY: a live queue pair; both are written.
        checked(unsafe { query(self.qp.as_ptr(), &mut attributes, mask.cast_signed(), &mut creation) })?;
        Ok(attributes)
    }

    /// Rings one doorbell for all of `work`. An error comes with how many were taken, from the first on.
    #[inline]
    pub(crate) fn post_send(&self, work: &mut [Send]) -> Result<(), (usize, io::Error)> {
        let mut next = null_mut();
        for one in work.iter_mut().rev() {
            one.wr.next = next;
            one.wr.sg_list = one.sges.as_mut_ptr();
            next = &mut one.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair; the list just built ends in null and is read during the call only. The addresses in
        // it are of registered memory, which the device checks by its keys; inline bytes are read here, and their
        // `Piece`s vouch for them.
        let returned = unsafe { (self.post_send)(self.qp.as_ptr(), next, &mut bad) };
        checked(returned).map_err(|error| {
            let taken = work.iter().position(|one| std::ptr::eq(&one.wr, bad)).unwrap_or(0);
            (taken, error)
        })
    }

    /// Rings a doorbell for one request.
    #[inline]
    pub(crate) fn post_one(&self, work: &mut Send) -> io::Result<()> {
        work.wr.next = null_mut();
        work.wr.sg_list = work.sges.as_mut_ptr();
        let mut bad = null_mut();
        // SAFETY: as for many.
        checked(unsafe { (self.post_send)(self.qp.as_ptr(), &mut work.wr, &mut bad) })
    }

    /// Rings one doorbell for two requests, in this order. An error comes with whether the first was taken.
    pub(crate) fn post_two(&self, first: &mut Send, second: &mut Send) -> Result<(), (bool, io::Error)> {
        first.wr.sg_list = first.sges.as_mut_ptr();
        second.wr.sg_list = second.sges.as_mut_ptr();
        second.wr.next = null_mut();
        first.wr.next = &mut second.wr;
        let mut bad = null_mut();
        // SAFETY: as for many.
        let returned = unsafe { (self.post_send)(self.qp.as_ptr(), &mut first.wr, &mut bad) };
        checked(returned).map_err(|error| (std::ptr::eq(&second.wr, bad), error))
    }

    /// As [`post_send`](Qp::post_send), for receives.
    #[inline]
    pub(crate) fn post_receive(&self, work: &mut [Receive]) -> Result<(), (usize, io::Error)> {
        let mut next = null_mut();
        for one in work.iter_mut().rev() {
            one.wr.next = next;
            one.wr.sg_list = &mut one.sge;
            next = &mut one.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: as for sends; what comes in is written to registered memory only.
        let returned = unsafe { (self.post_receive)(self.qp.as_ptr(), next, &mut bad) };
        checked(returned).map_err(|error| {
            let taken = work.iter().position(|one| std::ptr::eq(&one.wr, bad)).unwrap_or(0);
            (taken, error)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        let destroyed = unsafe { (self.pd.context.table.ibv_destroy_qp)(self.qp.as_ptr()) };
        debug_assert_eq!(destroyed, 0);
    }
}

/// Where a send goes, and what it is.
pub(crate) enum SendTo<'a> {
    /// The peer of a connection.
    Peer,
    /// An address in the memory of the peer of a connection.
    Memory { address: u64, rkey: u32 },
    /// A datagram. The handle must live until the send has completed; one that does not is an error of the device.
    Datagram { way: &'a Arc<Ah>, number: u32, key: u32 },
}

/// A send work request and the memory that it names.
#[derive(Clone)]
pub(crate) struct Send {
    wr: ibv_send_wr,
    sges: [ibv_sge; SGES],
    /// Of a datagram: alive as long as this request waits.
    _way: Option<Arc<Ah>>,
}

// SAFETY: its pointers are set and used within `Qp::post_send`, the one to the address handle is vouched for by `_way`.
unsafe impl std::marker::Send for Send {}
// SAFETY: as above.
unsafe impl Sync for Send {}

impl Send {
    /// `immediate` in the host's order.
    pub(crate) fn new(
        id: u64,
        opcode: u32,
        flags: u32,
        to: SendTo<'_>,
        immediate: u32,
        memory: &[ibv_sge],
    ) -> Send {
        // SAFETY: numbers and null pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = id;
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm_data = immediate.to_be();
        let mut way = None;
        match to {
            SendTo::Peer => {}
            SendTo::Memory { address, rkey } => {
                wr.wr.rdma = ibv_wr_rdma { remote_addr: address, rkey };
            }
            SendTo::Datagram { way: ah, number, key } => {
                wr.wr.ud = ibv_wr_ud { ah: ah.raw(), remote_qpn: number, remote_qkey: key };
                way = Some(ah.clone());
            }
        }
        let mut sges = [ibv_sge { addr: 0, length: 0, lkey: 0 }; SGES];
        sges[..memory.len()].copy_from_slice(memory);
        wr.num_sge = memory.len() as c_int;
        Send { wr, sges, _way: way }
    }

    /// Makes another write of one that there is, with what differs.
    #[inline]
    pub(crate) fn rewrite(
        &mut self,
        id: u64,
        flags: u32,
        (remote_addr, rkey): (u64, u32),
        immediate: u32,
        memory: impl ExactSizeIterator<Item = ibv_sge>,
    ) {
        assert!(memory.len() <= SGES, "more pieces of memory than a work request can name");
        self.wr.wr_id = id;
        self.wr.send_flags = flags;
        self.wr.wr.rdma = ibv_wr_rdma { remote_addr, rkey };
        self.wr.imm_data = immediate.to_be();
        self.wr.num_sge = memory.len() as c_int;
        self.sges.iter_mut().zip(memory).for_each(|(to, from)| *to = from);
    }
}

/// A receive work request and the memory that it names.
#[derive(Clone)]
pub(crate) struct Receive {
    wr: ibv_recv_wr,
    sge: ibv_sge,
}

// SAFETY: its pointers are set and used within `Qp::post_receive`.
unsafe impl std::marker::Send for Receive {}
// SAFETY: as above.
unsafe impl Sync for Receive {}

impl Receive {
    /// Into this memory, or, for what brings no bytes, into none.
    pub(crate) fn new(id: u64, memory: Option<ibv_sge>) -> Receive {
        let wr = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: memory.is_some().into(),
        };
        Receive { wr, sge: memory.unwrap_or(ibv_sge { addr: 0, length: 0, lkey: 0 }) }
    }
}
