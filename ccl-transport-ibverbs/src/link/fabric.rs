//! The data path.

use super::transport::IbTransport;
use super::wire::INLINE_BYTES;
use ccl_core::Result;
use ccl_core::simd::PieceMut;
use ccl_core::transport::{Arrival, Fabric, ReceiverId, SenderId, misuse};

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
    /// The pool's slot; `None`: in the line of the first link.
    slot: Option<u32>,
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
            Some(Reservation { slot: Some(slot), .. }) => Some(slot),
            Some(Reservation { slot: None, .. }) if is_short => None,
            held => {
                if held.is_none() && !self.take_credits(to)? {
                    return Ok(None);
                }
                if is_short { None } else { Some(self.take_slot()?) }
            }
        };
        let sender = &mut self.senders[to.0 as usize];
        if sender.reserved.is_none() {
            for &link in &sender.links {
                let link = &mut self.outgoing[link as usize];
                link.reserved = true;
                self.lanes[link.lane as usize].hold();
            }
        }
        sender.reserved = Some(Reservation { len, slot });
        Ok(Some(match slot {
            Some(slot) => self.pool.piece(slot, len),
            None => self.outgoing[first].inline_piece(len),
        }))
    }

    #[inline]
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else {
            return Err(misuse::no_such_end(to.0));
        };
        let Some(Reservation { len, slot }) = sender.reserved.take() else {
            return Err(misuse::not_held("publish"));
        };
        let links = sender.links.len();
        if let Some(slot) = slot {
            self.pool.share(slot, links as u32);
        } else if links > 1 {
            let line = self.outgoing[sender.links[0] as usize].inline_piece(len).as_piece();
            sender.links[1..].iter().for_each(|link| self.outgoing[*link as usize].copy_inline(line));
        }
        for i in 0..links {
            let link = self.senders[to.0 as usize].links[i];
            self.hand_over(link, tag, len, slot)?;
        }
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

    /// Posts one message.
    #[inline]
    fn hand_over(&mut self, link: u32, tag: u64, len: usize, slot: Option<u32>) -> Result<()> {
        let outgoing = &mut self.outgoing[link as usize];
        outgoing.reserved = false;
        let released = outgoing.back.map_or(0, |back| self.incoming[back as usize].report());
        let (head, to, immediate) = outgoing.message(tag, len, released, slot.is_none());
        let at = outgoing.lane as usize;
        let lane = &mut self.lanes[at];
        let sent = match slot {
            None => lane.send(&[head], to, immediate),
            Some(slot) => lane.send(&[head, self.pool.sge(slot, len, lane.seat.adapter)], to, immediate),
        };
        outgoing.published(len, slot);
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
