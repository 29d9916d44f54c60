//! Memory of this rank that peers may write to, and that of peers to which this rank writes.

use crate::fabric::{Reservation, Sender, corrupt};
use crate::lending::Told;
use crate::ring::{Body, Corrupt};
use crate::shm::{Loan, region};
use crate::transport::ShmTransport;
use ccl_core::kernels::PieceMut;
use ccl_core::transport::misuse::{no_such_end, not_held};
use ccl_core::transport::{Offer, ReceiverId, SenderId, Stretch};
use ccl_core::{Rank, Result};
use std::thread;
use std::time::{Duration, Instant};

/// How long a peer that is writing may take until it counts as standing still. It writes a piece within a fraction of a millisecond, unless it
/// waits for a core.
const STANDSTILL: Duration = Duration::from_secs(1);

/// How often it is looked at.
const GLANCE: Duration = Duration::from_micros(50);

impl ShmTransport {
    /// Tells the sender of a link where the next pieces go, if it can map that.
    pub(crate) fn offer_memory(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        let Some(link) = self.incoming.get(from.0 as usize) else { return Err(no_such_end(from.0)) };
        let peer = link.key.from;
        let place = self.lending.find(offer.sink.as_piece());
        let place =
            place.filter(|&place| self.lending.told(place, peer) == Told::Yes || self.tell(peer, place));
        let named = place.and_then(|place| Some((self.lending.number(place)?, place.offset)));
        let link = &mut self.incoming[from.0 as usize];
        match named {
            Some((number, offset)) => link.offer(offer, number, offset),
            None => link.withdraw(),
        }
        Ok(())
    }

    /// What all receivers of a sender have offered for the next pieces.
    pub(crate) fn take_offered(
        &mut self,
        to: SenderId,
        stretch: Stretch,
        tag: u64,
        sinks: &mut [PieceMut],
    ) -> Result<usize> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if sender.reserved.is_some() {
            return Err(not_held("reserve_offered"));
        }
        let links = sender.links.len();
        for (index, sink) in sinks.iter_mut().enumerate().take(links) {
            let link = self.senders[to.0 as usize].links[index] as usize;
            let Some((number, offset)) = self.outgoing[link].take_offered(&stretch, tag) else {
                self.leave_offered(to, index);
                return Ok(0);
            };
            let peer = self.outgoing[link].key.to;
            match self.offered_piece(link, peer, number, offset, stretch.bytes) {
                Ok(Some(piece)) => *sink = piece,
                nothing => {
                    self.leave_offered(to, index + 1);
                    return nothing.map(|_| 0);
                }
            }
        }
        for index in 0..links {
            let link = self.senders[to.0 as usize].links[index] as usize;
            if !self.outgoing[link].take_credits(stretch.pieces, &mut self.pool)? {
                self.leave_offered(to, links);
                return Ok(0);
            }
        }
        self.hold(to, Reservation { len: stretch.bytes, body: Body::Offered });
        self.senders[to.0 as usize].stretch = stretch;
        Ok(links)
    }

    /// Hands over what was written to offered memory.
    pub(crate) fn publish_offered(&mut self, to: SenderId, tag: u64) {
        let Sender { links, stretch, .. } = &self.senders[to.0 as usize];
        for &link in links {
            let link = &mut self.outgoing[link as usize];
            (0..stretch.pieces).for_each(|piece| link.publish(tag, stretch.len_of(piece), Body::Offered));
        }
    }

    /// The first so many receivers of a sender need not wait for it.
    fn leave_offered(&self, to: SenderId, links: usize) {
        for &link in &self.senders[to.0 as usize].links[..links] {
            self.outgoing[link as usize].leave_offered();
        }
    }

    /// A place in what the receiver of a link has lent under this number; nothing where this rank does not know of it.
    fn offered_piece(
        &mut self,
        link: usize,
        peer: Rank,
        number: u32,
        offset: u64,
        len: usize,
    ) -> Result<Option<PieceMut>> {
        let lender = self.peers[&peer].lender as usize;
        if self.borrowed[lender].find(number).is_none() {
            self.borrow_offered(peer, number)?;
        }
        let Some(loan) = self.borrowed[lender].find(number) else { return Ok(None) };
        let outside = || corrupt(peer, Corrupt("memory is offered outside of what it names"));
        self.outgoing[link].offered_piece(loan, offset, len).map(Some).ok_or_else(outside)
    }

    #[cold]
    fn borrow_offered(&mut self, peer: Rank, number: u32) -> Result<()> {
        let known = &self.peers[&peer];
        if known.mailbox.is_some() {
            return self.read_mail();
        }
        if let Some(region) = region::lent_here(known.segment.id(), number) {
            self.borrowed[known.lender as usize].keep(Loan::here(number, region));
        }
        Ok(())
    }

    /// Takes all offers back, leaves what others have offered, and waits until nobody writes to what was offered here; who still does, since it
    /// stands still.
    pub(crate) fn withdraw_offers(&mut self) -> Vec<Rank> {
        for sender in &mut self.senders {
            if let Some(Reservation { body: Body::Offered, .. }) = sender.reserved {
                sender.reserved = None;
                for &link in &sender.links {
                    let link = &mut self.outgoing[link as usize];
                    link.reserved = false;
                    link.leave_offered();
                }
            }
        }
        self.incoming.iter_mut().for_each(|link| link.withdraw());
        let start = Instant::now();
        let is_gone = |peer: Rank| {
            let owner = self.peers.get(&peer).and_then(|known| known.mailbox);
            owner.zip(self.mailbox.as_ref()).is_some_and(|(owner, mailbox)| mailbox.is_gone(owner))
        };
        let mut stuck = Vec::new();
        for link in &self.incoming {
            while link.is_written() && !is_gone(link.key.from) {
                if start.elapsed() >= STANDSTILL {
                    stuck.push(link.key.from);
                    break;
                }
                thread::sleep(GLANCE);
            }
        }
        stuck.dedup();
        stuck
    }
}
