//! Puts: bytes that go from memory of this rank straight into memory of a peer that both have shown to their devices, and the message behind
//! them that says so.
//!
//! A put is two work requests on one queue pair: a write, and an ordinary message of the link, whose own bytes lie in its line. A reliable queue pair
//! carries both in order, and the receiver takes no notice of the write but by the message. So the message is all that is accounted
//! for. If its lane fails and the peer says that it has not come, both are sent again: the same bytes to the same place, where nobody has read yet,
//! out of memory that this rank's user keeps until the put is over.

use super::bytes::{Reader, Writer};
use super::group::SMALL;
use super::lane::{Lane, Notice};
use super::offers::Keys;
use super::outgoing::{Body, Carrier, Message, Outgoing};
use super::transport::IbTransport;
use super::wire::INLINE_BYTES;
use crate::verbs::{Access, Region, Remote, Sge};
use ccl_core::kernels::Piece;
use ccl_core::transport::{ReceiverId, SenderId, Window, misuse};
use ccl_core::{Error, Rank, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// What a target is told as: its length, and how peers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    bytes: u64,
    keys: Keys,
}

impl Target {
    fn encode(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.bytes);
        self.keys.write(&mut out);
        out.0
    }

    /// `None`: no version of this library says that.
    fn decode(bytes: &[u8]) -> Option<Target> {
        let mut bytes = Reader(bytes);
        let target = Target { bytes: bytes.u64()?, keys: Keys::read(&mut bytes)? };
        bytes.end(target)
    }
}

/// A put that a message announces.
#[derive(Clone, Copy, Debug, Default)]
struct Put {
    at: usize,
    len: usize,
    /// The number of the message's send on the lane that has carried it last, from 1.
    send: u64,
}

/// What a link needs for puts.
#[derive(Debug)]
pub(crate) struct Puts {
    /// By pair of rails. Before what keeps the memory.
    regions: Box<[Region]>,
    source: Window,
    target: Target,
    /// By the slots of the messages that announce them.
    puts: Box<[Put]>,
    /// The numbers of the messages whose puts are not known to be over, in order; and how many are over.
    waiting: VecDeque<u32>,
    over: u64,
}

impl Puts {
    /// What is written, and where to, over a pair of rails.
    fn write(&self, slot: u32, rails: usize) -> Option<(Sge, Remote)> {
        let Put { at, len, .. } = self.puts[slot as usize];
        let to = self.target.keys.over(rails)?.at(at as u64);
        Some((self.regions[rails].sge(self.source.memory.as_piece().slice(at, len)), to))
    }
}

/// Memory of this rank into which a peer puts.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The place of the link among the incoming.
    link: u32,
    /// Before what keeps the memory.
    _regions: Vec<Region>,
    _target: Window,
}

impl IbTransport {
    /// A window's regions by pair of rails of the connection to a peer: any of them may come to carry a link.
    fn show(&self, peer: Rank, window: &Window, access: impl Fn(bool) -> Access) -> Result<Vec<Region>> {
        let connection = &self.connections[&peer];
        let mut by_adapter: BTreeMap<usize, Region> = BTreeMap::new();
        let of_pair = |pair: usize| {
            let at = self.ports[connection.rail(pair)].adapter;
            let region = match by_adapter.get(&at) {
                Some(region) => region.clone(),
                None => self.adapters[at].register_window(window, &access)?,
            };
            by_adapter.insert(at, region.clone());
            Ok(region)
        };
        (0..connection.pairs.len()).map(of_pair).collect()
    }

    pub(super) fn admit_puts(&mut self, from: ReceiverId, window: &Window) -> Result<Vec<u8>> {
        let link = self.incoming.get(from.0 as usize).ok_or_else(|| misuse::no_such_end(from.0))?;
        let written = |relaxed: bool| match relaxed {
            true => Access::REMOTE_WRITE.and(Access::RELAXED_ORDERING),
            false => Access::REMOTE_WRITE,
        };
        let regions = self.show(link.key.from, window, written)?;
        let mut keys = Keys::default();
        for (rails, region) in regions.iter().enumerate() {
            keys.add(rails, region.remote(window.memory));
        }
        let target = Target { bytes: window.memory.len() as u64, keys };
        self.dismiss_puts(from);
        self.admitted.push(Admitted { link: from.0, _regions: regions, _target: window.clone() });
        Ok(target.encode())
    }

    pub(super) fn dismiss_puts(&mut self, from: ReceiverId) {
        self.admitted.retain(|admitted| admitted.link != from.0);
    }

    pub(super) fn aim_puts(&mut self, to: SenderId, window: &Window, target: &[u8]) -> Result<()> {
        let link = self.only_link(to)?;
        let peer = self.outgoing[link as usize].key.to;
        let pairs = self.connections[&peer].pairs.len();
        let whole = |target: &Target| (0..pairs).all(|rails| target.keys.over(rails).is_some());
        let target = Target::decode(target).filter(whole);
        let target = target.filter(|target| target.bytes == window.memory.len() as u64).ok_or_else(|| {
            let what = format!("ib: what rank {peer} says of {} bytes for puts", window.memory.len());
            Error::invalid(what, "use the same version of the library on all ranks")
        })?;
        let regions = self.show(peer, window, |_| Access::READ)?.into();
        let puts = vec![Put::default(); self.connections[&peer].window.slots as usize].into();
        let (waiting, over) = (VecDeque::new(), 0);
        let source = window.clone();
        self.outgoing[link as usize].puts =
            Some(Box::new(Puts { regions, source, target, puts, waiting, over }));
        Ok(())
    }

    /// The link of a sender that has one.
    fn only_link(&self, to: SenderId) -> Result<u32> {
        let sender = self.senders.get(to.0 as usize).ok_or_else(|| misuse::no_such_end(to.0))?;
        match &*sender.links {
            [link] => Ok(*link),
            links => {
                let what = format!("puts to {} peers at once", links.len());
                Err(Error::unsupported(what, "use a sending end of one link"))
            }
        }
    }

    pub(super) fn put_bytes(
        &mut self,
        to: SenderId,
        bytes: Range<usize>,
        word: Piece,
        tag: u64,
    ) -> Result<bool> {
        let link = self.only_link(to)?;
        let outgoing = &self.outgoing[link as usize];
        if outgoing.reserved {
            return Err(misuse::reserved_twice(outgoing.key.to));
        }
        let Some(puts) = &outgoing.puts else { return Err(misuse::no_windows()) };
        let (room, len) = (puts.source.memory.len(), bytes.len());
        if word.len() > INLINE_BYTES {
            return Err(misuse::too_long(word.len(), INLINE_BYTES));
        }
        if bytes.start > bytes.end || bytes.end > room {
            return Err(misuse::too_long(bytes.end.max(bytes.start), room));
        }
        let home = outgoing.home;
        let has_room = self.may_send(link, len)? && {
            let chosen = self.outgoing[link as usize].chosen as usize;
            // Completions make room.
            self.lanes[chosen].has_room_for_two()
                || self.progress_group(home, |t| t.lanes[chosen].has_room_for_two())?
        };
        // The lane may have failed since it was chosen.
        let chosen = self.outgoing[link as usize].chosen;
        if !has_room || !self.lanes[chosen as usize].can_take() {
            self.outgoing[link as usize].counters.stalls += 1;
            return Ok(false);
        }
        let lane = chosen as usize;
        let IbTransport { outgoing, incoming, lanes, .. } = self;
        let outgoing = &mut outgoing[link as usize];
        outgoing.inline_piece(word.len()).copy_from(word);
        let released = outgoing.back.map_or(0, |back| incoming[back as usize].report());
        let message = outgoing.message(tag, word.len(), released, true, lanes[lane].seat.rails);
        let slot = outgoing.note_put(Put { at: bytes.start, len, send: 0 });
        outgoing.published(word.len(), Body::Word, false, Some(chosen));
        self.carry_put(link, lane, slot, message);
        Ok(true)
    }

    /// Gives a lane with room for two what a message announces, and then the message.
    pub(super) fn carry_put(&mut self, link: u32, at: usize, slot: u32, message: Message) {
        let Message { head, to, immediate, .. } = message;
        let IbTransport { outgoing, lanes, groups, adapters, began, .. } = self;
        let (outgoing, lane) = (&mut outgoing[link as usize], &mut lanes[at]);
        let group = &groups[outgoing.group as usize];
        let puts = outgoing.puts.as_mut().expect("a link with a put");
        let len = puts.puts[slot as usize].len;
        let written = puts.write(slot, lane.seat.rails).filter(|_| len > 0);
        puts.puts[slot as usize].send = lane.next() + u64::from(written.is_some());
        let is_timed = len > SMALL && group.is_spread();
        let notice = if is_timed { Notice::Timed } else { Notice::Wanted };
        let sent = match written {
            Some(written) => lane.put(written, head, (to, immediate), notice),
            None => lane.send(&[head], to, immediate, notice),
        };
        lane.seat.sent += len as u64;
        if is_timed && sent.is_ok() {
            lane.pace.post(len, began.elapsed().as_nanos() as u64);
            adapters[lane.seat.adapter].watched += 1;
        }
        self.unless_failed(at, sent);
    }

    pub(super) fn count_puts_over(&mut self, to: SenderId) -> Result<u64> {
        let link = self.only_link(to)? as usize;
        let outgoing = &mut self.outgoing[link];
        if outgoing.take_puts_over(&self.lanes) {
            let home = outgoing.home;
            self.progress_group(home, |_| false)?;
            if let Some(why) = &self.lanes[home as usize].broken {
                return Err(why.clone());
            }
            self.outgoing[link].take_puts_over(&self.lanes);
        }
        Ok(self.outgoing[link].puts.as_ref().map_or(0, |puts| puts.over))
    }
}

impl Outgoing {
    /// Notes the put that the next message announces, and gives that message's slot.
    fn note_put(&mut self, put: Put) -> u32 {
        let (slot, number) = self.next_message();
        let puts = self.puts.as_mut().expect("a link with a source");
        puts.puts[slot as usize] = put;
        puts.waiting.push_back(number);
        self.counters.puts += 1;
        self.counters.put_bytes += put.len as u64;
        slot
    }

    /// The length of the put that a message announces, if it does.
    pub(super) fn put_of(&self, slot: u32, body: Body) -> Option<usize> {
        self.puts.as_ref().filter(|_| matches!(body, Body::Word)).map(|puts| puts.puts[slot as usize].len)
    }

    /// Counts the puts that are over. Whether others are not.
    fn take_puts_over(&mut self, lanes: &[Lane]) -> bool {
        let Some(mut puts) = self.puts.take() else { return false };
        let is_over = |number: u32| match self.carrier(number) {
            Carrier::Nobody => true,
            Carrier::Waits => false,
            Carrier::Lane { lane, slot } => lanes[lane as usize].has_done(puts.puts[slot as usize].send),
        };
        let over = puts.waiting.iter().take_while(|number| is_over(**number)).count();
        puts.waiting.drain(..over);
        puts.over += over as u64;
        let are_left = !puts.waiting.is_empty();
        self.puts = Some(puts);
        are_left
    }
}
