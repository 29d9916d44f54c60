//! Work requests, posted in batches: one doorbell for many.

use super::address::AddressHandle;
use super::memory::{Remote, Sge};
use crate::sys;

/// What a send does.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// Writes into the peer's memory.
    Write(Remote),
    /// Writes into the peer's memory, and completes one of its receives with a number.
    WriteImmediate(Remote, u32),
    /// Sends to the memory of one of the peer's receives.
    Send,
    /// As `Send`, with a number.
    SendImmediate(u32),
    /// A datagram, at most as long as the path's packets, to a queue pair of the peer.
    Datagram {
        /// The way to the peer's port; keep it until the send has completed.
        way: &'a AddressHandle,
        /// The number of the peer's queue pair.
        queue_pair: u32,
        /// Its key.
        key: u32,
        /// A number to go with it.
        immediate: Option<u32>,
    },
}

/// A send to be posted.
#[derive(Clone, Copy, Debug)]
pub struct SendWork<'a> {
    /// Comes back in its completion.
    pub id: u64,
    /// What to do.
    pub verb: Verb<'a>,
    /// The bytes, at most [`SendWork::MOST_SGES`] pieces.
    pub bytes: &'a [Sge],
    /// Take the bytes while posting, so that they may be changed at once; at most [`Caps::inline_bytes`](super::Caps).
    pub inline: bool,
    /// Give a completion also if it succeeds. One that fails always does.
    pub signaled: bool,
    /// Wake a peer that waits for solicited completions only.
    pub solicited: bool,
}

impl SendWork<'_> {
    /// Pieces of memory in one work request.
    pub const MOST_SGES: usize = sys::SGES;

    #[inline]
    fn to_sys(self) -> sys::Send {
        let (opcode, to, immediate) = match self.verb {
            Verb::Write(at) => (sys::IBV_WR_RDMA_WRITE, memory(at), 0),
            Verb::WriteImmediate(at, number) => (sys::IBV_WR_RDMA_WRITE_WITH_IMM, memory(at), number),
            Verb::Send => (sys::IBV_WR_SEND, sys::SendTo::Peer, 0),
            Verb::SendImmediate(number) => (sys::IBV_WR_SEND_WITH_IMM, sys::SendTo::Peer, number),
            Verb::Datagram { way, queue_pair, key, immediate } => {
                let opcode = if immediate.is_some() { sys::IBV_WR_SEND_WITH_IMM } else { sys::IBV_WR_SEND };
                let to = sys::SendTo::Datagram { way: way.raw(), number: queue_pair, key };
                (opcode, to, immediate.unwrap_or(0))
            }
        };
        let flags = flag(self.inline, sys::IBV_SEND_INLINE)
            | flag(self.signaled, sys::IBV_SEND_SIGNALED)
            | flag(self.solicited, sys::IBV_SEND_SOLICITED);
        let mut sges = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; sys::SGES];
        for (to, from) in sges.iter_mut().zip(self.bytes) {
            *to = from.0;
        }
        sys::Send::new(self.id, opcode, flags, to, immediate, &sges[..self.bytes.len()])
    }
}

#[inline]
fn flag(on: bool, bit: u32) -> u32 {
    if on { bit } else { 0 }
}

fn memory(at: Remote) -> sys::SendTo<'static> {
    sys::SendTo::Memory { address: at.address, rkey: at.key }
}

/// A write, with an immediate or without, that is posted again and again: only what differs is set each time.
pub struct WriteRequest(pub(super) sys::Send);

impl WriteRequest {
    /// One with an immediate that writes nothing yet.
    #[expect(clippy::new_without_default, reason = "there is no write by default")]
    pub fn new() -> WriteRequest {
        WriteRequest::of(Verb::WriteImmediate(Remote::default(), 0))
    }

    /// One without, of which the peer is not told.
    pub fn bare() -> WriteRequest {
        WriteRequest::of(Verb::Write(Remote::default()))
    }

    fn of(verb: Verb<'_>) -> WriteRequest {
        let work = SendWork { id: 0, verb, bytes: &[], inline: false, signaled: false, solicited: false };
        WriteRequest(work.to_sys())
    }

    /// What the next is to write, where and how, as in [`SendWork`]; without an immediate it does not matter. Panics at more than [`SendWork::MOST_SGES`] pieces of memory.
    #[inline]
    pub fn set(
        &mut self,
        id: u64,
        bytes: &[Sge],
        (to, immediate): (Remote, u32),
        inline: bool,
        signaled: bool,
    ) {
        let flags = flag(inline, sys::IBV_SEND_INLINE) | flag(signaled, sys::IBV_SEND_SIGNALED);
        self.0.rewrite(id, flags, (to.address, to.key), immediate, bytes.iter().map(|sge| sge.0));
    }
}

/// Sends that are posted together. Its memory is allocated once.
#[derive(Default)]
pub struct SendBatch(pub(super) Vec<sys::Send>);

impl SendBatch {
    /// Room for so many.
    pub fn with_capacity(most: usize) -> SendBatch {
        SendBatch(Vec::with_capacity(most))
    }

    /// Adds a send behind those that are there. Panics at more than [`SendWork::MOST_SGES`] pieces of memory.
    #[inline]
    pub fn push(&mut self, work: SendWork<'_>) {
        self.0.push(work.to_sys());
    }

    /// How many wait to be posted.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Receives that are posted together. Its memory is allocated once.
#[derive(Default)]
pub struct ReceiveBatch(pub(super) Vec<sys::Receive>);

impl ReceiveBatch {
    /// Room for so many.
    pub fn with_capacity(most: usize) -> ReceiveBatch {
        ReceiveBatch(Vec::with_capacity(most))
    }

    /// Adds a receive into memory, or into none: for RDMA writes with immediate, and messages without bytes.
    #[inline]
    pub fn push(&mut self, id: u64, into: Option<Sge>) {
        self.0.push(sys::Receive::new(id, into.map(|sge| sge.0)));
    }

    /// How many wait to be posted.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
