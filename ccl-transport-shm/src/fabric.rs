//! The data path.

use crate::ring::{Corrupt, INLINE_BYTES};
use crate::transport::ShmTransport;
use ccl_core::error::ErrorKind;
use ccl_core::simd::PieceMut;
use ccl_core::transport::{Arrival, Fabric, ReceiverId, SenderId};
use ccl_core::{Error, Rank, Result};

/// The sending end for one or more links.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Positions in [`ShmTransport::outgoing`].
    pub(crate) links: Box<[u32]>,
    pub(crate) reserved: Option<Reservation>,
}

/// What `reserve` has given and `publish` has not yet taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    len: usize,
    /// `None`: in the line of the first link.
    slot: Option<u32>,
}

impl Fabric for ShmTransport {
    #[inline]
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let first = sender.links[0] as usize;
        match sender.reserved {
            // The same room again, also for another length that fits there.
            Some(Reservation { slot: Some(slot), .. }) if len <= self.geometry.slot_bytes => {
                sender.reserved = Some(Reservation { len, slot: Some(slot) });
                return Ok(Some(self.outgoing[first].slot_piece(slot, len)));
            }
            Some(Reservation { slot: None, .. }) if len <= INLINE_BYTES => {
                sender.reserved = Some(Reservation { len, slot: None });
                return Ok(Some(self.outgoing[first].inline_piece(len)));
            }
            _ => {}
        }
        if len > self.geometry.slot_bytes {
            return Err(too_long(len, self.geometry.slot_bytes));
        }
        if sender.reserved.is_none() {
            for &link in &sender.links {
                let link = &mut self.outgoing[link as usize];
                if link.reserved {
                    return Err(reserved_twice(link.key.to));
                }
                if !link.has_credit(&mut self.pool).map_err(|c| corrupt(link.key.to, c))? {
                    link.starved = true;
                    link.counters.stalls += 1;
                    return Ok(None);
                }
                link.starved = false;
            }
        }
        let slot = match len > INLINE_BYTES {
            false => None,
            true => Some(self.take_slot()?),
        };
        let sender = &mut self.senders[to.0 as usize];
        for &link in &sender.links {
            self.outgoing[link as usize].reserved = true;
        }
        sender.reserved = Some(Reservation { len, slot });
        let first = &self.outgoing[first];
        Ok(Some(match slot {
            None => first.inline_piece(len),
            Some(slot) => first.slot_piece(slot, len),
        }))
    }

    #[inline]
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let Some(Reservation { len, slot }) = sender.reserved.take() else { return Err(not_held("publish")) };
        if let [link] = *sender.links {
            self.outgoing[link as usize].publish(tag, len, slot);
            return Ok(());
        }
        match slot {
            Some(slot) => self.pool.share(slot, sender.links.len() as u32),
            None => {
                let line = self.outgoing[sender.links[0] as usize].inline_piece(len);
                for &link in &sender.links[1..] {
                    self.outgoing[link as usize].copy_inline(line);
                }
            }
        }
        for &link in &sender.links {
            self.outgoing[link as usize].publish(tag, len, slot);
        }
        Ok(())
    }

    #[inline]
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        link.peek().map_err(|c| corrupt(link.key.from, c))
    }

    #[inline]
    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let Some(link) = self.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        if link.release() { Ok(()) } else { Err(not_held("release")) }
    }
}

impl ShmTransport {
    /// A slot for a link that has a credit.
    #[inline]
    fn take_slot(&mut self) -> Result<u32> {
        if self.pool.is_short() {
            self.reclaim()?;
        }
        let (slot, is_new) = self.pool.take().expect("a credit implies a slot: see `pool`");
        if is_new {
            self.segment.populate_slots(slot..slot + 1).inspect_err(|_| self.pool.put(slot))?;
        }
        Ok(slot)
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
fn corrupt(peer: Rank, Corrupt(what): Corrupt) -> Error {
    let what = format!("the shared memory of a link is damaged: {what}");
    ErrorKind::Transport { transport: "shm", peer: Some(peer), what, source: None }.into()
}

#[cold]
fn no_such_end(id: u32) -> Error {
    Error::invalid(format!("link end {id}"), "an id that `sender` or `receiver` gave")
}

#[cold]
fn not_held(call: &str) -> Error {
    Error::invalid(format!("{call} with nothing to {call}"), "reserve before publish, peek before release")
}

#[cold]
fn reserved_twice(peer: Rank) -> Error {
    Error::invalid(
        format!("two reservations on one link to rank {peer}"),
        "publish through the one sending end before reserving through the other",
    )
}

#[cold]
fn too_long(len: usize, slot_bytes: usize) -> Error {
    Error::invalid(format!("a piece of {len} bytes"), format!("at most {slot_bytes} bytes, the slots' size"))
}
