//! The data path.

#[cfg(test)]
mod tests;

use crate::lending::Told;
use crate::pool::Place;
use crate::ring::{Body, Corrupt, INLINE_BYTES, Passing, SHORT_BYTES};
use crate::shm::Look;
use crate::transport::ShmTransport;
use ccl_core::error::ErrorKind;
use ccl_core::kernels::{Direction, Merge, Piece, PieceMut, Store};
use ccl_core::transport::misuse::{no_such_end, not_held, too_long};
use ccl_core::transport::{
    Arrival, Fabric, Lent, Offer, ReceiverId, Refer, SenderId, Sent, Stretch, Taken, lend, take,
};
use ccl_core::{Error, Rank, Result};

/// The sending end for one or more links.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Positions in [`ShmTransport::outgoing`].
    pub(crate) links: Box<[u32]>,
    pub(crate) reserved: Option<Reservation>,
    /// The pieces that a reservation of offered memory is for.
    pub(crate) stretch: Stretch,
}

/// What `reserve` or `reserve_offered` has given, or `refer` was given, and `publish` has not yet taken. What is in the line lies in
/// that of the first link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) len: usize,
    pub(crate) body: Body,
}

impl Fabric for ShmTransport {
    #[inline]
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let first = sender.links[0] as usize;
        match sender.reserved {
            // The same room again, also for another length that fits there.
            Some(Reservation { body: Body::Slot { number, at, passing, .. }, .. })
                if len <= self.geometry.slot_bytes =>
            {
                let place = Place { slot: number, at }.fit(len, self.geometry.slot_bytes);
                let (body, piece) = self.slot_message(to, place, passing, len);
                self.senders[to.0 as usize].reserved = Some(Reservation { len, body });
                return Ok(Some(piece));
            }
            Some(Reservation { body: Body::Line, .. }) if len <= SHORT_BYTES => {
                self.make_room(to, len)?;
                self.senders[to.0 as usize].reserved = Some(Reservation { len, body: Body::Line });
                return Ok(Some(self.outgoing[first].inline_piece(len)));
            }
            _ => {}
        }
        if len > self.geometry.slot_bytes {
            return Err(too_long(len, self.geometry.slot_bytes));
        }
        let in_slot = len > SHORT_BYTES;
        if sender.reserved.is_some() {
            self.let_go(to);
        }
        if in_slot && self.looks.is_due() {
            self.measure(to)?;
        }
        if !self.take_credits(to, in_slot)? {
            return Ok(None);
        }
        let (body, piece) = if in_slot {
            let (place, passing) = self.take_slot(to, len)?;
            self.slot_message(to, place, passing, len)
        } else {
            self.make_room(to, len)?;
            (Body::Line, self.outgoing[first].inline_piece(len))
        };
        self.hold(to, Reservation { len, body });
        Ok(Some(piece))
    }

    #[inline(never)]
    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if matches!(sender.reserved, Some(Reservation { body: Body::Line | Body::Slot { .. }, .. })) {
            return Ok(Refer::NotMapped);
        }
        let Some(place) = self.lending.find(piece) else { return Ok(Refer::NotMapped) };
        let is_told = |&link: &u32| {
            let peer = self.outgoing[link as usize].key.to;
            self.lending.told(place, peer) == Told::Yes
        };
        if !sender.links.iter().all(is_told) && !self.tell_all(to, place) {
            return Ok(Refer::NotMapped);
        }
        let Some(number) = self.lending.number(place) else { return Ok(Refer::NotMapped) };
        if self.senders[to.0 as usize].reserved.is_none() && !self.take_credits(to, false)? {
            return Ok(Refer::NoCredit);
        }
        let body = Body::Lent { number, offset: place.offset };
        self.hold(to, Reservation { len: piece.len(), body });
        Ok(Refer::Ready)
    }

    #[inline]
    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let mut settled = true;
        for &link in &sender.links {
            let link = &mut self.outgoing[link as usize];
            settled &= link.is_settled(&mut self.pool).map_err(|c| corrupt(link.key.to, c))?;
        }
        Ok(settled)
    }

    #[inline(never)]
    fn reserve_offered(
        &mut self,
        to: SenderId,
        stretch: Stretch,
        tag: u64,
        sinks: &mut [PieceMut],
    ) -> Result<usize> {
        self.take_offered(to, stretch, tag, sinks)
    }

    #[inline]
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let Some(Reservation { len, body }) = sender.reserved.take() else { return Err(not_held("publish")) };
        match body {
            Body::Slot { .. } => self.pool.sent(tag, len),
            Body::Offered => {
                self.publish_offered(to, tag);
                return Ok(());
            }
            Body::Line | Body::Lent { .. } => {}
        }
        let sender = &self.senders[to.0 as usize];
        if let [link] = *sender.links {
            let link = &mut self.outgoing[link as usize];
            let (peer, mut body) = (link.key.to as usize, body);
            if let Body::Slot { number, passing: passing @ Passing::Stays, by_words, .. } = &mut body
                && !self.paces[peer].is_far()
                && self.pool.may_pass(self.passed[peer].away())
            {
                self.pool.hand_over(*number, link.key.to);
                self.passed[peer].hand_over();
                (*passing, *by_words) = (Passing::Over, false);
            }
            link.publish(tag, len, body);
            return Ok(());
        }
        match body {
            Body::Slot { number, .. } => self.pool.share(number, sender.links.len() as u32),
            // What was offered is handed over above.
            Body::Lent { .. } | Body::Offered => {}
            Body::Line => {
                let line = self.outgoing[sender.links[0] as usize].inline_piece(len);
                for &link in &sender.links[1..] {
                    self.outgoing[link as usize].copy_inline(line);
                }
            }
        }
        for &link in &sender.links {
            self.outgoing[link as usize].publish(tag, len, body);
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        // One link is most of all, and what is not as always is left to the other.
        if let Some(Sender { links, reserved: None, .. }) = self.senders.get(to.0 as usize)
            && let [link] = **links
            && let link = &mut self.outgoing[link as usize]
            && link.is_easy(piece.len())
        {
            link.send_easily(piece, tag);
            return Ok(Sent::Done);
        }
        self.send_as_ever(to, piece, tag)
    }

    #[inline(never)]
    fn lend(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Lent> {
        if self.lending.is_empty() {
            return self.send(to, piece, tag).map(Lent::from);
        }
        lend(self, to, piece, tag)
    }

    #[inline(never)]
    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        self.offer_memory(from, offer)
    }

    #[inline(always)]
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        match link.peek(&self.borrowed, &self.pool).map_err(|c| corrupt(link.key.from, c))? {
            Look::Nothing => Ok(None),
            Look::Piece(arrival) => Ok(Some(arrival)),
            Look::Unknown => self.peek_after_the_mail(from),
        }
    }

    #[inline(never)]
    fn peek_stretch(
        &mut self,
        from: ReceiverId,
        most: usize,
        direction: Direction,
    ) -> Result<Option<(Arrival, usize)>> {
        let Some(arrival) = self.peek(from)? else { return Ok(None) };
        let link = &self.incoming[from.0 as usize];
        let stretch = link.stretch(arrival, (most, direction), &self.borrowed);
        stretch.map(Some).map_err(|c| corrupt(link.key.from, c))
    }

    #[inline]
    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        let was_held =
            link.release(&mut self.pool, &mut self.passed).map_err(|c| corrupt(link.key.from, c))?;
        if was_held { Ok(()) } else { Err(not_held("release")) }
    }

    #[inline]
    fn take(&mut self, from: ReceiverId, tag: u64, merge: &Merge<'_>) -> Result<Taken> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        match link.take_short(tag, merge).map_err(|c| corrupt(link.key.from, c))? {
            Some(taken) => Ok(taken),
            None => self.take_longer(from, tag, merge),
        }
    }
}

impl ShmTransport {
    /// A credit on every link of a sender, if there is one; of those for slots, where the message will be in one. Always
    /// inlined, as what it calls: it is on the path of every message in a slot.
    #[inline(always)]
    pub(crate) fn take_credits(&mut self, to: SenderId, in_slot: bool) -> Result<bool> {
        for &link in &self.senders[to.0 as usize].links {
            let link = &mut self.outgoing[link as usize];
            if !link.take_credit(in_slot, &mut self.pool)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sees to it that a message of this length, which is in no slot, has room on every link of a sender.
    #[inline]
    fn make_room(&mut self, to: SenderId, len: usize) -> Result<()> {
        if len > INLINE_BYTES {
            for &link in &self.senders[to.0 as usize].links {
                self.outgoing[link as usize].make_room()?;
            }
        }
        Ok(())
    }

    /// Keeps what `publish` will take. The credits are there.
    #[inline(always)]
    pub(crate) fn hold(&mut self, to: SenderId, reservation: Reservation) {
        let sender = &mut self.senders[to.0 as usize];
        for &link in &sender.links {
            self.outgoing[link as usize].reserved = true;
        }
        sender.reserved = Some(reservation);
    }

    /// Drops a reservation that does not fit what is asked for now: a credit without a slot is none for a slot.
    #[cold]
    fn let_go(&mut self, to: SenderId) {
        let sender = &mut self.senders[to.0 as usize];
        sender.reserved = None;
        for &link in &sender.links {
            self.outgoing[link as usize].reserved = false;
        }
    }

    /// A piece of any length to any number of links, also where something has to be decided.
    #[inline(never)]
    fn send_as_ever(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        if piece.len() > SHORT_BYTES {
            let Some(slot) = self.reserve(to, piece.len())? else { return Ok(Sent::NoCredit) };
            slot.copy_from(piece);
            self.publish(to, tag)?;
            return Ok(Sent::Done);
        }
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if sender.reserved.is_some() {
            return Err(not_held("send"));
        }
        if !self.take_credits(to, false)? {
            return Ok(Sent::NoCredit);
        }
        for &link in &self.senders[to.0 as usize].links {
            self.outgoing[link as usize].send(piece, tag)?;
        }
        Ok(Sent::Done)
    }

    /// A piece that is in a slot, or in memory that is lent or offered.
    #[inline(never)]
    fn take_longer(&mut self, from: ReceiverId, tag: u64, merge: &Merge<'_>) -> Result<Taken> {
        take(self, from, tag, merge)
    }

    /// Looks at a piece that names lent memory of which we knew nothing yet.
    #[cold]
    fn peek_after_the_mail(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let peer = self.incoming[from.0 as usize].key.from;
        self.borrow(peer, from)?;
        let link = &mut self.incoming[from.0 as usize];
        match link.peek(&self.borrowed, &self.pool).map_err(|c| corrupt(peer, c))? {
            Look::Nothing => Ok(None),
            Look::Piece(arrival) => Ok(Some(arrival)),
            Look::Unknown => Err(corrupt(peer, Corrupt("a message names memory that was never lent"))),
        }
    }

    /// Room in a slot for a piece on links that have a credit: in one that the receiver has handed over, if there is a single one and it has.
    #[inline]
    fn take_slot(&mut self, to: SenderId, len: usize) -> Result<(Place, Passing)> {
        self.looks.count();
        if let [link] = *self.senders[to.0 as usize].links {
            let peer = self.outgoing[link as usize].key.to;
            if let Some(place) = self.passed[peer as usize].hand_back() {
                return Ok((place.fit(len, self.geometry.slot_bytes), Passing::Back));
            }
        }
        if self.pool.is_short() {
            self.reclaim()?;
        }
        let (place, is_new) = self.pool.take(len).expect("a credit implies a slot: see `pool`");
        if is_new {
            let slot = place.slot;
            self.segment.populate_slots(slot..slot + 1).inspect_err(|_| self.pool.give_back(slot))?;
        }
        Ok((place, Passing::Stays))
    }

    /// A message in a slot to all links of a sender, and the room for it.
    #[inline]
    fn slot_message(&self, to: SenderId, place: Place, passing: Passing, len: usize) -> (Body, PieceMut) {
        let first = self.senders[to.0 as usize].links[0];
        let mut piece = self.outgoing[first as usize].slot_piece(place, passing, len);
        if self.far > 0 {
            piece = self.paced(to, piece);
        }
        let by_words = len >= self.words_from && passing == Passing::Stays && piece.store() == Store::Cached;
        (Body::Slot { number: place.slot, at: place.at, passing, by_words }, piece)
    }

    /// Finds out how far the ranks are to which a sender sends.
    #[cold]
    fn measure(&mut self, to: SenderId) -> Result<()> {
        let mut in_doubt = None;
        for &link in &self.senders[to.0 as usize].links {
            let link = &mut self.outgoing[link as usize];
            let Some(from_afar) = self.looks.is_from_afar(|| link.has_news()) else { continue };
            link.refresh(&mut self.pool).map_err(|c| corrupt(link.key.to, c))?;
            let (peer, pace) = (link.key.to, &mut self.paces[link.key.to as usize]);
            if pace.note(from_afar) {
                let way = if pace.is_far() { "past the caches" } else { "into the caches" };
                tracing::debug!(rank = self.rank, peer, "slots are written {way}");
                if pace.is_far() { self.far += 1 } else { self.far -= 1 }
            }
            in_doubt = Some(in_doubt == Some(true) || pace.is_in_doubt());
        }
        if let Some(in_doubt) = in_doubt {
            self.looks.seen(in_doubt);
        }
        Ok(())
    }

    /// Says how a piece of a slot is to be written.
    #[cold]
    fn paced(&self, to: SenderId, piece: PieceMut) -> PieceMut {
        let links = &self.senders[to.0 as usize].links;
        let is_far =
            links.iter().any(|&link| self.paces[self.outgoing[link as usize].key.to as usize].is_far());
        piece.stored(if is_far { Store::Streaming } else { Store::Cached })
    }

    /// Looks on all links for released slots: links with credits left do not look by themselves.
    #[cold]
    fn reclaim(&mut self) -> Result<()> {
        for link in &mut self.outgoing {
            link.refresh(&mut self.pool).map_err(|c| corrupt(link.key.to, c))?;
        }
        Ok(())
    }
}

#[cold]
pub(crate) fn corrupt(peer: Rank, Corrupt(what): Corrupt) -> Error {
    let what = format!("the shared memory of a link is damaged: {what}");
    ErrorKind::Transport { transport: "shm", peer: Some(peer), what, source: None }.into()
}
