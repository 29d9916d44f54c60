//! One queue pair to one peer, and what is posted to it.
//!
//! All receives are without bytes: every message is an RDMA write with immediate, which takes one. As many are posted as
//! the peer can have messages under way (the window of each link, two returns of credits per link, one goodbye), and a
//! batch more, since they are posted again in batches. So the peer never finds none.

use super::failure;
use super::wire::{FRONT, HEADER, INLINE_BYTES, Immediate};
use crate::verbs::{Caps, QueuePair, ReceiveBatch, Remote, SendBatch, SendWork, Sge, Verb};
use ccl_core::{Error, Rank, Result};

/// Channels that share a queue pair, unless the device has too few work requests.
pub(crate) const CHANNELS: u32 = 4;
/// Receives that are posted together.
const BATCH: u32 = 16;

/// Bytes of a short message.
pub(crate) const INLINE_MESSAGE: usize = HEADER + INLINE_BYTES;
const _: () = assert!(FRONT >= HEADER);

/// How a link's credits are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Messages that may be published and not returned.
    pub(crate) slots: u32,
    /// Releases that are returned together.
    pub(crate) batch: u32,
}

impl Window {
    /// Releases go back by halves of the credits. Those that are on their way back would be missed, so a link has as many
    /// slots more: what was published and not released never has to wait for less than all credits.
    pub(crate) fn of(credits: u32) -> Window {
        let batch = credits.div_ceil(2);
        Window { slots: credits + batch - 1, batch }
    }

    /// Messages that the peer can have under way on a link of each direction: pieces, and returns of credits.
    fn messages(self) -> u32 {
        self.slots + self.slots / self.batch
    }
}

/// Receives that a queue pair for so many channels needs.
fn receives(channels: u32, window: Window) -> u32 {
    channels * window.messages() + 1 + BATCH
}

/// Channels that a queue pair of a device with such a limit can carry; 0: not even one.
pub(crate) fn channels(work_requests: u32, window: Window) -> u32 {
    (work_requests.saturating_sub(1 + BATCH) / window.messages()).min(CHANNELS)
}

/// What a queue pair for so many channels must hold.
pub(crate) fn caps(channels: u32, window: Window) -> Caps {
    Caps {
        // Besides what the peer has not released: completions that are not polled yet.
        sends: receives(channels, window),
        receives: receives(channels, window),
        send_sges: 2,
        receive_sges: 1,
        inline_bytes: INLINE_MESSAGE as u32,
    }
}

/// A queue pair to a peer.
pub(crate) struct Lane {
    pub(crate) pair: QueuePair,
    pub(crate) peer: Rank,
    /// Its place among the adapters.
    pub(crate) adapter: usize,
    /// The port of the adapter.
    pub(crate) port: u8,
    /// Both ends in words, for errors.
    pub(crate) ends: String,
    /// Its number among the lanes, which all its work requests carry.
    id: u32,
    /// Sends that are posted and not known to be complete.
    outstanding: u32,
    /// Sends that are promised to reservations.
    held: u32,
    /// Sends since the last that asks for a completion.
    silent: u32,
    /// After so many one asks.
    interval: u32,
    /// Receives that were taken and are not posted again.
    taken: u32,
    /// Most bytes that are taken while posting.
    inline: usize,
    sends: SendBatch,
    receives: ReceiveBatch,
    /// Whether it is connected.
    pub(crate) live: bool,
    /// Why it does not work any more.
    pub(crate) broken: Option<Error>,
    /// The peer has said goodbye.
    pub(crate) gone: bool,
    pub(crate) work: Work,
}

/// What a transport has given its devices to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Sends posted.
    pub sends: u64,
    /// Sends among them whose bytes the device took while they were posted.
    pub inline: u64,
    /// Sends among them that asked for a completion.
    pub signaled: u64,
    /// Sends among them that only returned credits.
    pub credits: u64,
    /// Receives posted.
    pub receives: u64,
    /// Calls that posted either.
    pub doorbells: u64,
    /// Polls of completion queues.
    pub polls: u64,
    /// Completions that they gave.
    pub completions: u64,
}

impl Work {
    pub(crate) fn add(&mut self, more: Work) {
        self.sends += more.sends;
        self.inline += more.inline;
        self.signaled += more.signaled;
        self.credits += more.credits;
        self.receives += more.receives;
        self.doorbells += more.doorbells;
        self.polls += more.polls;
        self.completions += more.completions;
    }
}

/// A send's number: the lane, and how many sends its completion stands for.
pub(crate) fn split(id: u64) -> (usize, u32) {
    (id as u32 as usize, (id >> 32) as u32)
}

impl Lane {
    pub(crate) fn new(pair: QueuePair, id: u32, peer: Rank, adapter: usize, port: u8, ends: String) -> Lane {
        let caps = pair.caps();
        Lane {
            peer,
            adapter,
            port,
            ends,
            id,
            outstanding: 0,
            held: 0,
            silent: 0,
            interval: (caps.sends / 4).clamp(1, 32),
            taken: 0,
            inline: caps.inline_bytes as usize,
            sends: SendBatch::with_capacity(1),
            receives: ReceiveBatch::with_capacity(caps.receives as usize),
            live: false,
            broken: None,
            gone: false,
            work: Work::default(),
            pair,
        }
    }

    /// Posts the first receives. The queue pair is in its init state.
    pub(crate) fn fill(&mut self, channels: u32, window: Window) -> Result<()> {
        self.taken = receives(channels, window);
        self.refill()
    }

    /// Whether one more send fits.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding + self.held < self.pair.caps().sends
    }

    /// Whether all sends are known to be complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.outstanding == 0
    }

    /// Keeps room for one piece.
    #[inline]
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// Why nothing can be sent, if so.
    #[inline]
    pub(crate) fn fault(&self) -> Option<Error> {
        if self.broken.is_none() && !self.gone {
            return None;
        }
        let closed = || failure::of_peer(self.peer, format!("the peer has closed its end of {}", self.ends));
        Some(self.broken.clone().unwrap_or_else(closed))
    }

    /// Sends a piece, for which room is held.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[Sge], to: Remote, immediate: u32) -> Result<()> {
        self.held -= 1;
        let len: usize = bytes.iter().map(Sge::len).sum();
        self.post(bytes, to, immediate, len <= self.inline.min(INLINE_MESSAGE), false)
    }

    /// Returns credits, in a message without bytes. There must be room.
    pub(crate) fn return_credit(&mut self, link: u32, released: u32) -> Result<()> {
        self.work.credits += 1;
        let immediate = Immediate::Credit { link, released }.encode();
        self.post(&[], Remote::default(), immediate, false, false)
    }

    /// Sends the last message, whose completion is wanted. There must be room.
    pub(crate) fn say_goodbye(&mut self) -> Result<()> {
        self.post(&[], Remote::default(), Immediate::Goodbye.encode(), false, true)
    }

    #[inline]
    fn post(&mut self, bytes: &[Sge], to: Remote, immediate: u32, inline: bool, last: bool) -> Result<()> {
        self.silent += 1;
        let signaled = last || self.silent >= self.interval;
        let id = u64::from(self.id) | u64::from(self.silent) << 32;
        let verb = Verb::WriteImmediate(to, immediate);
        let inline = inline && !bytes.is_empty();
        self.sends.push(SendWork { id, verb, bytes, inline, signaled, solicited: false });
        if let Err(error) = self.pair.post_send(&mut self.sends) {
            self.sends.clear();
            return Err(error);
        }
        self.outstanding += 1;
        self.work.sends += 1;
        self.work.doorbells += 1;
        self.work.inline += u64::from(inline);
        self.work.signaled += u64::from(signaled);
        if signaled {
            self.silent = 0;
        }
        Ok(())
    }

    /// A completion says that so many sends are done.
    #[inline]
    pub(crate) fn done(&mut self, sends: u32) {
        self.outstanding = self.outstanding.saturating_sub(sends);
    }

    /// A message has taken a receive; enough of them are posted again together.
    #[inline]
    pub(crate) fn took_receive(&mut self) -> Result<()> {
        self.taken += 1;
        if self.taken >= BATCH && self.broken.is_none() { self.refill() } else { Ok(()) }
    }

    fn refill(&mut self) -> Result<()> {
        for _ in 0..self.taken {
            self.receives.push(self.id.into(), None);
        }
        self.work.receives += u64::from(self.taken);
        self.work.doorbells += 1;
        self.taken = 0;
        let posted = self.pair.post_receive(&mut self.receives);
        self.receives.clear();
        posted
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("pair", &self.pair).field("ends", &self.ends).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_few_work_requests_carries_fewer_channels() {
        let window = Window::of(32);
        assert_eq!((window.slots, window.batch, window.messages()), (47, 16, 49));
        let carried = [16384, 17 + 2 * 49, 17 + 49, 17 + 48].map(|limit| channels(limit, window));
        assert_eq!(carried, [4, 2, 1, 0]);
        for credits in [1, 2, 3, 32, 33, 1024] {
            let window = Window::of(credits);
            let carried = channels(4200, window);
            assert!(carried >= 1 && caps(carried, window).receives <= 4200);
            assert!(window.slots / window.batch <= 2 && window.slots < 2 * credits && window.slots < 2048);
            assert!(window.slots - (window.batch - 1) == credits, "all but a batch is returned");
        }
    }

    #[test]
    fn a_sends_number_says_its_lane_and_how_many_it_stands_for() {
        assert_eq!(split(7 | 9 << 32), (7, 9));
    }
}
