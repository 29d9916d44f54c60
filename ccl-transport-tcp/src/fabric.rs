//! The data path.

use crate::frame::{Header, Kind};
use crate::socket::Body;
use crate::transport::TcpTransport;
use ccl_core::Result;
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::transport::misuse::{no_such_end, not_held, reserved_twice, too_long};
use ccl_core::transport::{Arrival, Fabric, ReceiverId, Refer, SenderId, Sent};

/// The sending end for one or more links.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Positions in [`Ends::outgoing`](crate::socket::Ends).
    pub(crate) links: Box<[u32]>,
    pub(crate) reserved: Option<Reservation>,
}

/// What `reserve` has given, or `refer` was given, and `publish` has not yet taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reservation {
    Slot { slot: u32, len: usize },
    Lent(Piece),
}

impl Fabric for TcpTransport {
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if len > self.ends.slot_bytes {
            return Err(too_long(len, self.ends.slot_bytes));
        }
        let slot = match sender.reserved {
            Some(Reservation::Slot { slot, .. }) => slot,
            Some(Reservation::Lent(_)) => self.ends.slots.take(),
            None => match self.take_credits(to)? {
                true => self.ends.slots.take(),
                false => return Ok(None),
            },
        };
        self.hold(to, Reservation::Slot { slot, len });
        Ok(Some(self.ends.slots[slot].piece_mut(len)))
    }

    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if matches!(sender.reserved, Some(Reservation::Slot { .. })) || piece.len() > self.ends.slot_bytes {
            return Ok(Refer::NotMapped);
        }
        if sender.reserved.is_none() && !self.take_credits(to)? {
            return Ok(Refer::NoCredit);
        }
        self.hold(to, Reservation::Lent(piece));
        Ok(Refer::Ready)
    }

    /// Once the kernel has a copy of them, what was referred to may change.
    fn settled(&mut self, to: SenderId) -> Result<bool> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let mut settled = true;
        for &link in &sender.links {
            let socket = &mut self.sockets[self.ends.outgoing[link as usize].socket as usize];
            if socket.borrows() {
                socket.flush(&mut self.ends.slots)?;
                settled &= !socket.borrows();
            }
        }
        Ok(settled)
    }

    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        let Some(sender) = self.senders.get_mut(to.0 as usize) else { return Err(no_such_end(to.0)) };
        let Some(reservation) = sender.reserved.take() else { return Err(not_held("publish")) };
        let (body, len) = match reservation {
            Reservation::Slot { slot, len } => {
                self.ends.slots.share(slot, sender.links.len() as u32);
                (Body::Slot(slot, len), len)
            }
            Reservation::Lent(piece) => (Body::Lent(piece), piece.len()),
        };
        for at in 0..sender.links.len() {
            let link = self.senders[to.0 as usize].links[at];
            let header = self.header(link, len, tag, matches!(body, Body::Lent(_)));
            let socket = self.ends.outgoing[link as usize].socket;
            self.sockets[socket as usize].send(&header, body, &mut self.ends.slots)?;
        }
        Ok(())
    }

    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        let Some(sender) = self.senders.get(to.0 as usize) else { return Err(no_such_end(to.0)) };
        if sender.reserved.is_some() {
            return Err(not_held("send"));
        }
        if piece.len() > self.ends.slot_bytes {
            return Err(too_long(piece.len(), self.ends.slot_bytes));
        }
        if !self.take_credits(to)? {
            return Ok(Sent::NoCredit);
        }
        for at in 0..self.senders[to.0 as usize].links.len() {
            let link = self.senders[to.0 as usize].links[at];
            let header = self.header(link, piece.len(), tag, false);
            let socket = self.ends.outgoing[link as usize].socket;
            self.sockets[socket as usize].send_copy(&header, piece, &mut self.ends.slots)?;
        }
        Ok(Sent::Done)
    }

    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        let Some(link) = self.ends.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        if let Some(arrival) = link.peek(&self.ends.slots) {
            return Ok(Some(arrival));
        }
        let socket = link.socket;
        while self.read(socket)? {
            if let Some(arrival) = self.ends.incoming[from.0 as usize].peek(&self.ends.slots) {
                return Ok(Some(arrival));
            }
        }
        match &self.sockets[socket as usize].ended {
            Some(error) => Err(error.clone()),
            None => {
                self.ends.incoming[from.0 as usize].counters.stalls += 1;
                Ok(None)
            }
        }
    }

    fn release(&mut self, from: ReceiverId) -> Result<()> {
        let Some(link) = self.ends.incoming.get_mut(from.0 as usize) else { return Err(no_such_end(from.0)) };
        if !link.release(&mut self.ends.slots) {
            return Err(not_held("release"));
        }
        if link.owes() {
            let (socket, channel) = (link.socket, link.key.channel);
            let credit =
                Header { kind: Kind::Credit, channel, len: 0, number: 0, released: link.tell(), tag: 0 };
            let socket = &mut self.sockets[socket as usize];
            socket.calls.credit_frames += 1;
            // A sender that is gone needs no credits; whoever waits for it gets the error.
            let _ = socket.send(&credit, Body::Nothing, &mut self.ends.slots);
        }
        Ok(())
    }
}

impl TcpTransport {
    /// Takes in what has come on a socket; whether there was something.
    #[inline]
    pub(crate) fn read(&mut self, socket: u32) -> Result<bool> {
        let news = self.sockets[socket as usize].read(&mut self.ends)?;
        self.news |= news;
        Ok(news)
    }

    /// A credit on every link of a sender, if there is one. Reads what has come where there is none.
    #[inline]
    fn take_credits(&mut self, to: SenderId) -> Result<bool> {
        for at in 0..self.senders[to.0 as usize].links.len() {
            let index = self.senders[to.0 as usize].links[at] as usize;
            let link = &self.ends.outgoing[index];
            if link.reserved {
                return Err(reserved_twice(link.key.to));
            }
            let socket = link.socket;
            while !self.ends.outgoing[index].has_credit() {
                if !self.read(socket)? {
                    self.sockets[socket as usize].check_voice()?;
                    self.ends.outgoing[index].counters.stalls += 1;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Keeps what `publish` will take. The credits are there.
    #[inline]
    fn hold(&mut self, to: SenderId, reservation: Reservation) {
        let sender = &mut self.senders[to.0 as usize];
        for &link in &sender.links {
            self.ends.outgoing[link as usize].reserved = true;
        }
        sender.reserved = Some(reservation);
    }

    /// The header of the next piece on a link, with what is known of the way back.
    #[inline]
    fn header(&mut self, link: u32, len: usize, tag: u64, by_reference: bool) -> Header {
        let link = &mut self.ends.outgoing[link as usize];
        link.reserved = false;
        let number = link.publish(len, by_reference);
        let (channel, back) = (link.key.channel, link.back);
        let released = back.map_or(0, |back| self.ends.incoming[back as usize].tell());
        Header { kind: Kind::Piece, channel, len: len as u32, number, released, tag }
    }
}
