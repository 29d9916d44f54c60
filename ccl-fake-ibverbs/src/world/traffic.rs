//! What happens to a send: the network, and the memory at both ends.

use super::completion::no_completion;
use super::{Key, Payload, Qp, Send, Target, World};
use crate::abi::*;

/// How a send ends at its sender.
enum End {
    /// Not now: it stays at the head of its queue.
    Later,
    /// With a status and a vendor's code.
    Now(u32, u32),
}

/// Bytes in front of a datagram.
const ROUTE: usize = 40;

impl World {
    /// Lets all queue pairs go on whose sends could not.
    pub(super) fn resume(&mut self) {
        let waiting: Vec<_> =
            self.qps.iter().filter(|(_, qp)| !qp.sends.is_empty()).map(|(key, _)| *key).collect();
        for key in waiting {
            self.drive(key);
        }
    }

    /// Does the sends of a queue pair, in order, as far as it gets.
    pub(super) fn drive(&mut self, key: Key) {
        while let Some(qp) = self.qps.get(&key) {
            if qp.set.qp_state == IBV_QPS_ERR {
                return self.fail(key);
            }
            let Some(send) = qp.sends.front() else { return };
            let end = match send.target {
                Target::Datagram { .. } => Some(End::Now(IBV_WC_SUCCESS, 0)),
                _ => self.obstacle(key),
            };
            if let Some(End::Later) = end {
                return;
            }
            let Some(send) = self.take_send(key) else { return };
            let end = match (self.scripted_end(key), end) {
                (Some((scripted, delivered)), obstacle) => {
                    if delivered && !matches!(obstacle, Some(End::Now(status, _)) if status != IBV_WC_SUCCESS)
                    {
                        self.carry(key, &send);
                    }
                    scripted
                }
                (None, Some(End::Now(status, vendor))) if status != IBV_WC_SUCCESS => {
                    End::Now(status, vendor)
                }
                _ => self.carry(key, &send),
            };
            let End::Now(status, vendor) = end else { return };
            self.end_send(key, &send, status, vendor);
            if status != IBV_WC_SUCCESS {
                self.fail(key);
            }
        }
    }

    /// How a script wants this send to end, and whether the peer gets it all the same.
    fn scripted_end(&mut self, key: Key) -> Option<(End, bool)> {
        let name = self.device_of(self.qps.get(&key)?.context).ok().map(|d| self.devices[d].name.clone())?;
        let mine = |on: &Option<String>| on.as_ref().is_none_or(|on| *on == name);
        let due = self.endings.iter().position(|ending| ending.before == 0 && mine(&ending.on));
        for (_, ending) in
            self.endings.iter_mut().enumerate().filter(|(index, e)| Some(*index) != due && mine(&e.on))
        {
            ending.before = ending.before.saturating_sub(1);
        }
        let ending = self.endings.remove(due?);
        Some((End::Now(ending.status, ending.vendor), ending.delivered))
    }

    /// What keeps a connection's packets from the peer, or its answers from coming back.
    fn obstacle(&self, key: Key) -> Option<End> {
        let lost = Some(End::Now(IBV_WC_RETRY_EXC_ERR, 0x81));
        let here = &self.qps[&key];
        let place = |qp: &Qp| Some((self.device_of(qp.context).ok()?, qp.set.port_num));
        let here_at = place(here)?;
        let Some(port) = self.port(here_at.0, here_at.1) else { return lost };
        if port.stalls() {
            return Some(End::Later);
        }
        let Some(there) = self.qps.get(&here.set.dest_qp_num) else { return lost };
        match there.set.qp_state {
            // The sender tries again until the peer is ready, within its timeout.
            IBV_QPS_INIT => return Some(End::Later),
            IBV_QPS_RTR | IBV_QPS_RTS => {}
            _ => return lost,
        }
        let there_at = place(there)?;
        let Some(far_port) = self.port(there_at.0, there_at.1) else { return lost };
        if far_port.stalls() {
            return Some(End::Later);
        }
        let joined = there.kind == IBV_QPT_RC
            && there.set.dest_qp_num == key
            && here.set.sq_psn == there.set.rq_psn
            && here.way.is_some_and(|way| self.leads(&way, here_at, there_at))
            && there.way.is_some_and(|way| self.leads(&way, there_at, here_at));
        if !joined || !port.is_active() || !far_port.is_active() { lost } else { None }
    }

    /// Carries a send to its peer, whom nothing keeps it from.
    fn carry(&mut self, key: Key, send: &Send) -> End {
        let Some(bytes) = self.gather(key, &send.payload) else { return End::Now(IBV_WC_LOC_PROT_ERR, 0x51) };
        *self.counts.entry("bytes").or_default() += bytes.len() as u64;
        if send.opcode == IBV_WR_RDMA_WRITE {
            *self.counts.entry("bare_writes").or_default() += 1;
            *self.counts.entry("bare_bytes").or_default() += bytes.len() as u64;
        }
        if let Target::Datagram { ah, qp, qkey } = send.target {
            return self.datagram(key, send, (ah, qp, qkey), &bytes);
        }
        let here = &self.qps[&key];
        let (mtu, peer) = (here.set.path_mtu, here.set.dest_qp_num);
        let there = &self.qps[&peer];
        let far_mtu = there.set.path_mtu;
        if mtu > far_mtu && bytes.len() > 128 << far_mtu {
            // The peer takes no packet that is longer than its path's.
            return self.refuse(peer, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR, 0x8a);
        }
        let imm = [IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM].contains(&send.opcode);
        let wc = ibv_wc {
            byte_len: bytes.len() as u32,
            imm_data: if imm { send.immediate } else { 0 },
            wc_flags: if imm { IBV_WC_WITH_IMM } else { 0 },
            opcode: IBV_WC_RECV,
            ..no_completion()
        };
        if let Target::Memory { address, rkey } = send.target {
            if !bytes.is_empty() && !self.may_write(peer, address, bytes.len(), rkey) {
                return self.refuse(peer, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, 0x88);
            }
            if imm && self.qps[&peer].receives.is_empty() {
                return End::Now(IBV_WC_RNR_RETRY_EXC_ERR, 0x82);
            }
            self.write(rkey, address, &bytes);
            if imm && let Some(receive) = self.take_receive(peer) {
                let wc = ibv_wc { opcode: IBV_WC_RECV_RDMA_WITH_IMM, ..wc };
                self.end_receive(peer, receive.id, wc, IBV_WC_SUCCESS, send.solicited);
            }
            return End::Now(IBV_WC_SUCCESS, 0);
        }
        let Some(receive) = self.take_receive(peer) else { return End::Now(IBV_WC_RNR_RETRY_EXC_ERR, 0x82) };
        let (status, mine) = match self.scatter(peer, &receive.memory, &bytes) {
            Ok(()) => (IBV_WC_SUCCESS, IBV_WC_SUCCESS),
            Err(IBV_WC_LOC_LEN_ERR) => (IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR),
            Err(other) => (other, IBV_WC_REM_OP_ERR),
        };
        self.end_receive(peer, receive.id, wc, status, send.solicited);
        if status != IBV_WC_SUCCESS {
            self.fail(peer);
        }
        End::Now(mine, 0)
    }

    /// The peer answers that it cannot, and is in error from here on.
    fn refuse(&mut self, peer: Key, event: u32, status: u32, vendor: u32) -> End {
        let context = self.qps[&peer].context;
        self.raise_on(context, event, peer);
        self.fail(peer);
        End::Now(status, vendor)
    }

    /// A datagram: one that does not get there is lost without a word.
    fn datagram(&mut self, key: Key, send: &Send, to: (Key, u32, u32), bytes: &[u8]) -> End {
        let done = End::Now(IBV_WC_SUCCESS, 0);
        let (ah, number, qkey) = to;
        let here = &self.qps[&key];
        let (Some(ah), Ok(device)) = (self.ahs.get(&ah).copied(), self.device_of(here.context)) else {
            return End::Now(IBV_WC_LOC_QP_OP_ERR, 0);
        };
        let port = self.port(device, ah.port);
        let (mtu, lid) = port.map_or((0, 0), |port| (port.settings["mtu"], port.settings["lid"] as u16));
        if ah.pd != here.pd || ah.port != here.set.port_num {
            return End::Now(IBV_WC_LOC_QP_OP_ERR, 0);
        }
        if bytes.len() as u64 > 128 << mtu {
            return End::Now(IBV_WC_LOC_LEN_ERR, 0);
        }
        if self.is_lost(device) {
            return done;
        }
        let port = self.port(device, ah.port);
        let Some(there) = self.qps.get(&number) else { return done };
        let (Ok(far_device), far_number) = (self.device_of(there.context), there.set.port_num) else {
            return done;
        };
        let arrives = there.kind == IBV_QPT_UD
            && there.set.qkey == qkey
            && [IBV_QPS_RTR, IBV_QPS_RTS].contains(&there.set.qp_state)
            && port.is_some_and(|port| port.is_active())
            && self.port(far_device, far_number).is_some_and(|port| port.is_active())
            && self.leads(&ah.way, (device, ah.port), (far_device, far_number));
        if !arrives {
            return done;
        }
        let Some(receive) = self.take_receive(number) else { return done };
        let mut packet = vec![0; ROUTE];
        packet[8..24].copy_from_slice(&ah.way.from.map_or([0; 16], |gid| gid.raw));
        packet[24..40].copy_from_slice(&ah.way.to.unwrap_or_default());
        packet.extend_from_slice(bytes);
        let imm = send.opcode == IBV_WR_SEND_WITH_IMM;
        let route = if ah.way.to.is_some() { IBV_WC_GRH } else { 0 };
        let wc = ibv_wc {
            byte_len: packet.len() as u32,
            imm_data: if imm { send.immediate } else { 0 },
            wc_flags: route | if imm { IBV_WC_WITH_IMM } else { 0 },
            src_qp: key,
            slid: lid,
            ..no_completion()
        };
        let status = self.scatter(number, &receive.memory, &packet).err().unwrap_or(IBV_WC_SUCCESS);
        self.end_receive(number, receive.id, wc, status, send.solicited);
        if status != IBV_WC_SUCCESS {
            self.fail(number);
        }
        done
    }

    /// Whether a script wants a device's next datagram to be lost.
    fn is_lost(&mut self, device: usize) -> bool {
        let name = &self.devices[device].name;
        let mut lost = false;
        for loss in self.losses.iter_mut().filter(|loss| loss.on == *name && loss.times > 0) {
            if loss.before > 0 {
                loss.before -= 1;
            } else if !lost {
                loss.times -= 1;
                lost = true;
            }
        }
        lost
    }

    /// The bytes of a send, if its memory is what it says.
    fn gather(&self, key: Key, payload: &Payload) -> Option<Vec<u8>> {
        let pieces = match payload {
            Payload::Inline(bytes) => return Some(bytes.clone()),
            Payload::Memory(pieces) => pieces,
        };
        let mut bytes = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            if !self.registered(key, piece, 0) {
                return None;
            }
            bytes.extend((self.mover.read)(self.place(piece.lkey, piece.addr), piece.length as usize));
        }
        Some(bytes)
    }

    /// Puts what came in into a receive's memory; the error is the receive's status.
    fn scatter(&self, key: Key, memory: &[ibv_sge], bytes: &[u8]) -> Result<(), u32> {
        let room: usize = memory.iter().map(|piece| piece.length as usize).sum();
        if bytes.len() > room {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        if !memory.iter().all(|piece| self.registered(key, piece, IBV_ACCESS_LOCAL_WRITE)) {
            return Err(IBV_WC_LOC_PROT_ERR);
        }
        let mut rest = bytes;
        for piece in memory {
            let (part, behind) = rest.split_at(rest.len().min(piece.length as usize));
            self.write(piece.lkey, piece.addr, part);
            rest = behind;
        }
        Ok(())
    }

    /// Where a byte of a region is reached, that its user names by this address.
    fn place(&self, key: u32, address: u64) -> u64 {
        let mr = self.mrs.get(&key);
        mr.and_then(|mr| Some(mr.dma_buf?.at + (address - mr.start))).unwrap_or(address)
    }

    /// Writes into a region; where its device wants flushes, the bytes wait beside it.
    fn write(&self, key: u32, address: u64, bytes: &[u8]) {
        let late = self.mrs.get(&key).and_then(|mr| Some((mr.start, mr.dma_buf?.late?)));
        match late {
            Some((start, (at, list))) if !bytes.is_empty() => {
                (self.mover.write)(at + (address - start), bytes);
                (self.mover.note)(list, address - start, bytes.len() as u64);
            }
            _ => (self.mover.write)(self.place(key, address), bytes),
        }
    }

    /// Whether a queue pair's domain has this memory registered for this.
    fn registered(&self, key: Key, piece: &ibv_sge, access: u32) -> bool {
        self.mrs.get(&piece.lkey).is_some_and(|mr| {
            mr.pd == self.qps[&key].pd
                && mr.access & access == access
                && piece.addr >= mr.start
                && piece.addr - mr.start <= mr.len
                && u64::from(piece.length) <= mr.len - (piece.addr - mr.start)
        })
    }

    /// Whether peers of a queue pair may write there with this key.
    fn may_write(&self, key: Key, address: u64, len: usize, rkey: u32) -> bool {
        let allowed = self.qps[&key].set.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0;
        let piece = ibv_sge { addr: address, length: len as u32, lkey: rkey };
        allowed && self.registered(key, &piece, IBV_ACCESS_REMOTE_WRITE)
    }
}
