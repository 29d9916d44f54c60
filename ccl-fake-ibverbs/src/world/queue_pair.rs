//! Queue pairs: their states, and what is posted to them.

use super::completion::no_completion;
use super::objects::Way;
use super::{Errno, Key, World};
use crate::abi::*;
use std::collections::VecDeque;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) context: Key,
    pub(crate) pd: Key,
    /// Its C object's address.
    pub(crate) pointer: usize,
    /// Events that were handed out and not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(super) kind: u32,
    pub(super) send_cq: Key,
    pub(super) receive_cq: Key,
    pub(super) cap: ibv_qp_cap,
    /// As it was set by the transitions so far.
    pub(super) set: ibv_qp_attr,
    pub(super) way: Option<Way>,
    pub(super) sends: VecDeque<Send>,
    pub(super) receives: VecDeque<Receive>,
    /// How many were posted, taken from the queue, and found to be over by a poll.
    pub(super) send_marks: Marks,
    pub(super) receive_marks: Marks,
}

#[derive(Default)]
pub(super) struct Marks {
    posted: u64,
    taken: u64,
    pub(super) over: u64,
}

/// A posted send.
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// Big-endian.
    pub(crate) immediate: u32,
    pub(crate) payload: Payload,
    pub(crate) target: Target,
}

/// The bytes of a send.
pub(crate) enum Payload {
    Inline(Vec<u8>),
    Memory(Vec<ibv_sge>),
}

/// Where a send goes.
pub(crate) enum Target {
    Peer,
    Memory { address: u64, rkey: u32 },
    Datagram { ah: Key, qp: u32, qkey: u32 },
}

/// A posted receive.
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) memory: Vec<ibv_sge>,
}

impl World {
    pub(crate) fn create_qp(
        &mut self,
        pd: Key,
        kind: u32,
        queues: (Key, Key),
        cap: ibv_qp_cap,
        pointer: usize,
    ) -> Result<Key, Errno> {
        self.call("create_qp")?;
        let device = self.device_of_pd(pd)?;
        let there = self.qps.values().filter(|qp| self.device_of(qp.context) == Ok(device)).count();
        if there as u64 >= self.limit(device, "qp") {
            return Err(libc::ENOMEM);
        }
        let wr = u64::from(cap.max_send_wr.max(cap.max_recv_wr));
        let sge = u64::from(cap.max_send_sge.max(cap.max_recv_sge));
        let fits = wr <= self.limit(device, "qp_wr")
            && sge <= self.limit(device, "sge")
            && u64::from(cap.max_inline_data) <= self.limit(device, "inline");
        let known = [queues.0, queues.1].iter().all(|cq| self.cqs.contains_key(cq));
        if !fits || !known || ![IBV_QPT_RC, IBV_QPT_UD].contains(&kind) {
            return Err(libc::EINVAL);
        }
        let key = self.key();
        let qp = Qp {
            context: self.pds[&pd],
            pd,
            pointer,
            unacknowledged: 0,
            kind,
            send_cq: queues.0,
            receive_cq: queues.1,
            cap,
            set: no_attributes(),
            way: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            send_marks: Marks::default(),
            receive_marks: Marks::default(),
        };
        self.qps.insert(key, qp);
        Ok(key)
    }

    /// Refuses where the real one would wait for acknowledgements.
    pub(crate) fn destroy_qp(&mut self, key: Key) -> Result<(), Errno> {
        if self.qps.get(&key).ok_or(libc::EINVAL)?.unacknowledged > 0 {
            return Err(libc::EBUSY);
        }
        self.forget_completions(key);
        let about_queue_pairs: Vec<_> =
            (IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR).chain([IBV_EVENT_QP_LAST_WQE_REACHED]).collect();
        self.forget_events(&about_queue_pairs, key);
        self.qps.remove(&key);
        // Who still sends to it finds nobody.
        self.resume();
        Ok(())
    }

    pub(crate) fn modify_qp(&mut self, key: Key, new: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        self.call("modify_qp")?;
        let qp = self.qps.get(&key).ok_or(libc::EINVAL)?;
        let device = self.device_of(qp.context)?;
        let reliable = qp.kind == IBV_QPT_RC;
        let needed = match (qp.set.qp_state, new.qp_state) {
            (_, IBV_QPS_RESET | IBV_QPS_ERR) => 0,
            (IBV_QPS_RESET, IBV_QPS_INIT) => {
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | if reliable { IBV_QP_ACCESS_FLAGS } else { IBV_QP_QKEY }
            }
            (IBV_QPS_INIT, IBV_QPS_RTR) if reliable => {
                IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER
            }
            (IBV_QPS_INIT, IBV_QPS_RTR) => 0,
            (IBV_QPS_RTR, IBV_QPS_RTS) if reliable => {
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
            }
            (IBV_QPS_RTR, IBV_QPS_RTS) => IBV_QP_SQ_PSN,
            _ => return Err(libc::EINVAL),
        };
        if mask != IBV_QP_STATE | needed {
            return Err(libc::EINVAL);
        }
        let mut way = qp.way;
        if needed & IBV_QP_PORT != 0 {
            let port = self.port(device, new.port_num).ok_or(libc::EINVAL)?;
            if u64::from(new.pkey_index) >= port.settings["pkeys"] {
                return Err(libc::EINVAL);
            }
        }
        if needed & IBV_QP_AV != 0 {
            let port = self.port(device, qp.set.port_num).ok_or(libc::EINVAL)?;
            let fits = (1..=port.settings["mtu"]).contains(&u64::from(new.path_mtu));
            if !fits || new.ah_attr.port_num != qp.set.port_num {
                return Err(libc::EINVAL);
            }
            way = Some(self.way(device, &new.ah_attr)?);
        }
        if needed & IBV_QP_TIMEOUT != 0 && (new.timeout > 31 || new.retry_cnt > 7 || new.rnr_retry > 7) {
            return Err(libc::EINVAL);
        }
        let qp = self.qps.get_mut(&key).ok_or(libc::EINVAL)?;
        qp.way = way;
        qp.take_over(new, needed);
        match new.qp_state {
            IBV_QPS_RESET => self.reset(key),
            IBV_QPS_ERR => self.fail(key),
            _ => {}
        }
        // Somebody may have waited for this.
        self.resume();
        Ok(())
    }

    fn reset(&mut self, key: Key) {
        self.forget_completions(key);
        if let Some(qp) = self.qps.get_mut(&key) {
            qp.set = no_attributes();
            qp.way = None;
            qp.sends.clear();
            qp.receives.clear();
            qp.send_marks = Marks::default();
            qp.receive_marks = Marks::default();
        }
    }

    /// To error: whatever is posted is flushed.
    pub(super) fn fail(&mut self, key: Key) {
        let Some(qp) = self.qps.get_mut(&key) else { return };
        qp.set.qp_state = IBV_QPS_ERR;
        while let Some(send) = self.take_send(key) {
            self.end_send(key, &send, IBV_WC_WR_FLUSH_ERR, 0);
        }
        while let Some(receive) = self.take_receive(key) {
            self.end_receive(key, receive.id, no_completion(), IBV_WC_WR_FLUSH_ERR, false);
        }
    }

    pub(crate) fn query_qp(&mut self, key: Key) -> Result<(ibv_qp_attr, ibv_qp_cap), Errno> {
        self.call("query_qp")?;
        let qp = self.qps.get(&key).ok_or(libc::EINVAL)?;
        Ok((ibv_qp_attr { cap: qp.cap, ..qp.set }, qp.cap))
    }

    /// Takes as many as it can; the error comes with the first that it does not take.
    pub(crate) fn post_send(&mut self, key: Key, work: Vec<Send>) -> Result<(), (usize, Errno)> {
        self.call("post_send").map_err(|errno| (0, errno))?;
        for (index, send) in work.into_iter().enumerate() {
            let is_refused = if index > 0 { self.call("chained_send") } else { Ok(()) };
            is_refused.and_then(|()| self.post_one_send(key, send)).map_err(|errno| (index, errno))?;
        }
        Ok(())
    }

    fn post_one_send(&mut self, key: Key, send: Send) -> Result<(), Errno> {
        let qp = self.qps.get_mut(&key).ok_or(libc::EINVAL)?;
        let fits = match &send.payload {
            Payload::Inline(bytes) => bytes.len() <= qp.cap.max_inline_data as usize,
            Payload::Memory(pieces) => pieces.len() <= qp.cap.max_send_sge as usize,
        };
        let ready = [IBV_QPS_RTS, IBV_QPS_ERR].contains(&qp.set.qp_state);
        let of_kind = match send.target {
            Target::Datagram { .. } => qp.kind == IBV_QPT_UD,
            _ => qp.kind == IBV_QPT_RC,
        };
        if !fits || !ready || !of_kind {
            return Err(libc::EINVAL);
        }
        if qp.send_marks.posted - qp.send_marks.over >= u64::from(qp.cap.max_send_wr) {
            return Err(libc::ENOMEM);
        }
        qp.send_marks.posted += 1;
        let (context, port) = (qp.context, qp.set.port_num);
        *self.counts.entry("sends").or_default() += 1;
        if let Payload::Inline(_) = &send.payload {
            *self.counts.entry("inline_sends").or_default() += 1;
        }
        if let Some(qp) = self.qps.get_mut(&key) {
            qp.sends.push_back(send);
        }
        let device = self.device_of(context)?;
        self.count_send(device, port);
        self.drive(key);
        Ok(())
    }

    /// As [`World::post_send`].
    pub(crate) fn post_receive(&mut self, key: Key, work: Vec<Receive>) -> Result<(), (usize, Errno)> {
        self.call("post_recv").map_err(|errno| (0, errno))?;
        *self.counts.entry("receives").or_default() += work.len() as u64;
        for (index, receive) in work.into_iter().enumerate() {
            let qp = self.qps.get_mut(&key).ok_or((index, libc::EINVAL))?;
            if qp.set.qp_state == IBV_QPS_RESET || receive.memory.len() > qp.cap.max_recv_sge as usize {
                return Err((index, libc::EINVAL));
            }
            if qp.receive_marks.posted - qp.receive_marks.over >= u64::from(qp.cap.max_recv_wr) {
                return Err((index, libc::ENOMEM));
            }
            qp.receive_marks.posted += 1;
            qp.receives.push_back(receive);
            if qp.set.qp_state == IBV_QPS_ERR {
                self.fail(key);
            }
        }
        Ok(())
    }

    pub(super) fn take_send(&mut self, key: Key) -> Option<Send> {
        let qp = self.qps.get_mut(&key)?;
        let send = qp.sends.pop_front()?;
        qp.send_marks.taken += 1;
        Some(send)
    }

    pub(super) fn take_receive(&mut self, key: Key) -> Option<Receive> {
        let qp = self.qps.get_mut(&key)?;
        let receive = qp.receives.pop_front()?;
        qp.receive_marks.taken += 1;
        Some(receive)
    }

    /// The completion of a send, where one is due.
    pub(super) fn end_send(&mut self, key: Key, send: &Send, status: u32, vendor: u32) {
        let Some(qp) = self.qps.get(&key) else { return };
        if status == IBV_WC_SUCCESS && !send.signaled {
            return;
        }
        let opcode = match send.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
            _ => IBV_WC_SEND,
        };
        let wc =
            ibv_wc { wr_id: send.id, status, opcode, vendor_err: vendor, qp_num: key, ..no_completion() };
        self.complete(qp.send_cq, key, wc, (true, qp.send_marks.taken), false);
    }

    /// The completion of a receive.
    pub(super) fn end_receive(&mut self, key: Key, id: u64, wc: ibv_wc, status: u32, solicited: bool) {
        let Some(qp) = self.qps.get(&key) else { return };
        let wc = ibv_wc { wr_id: id, status, qp_num: key, ..wc };
        self.complete(qp.receive_cq, key, wc, (false, qp.receive_marks.taken), solicited);
    }
}

impl Qp {
    fn take_over(&mut self, new: &ibv_qp_attr, mask: u32) {
        let set = &mut self.set;
        set.qp_state = new.qp_state;
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => { $(if mask & $bit != 0 { $(set.$field = new.$field;)+ })* };
        }
        take! {
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_SQ_PSN: sq_psn;
        }
    }
}

/// What a queue pair in reset has.
fn no_attributes() -> ibv_qp_attr {
    let ah = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 0,
    };
    ibv_qp_attr {
        qp_state: IBV_QPS_RESET,
        cur_qp_state: IBV_QPS_RESET,
        path_mtu: 1,
        path_mig_state: 0,
        qkey: 0,
        rq_psn: 0,
        sq_psn: 0,
        dest_qp_num: 0,
        qp_access_flags: 0,
        cap: ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        },
        ah_attr: ah,
        alt_ah_attr: ah,
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        port_num: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}
