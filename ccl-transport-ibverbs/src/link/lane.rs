//! One queue pair to one peer, or another one in its place, and what is posted to it.
//!
//! A lane is one of a group ([`super::group`]) and carries the links of all of it.
//!
//! All receives are without bytes: every message is an RDMA write with immediate, which takes one. As many are posted as
//! the peer can have messages under way (the window of each link, two returns of credits and an offer per link, one goodbye),
//! and a batch more, since they are posted again in batches. So the peer never finds none.

use super::failure;
use super::pace::Pace;
use super::recovery::{Homing, Repair, Trouble};
use super::terms::Place;
use super::wire::{FRONT, HEADER, INLINE_BYTES, Immediate, MOST_LINKS};
use super::work::{Id, Work};
use crate::choice::window;
use crate::verbs::{Caps, QueuePair, ReceiveBatch, Remote, Sge, WriteRequest};
use ccl_core::{Error, Rank, Result};

/// Channels that are at home on a queue pair, unless the device has too few work requests.
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
    /// Releases go back by halves of the credits, and a link has more slots than credits: what was published and not released
    /// never has to wait for less than all credits.
    pub(crate) fn of(credits: u32) -> Window {
        Window { slots: window::slots_of(credits), batch: credits.div_ceil(2) }
    }

    /// Messages that the peer can have under way on a link of each direction: pieces, returns of credits, and an offer.
    fn messages(self) -> u32 {
        self.slots + self.slots / self.batch + 1
    }
}

/// Receives that a queue pair for so many links in each direction needs.
fn receives(links: u32, window: Window) -> u32 {
    links * window.messages() + 1 + BATCH
}

/// Links that a queue pair of a device with such a limit can carry; 0: not even one.
pub(crate) fn links(work_requests: u32, window: Window) -> u32 {
    (work_requests.saturating_sub(1 + BATCH) / window.messages()).min(MOST_LINKS)
}

/// What a queue pair for so many links must hold.
pub(crate) fn caps(links: u32, window: Window) -> Caps {
    Caps {
        // Besides what the peer has not released: completions that are not polled yet.
        sends: receives(links, window),
        receives: receives(links, window),
        send_sges: 2,
        receive_sges: 1,
        inline_bytes: INLINE_MESSAGE as u32,
    }
}

/// Entries of a completion queue that a queue pair may fill: its own, and those that one before it has left.
pub(crate) fn completions(caps: Caps) -> u32 {
    2 * (caps.sends + caps.receives)
}

/// A queue pair, and where it is.
pub(crate) struct Seat {
    pub(crate) pair: QueuePair,
    /// Its pair of rails, by the connection's numbers.
    pub(crate) rails: usize,
    /// Its place among the adapters.
    pub(crate) adapter: usize,
    /// The port of the adapter, and its place among the rails.
    pub(crate) port: u8,
    pub(crate) rail: usize,
    /// Which of the adapter's completion queues it has, and how many of its entries.
    pub(crate) queue: usize,
    pub(crate) entries: u32,
    /// Both ends in words, for errors.
    pub(crate) ends: String,
    /// Bytes of pieces that went out by it.
    pub(crate) sent: u64,
}

impl Seat {
    /// Nothing comes or goes by it any more.
    pub(crate) fn fail(&self) {
        if let Err(error) = self.pair.fail() {
            tracing::debug!(target: "net", %error, "a queue pair cannot be moved to error");
        }
    }
}

/// Who waits for the completion of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    None,
    /// Somebody who wants to know that it is done.
    Wanted,
    /// The lane's [`Pace`].
    Timed,
}

/// What carries links to a peer: a queue pair, and another one where that fails.
pub(crate) struct Lane {
    pub(crate) seat: Seat,
    pub(crate) peer: Rank,
    /// Its name in words between the two ends.
    pub(crate) place: Place,
    /// Its number among the lanes, which all its work requests carry.
    id: u32,
    /// The place of its group, and its own among the group's lanes.
    pub(crate) group: u32,
    pub(crate) position: usize,
    /// How many queue pairs came before the one that it has, modulo 2^16: its work requests carry that too.
    era: u16,
    /// How many the two ends have agreed to give up so far.
    pub(crate) generation: u32,
    /// Messages that got through so far, in either direction.
    pub(crate) moved: u64,
    /// How fast it is, where pieces have a choice.
    pub(crate) pace: Pace,
    /// Sends that are posted and not known to be complete.
    outstanding: u32,
    /// Sends that are promised to reservations.
    held: u32,
    /// Sends since the last that asks for a completion.
    silent: u32,
    /// After so many one asks.
    interval: u32,
    /// Sends that may be outstanding or held; none while it is not open.
    room: u32,
    /// Receives that it has.
    receives_in_all: u32,
    /// Receives that were taken and are not posted again.
    taken: u32,
    /// Most bytes of a message that are taken while posting.
    inline: usize,
    /// The work request of the bytes of each put, which a message announces.
    bare: WriteRequest,
    /// The work request of each send, and those of all receives, which differ in nothing.
    write: WriteRequest,
    receives: ReceiveBatch,
    /// Whether it sends, and posts its receives again.
    pub(crate) open: bool,
    /// While its queue pair has failed, and there is no other one yet.
    pub(crate) repair: Option<Box<Repair>>,
    /// Its last failure.
    pub(crate) trouble: Option<Box<Trouble>>,
    /// How it finds back to the rail that it belongs to.
    pub(crate) homing: Homing,
    /// Why it does not work any more.
    pub(crate) broken: Option<Error>,
    said_goodbye: bool,
    /// The peer has said goodbye.
    pub(crate) gone: bool,
    /// What it has done. Its doorbells are those of receives; each send has one besides, but the bytes of a put, which share that of the message.
    pub(crate) work: Work,
}

impl Lane {
    /// With a queue pair in its init state, for so many links.
    pub(crate) fn new(
        seat: Seat,
        id: u32,
        (peer, place): (Rank, Place),
        (links, window): (u32, Window),
        pace: Pace,
    ) -> Lane {
        Lane {
            peer,
            place,
            id,
            group: 0,
            position: 0,
            era: 0,
            generation: 0,
            moved: 0,
            pace,
            outstanding: 0,
            held: 0,
            silent: 0,
            interval: 1,
            room: 0,
            receives_in_all: receives(links, window),
            taken: 0,
            inline: 0,
            bare: WriteRequest::bare(),
            write: WriteRequest::new(),
            receives: ReceiveBatch::with_capacity(receives(links, window) as usize),
            open: false,
            repair: None,
            trouble: None,
            homing: Homing::default(),
            broken: None,
            said_goodbye: false,
            gone: false,
            work: Work::default(),
            seat,
        }
    }

    /// Posts the first receives of a new queue pair, which is in its init state.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let caps = self.seat.pair.caps();
        self.interval = (caps.sends / 4).clamp(1, 32);
        self.inline = INLINE_MESSAGE.min(caps.inline_bytes as usize);
        (self.outstanding, self.silent, self.said_goodbye) = (0, 0, false);
        self.taken = self.receives_in_all;
        let id = Id { lane: self.id, sends: 0, timed: false, era: self.era }.encode();
        self.receives.clear();
        (0..self.taken).for_each(|_| self.receives.push(id, None));
        self.refill()
    }

    /// The queue pair is connected at both ends.
    pub(crate) fn start(&mut self) {
        self.open = true;
        self.room = self.seat.pair.caps().sends;
    }

    /// Nothing is sent by this queue pair any more.
    pub(crate) fn stop(&mut self) {
        self.open = false;
        self.room = 0;
    }

    /// The peer has said goodbye.
    #[cold]
    pub(crate) fn leave(&mut self) {
        self.gone = true;
        self.stop();
    }

    /// Whether its queue pair has failed already, and what it flushes is expected.
    pub(crate) fn is_draining(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| !repair.is_prepared())
    }

    /// Takes another queue pair in place of its own, which is given back.
    pub(crate) fn take_seat(&mut self, seat: Seat) -> Seat {
        self.era = self.era.wrapping_add(1);
        std::mem::replace(&mut self.seat, seat)
    }

    /// Whether a work request was posted to the queue pair that it has now.
    #[inline]
    pub(crate) fn is_of_now(&self, id: Id) -> bool {
        self.era == id.era
    }

    /// Whether no receive is left with the device: nothing comes by this queue pair any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.receives_in_all
    }

    /// Whether something has come by this queue pair.
    pub(crate) fn has_heard(&self) -> bool {
        self.taken > 0
    }

    /// A receive came back unused.
    pub(crate) fn flushed_receive(&mut self) {
        self.taken += 1;
    }

    /// Whether one more send fits.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding + self.held < self.room
    }

    /// Whether two more fit.
    pub(crate) fn has_room_for_two(&self) -> bool {
        self.outstanding + self.held + 1 < self.room
    }

    /// Whether one more message may go by it: nothing does behind a goodbye.
    #[inline]
    pub(crate) fn can_take(&self) -> bool {
        self.has_room() && !self.said_goodbye
    }

    /// Whether all sends are known to be complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether it works, and is full.
    pub(crate) fn lacks_room(&self) -> bool {
        self.open && !self.said_goodbye && !self.has_room()
    }

    /// Keeps room for one piece.
    #[inline]
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// Gives it up.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        self.held -= 1;
    }

    /// Why nothing can be sent, if so.
    #[inline]
    pub(crate) fn fault(&self) -> Option<Error> {
        if self.open { None } else { self.why_closed() }
    }

    #[cold]
    fn why_closed(&self) -> Option<Error> {
        let closed =
            || failure::of_peer(self.peer, format!("the peer has closed its end of {}", self.seat.ends));
        self.broken.clone().or_else(|| self.gone.then(closed))
    }

    /// Sends a piece. There must be room. `notice`: who waits for its completion.
    #[inline(always)]
    pub(crate) fn send(&mut self, bytes: &[Sge], to: Remote, immediate: u32, notice: Notice) -> Result<()> {
        let len: usize = bytes.iter().map(Sge::len).sum();
        self.post(bytes, to, immediate, len <= self.inline, notice)
    }

    /// Writes bytes, and sends behind them the message that announces them, which must ask for a completion. One doorbell rings for
    /// both. There must be room for two.
    pub(crate) fn put(
        &mut self,
        (bytes, at): (Sge, Remote),
        message: Sge,
        (to, immediate): (Remote, u32),
        notice: Notice,
    ) -> Result<()> {
        debug_assert_ne!(notice, Notice::None);
        self.silent += 1;
        let id = Id { lane: self.id, sends: self.silent as u16, timed: false, era: self.era }.encode();
        self.bare.set(id, &[bytes], (at, 0), false, false);
        let how = self.set(&[message], (to, immediate), message.len() <= self.inline, notice);
        let outcome = self.seat.pair.post_writes(&mut self.bare, &mut self.write);
        if !matches!(outcome, Err((false, _))) {
            self.outstanding += 1;
            self.work.sends += 1;
            self.work.puts += 1;
        }
        outcome.map_err(|(_, error)| error)?;
        self.posted(how);
        Ok(())
    }

    /// The number of the send that is posted next, counted from 1.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.work.sends + 1
    }

    /// Whether the device is done with the send of this number, counted from 1.
    #[inline]
    pub(crate) fn has_done(&self, send: u64) -> bool {
        match &self.repair {
            None => send <= self.work.sends - u64::from(self.outstanding),
            // What is still needed of it is sent by others, or waits to be.
            Some(repair) => repair.is_settled && !self.is_draining_here(),
        }
    }

    /// Whether the device may still have something of the queue pair that has failed.
    fn is_draining_here(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| repair.is_draining())
    }

    /// Says where what comes next on the peer's link may go. There must be room.
    pub(crate) fn offer(&mut self, record: Sge, to: Remote, link: u32) -> Result<()> {
        self.work.offers += 1;
        self.post(
            &[record],
            to,
            Immediate::Offer { link }.encode(),
            record.len() <= self.inline,
            Notice::None,
        )
    }

    /// Returns credits, in a message without bytes. There must be room.
    pub(crate) fn return_credit(&mut self, link: u32, released: u32) -> Result<()> {
        self.work.credits += 1;
        let immediate = Immediate::Credit { link, released }.encode();
        self.post(&[], Remote::default(), immediate, false, Notice::None)
    }

    /// Sends the last message, whose completion is wanted. There must be room.
    pub(crate) fn say_goodbye(&mut self) -> Result<()> {
        self.said_goodbye = true;
        self.post(&[], Remote::default(), Immediate::Goodbye.encode(), false, Notice::Wanted)
    }

    #[inline(always)]
    fn post(
        &mut self,
        bytes: &[Sge],
        to: Remote,
        immediate: u32,
        inline: bool,
        notice: Notice,
    ) -> Result<()> {
        let how = self.set(bytes, (to, immediate), inline, notice);
        self.seat.pair.post_write(&mut self.write)?;
        self.posted(how);
        Ok(())
    }

    /// Makes the work request of a send ready. Whether its bytes go inline, and whether it asks for a completion.
    #[inline(always)]
    fn set(&mut self, bytes: &[Sge], to: (Remote, u32), inline: bool, notice: Notice) -> (bool, bool) {
        self.silent += 1;
        let signaled = notice != Notice::None || self.silent >= self.interval;
        let timed = notice == Notice::Timed;
        let id = Id { lane: self.id, sends: self.silent as u16, timed, era: self.era }.encode();
        let inline = inline && !bytes.is_empty();
        self.write.set(id, bytes, to, inline, signaled);
        (inline, signaled)
    }

    /// Counts it when it was posted.
    #[inline(always)]
    fn posted(&mut self, (inline, signaled): (bool, bool)) {
        self.outstanding += 1;
        self.work.sends += 1;
        self.work.inline += u64::from(inline);
        if signaled {
            self.silent = 0;
            self.work.signaled += 1;
        }
    }

    /// A completion says that so many sends are done.
    #[inline]
    pub(crate) fn done(&mut self, sends: u32) {
        self.outstanding = self.outstanding.saturating_sub(sends);
        self.moved += 1;
    }

    /// A message has taken a receive; enough of them are posted again together.
    #[inline]
    pub(crate) fn took_receive(&mut self) -> Result<()> {
        self.taken += 1;
        self.moved += 1;
        if self.taken >= BATCH && self.open { self.refill() } else { Ok(()) }
    }

    fn refill(&mut self) -> Result<()> {
        self.work.receives += u64::from(self.taken);
        self.work.doorbells += 1;
        let taken = std::mem::take(&mut self.taken);
        self.seat.pair.post_again(&mut self.receives, taken as usize)
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("pair", &self.seat.pair).field("ends", &self.seat.ends).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_few_work_requests_carries_fewer_links() {
        let window = Window::of(32);
        assert_eq!((window.slots, window.batch, window.messages()), (47, 16, 50));
        let carried = [16384, 17 + 2 * 50, 17 + 50, 17 + 49].map(|limit| links(limit, window));
        assert_eq!(carried, [12, 2, 1, 0]);
        for credits in [1, 2, 3, 32, 33, 1024] {
            let window = Window::of(credits);
            let carried = links(4200, window);
            assert!(carried >= 1 && caps(carried, window).receives <= 4200);
            assert!(window.slots / window.batch <= 2 && window.slots < 2 * credits && window.slots < 2048);
            assert!(window.slots - (window.batch - 1) == credits, "all but a batch is returned");
        }
    }
}
