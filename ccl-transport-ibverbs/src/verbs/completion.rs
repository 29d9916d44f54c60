//! Completions, the queues that they come from, and the channels that wake who waits for them.

use super::context::Context;
use super::error::{cure_of_queue, failed, look_at};
use super::status::Status;
use crate::sys;
pub use crate::sys::Completion;
use ccl_core::{Error, Result};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opcode {
    /// A send.
    Send,
    /// An RDMA write.
    Write,
    /// An RDMA read.
    Read,
    /// A receive, taken by a send.
    Receive,
    /// A receive, taken by an RDMA write with immediate.
    ReceiveWrite,
    /// Something that we do not post, or no longer known because the request failed.
    Other(u32),
}

impl Completion {
    /// The number that the request was posted with.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended. Where that is not success, only this, [`id`](Completion::id),
    /// [`queue_pair`](Completion::queue_pair) and [`vendor_error`](Completion::vendor_error) mean anything.
    #[inline]
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// Whether the request was done.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == sys::IBV_WC_SUCCESS
    }

    /// What it is of.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        match self.0.opcode {
            sys::IBV_WC_SEND => Opcode::Send,
            sys::IBV_WC_RDMA_WRITE => Opcode::Write,
            sys::IBV_WC_RDMA_READ => Opcode::Read,
            sys::IBV_WC_RECV => Opcode::Receive,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => Opcode::ReceiveWrite,
            other => Opcode::Other(other),
        }
    }

    /// Bytes that came in; those of a datagram with the 40 bytes of its route in front.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The number that came with the message, in the host's order.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & sys::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// The number of the queue pair here.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The number of the sender's queue pair (datagrams).
    #[inline]
    pub fn source_queue_pair(&self) -> u32 {
        self.0.src_qp
    }

    /// The sender's lid (datagrams over InfiniBand).
    pub fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// Whether the first 40 bytes of a datagram's memory hold its route.
    pub fn has_route(&self) -> bool {
        self.0.wc_flags & sys::IBV_WC_GRH != 0
    }

    /// What the device's maker says beside the status.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

/// For arrays to poll into.
impl Default for Completion {
    fn default() -> Completion {
        Completion(sys::ibv_wc {
            wr_id: 0,
            status: 0,
            opcode: 0,
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
        })
    }
}

/// What an error says of it: `work request 5 on queue pair 0x11: transport retry counter exceeded (status 12, vendor 0x81)`.
impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, queue_pair, status) = (self.id(), self.queue_pair(), self.status());
        write!(f, "work request {id} on queue pair {queue_pair:#x}: {status} (status {}", self.0.status)?;
        if self.is_success() { f.write_str(")") } else { write!(f, ", vendor {:#x})", self.vendor_error()) }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Wakes who sleeps on its descriptor when a completion comes to an armed queue. A clone is the same channel.
#[derive(Clone)]
pub struct CompletionChannel {
    context: Context,
    raw: Arc<sys::Channel>,
}

impl CompletionChannel {
    /// A new one.
    pub fn new(context: &Context) -> Result<CompletionChannel> {
        let raw = sys::Channel::new(context.raw().clone()).map_err(|e| {
            let call = format!("ibv_create_comp_channel on {}", context.name());
            failed(call, e, "raise the limit of open files (ulimit -n)")
        })?;
        Ok(CompletionChannel { context: context.clone(), raw: Arc::new(raw) })
    }

    /// Readable when [`next_event`](CompletionChannel::next_event) has one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }

    /// The [`id`](CompletionQueue::id) of a queue that was armed and got a completion, which disarmed it; `None` if
    /// there is none. Never blocks.
    pub fn next_event(&self) -> Result<Option<u64>> {
        let name = self.context.name();
        self.raw.next_event().map_err(|e| failed(format!("ibv_get_cq_event on {name}"), e, look_at(name)))
    }
}

/// Where the completions of queue pairs come together. A clone is the same queue.
#[derive(Clone)]
pub struct CompletionQueue {
    context: Context,
    raw: Arc<sys::Cq>,
    id: u64,
}

impl CompletionQueue {
    /// One of at least `entries` entries, whose events, if it is armed, come to `channel` by the interrupt `vector`.
    pub fn new(
        context: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue> {
        // 0 would be no number of a queue.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let count = i32::try_from(entries).unwrap_or(i32::MAX);
        let vector = (vector % context.vectors()).cast_signed();
        let raw = sys::Cq::new(context.raw().clone(), count, id, channel.map(|c| c.raw.clone()), vector);
        let raw = raw.map_err(|e| {
            let (name, limits) = (context.name(), context.limits());
            let of_device = format!(
                "{name} has {} completion queues of at most {} entries: use fewer connections, or end other \
                 programs that use it",
                limits.completion_queues, limits.completions
            );
            let remedy = cure_of_queue(&e, of_device);
            failed(format!("ibv_create_cq of {entries} entries on {name}"), e, remedy)
        })?;
        Ok(CompletionQueue { context: context.clone(), raw: Arc::new(raw), id })
    }

    /// Its number in events: unique in this process, never 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many completions it holds: more that are not polled put it into error.
    pub fn entries(&self) -> u32 {
        self.raw.entries()
    }

    /// Takes the oldest completions, as many as there are and as `into` has room for.
    #[inline(always)]
    pub fn poll<'a>(&self, into: &'a mut [Completion]) -> Result<&'a [Completion]> {
        let count = self.raw.poll(into).map_err(|error| self.not_polled(error))?;
        Ok(&into[..count])
    }

    #[cold]
    fn not_polled(&self, error: io::Error) -> Error {
        let name = self.context.name();
        failed(format!("ibv_poll_cq on {name}"), error, look_at(name))
    }

    /// The next completion (the next that the sender asked to be noticed, if `solicited_only`) puts an event into the channel.
    /// What came before does not: poll once more before you sleep.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let name = self.context.name();
        self.raw
            .arm(solicited_only)
            .map_err(|e| failed(format!("ibv_req_notify_cq on {name}"), e, look_at(name)))
    }

    pub(super) fn raw(&self) -> &Arc<sys::Cq> {
        &self.raw
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("id", &self.id).field("device", &self.context.name()).finish()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.context.name()).finish()
    }
}
