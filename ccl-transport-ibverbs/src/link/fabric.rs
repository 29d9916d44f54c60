//! The data path.

use super::outgoing::Body;
use super::transport::IbTransport;
use super::wire::INLINE_BYTES;
use crate::verbs::Sge;
use ccl_core::simd::{Piece, PieceMut};
use ccl_core::transport::{Arrival, Fabric, Offer, ReceiverId, Refer, SenderId, misuse};
use ccl_core::{Error, Result};

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
                if held.is_none() && !self.take_credits(to)? {
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
        if !fits || !self.is_registered(to, piece) {
            return Ok(Refer::NotMapped);
        }
        if !is_referring && !self.take_credits(to)? {
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
            let lane = self.outgoing[link].lane as usize;
            // What is sent again meanwhile is lent anew.
            let is_done =
                |t: &IbTransport| t.outgoing[link].lent.is_none_or(|last| t.lanes[lane].has_done(last));
            if !is_done(self) {
                self.progress(self.lanes[lane].seat.adapter)?;
                if let Some(why) = &self.lanes[lane].broken {
                    return Err(why.clone());
                }
                if !is_done(self) {
                    return Ok(false);
                }
            }
            self.outgoing[link].lent = None;
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
            Body::Line | Body::User(_) => {}
        }
        for i in 0..links {
            let link = self.senders[to.0 as usize].links[i];
            self.hand_over(link, tag, len, body)?;
        }
        Ok(())
    }

    /// One that cannot be told of now is not made: pieces go through slots.
    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else {
            return Err(misuse::no_such_end(from.0));
        };
        let at = link.lane as usize;
        let lane = &mut self.lanes[at];
        if !lane.open || !lane.has_room() || link.unheard() > 0 || offer.piece > self.slot_bytes {
            return Ok(());
        }
        let Some(region) = self.registered.find(offer.sink.as_piece(), lane.seat.adapter, &self.adapters)
        else {
            return Ok(());
        };
        let (record, to) = link.offer(offer, region.remote(offer.sink), lane.seat.rails);
        let sent = lane.offer(record, to, link.their);
        self.unless_failed(at, sent);
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
        let lane = link.lane;
        self.progress(self.lanes[lane as usize].seat.adapter)?;
        let link = &mut self.incoming[from.0 as usize];
        let arrival = link.peek();
        if arrival.is_none() {
            link.counters.stalls += 1;
            if let Some(why) = &self.lanes[lane as usize].broken {
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
    fn take_credits(&mut self, to: SenderId) -> Result<bool> {
        let sender = &self.senders[to.0 as usize];
        for &link in &sender.links {
            let link = &self.outgoing[link as usize];
            if link.reserved {
                return Err(misuse::reserved_twice(link.key.to));
            }
        }
        for i in 0..sender.links.len() {
            let link = self.senders[to.0 as usize].links[i];
            if !self.may_send(link)? {
                self.outgoing[link as usize].counters.stalls += 1;
                return Ok(false);
            }
        }
        Ok(true)
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

    /// Whether a link has a credit and its lane room; looks at completions only when it must.
    #[inline]
    fn may_send(&mut self, link: u32) -> Result<bool> {
        let lane = self.outgoing[link as usize].lane as usize;
        let can = |t: &IbTransport| t.outgoing[link as usize].has_credit() && t.lanes[lane].has_room();
        if !can(self) {
            self.progress(self.lanes[lane].seat.adapter)?;
        }
        match self.lanes[lane].fault() {
            None => Ok(can(self)),
            Some(why) => Err(why),
        }
    }

    /// Keeps what a reservation needs, unless one is held already.
    #[inline]
    fn hold(&mut self, to: SenderId, reservation: Reservation) {
        let sender = &mut self.senders[to.0 as usize];
        if sender.reserved.is_none() {
            for &link in &sender.links {
                let link = &mut self.outgoing[link as usize];
                link.reserved = true;
                self.lanes[link.lane as usize].hold();
            }
        }
        sender.reserved = Some(reservation);
    }

    /// Whether the devices of all links of a sender know the memory of a piece.
    fn is_registered(&mut self, to: SenderId, piece: Piece) -> bool {
        let IbTransport { senders, outgoing, lanes, registered, adapters, .. } = self;
        senders[to.0 as usize].links.iter().all(|&link| {
            let lane = &lanes[outgoing[link as usize].lane as usize];
            registered.find(piece, lane.seat.adapter, adapters).is_some()
        })
    }

    /// What a device needs of the bytes of a message that are not in its line.
    #[inline]
    pub(super) fn bytes_of(&mut self, body: Body, len: usize, lane: usize) -> Result<Option<Sge>> {
        let adapter = self.lanes[lane].seat.adapter;
        Ok(match body {
            Body::Line => None,
            Body::Slot(slot) => Some(self.pool.sge(slot, len, adapter)),
            Body::User(piece) => Some(self.sge_of_user(piece, adapter)?),
        })
    }

    fn sge_of_user(&mut self, piece: Piece, adapter: usize) -> Result<Sge> {
        let region = self.registered.find(piece, adapter, &self.adapters);
        region.map(|region| region.sge(piece)).ok_or_else(|| {
            let name = self.adapters[adapter].context.name();
            Error::invalid(
                format!(
                    "{} bytes of a user to be sent by {name}, which does not know their memory",
                    piece.len()
                ),
                "deregister memory when no call uses it; another rail may have no room for registrations",
            )
        })
    }

    /// Posts one message.
    #[inline]
    fn hand_over(&mut self, link: u32, tag: u64, len: usize, body: Body) -> Result<()> {
        let at = self.outgoing[link as usize].lane as usize;
        let bytes = self.bytes_of(body, len, at)?;
        let outgoing = &mut self.outgoing[link as usize];
        outgoing.reserved = false;
        let lane = &mut self.lanes[at];
        let is_lent = matches!(body, Body::User(_));
        let direct = bytes.and_then(|bytes| Some((bytes, outgoing.direct(tag, len)?)));
        // What goes direct takes no header along, and returns no credits; one is kept in case that it has to be sent again.
        let released = match outgoing.back {
            Some(back) if direct.is_none() => self.incoming[back as usize].report(),
            _ => 0,
        };
        let (head, to, immediate) = outgoing.message(tag, len, released, bytes.is_none());
        if is_lent {
            outgoing.lent = Some(lane.next());
        }
        let sent = match (direct, bytes) {
            (Some((bytes, (to, immediate))), _) => lane.send(&[bytes], to, immediate, is_lent),
            (None, Some(bytes)) => lane.send(&[head, bytes], to, immediate, is_lent),
            (None, None) => lane.send(&[head], to, immediate, false),
        };
        outgoing.published(len, body, direct.is_some());
        self.unless_failed(at, sent);
        Ok(())
    }

    /// A queue pair that takes nothing has failed.
    #[inline]
    pub(super) fn unless_failed(&mut self, lane: usize, posted: Result<()>) {
        if let Err(error) = posted {
            self.part(lane, error.to_string());
        }
    }

    /// Tells the sender of an incoming link how much is released, in a message of its own. Without room for it, later.
    pub(super) fn return_credits(&mut self, link: u32) {
        let incoming = &mut self.incoming[link as usize];
        let lane = &mut self.lanes[incoming.lane as usize];
        if !lane.open {
            return;
        }
        if !lane.has_room() {
            (self.owing, self.chores) = (true, true);
            return;
        }
        let (at, released) = (incoming.lane as usize, incoming.report());
        let sent = lane.return_credit(incoming.their, released);
        self.unless_failed(at, sent);
    }
}
