//! Links in virtual time.

use super::Random;
use crate::engine::Links;
use crate::error::{Error, Result};
use crate::kernels::{Direction, Piece, PieceMut, Slab, Store};
use crate::plan::Rank;
use crate::transport::{Arrival, Fabric, LinkKey, Offer, ReceiverId, Refer, SenderId};
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
    /// When further slots may be filled, earliest first; and whether a reference is released with it.
    returning: VecDeque<(u64, bool)>,
    /// References that are not known to be released.
    lent: u32,
    /// The last arrival: what is published later comes later.
    last_arrival: u64,
    /// Published and released so far.
    published: u64,
    released: u64,
    /// What the receiver has offered last: for which message first, and when the sender knows of it.
    offer: Option<(Offer, u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    arrives: u64,
    sender: usize,
    body: Body,
    tag: u64,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
enum Body {
    Slot {
        slot: usize,
        len: usize,
    },
    Reference(Piece),
    /// What lies in a slot of its sender, as it was written to where it goes.
    Direct {
        slot: usize,
        place: Piece,
    },
}

/// A sending end: its slots, and the links that they are sent on.
#[derive(Debug)]
struct Sender {
    links: Vec<usize>,
    slots: Slab,
    /// Readers of each slot that have not released it.
    readers: Vec<usize>,
    /// What was reserved and is not yet published.
    reserved: Option<Body>,
}

impl Link {
    /// Takes back what has come back by now.
    fn collect(&mut self, now: u64) {
        while let Some((_, was_lent)) = self.returning.pop_front_if(|(time, _)| *time <= now) {
            self.credits += 1;
            self.lent -= u32::from(was_lent);
        }
    }
}

impl Link {
    /// Writes what is published next to where it goes, if the receiver has offered that and the sender knows.
    fn land(&self, piece: Piece, tag: u64, now: u64) -> Option<Piece> {
        let (offer, first, _) = self.offer.filter(|(offer, _, known)| offer.tag == tag && *known <= now)?;
        let index = self.published.checked_sub(first)?;
        let at = Offer::place(offer.sink.len(), offer.piece, offer.direction, index, piece.len())?;
        let place = offer.sink.slice(at, piece.len());
        place.copy_from(piece);
        Some(place.as_piece())
    }
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
            self.links.push(Link {
                key,
                messages,
                credits,
                returning,
                lent: 0,
                last_arrival: 0,
                published: 0,
                released: 0,
                offer: None,
            });
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

impl View<'_> {
    /// A credit on every link of a sender, and a slot if it should be needed; or nothing.
    fn take_credits(&mut self, to: SenderId) -> bool {
        let Network { senders, links, .. } = &mut *self.network;
        let sender = &senders[to.0 as usize];
        for &link in &sender.links {
            links[link].collect(self.now);
        }
        let ready = sender.readers.contains(&0) && sender.links.iter().all(|&link| links[link].credits > 0);
        if ready {
            sender.links.iter().for_each(|&link| links[link].credits -= 1);
        }
        ready
    }
}

impl Fabric for View<'_> {
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let slot_bytes = self.network.slot_bytes;
        if len > slot_bytes {
            return Err(Error::invalid(format!("a piece of {len} bytes"), format!("at most {slot_bytes}")));
        }
        if self.network.senders[to.0 as usize].reserved.is_none() && !self.take_credits(to) {
            return Ok(None);
        }
        let sender = &mut self.network.senders[to.0 as usize];
        let slot = match sender.reserved {
            Some(Body::Slot { slot, .. }) => slot,
            // As many slots as credits, and there was one.
            _ => sender.readers.iter().position(|readers| *readers == 0).unwrap_or_default(),
        };
        sender.reserved = Some(Body::Slot { slot, len });
        Ok(Some(sender.slots.sink(slot, len)))
    }

    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let reserved = self.network.senders[to.0 as usize].reserved;
        if matches!(reserved, Some(Body::Slot { .. })) {
            return Ok(Refer::NotMapped);
        }
        if reserved.is_none() && !self.take_credits(to) {
            return Ok(Refer::NoCredit);
        }
        self.network.senders[to.0 as usize].reserved = Some(Body::Reference(piece));
        Ok(Refer::Ready)
    }

    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let Network { senders, links, .. } = &mut *self.network;
        let settled = senders[to.0 as usize].links.iter().map(|&link| {
            links[link].collect(self.now);
            links[link].lent == 0
        });
        Ok(settled.fold(true, |all, one| all & one))
    }

    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Network { senders, links, events, delay, .. } = &mut *self.network;
        let sender = &mut senders[to.0 as usize];
        let Some(body) = sender.reserved.take() else {
            return Err(Error::invalid("publish without a reserved slot", "reserve one"));
        };
        let piece = match body {
            Body::Slot { slot, len } => {
                sender.readers[slot] = sender.links.len();
                sender.slots.source(slot, len)
            }
            Body::Reference(piece) | Body::Direct { place: piece, .. } => piece,
        };
        for link in &sender.links {
            let link = &mut links[*link];
            let arrives = (self.now + self.random.up_to(*delay)).max(link.last_arrival);
            link.last_arrival = arrives;
            let body = match body {
                Body::Slot { slot, .. } => {
                    link.land(piece, tag, self.now).map_or(body, |place| Body::Direct { slot, place })
                }
                // It stays lent: until it is released nobody knows that it has arrived.
                _ => link.land(piece, tag, self.now).map_or(body, Body::Reference),
            };
            link.published += 1;
            link.lent += u32::from(matches!(body, Body::Reference(_)));
            link.messages.push_back(Message { arrives, sender: to.0 as usize, body, tag });
            events.push((arrives, link.key.to));
        }
        Ok(())
    }

    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        let link = &mut self.network.links[from.0 as usize];
        link.offer = Some((offer, link.released, self.now + self.random.up_to(self.network.delay)));
        Ok(())
    }

    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        Ok(self.peek_stretch(from, 1, Direction::Forwards)?.map(|(arrival, _)| arrival))
    }

    fn peek_stretch(
        &mut self,
        from: ReceiverId,
        most: usize,
        direction: Direction,
    ) -> Result<Option<(Arrival, usize)>> {
        let link = &self.network.links[from.0 as usize];
        debug_assert_eq!(link.key.to, self.rank);
        let mut found: Option<(Arrival, usize)> = None;
        for message in link.messages.iter().take(most).take_while(|message| message.arrives <= self.now) {
            let piece = match message.body {
                Body::Slot { slot, len } => self.network.senders[message.sender].slots.source(slot, len),
                Body::Reference(piece) | Body::Direct { place: piece, .. } => piece,
            };
            let joined = match (found, direction) {
                (None, _) => Some(piece),
                (Some(_), _) if matches!(message.body, Body::Slot { .. }) => None,
                (Some((all, _)), Direction::Forwards) => all.piece.join(piece),
                (Some((all, _)), Direction::Backwards) => piece.join(all.piece),
            };
            let is_alike = found.is_none_or(|(all, _)| all.tag == message.tag);
            let Some(piece) = joined.filter(|_| is_alike) else { break };
            let arrival = Arrival { piece, tag: message.tag, store: Store::Cached };
            found = Some((arrival, found.map_or(1, |(_, pieces)| pieces + 1)));
        }
        Ok(found)
    }

    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let link = &mut self.network.links[from.0 as usize];
        let Some(message) = link.messages.pop_front_if(|m| m.arrives <= self.now) else {
            return Err(Error::invalid("release without a piece", "peek at one"));
        };
        link.released += 1;
        let was_lent = match message.body {
            Body::Slot { slot, .. } | Body::Direct { slot, .. } => {
                self.network.senders[message.sender].readers[slot] -= 1;
                false
            }
            Body::Reference(_) => true,
        };
        let last = link.returning.back().map_or(0, |(time, _)| *time);
        let returns = (self.now + self.random.up_to(self.network.delay)).max(last);
        link.returning.push_back((returns, was_lent));
        self.network.events.push((returns, link.key.from));
        Ok(())
    }
}
