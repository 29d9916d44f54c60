//! Queue pairs: reliable connections and datagrams.

use super::address::Path;
use super::completion::CompletionQueue;
use super::context::Context;
use super::error::{cure_of_path, cure_of_queue, failed, look_at};
use super::gid::Gid;
use super::memory::{Access, ProtectionDomain};
use super::port::Mtu;
use super::work::{ReceiveBatch, SendBatch, WriteRequest};
use crate::sys;
use ccl_core::Result;
use std::fmt;
use std::io;

/// Which service a queue pair gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// Reliable connection: to one peer, in order, each message once.
    Reliable,
    /// Unreliable datagram: single packets to anybody.
    Datagram,
}

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Sends that are posted and not yet known to be complete.
    pub sends: u32,
    /// Receives that are posted and not yet taken.
    pub receives: u32,
    /// Pieces of memory of one send.
    pub send_sges: u32,
    /// Pieces of memory of one receive.
    pub receive_sges: u32,
    /// Bytes of a send that can be taken while it is posted.
    pub inline_bytes: u32,
}

/// What [`ProtectionDomain::queue_pair`] makes.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSetup<'a> {
    /// Its service.
    pub kind: QueuePairKind,
    /// Where the completions of sends go.
    pub sends_to: &'a CompletionQueue,
    /// Where the completions of receives go; may be the same.
    pub receives_to: &'a CompletionQueue,
    /// How much it is to hold at least.
    pub caps: Caps,
}

/// To connect: who the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The way there.
    pub path: Path,
    /// The longest packet that both ends and everything in between carry.
    pub mtu: Mtu,
    /// The number of the peer's queue pair.
    pub peer: u32,
    /// The number of the peer's first packet, 24 bits.
    pub first_packet: u32,
    /// RDMA reads of the peer that are answered at a time.
    pub reads_answered: u8,
    /// How long a sender waits when no receive is posted, as verbs encode it: 12 is 0.64 ms.
    pub not_ready_timer: u8,
}

/// To connect: how to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// How long to wait for an acknowledgement: 4.096 µs × 2 to this power; 0: for ever.
    pub timeout: u8,
    /// How often to send again, at most 7.
    pub retries: u8,
    /// How often to send again when the peer has no receive posted; 7: without end.
    pub not_ready_retries: u8,
    /// The number of the first packet, 24 bits.
    pub first_packet: u32,
    /// RDMA reads that are under way at a time.
    pub reads_started: u8,
}

/// Everything that a queue pair for datagrams needs to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSetup {
    /// From 1.
    pub port: u8,
    /// Which of the port's partition keys.
    pub pkey_index: u16,
    /// What a sender must know.
    pub key: u32,
    /// The number of the first packet, 24 bits.
    pub first_packet: u32,
}

/// What a queue pair can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueuePairState {
    /// Nothing.
    Reset,
    /// Take receives.
    Init,
    /// Receive.
    ReadyToReceive,
    /// Receive and send.
    ReadyToSend,
    /// Receive; its sends drain.
    Draining,
    /// Receive; a send of it failed (datagrams).
    SendError,
    /// Flush what is posted.
    Error,
    /// A code that is newer than this library.
    Other(u32),
}

/// A queue pair as it was when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairStatus {
    /// What it can do.
    pub state: QueuePairState,
    /// Its port.
    pub port: u8,
    /// The longest packet of its path.
    pub mtu: Mtu,
    /// The number of the peer's queue pair.
    pub peer: u32,
    /// The peer's GID.
    pub peer_gid: Gid,
    /// Which entry of the port's GID table is its own address.
    pub gid_index: u8,
    /// How long it waits for an acknowledgement, as in [`ReadyToSend`].
    pub timeout: u8,
    /// How often it sends again.
    pub retries: u8,
    /// How much it holds.
    pub caps: Caps,
}

/// A queue pair.
pub struct QueuePair {
    context: Context,
    kind: QueuePairKind,
    caps: Caps,
    raw: sys::Qp,
}

impl QueuePair {
    pub(super) fn new(domain: &ProtectionDomain, setup: &QueuePairSetup<'_>) -> Result<QueuePair> {
        let kind = match setup.kind {
            QueuePairKind::Reliable => sys::IBV_QPT_RC,
            QueuePairKind::Datagram => sys::IBV_QPT_UD,
        };
        let mut cap = setup.caps.to_sys();
        let queues = (setup.sends_to.raw().clone(), setup.receives_to.raw().clone());
        let raw = sys::Qp::new(domain.raw().clone(), kind, queues.0, queues.1, &mut cap);
        let raw = raw.map_err(|e| refused(domain.context(), &setup.caps, e))?;
        Ok(QueuePair { context: domain.context().clone(), kind: setup.kind, caps: Caps::of(&cap), raw })
    }

    /// Its number, by which peers and completions name it.
    pub fn number(&self) -> u32 {
        self.raw.number()
    }

    /// Its service.
    pub fn kind(&self) -> QueuePairKind {
        self.kind
    }

    /// How much it holds: at least what was asked for.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// From reset to init: on this port and partition, with what peers may do. Receives can be posted from here on.
    pub fn init(&self, port: u8, pkey_index: u16, access: Access) -> Result<()> {
        let mut attributes = sys::Qp::attributes();
        attributes.qp_state = sys::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.pkey_index = pkey_index;
        attributes.qp_access_flags = access.bits() & !sys::IBV_ACCESS_RELAXED_ORDERING;
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.raw.modify(&mut attributes, mask).map_err(|e| {
            let remedy = format!(
                "port {port} must be one of {} and partition key index {pkey_index} one of its table",
                self.context.limits().ports
            );
            self.failed("to init", e, remedy)
        })
    }

    /// From init to ready-to-receive: connects to the peer.
    pub fn ready_to_receive(&self, to: &ReadyToReceive) -> Result<()> {
        let mut attributes = sys::Qp::attributes();
        attributes.qp_state = sys::IBV_QPS_RTR;
        attributes.ah_attr = to.path.attributes();
        attributes.path_mtu = to.mtu.code().into();
        attributes.dest_qp_num = to.peer;
        attributes.rq_psn = to.first_packet & 0xff_ffff;
        attributes.max_dest_rd_atomic = to.reads_answered;
        attributes.min_rnr_timer = to.not_ready_timer;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.raw.modify(&mut attributes, mask).map_err(|e| {
            let what = format!(
                "to ready-to-receive from {} to {} queue pair {:#x} at mtu {}",
                to.path.here(),
                to.path.peer(),
                to.peer,
                to.mtu
            );
            let remedy = cure_of_path(&e, &to.path.peer(), &to.path.here());
            self.failed(&what, e, remedy)
        })
    }

    /// From ready-to-receive to ready-to-send.
    pub fn ready_to_send(&self, with: &ReadyToSend) -> Result<()> {
        let mut attributes = sys::Qp::attributes();
        attributes.qp_state = sys::IBV_QPS_RTS;
        attributes.timeout = with.timeout;
        attributes.retry_cnt = with.retries;
        attributes.rnr_retry = with.not_ready_retries;
        attributes.sq_psn = with.first_packet & 0xff_ffff;
        attributes.max_rd_atomic = with.reads_started;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.raw.modify(&mut attributes, mask).map_err(|e| {
            let what = format!(
                "to ready-to-send with timeout {}, {} retries and {} when not ready",
                with.timeout, with.retries, with.not_ready_retries
            );
            self.failed(&what, e, "the timeout is at most 31, and both retries at most 7")
        })
    }

    /// From reset all the way to ready-to-send, for datagrams.
    pub fn start_datagrams(&self, with: &DatagramSetup) -> Result<()> {
        let mut attributes = sys::Qp::attributes();
        attributes.port_num = with.port;
        attributes.pkey_index = with.pkey_index;
        attributes.qkey = with.key;
        attributes.sq_psn = with.first_packet & 0xff_ffff;
        let init = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY;
        let steps = [
            (sys::IBV_QPS_INIT, "to init", init),
            (sys::IBV_QPS_RTR, "to ready-to-receive", 0),
            (sys::IBV_QPS_RTS, "to ready-to-send", sys::IBV_QP_SQ_PSN),
        ];
        for (state, what, mask) in steps {
            attributes.qp_state = state;
            self.raw.modify(&mut attributes, sys::IBV_QP_STATE | mask).map_err(|e| {
                let remedy = format!(
                    "port {} must be one of {} and partition key index {} one of its table",
                    with.port,
                    self.context.limits().ports,
                    with.pkey_index
                );
                self.failed(what, e, remedy)
            })?;
        }
        Ok(())
    }

    /// To error, from any state: whatever is posted completes as flushed.
    pub fn fail(&self) -> Result<()> {
        self.move_to(sys::IBV_QPS_ERR, "to error")
    }

    /// To reset, from any state: whatever is posted is forgotten.
    pub fn reset(&self) -> Result<()> {
        self.move_to(sys::IBV_QPS_RESET, "to reset")
    }

    /// What it is like now.
    pub fn query(&self) -> Result<QueuePairStatus> {
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PORT
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_CAP;
        let now = self.raw.query(mask).map_err(|e| {
            let call = format!("ibv_query_qp of queue pair {:#x} on {}", self.number(), self.context.name());
            failed(call, e, look_at(self.context.name()))
        })?;
        Ok(QueuePairStatus {
            state: QueuePairState::of(now.qp_state),
            port: now.port_num,
            mtu: Mtu::of(now.path_mtu),
            peer: now.dest_qp_num,
            peer_gid: Gid(now.ah_attr.grh.dgid.raw),
            gid_index: now.ah_attr.grh.sgid_index,
            timeout: now.timeout,
            retries: now.retry_cnt,
            caps: Caps::of(&now.cap),
        })
    }

    /// Posts all sends of the batch with one doorbell, and empties it. On an error those that were not taken stay in it.
    #[inline]
    pub fn post_send(&self, batch: &mut SendBatch) -> Result<()> {
        match self.raw.post_send(&mut batch.0) {
            Ok(()) => batch.0.clear(),
            Err((taken, error)) => {
                batch.0.drain(..taken);
                return Err(self.not_posted("send", self.caps.sends, error));
            }
        }
        Ok(())
    }

    /// Posts a write.
    #[inline]
    pub fn post_write(&self, write: &mut WriteRequest) -> Result<()> {
        self.raw.post_one(&mut write.0).map_err(|error| self.not_posted("send", self.caps.sends, error))
    }

    /// Posts two writes with one doorbell, in this order. An error comes with whether the first was taken.
    pub fn post_writes(
        &self,
        first: &mut WriteRequest,
        second: &mut WriteRequest,
    ) -> std::result::Result<(), (bool, ccl_core::Error)> {
        let posted = self.raw.post_two(&mut first.0, &mut second.0);
        posted.map_err(|(taken, error)| (taken, self.not_posted("send", self.caps.sends, error)))
    }

    /// Posts the first `count` receives of the batch with one doorbell, and keeps it as it is, to be posted again: for receives
    /// without memory.
    #[inline]
    pub fn post_again(&self, batch: &mut ReceiveBatch, count: usize) -> Result<()> {
        let posted = self.raw.post_receive(&mut batch.0[..count]);
        posted.map_err(|(_, error)| self.not_posted("receive", self.caps.receives, error))
    }

    /// Posts all receives of the batch with one doorbell, and empties it. On an error those that were not taken stay in it.
    #[inline]
    pub fn post_receive(&self, batch: &mut ReceiveBatch) -> Result<()> {
        match self.raw.post_receive(&mut batch.0) {
            Ok(()) => batch.0.clear(),
            Err((taken, error)) => {
                batch.0.drain(..taken);
                return Err(self.not_posted("receive", self.caps.receives, error));
            }
        }
        Ok(())
    }

    fn move_to(&self, state: u32, what: &str) -> Result<()> {
        let mut attributes = sys::Qp::attributes();
        attributes.qp_state = state;
        let moved = self.raw.modify(&mut attributes, sys::IBV_QP_STATE);
        moved.map_err(|e| self.failed(what, e, look_at(self.context.name())))
    }

    #[cold]
    fn failed(&self, what: &str, source: io::Error, remedy: impl Into<String>) -> ccl_core::Error {
        let call =
            format!("ibv_modify_qp of queue pair {:#x} on {} {what}", self.number(), self.context.name());
        failed(call, source, remedy)
    }

    #[cold]
    fn not_posted(&self, what: &str, room: u32, source: io::Error) -> ccl_core::Error {
        let call = format!("ibv_post_{what} to queue pair {:#x} on {}", self.number(), self.context.name());
        let remedy = match source.raw_os_error() {
            Some(libc::ENOMEM) => format!("its queue of {room} is full: poll completions first"),
            _ => "the queue pair must be in a state that takes it, and the request within its limits".into(),
        };
        failed(call, source, remedy)
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:#x} on {})", self.number(), self.context.name())
    }
}

/// Why a device makes no such queue pair.
#[cold]
fn refused(context: &Context, wanted: &Caps, source: io::Error) -> ccl_core::Error {
    let (name, limits) = (context.name(), context.limits());
    let remedy = match source.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => cure_of_queue(
            &source,
            format!(
                "{name} has {} queue pairs in all: end other programs that use it, or use fewer per connection \
                 (RDMACCL_IB_QPS_PER_CONNECTION)",
                limits.queue_pairs
            ),
        ),
        Some(libc::EINVAL) => format!(
            "{name} takes at most {} work requests of {} pieces each; what it takes of inline bytes it does not say",
            limits.work_requests, limits.sges
        ),
        _ => look_at(name),
    };
    let call = format!(
        "ibv_create_qp of {} sends, {} receives and {} inline bytes on {name}",
        wanted.sends, wanted.receives, wanted.inline_bytes
    );
    failed(call, source, remedy)
}

impl Caps {
    fn to_sys(self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.sends,
            max_recv_wr: self.receives,
            max_send_sge: self.send_sges,
            max_recv_sge: self.receive_sges,
            max_inline_data: self.inline_bytes,
        }
    }

    fn of(cap: &sys::ibv_qp_cap) -> Caps {
        Caps {
            sends: cap.max_send_wr,
            receives: cap.max_recv_wr,
            send_sges: cap.max_send_sge,
            receive_sges: cap.max_recv_sge,
            inline_bytes: cap.max_inline_data,
        }
    }
}

impl QueuePairState {
    fn of(code: u32) -> QueuePairState {
        match code {
            sys::IBV_QPS_RESET => QueuePairState::Reset,
            sys::IBV_QPS_INIT => QueuePairState::Init,
            sys::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
            sys::IBV_QPS_RTS => QueuePairState::ReadyToSend,
            sys::IBV_QPS_SQD => QueuePairState::Draining,
            sys::IBV_QPS_SQE => QueuePairState::SendError,
            sys::IBV_QPS_ERR => QueuePairState::Error,
            other => QueuePairState::Other(other),
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::Reset => "reset",
            QueuePairState::Init => "init",
            QueuePairState::ReadyToReceive => "ready-to-receive",
            QueuePairState::ReadyToSend => "ready-to-send",
            QueuePairState::Draining => "draining",
            QueuePairState::SendError => "send-error",
            QueuePairState::Error => "error",
            QueuePairState::Other(code) => return write!(f, "state-{code}"),
        })
    }
}
