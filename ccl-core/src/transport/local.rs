//! The reference twin: links between ranks of one process, behind one lock.
//!
//! It keeps the contract in the plainest way, for tests of the engine and as the measure of other transports.
//! Every piece is a buffer of its own, and any memory can be referred to and offered; it is simple, not fast.

mod hub;

use super::{
    Arrival, Capabilities, Counters, Exchange, Fabric, LinkKey, Offer, Offers, Reach, ReceiverId, Refer,
    SenderId, Stretch, Transport, UserMemory,
};
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{Buffers, Direction, Piece, PieceMut, Store};
use crate::plan::Rank;
pub use hub::LocalHub;
use hub::{Body, Message, State};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Pieces up to this length count as inline.
const INLINE_BYTES: usize = 64;

/// One rank's ends of links in a [`LocalHub`].
#[derive(Debug)]
pub struct LocalTransport {
    rank: Rank,
    hub: LocalHub,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// Events of this rank that the last `park` knew of.
    told: u64,
}

#[derive(Debug)]
struct Sender {
    links: Vec<LinkKey>,
    counters: Vec<Counters>,
    reserved: Option<Reserved>,
}

#[derive(Debug)]
enum Reserved {
    Slot(Vec<u8>),
    Reference(Piece),
    /// In memory that the receivers have offered, one after the other: of each all pieces.
    Offered(Stretch, Vec<Piece>),
}

#[derive(Debug)]
struct Receiver {
    link: LinkKey,
    counters: Counters,
    held: bool,
}

impl LocalHub {
    /// The transport of one rank. Panics where there is no such rank.
    pub fn transport(&self, rank: Rank) -> LocalTransport {
        assert!((rank as usize) < self.lock().events.len(), "no rank {rank} in this hub");
        LocalTransport { rank, hub: self.clone(), senders: Vec::new(), receivers: Vec::new(), told: 0 }
    }
}

impl Fabric for LocalTransport {
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        if len > self.hub.slot_bytes {
            let most = format!("at most {} bytes, the slots' size", self.hub.slot_bytes);
            return Err(Error::invalid(format!("a piece of {len} bytes"), most));
        }
        let state = self.hub.lock();
        let sender = self.senders.get_mut(to.0 as usize).ok_or_else(|| no_such_end(to.0))?;
        if sender.reserved.is_none() && !sender.has_credit(&state, self.hub.credits) {
            return Ok(None);
        }
        if !matches!(sender.reserved, Some(Reserved::Slot(_))) {
            sender.reserved = Some(Reserved::Slot(Vec::new()));
        }
        let Some(Reserved::Slot(bytes)) = &mut sender.reserved else { return Ok(None) };
        bytes.resize(len, 0);
        Ok(Some(Buffers::new(&[], bytes).output()))
    }

    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let state = self.hub.lock();
        let sender = self.senders.get_mut(to.0 as usize).ok_or_else(|| no_such_end(to.0))?;
        if matches!(sender.reserved, Some(Reserved::Slot(_))) {
            return Ok(Refer::NotMapped);
        }
        if sender.reserved.is_none() && !sender.has_credit(&state, self.hub.credits) {
            return Ok(Refer::NoCredit);
        }
        sender.reserved = Some(Reserved::Reference(piece));
        Ok(Refer::Ready)
    }

    fn reserve_offered(
        &mut self,
        to: SenderId,
        stretch: Stretch,
        tag: u64,
        sinks: &mut [PieceMut],
    ) -> Result<usize> {
        let state = self.hub.lock();
        let sender = self.senders.get_mut(to.0 as usize).ok_or_else(|| no_such_end(to.0))?;
        let others = stretch.pieces as u32 - 1;
        if sender.reserved.is_some() || !sender.has_credit(&state, self.hub.credits.saturating_sub(others)) {
            return Ok(0);
        }
        let places: Option<Vec<PieceMut>> =
            sender.links.iter().map(|link| state.links[link].offered(&stretch, tag)).collect();
        let Some(places) = places else { return Ok(0) };
        sinks[..places.len()].copy_from_slice(&places);
        sender.reserved = Some(Reserved::Offered(stretch, places.iter().map(PieceMut::as_piece).collect()));
        Ok(sender.links.len())
    }

    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let state = self.hub.lock();
        let sender = self.senders.get(to.0 as usize).ok_or_else(|| no_such_end(to.0))?;
        let refers = |message: &Message| matches!(message.body, Body::Reference(_));
        Ok(!sender.links.iter().any(|link| state.links[link].messages.iter().any(refers)))
    }

    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let mut state = self.hub.lock();
        let sender = self.senders.get_mut(to.0 as usize).ok_or_else(|| no_such_end(to.0))?;
        let one = Stretch::one(0);
        let (body, stretch, places) = match sender.reserved.take().ok_or_else(|| not_held("publish"))? {
            Reserved::Slot(bytes) => (Body::Bytes(bytes.into()), one, Vec::new()),
            Reserved::Reference(piece) => (Body::Reference(piece), one, Vec::new()),
            Reserved::Offered(stretch, places) => (Body::Direct(Piece::EMPTY), stretch, places),
        };
        for (index, (link, counters)) in sender.links.iter().zip(&mut sender.counters).enumerate() {
            let queue = state.link(*link);
            for of in 0..stretch.pieces {
                let body = match places.get(index) {
                    Some(all) => Body::Direct(all.slice(stretch.offset_of(of), stretch.len_of(of))),
                    None => queue.land(&body, tag),
                };
                counters.count(&body);
                queue.messages.push_back(Message { body, tag });
            }
            state.events[link.to as usize] += 1;
        }
        self.hub.shared.changed.notify_all();
        Ok(())
    }

    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        let mut state = self.hub.lock();
        let receiver = self.receivers.get(from.0 as usize).ok_or_else(|| no_such_end(from.0))?;
        let link = state.link(receiver.link);
        link.offer = Some((offer, link.released));
        Ok(())
    }

    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let state = self.hub.lock();
        let receiver = self.receivers.get_mut(from.0 as usize).ok_or_else(|| no_such_end(from.0))?;
        let Some(message) = state.links[&receiver.link].messages.front() else {
            receiver.counters.stalls += 1;
            return Ok(None);
        };
        receiver.held = true;
        Ok(Some(Arrival { piece: message.body.piece(), tag: message.tag, store: Store::Cached }))
    }

    fn peek_stretch(
        &mut self,
        from: ReceiverId,
        most: usize,
        direction: Direction,
    ) -> Result<Option<(Arrival, usize)>> {
        let Some(arrival) = self.peek(from)? else { return Ok(None) };
        let state = self.hub.lock();
        let link = self.receivers[from.0 as usize].link;
        let (mut all, mut pieces) = (arrival.piece, 0);
        for message in state.links[&link].messages.iter().take(most) {
            let piece = message.body.piece();
            let joined = match direction {
                _ if pieces == 0 => Some(piece),
                _ if message.tag != arrival.tag || matches!(message.body, Body::Bytes(_)) => None,
                Direction::Forwards => all.join(piece),
                Direction::Backwards => piece.join(all),
            };
            let Some(joined) = joined else { break };
            (all, pieces) = (joined, pieces + 1);
        }
        Ok(Some((Arrival { piece: all, ..arrival }, pieces)))
    }

    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let mut state = self.hub.lock();
        let receiver = self.receivers.get_mut(from.0 as usize).ok_or_else(|| no_such_end(from.0))?;
        if !std::mem::take(&mut receiver.held) {
            return Err(not_held("release"));
        }
        let link = state.link(receiver.link);
        let message = link.messages.pop_front().ok_or_else(|| not_held("release"))?;
        link.released += 1;
        if matches!(message.body, Body::Reference(_)) && state.withdrawn[receiver.link.from as usize] {
            let what = "its call has failed, and what it sent by reference may have changed".to_string();
            let peer = Some(receiver.link.from);
            return Err(ErrorKind::Transport { transport: "local", peer, what, source: None }.into());
        }
        receiver.counters.count(&message.body);
        state.events[receiver.link.from as usize] += 1;
        self.hub.shared.changed.notify_all();
        Ok(())
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            slot_bytes: self.hub.slot_bytes,
            credits: self.hub.credits,
            slots: self.hub.credits,
            inline_bytes: INLINE_BYTES.min(self.hub.slot_bytes),
            short_bytes: INLINE_BYTES.min(self.hub.slot_bytes),
            shared_slots: true,
            threads: true,
            one_host: true,
            offers: Offers::All,
        }
    }

    fn address(&self) -> Vec<u8> {
        (Arc::as_ptr(&self.hub.shared).addr() as u64).to_le_bytes().to_vec()
    }

    fn probe(&self, peer: Rank, address: &[u8]) -> std::result::Result<Reach, String> {
        let ranks = self.hub.lock().events.len();
        if peer == self.rank || peer as usize >= ranks {
            return Err(format!("rank {peer} is not a peer of rank {} of {ranks}", self.rank));
        }
        if address != self.address() {
            return Err("it belongs to another hub".to_string());
        }
        Ok(Reach { latency_ns: 1000.0, message_ns: 100.0, bandwidth: 5.0, by_processor: true })
    }

    fn connect(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        let ranks = self.hub.lock().events.len();
        let mut words: Vec<(Rank, Vec<u8>)> = Vec::new();
        for link in links {
            let peer = if link.from == self.rank { link.to } else { link.from };
            let ours = link.from == self.rank || link.to == self.rank;
            if !ours || link.from == link.to || peer as usize >= ranks {
                let what =
                    format!("a link from rank {} to rank {} at rank {}", link.from, link.to, self.rank);
                return Err(Error::invalid(what, "one end here and the other at a peer"));
            }
            if !self.is_open(link) && words.iter().all(|(p, _)| *p != peer) {
                words.push((peer, self.address()));
            }
        }
        if words.is_empty() {
            return Ok(());
        }
        for ((peer, ours), theirs) in words.iter().zip(exchange.swap(&words)?) {
            if *ours != theirs {
                let what = "it belongs to another hub".to_string();
                let peer = Some(*peer);
                return Err(ErrorKind::Transport { transport: "local", peer, what, source: None }.into());
            }
        }
        let mut new: Vec<_> = links.iter().copied().filter(|link| !self.is_open(link)).collect();
        new.sort_unstable();
        new.dedup();
        for link in new {
            self.hub.lock().links.entry(link).or_default();
            if link.to == self.rank {
                self.receivers.push(Receiver { link, counters: Counters::default(), held: false });
            } else {
                let counters = vec![Counters::default()];
                self.senders.push(Sender { links: vec![link], counters, reserved: None });
            }
        }
        Ok(())
    }

    fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<SenderId> {
        let links: Vec<_> = peers.iter().map(|&to| LinkKey { from: self.rank, to, channel }).collect();
        if peers.is_empty() || (1..peers.len()).any(|i| peers[..i].contains(&peers[i])) {
            return Err(Error::invalid(format!("a sender to ranks {peers:?}"), "at least one, each once"));
        }
        if let Some(closed) = links.iter().find(|link| !self.is_open(link)) {
            return Err(not_open(*closed));
        }
        let id = self.senders.iter().position(|sender| sender.links == links).unwrap_or_else(|| {
            let counters = vec![Counters::default(); links.len()];
            self.senders.push(Sender { links, counters, reserved: None });
            self.senders.len() - 1
        });
        Ok(SenderId(id as u32))
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        let link = LinkKey { from: peer, to: self.rank, channel };
        let id = self.receivers.iter().position(|receiver| receiver.link == link);
        id.map(|id| ReceiverId(id as u32)).ok_or_else(|| not_open(link))
    }

    fn park(&mut self, limit: Duration) -> Result<()> {
        let (rank, told) = (self.rank as usize, self.told);
        let waiting = |state: &mut State| state.events[rank] == told;
        let state = self.hub.lock();
        let waited = self.hub.shared.changed.wait_timeout_while(state, limit, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.told = state.events[rank];
        Ok(())
    }

    fn memory(&self) -> u64 {
        let state = self.hub.lock();
        let own = state.links.iter().filter(|(key, _)| key.from == self.rank);
        own.flat_map(|(_, link)| &link.messages).map(|message| message.body.own_bytes()).sum()
    }

    fn register(&mut self, _memory: &UserMemory) -> Result<bool> {
        Ok(true)
    }

    fn withdraw(&mut self) -> Vec<Rank> {
        let mut state = self.hub.lock();
        state.withdrawn[self.rank as usize] = true;
        state.links.iter_mut().filter(|(key, _)| key.to == self.rank).for_each(|(_, link)| link.offer = None);
        Vec::new()
    }

    fn counters(&self) -> Vec<(LinkKey, Counters)> {
        let mut all: Vec<(LinkKey, Counters)> = Vec::new();
        let sent = self.senders.iter().flat_map(|s| s.links.iter().copied().zip(s.counters.iter().copied()));
        for (link, more) in sent {
            match all.iter_mut().find(|(known, _)| *known == link) {
                Some((_, sum)) => sum.add(more),
                None => all.push((link, more)),
            }
        }
        all.extend(self.receivers.iter().map(|receiver| (receiver.link, receiver.counters)));
        all
    }
}

impl LocalTransport {
    /// Whether this rank's end is open: each end is opened by its own rank.
    fn is_open(&self, link: &LinkKey) -> bool {
        if link.to == self.rank {
            self.receivers.iter().any(|receiver| receiver.link == *link)
        } else {
            self.senders.iter().any(|sender| sender.links == [*link])
        }
    }
}

impl Sender {
    /// Whether every link has a credit; counts the stall where one has none.
    fn has_credit(&mut self, state: &State, credits: u32) -> bool {
        let full = |link: &LinkKey| state.links[link].messages.len() >= credits as usize;
        let stalled = self.links.iter().position(full);
        if let Some(stalled) = stalled {
            self.counters[stalled].stalls += 1;
        }
        stalled.is_none()
    }
}

impl Counters {
    fn count(&mut self, body: &Body) {
        let len = body.piece().len();
        self.pieces += 1;
        self.bytes += len as u64;
        match body {
            Body::Bytes(_) => self.inline += u64::from(len <= INLINE_BYTES),
            Body::Reference(_) => {
                self.referenced += 1;
                self.referenced_bytes += len as u64;
            }
            Body::Direct(_) => {
                self.direct += 1;
                self.direct_bytes += len as u64;
            }
        }
    }

    fn add(&mut self, more: Counters) {
        self.pieces += more.pieces;
        self.bytes += more.bytes;
        self.inline += more.inline;
        self.stalls += more.stalls;
        self.referenced += more.referenced;
        self.referenced_bytes += more.referenced_bytes;
        self.direct += more.direct;
        self.direct_bytes += more.direct_bytes;
        self.puts += more.puts;
        self.put_bytes += more.put_bytes;
    }
}

fn no_such_end(id: u32) -> Error {
    Error::invalid(format!("link end {id}"), "an id that `sender` or `receiver` gave")
}

fn not_held(call: &str) -> Error {
    Error::invalid(format!("{call} with nothing to {call}"), "reserve before publish, peek before release")
}

fn not_open(link: LinkKey) -> Error {
    let what =
        format!("no open link from rank {} to rank {} on channel {}", link.from, link.to, link.channel);
    Error::invalid(what, "connect it first")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transports(ranks: u32) -> Vec<LocalTransport> {
        let hub = LocalHub::new(ranks, 4096, 4);
        (0..ranks).map(|rank| hub.transport(rank)).collect()
    }

    crate::transport_conformance!(transports);
    /// Every rank sees all memory of the process.
    fn memory(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    crate::reference_conformance!(transports, memory);
    crate::offer_conformance!(transports, memory);
}
