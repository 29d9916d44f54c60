//! Completion queues.

use super::{Errno, Key, World};
use crate::abi::*;
use std::collections::VecDeque;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) context: Key,
    pub(crate) channel: Option<Key>,
    /// Its C object's address.
    pub(crate) pointer: usize,
    /// Events that were handed out and not acknowledged.
    pub(crate) unacknowledged: u32,
    entries: usize,
    waiting: VecDeque<Entry>,
    polls: u64,
    /// From which poll on the last completion shows up.
    last: u64,
    /// Armed: for solicited completions and errors only?
    armed: Option<bool>,
}

/// A completion.
struct Entry {
    wc: ibv_wc,
    qp: Key,
    /// From which poll on it shows up.
    visible: u64,
    /// Whether it is of a send, and which of its queue's requests is the last that is over with it.
    retires: (bool, u64),
}

impl World {
    pub(crate) fn create_cq(
        &mut self,
        context: Key,
        entries: i32,
        channel: Option<Key>,
        pointer: usize,
    ) -> Result<Key, Errno> {
        self.call("create_cq")?;
        let device = self.device_of(context)?;
        let there = self.cqs.values().filter(|cq| self.device_of(cq.context) == Ok(device)).count();
        let entries = usize::try_from(entries).map_err(|_| libc::EINVAL)?;
        if entries == 0 || entries as u64 > self.limit(device, "cqe") {
            return Err(libc::EINVAL);
        }
        if there as u64 >= self.limit(device, "cq") {
            return Err(libc::ENOMEM);
        }
        let key = self.key();
        let cq = Cq {
            context,
            channel,
            pointer,
            unacknowledged: 0,
            entries,
            waiting: VecDeque::new(),
            polls: 0,
            last: 0,
            armed: None,
        };
        self.cqs.insert(key, cq);
        Ok(key)
    }

    /// Refuses where the real one would wait for acknowledgements, for ever in a test.
    pub(crate) fn destroy_cq(&mut self, cq: Key) -> Result<(), Errno> {
        let used = self.qps.values().any(|qp| qp.send_cq == cq || qp.receive_cq == cq);
        if used || self.cqs.get(&cq).ok_or(libc::EINVAL)?.unacknowledged > 0 {
            return Err(libc::EBUSY);
        }
        for channel in self.channels.values_mut() {
            channel.events.forget(|key| *key == cq);
        }
        self.forget_events(&[IBV_EVENT_CQ_ERR], cq);
        self.cqs.remove(&cq);
        Ok(())
    }

    pub(crate) fn poll(&mut self, cq: Key, most: usize) -> Result<Vec<ibv_wc>, Errno> {
        self.call("poll_cq")?;
        let cq = self.cqs.get_mut(&cq).ok_or(libc::EINVAL)?;
        cq.polls += 1;
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(entry) = cq.waiting.pop_front_if(|entry| entry.visible <= cq.polls) else { break };
            taken.push(entry);
        }
        for entry in &taken {
            let Some(qp) = self.qps.get_mut(&entry.qp) else { continue };
            let (of_send, last) = entry.retires;
            let marks = if of_send { &mut qp.send_marks } else { &mut qp.receive_marks };
            marks.over = marks.over.max(last);
        }
        Ok(taken.into_iter().map(|entry| entry.wc).collect())
    }

    pub(crate) fn arm(&mut self, cq: Key, solicited_only: bool) -> Result<(), Errno> {
        self.call("req_notify_cq")?;
        let queue = self.cqs.get_mut(&cq).ok_or(libc::EINVAL)?;
        queue.armed = Some(solicited_only);
        // Those that came before are the caller's to poll, except where they cannot be seen yet.
        if queue.waiting.iter().any(|entry| entry.visible > queue.polls) {
            self.notify(cq, true);
        }
        Ok(())
    }

    fn notify(&mut self, cq: Key, urgent: bool) {
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        let wanted = queue.armed.is_some_and(|solicited_only| urgent || !solicited_only);
        if wanted && let Some(channel) = queue.channel.and_then(|channel| self.channels.get_mut(&channel)) {
            queue.armed = None;
            channel.events.push(cq);
        }
    }

    /// Puts a completion into a queue.
    pub(super) fn complete(&mut self, cq: Key, qp: Key, wc: ibv_wc, retires: (bool, u64), solicited: bool) {
        let delay = self.delay;
        let device = self.cqs.get(&cq).and_then(|queue| self.device_of(queue.context).ok());
        // What comes without bytes takes no time.
        let takes_time = retires.0 || wc.byte_len > 0;
        let pace = device.filter(|_| takes_time).map_or(0, |device| self.devices[device].pace);
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        if queue.waiting.len() >= queue.entries {
            let context = queue.context;
            self.raise_on(context, IBV_EVENT_CQ_ERR, cq);
            return;
        }
        let visible = match (delay, pace) {
            (0, 0) => 0,
            _ => (queue.polls + delay + 1).max(queue.last + pace),
        };
        queue.last = visible;
        queue.waiting.push_back(Entry { wc, qp, visible, retires });
        self.notify(cq, solicited || wc.status != IBV_WC_SUCCESS);
    }

    /// Forgets the completions of a queue pair.
    pub(super) fn forget_completions(&mut self, qp: Key) {
        for cq in self.cqs.values_mut() {
            cq.waiting.retain(|entry| entry.qp != qp);
        }
    }
}

/// A completion that says nothing.
pub(super) fn no_completion() -> ibv_wc {
    ibv_wc {
        wr_id: 0,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
