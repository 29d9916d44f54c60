//! Links in virtual time.

use super::Random;
use crate::engine::Links;
use crate::error::{Error, Result};
use crate::plan::Rank;
use crate::simd::{PieceMut, Slab};
use crate::transport::{Arrival, Fabric, LinkKey, ReceiverId, SenderId};
use std::collections::{BTreeMap, VecDeque};

/// All links of a cluster. One numbering of ends serves all ranks.
#[derive(Debug)]
pub(super) struct Network {
    credits: u32,
    slot_bytes: usize,
    delay: u64,
    names: BTreeMap<LinkKey, usize>,
    links: Vec<Link>,
    senders: Vec<Sender>,
    /// When whom to wake.
    events: Vec<(u64, Rank)>,
}

#[derive(Debug)]
struct Link {
    key: LinkKey,
    /// Published and not yet released, oldest first.
    messages: VecDeque<Message>,
    /// Slots that may be filled now.
    credits: u32,
    /// When further slots may be filled, earliest first.
    returning: VecDeque<u64>,
    /// The last arrival: what is published later comes later.
    last_arrival: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    arrives: u64,
    sender: usize,
    slot: usize,
    len: usize,
    tag: u64,
}

/// A sending end: its slots, and the links that they are sent on.
#[derive(Debug)]
struct Sender {
    links: Vec<usize>,
    slots: Slab,
    /// Readers of each slot that have not released it.
    readers: Vec<usize>,
    /// The slot that was reserved and not yet published, and its length.
    reserved: Option<(usize, usize)>,
}

impl Network {
    pub(super) fn new(credits: u32, slot_bytes: usize, delay: u64) -> Network {
        let (names, links, senders, events) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        Network { credits, slot_bytes, delay, names, links, senders, events }
    }

    /// The ends of one rank, to bind a schedule to.
    pub(super) fn ends_of(&mut self, rank: Rank) -> Ends<'_> {
        Ends { network: self, rank }
    }

    /// What one rank sees at one time.
    pub(super) fn fabric<'a>(&'a mut self, rank: Rank, now: u64, random: &'a mut Random) -> View<'a> {
        View { network: self, rank, now, random }
    }

    /// When whom to wake, since the last time it was asked.
    pub(super) fn events(&mut self) -> impl Iterator<Item = (u64, Rank)> {
        self.events.drain(..)
    }

    fn link(&mut self, key: LinkKey) -> usize {
        let credits = self.credits;
        *self.names.entry(key).or_insert_with(|| {
            let (messages, returning) = (VecDeque::new(), VecDeque::new());
            self.links.push(Link { key, messages, credits, returning, last_arrival: 0 });
            self.links.len() - 1
        })
    }
}

/// Gives a rank its link ends.
pub(super) struct Ends<'a> {
    network: &'a mut Network,
    rank: Rank,
}

impl Links for Ends<'_> {
    fn senders(&mut self, peers: &[Rank], channel: u16) -> Result<Vec<SenderId>> {
        let key = |to: &Rank| LinkKey { from: self.rank, to: *to, channel };
        let links: Vec<usize> = peers.iter().map(|to| self.network.link(key(to))).collect();
        let senders = &mut self.network.senders;
        let known = senders.iter().position(|s| s.links == links);
        let id = known.unwrap_or_else(|| {
            let mut slots = Slab::default();
            slots.fit(self.network.credits as usize, self.network.slot_bytes);
            let readers = vec![0; self.network.credits as usize];
            senders.push(Sender { links, slots, readers, reserved: None });
            senders.len() - 1
        });
        Ok(vec![SenderId(id as u32)])
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        Ok(ReceiverId(self.network.link(LinkKey { from: peer, to: self.rank, channel }) as u32))
    }
}

/// The network as one rank sees it at one time.
pub(super) struct View<'a> {
    network: &'a mut Network,
    rank: Rank,
    now: u64,
    random: &'a mut Random,
}

impl Fabric for View<'_> {
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let Network { senders, links, slot_bytes, .. } = &mut *self.network;
        let sender = &mut senders[to.0 as usize];
        if len > *slot_bytes {
            return Err(Error::invalid(format!("a piece of {len} bytes"), format!("at most {slot_bytes}")));
        }
        let slot = match sender.reserved {
            Some((slot, _)) => slot,
            None => {
                let free = sender.readers.iter().position(|readers| *readers == 0);
                let mut credit = true;
                for link in &sender.links {
                    let link = &mut links[*link];
                    while link.returning.pop_front_if(|time| *time <= self.now).is_some() {
                        link.credits += 1;
                    }
                    credit &= link.credits > 0;
                }
                let (true, Some(slot)) = (credit, free) else { return Ok(None) };
                for link in &sender.links {
                    links[*link].credits -= 1;
                }
                slot
            }
        };
        sender.reserved = Some((slot, len));
        Ok(Some(sender.slots.sink(slot, len)))
    }

    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Network { senders, links, events, delay, .. } = &mut *self.network;
        let sender = &mut senders[to.0 as usize];
        let Some((slot, len)) = sender.reserved.take() else {
            return Err(Error::invalid("publish without a reserved slot", "reserve one"));
        };
        sender.readers[slot] = sender.links.len();
        for link in &sender.links {
            let link = &mut links[*link];
            let arrives = (self.now + self.random.up_to(*delay)).max(link.last_arrival);
            link.last_arrival = arrives;
            link.messages.push_back(Message { arrives, sender: to.0 as usize, slot, len, tag });
            events.push((arrives, link.key.to));
        }
        Ok(())
    }

    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let link = &self.network.links[from.0 as usize];
        debug_assert_eq!(link.key.to, self.rank);
        let Some(message) = link.messages.front().filter(|m| m.arrives <= self.now) else {
            return Ok(None);
        };
        let slots = &mut self.network.senders[message.sender].slots;
        Ok(Some(Arrival { piece: slots.source(message.slot, message.len), tag: message.tag }))
    }

    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let link = &mut self.network.links[from.0 as usize];
        let Some(message) = link.messages.pop_front_if(|m| m.arrives <= self.now) else {
            return Err(Error::invalid("release without a piece", "peek at one"));
        };
        self.network.senders[message.sender].readers[message.slot] -= 1;
        let last = link.returning.back().copied().unwrap_or(0);
        let returns = (self.now + self.random.up_to(self.network.delay)).max(last);
        link.returning.push_back(returns);
        self.network.events.push((returns, link.key.from));
        Ok(())
    }
}
