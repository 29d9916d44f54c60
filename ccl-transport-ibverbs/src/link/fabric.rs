//! The data path.

use super::group::SMALL;
use super::offers::Keys;
use super::outgoing::{Body, Outgoing};
use super::transport::IbTransport;
use super::wire::INLINE_BYTES;
use ccl_core::Result;
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::transport::{Arrival, Fabric, Offer, ReceiverId, Refer, SenderId, Sent, misuse};
use std::ops::Range;

/// The sending end for one or more links.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Their places among the outgoing links.
    pub(crate) links: Box<[u32]>,
    pub(crate) reserved: Option<Reservation>,
}

/// What `reserve` has given and `publish` has not yet taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    len: usize,
    /// Where its bytes are; a line is that of the first link.
    body: Body,
}

impl Fabric for IbTransport {
    #[inline]
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        if len > self.slot_bytes {
            return Err(misuse::too_long(len, self.slot_bytes));
        }
        let first = sender.links[0] as usize;
        let is_short = len <= INLINE_BYTES;
        let slot = match sender.reserved {
            // The same room again, also for another length that fits there.
            Some(Reservation { body: Body::Slot(slot), .. }) => Some(slot),
            Some(Reservation { body: Body::Line, .. }) if is_short => None,
            held => {
                if held.is_none() && !self.take_credits(to, len)? {
                    return Ok(None);
                }
                if is_short { None } else { Some(self.take_slot()?) }
            }
        };
        self.hold(to, Reservation { len, body: slot.map_or(Body::Line, Body::Slot) });
        Ok(Some(match slot {
            Some(slot) => self.pool.piece(slot, len),
            None => self.outgoing[first].inline_piece(len),
        }))
    }

    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let Some(sender) = self.senders.get(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        let is_referring = match sender.reserved {
            None => false,
            Some(Reservation { body: Body::User(_), .. }) => true,
            Some(_) => return Ok(Refer::NotMapped),
        };
        // Short ones are copied sooner.
        let fits = (INLINE_BYTES + 1..=self.slot_bytes).contains(&piece.len());
        if !fits {
            return Ok(Refer::NotMapped);
        }
        self.catch_up_with_memory();
        if !self.is_registered(to, piece) {
            return Ok(Refer::NotMapped);
        }
        if !is_referring && !self.take_credits(to, piece.len())? {
            return Ok(Refer::NoCredit);
        }
        self.hold(to, Reservation { len: piece.len(), body: Body::User(piece) });
        Ok(Refer::Ready)
    }

    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let Some(sender) = self.senders.get(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        for i in 0..sender.links.len() {
            let link = self.senders[to.0 as usize].links[i] as usize;
            if !self.is_settled(link) {
                let home = self.outgoing[link].home;
                let is_settled = self.progress_group(home, |t| t.is_settled(link))?;
                if let Some(why) = &self.lanes[home as usize].broken {
                    return Err(why.clone());
                }
                if !is_settled {
                    return Ok(false);
                }
            }
            self.outgoing[link].lent.fill(0);
        }
        Ok(true)
    }

    #[inline]
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        let Some(Reservation { len, body }) = sender.reserved.take() else {
            return Err(misuse::not_held("publish"));
        };
        let links = sender.links.len();
        match body {
            Body::Slot(slot) => self.pool.share(slot, links as u32),
            Body::Line if links > 1 => {
                let line = self.outgoing[sender.links[0] as usize].inline_piece(len).as_piece();
                sender.links[1..].iter().for_each(|link| self.outgoing[*link as usize].copy_inline(line));
            }
            Body::Line | Body::User(_) | Body::Word => {}
        }
        for i in 0..links {
            let link = self.senders[to.0 as usize].links[i];
            self.hand_over(link, tag, len, body)?;
        }
        Ok(())
    }

    /// A piece that stays at home, for one link on which nothing is in the way, goes straight to the device.
    #[inline]
    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        let Some(sender) = self.senders.get(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        let len = piece.len();
        if let ([link], None) = (&*sender.links, &sender.reserved)
            && let Some(home) = self.clear_home(*link, len, tag)
        {
            let link = *link;
            if len <= INLINE_BYTES {
                self.outgoing[link as usize].inline_piece(len).copy_from(piece);
                self.hand_over_short(link, home, tag, len, Body::Line);
            } else {
                self.send_by_slot(link, home, piece, tag);
            }
            return Ok(Sent::Done);
        }
        self.send_in_steps(to, piece, tag)
    }

    fn put(&mut self, to: SenderId, bytes: Range<usize>, word: Piece, tag: u64) -> Result<bool> {
        self.put_bytes(to, bytes, word, tag)
    }

    fn puts_over(&mut self, to: SenderId) -> Result<u64> {
        self.count_puts_over(to)
    }

    /// One that cannot be told of now is not made: pieces go through slots.
    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        self.catch_up_with_memory();
        let IbTransport { incoming, lanes, groups, connections, ports, registered, adapters, .. } = self;
        let Some(link) = incoming.get_mut(from.0 as usize) else {
            return Err(misuse::no_such_end(from.0));
        };
        let by = groups[link.group as usize].any(lanes, link.home);
        let Some(by) = by.filter(|_| link.unheard() == 0 && offer.piece <= self.slot_bytes) else {
            return Ok(());
        };
        let lane = &mut lanes[by as usize];
        let connection = &connections[&lane.peer];
        let mut keys = Keys::default();
        for rails in 0..connection.pairs.len() {
            let adapter = ports[connection.rail(rails)].adapter;
            if let Some(region) = registered.find(offer.sink.as_piece(), adapter, adapters) {
                keys.add(rails, region.remote(offer.sink));
            }
        }
        if keys == Keys::default() {
            return Ok(());
        }
        let (record, to) = link.offer(offer, keys, (by, lane.seat.rails));
        let sent = lane.offer(record, to, link.number);
        self.unless_failed(by as usize, sent);
        Ok(())
    }

    #[inline]
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else {
            return Err(misuse::no_such_end(from.0));
        };
        if let Some(arrival) = link.peek() {
            return Ok(Some(arrival));
        }
        let (at, home) = (from.0 as usize, link.home);
        let mut arrival = None;
        self.progress_group(home, |t| {
            arrival = t.incoming[at].peek();
            arrival.is_some()
        })?;
        if arrival.is_none() {
            self.incoming[at].counters.stalls += 1;
            if let Some(why) = &self.lanes[home as usize].broken {
                return Err(why.clone());
            }
        }
        Ok(arrival)
    }

    #[inline]
    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else {
            return Err(misuse::no_such_end(from.0));
        };
        if !link.release() {
            return Err(misuse::not_held("release"));
        }
        if link.owes() {
            self.return_credits(from.0);
        }
        Ok(())
    }
}

impl IbTransport {
    /// A credit and room for a work request on every link of a sender, if there is both.
    #[inline]
    fn take_credits(&mut self, to: SenderId, len: usize) -> Result<bool> {
        let sender = &self.senders[to.0 as usize];
        for &link in &sender.links {
            let link = &self.outgoing[link as usize];
            if link.reserved {
                return Err(misuse::reserved_twice(link.key.to));
            }
        }
        for i in 0..sender.links.len() {
            let link = self.senders[to.0 as usize].links[i];
            if !self.may_send(link, len)? {
                self.outgoing[link as usize].counters.stalls += 1;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The home of a link for a piece that goes nowhere else, if it can go at once.
    #[inline(always)]
    fn clear_home(&self, link: u32, len: usize, tag: u64) -> Option<u32> {
        let outgoing = &self.outgoing[link as usize];
        let is_clear = len <= self.stays_home && outgoing.has_credit() && !outgoing.reserved;
        let has_place = len <= INLINE_BYTES || !self.pool.is_short() && !outgoing.has_target(tag);
        (is_clear && has_place && self.lanes[outgoing.home as usize].can_take()).then_some(outgoing.home)
    }

    #[inline(never)]
    fn send_by_slot(&mut self, link: u32, home: u32, piece: Piece, tag: u64) {
        let (slot, len) = (self.pool.take(), piece.len());
        self.pool.piece(slot, len).copy_from(piece);
        self.hand_over_short(link, home, tag, len, Body::Slot(slot));
    }

    /// What is sent in steps where something may be in the way: several links, a choice of lanes, want of credit.
    #[inline(never)]
    fn send_in_steps(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        let Some(slot) = self.reserve(to, piece.len())? else { return Ok(Sent::NoCredit) };
        slot.copy_from(piece);
        self.publish(to, tag)?;
        Ok(Sent::Done)
    }

    /// A slot of the pool. Credits that have come back unseen may free some, which are in the cache still.
    #[inline]
    fn take_slot(&mut self) -> Result<u32> {
        if self.pool.is_short() {
            self.progress_all()?;
            self.pool.ensure(&self.adapters)?;
        }
        Ok(self.pool.take())
    }

    /// Whether a link has a credit and a lane room for a piece, which is chosen; looks at completions only when it must.
    #[inline]
    pub(super) fn may_send(&mut self, link: u32, len: usize) -> Result<bool> {
        let home = self.outgoing[link as usize].home;
        let can = self.can_send(link, len) || self.progress_group(home, |t| t.can_send(link, len))?;
        match self.lanes[home as usize].fault() {
            None => Ok(can),
            Some(why) => Err(why),
        }
    }

    #[inline]
    fn can_send(&mut self, link: u32, len: usize) -> bool {
        if !self.outgoing[link as usize].has_credit() {
            return false;
        }
        let lane = self.lane_for(link, len);
        self.outgoing[link as usize].chosen = lane.unwrap_or(self.outgoing[link as usize].home);
        lane.is_some()
    }

    /// The lane for a piece of a link, if one has room.
    #[inline]
    pub(super) fn lane_for(&self, link: u32, len: usize) -> Option<u32> {
        let Outgoing { home, group, .. } = self.outgoing[link as usize];
        let group = &self.groups[group as usize];
        match len > SMALL && group.is_spread() {
            true => group.choose((&self.lanes, &self.adapters), len, self.now()),
            false => group.any(&self.lanes, home),
        }
    }

    /// Whether devices are done with what they were lent on a link.
    fn is_settled(&self, link: usize) -> bool {
        let link = &self.outgoing[link];
        let lanes = &self.groups[link.group as usize].lanes;
        let is_done = |(send, lane): (&u64, &u32)| *send == 0 || self.lanes[*lane as usize].has_done(*send);
        // What waits for a lane is lent when it has one.
        link.is_posted() && link.lent.iter().zip(lanes).all(is_done)
    }

    /// Keeps what a reservation needs, unless one is held already.
    #[inline]
    fn hold(&mut self, to: SenderId, reservation: Reservation) {
        let sender = &mut self.senders[to.0 as usize];
        if sender.reserved.is_none() {
            for &link in &sender.links {
                let link = &mut self.outgoing[link as usize];
                link.reserved = true;
                self.lanes[link.chosen as usize].hold();
            }
        }
        sender.reserved = Some(reservation);
    }

    /// Whether the devices of all links of a sender know the memory of a piece.
    fn is_registered(&mut self, to: SenderId, piece: Piece) -> bool {
        let IbTransport { senders, outgoing, groups, lanes, registered, adapters, .. } = self;
        let links = senders[to.0 as usize].links.iter();
        let mut all = links.flat_map(|link| &groups[outgoing[*link as usize].group as usize].lanes);
        all.all(|lane| registered.find(piece, lanes[*lane as usize].seat.adapter, adapters).is_some())
    }
}
