//! Giving lanes their messages: pieces, those that had to wait, and returns of credits.

use super::group::SMALL;
use super::lane::Notice;
use super::outgoing::{Body, Message, Outgoing};
use super::transport::IbTransport;
use crate::verbs::{Remote, Sge};
use ccl_core::kernels::Piece;
use ccl_core::{Error, Result};

impl IbTransport {
    /// What a device needs of the bytes of a message that are not in its line.
    #[inline]
    pub(super) fn bytes_of(&mut self, body: Body, len: usize, lane: usize) -> Result<Option<Sge>> {
        let adapter = self.lanes[lane].seat.adapter;
        Ok(match body {
            Body::Line | Body::Word => None,
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

    /// Posts one message, or keeps it for a lane that takes it.
    #[inline]
    pub(super) fn hand_over(&mut self, link: u32, tag: u64, len: usize, body: Body) -> Result<()> {
        let outgoing = &mut self.outgoing[link as usize];
        outgoing.reserved = false;
        let (chosen, home) = (outgoing.chosen, outgoing.home as usize);
        self.lanes[chosen as usize].let_go();
        let is_open = self.lanes[chosen as usize].can_take();
        let Some(at) = (if is_open { Some(chosen) } else { self.lane_for(link, len) }) else {
            let rails = self.lanes[home].seat.rails;
            let outgoing = &mut self.outgoing[link as usize];
            outgoing.message(tag, len, 0, matches!(body, Body::Line), rails);
            outgoing.published(len, body, false, None);
            (self.unsent, self.chores) = (true, true);
            return Ok(());
        };
        let lane = at as usize;
        let bytes = self.bytes_of(body, len, lane)?;
        let rails = self.lanes[lane].seat.rails;
        let outgoing = &mut self.outgoing[link as usize];
        let direct = bytes.and_then(|_| outgoing.direct(tag, len, rails));
        // What goes direct takes no header along, and returns no credits; one is kept in case that it has to be sent again.
        let released = match outgoing.back {
            Some(back) if direct.is_none() => self.incoming[back as usize].report(),
            _ => 0,
        };
        let message = outgoing.message(tag, len, released, bytes.is_none(), rails);
        outgoing.published(len, body, direct.is_some(), Some(at));
        self.carry(link, lane, len, (body, bytes), message, direct);
        Ok(())
    }

    /// What handing over comes to for a short message in its line, or in a slot that no other link needs, whose lane can take
    /// it and where nothing is offered.
    #[inline(always)]
    pub(super) fn hand_over_short(&mut self, link: u32, at: u32, tag: u64, len: usize, body: Body) {
        let IbTransport { outgoing, incoming, lanes, pool, .. } = self;
        let (outgoing, lane) = (&mut outgoing[link as usize], &mut lanes[at as usize]);
        let released = outgoing.back.map_or(0, |back| incoming[back as usize].report());
        let is_inline = matches!(body, Body::Line);
        let Message { header, head, to, immediate } =
            outgoing.message(tag, len, released, is_inline, lane.seat.rails);
        let whole = match body {
            Body::Slot(slot) => pool.headed(slot, header, len, lane.seat.adapter),
            Body::Line | Body::Word | Body::User(_) => head,
        };
        outgoing.published(len, body, false, Some(at));
        lane.seat.sent += len as u64;
        let sent = lane.send(&[whole], to, immediate, Notice::None);
        self.unless_failed(at as usize, sent);
    }

    /// Gives a lane one message of a link: to where it was offered, or with its header in front.
    #[inline]
    fn carry(
        &mut self,
        link: u32,
        lane: usize,
        len: usize,
        (body, bytes): (Body, Option<Sge>),
        Message { header, head, to, immediate }: Message,
        direct: Option<(Remote, u32)>,
    ) {
        let Some(bytes) = bytes else {
            return self.post(link, lane, len, body, (&[head], to, immediate));
        };
        if let Some((to, immediate)) = direct {
            return self.post(link, lane, len, body, (&[bytes], to, immediate));
        }
        let adapter = self.lanes[lane].seat.adapter;
        let whole = match body {
            Body::Slot(slot) if !self.pool.is_shared(slot) => {
                Some(self.pool.headed(slot, header, len, adapter))
            }
            // Each link that needs the slot has a header of its own.
            Body::Slot(_) | Body::Line | Body::Word | Body::User(_) => None,
        };
        match whole {
            Some(whole) => self.post(link, lane, len, body, (&[whole], to, immediate)),
            None => self.post(link, lane, len, body, (&[head, bytes], to, immediate)),
        }
    }

    /// Posts a work request for one message of a link.
    #[inline]
    fn post(
        &mut self,
        link: u32,
        at: usize,
        len: usize,
        body: Body,
        (bytes, to, immediate): (&[Sge], Remote, u32),
    ) {
        let outgoing = &mut self.outgoing[link as usize];
        let lane = &mut self.lanes[at];
        let is_lent = matches!(body, Body::User(_));
        if is_lent {
            outgoing.lent[lane.position] = lane.next();
        }
        let is_timed = len > SMALL && self.groups[outgoing.group as usize].is_spread();
        let notice = match is_timed {
            true => Notice::Timed,
            false if is_lent => Notice::Wanted,
            false => Notice::None,
        };
        let sent = lane.send(bytes, to, immediate, notice);
        lane.seat.sent += len as u64;
        if is_timed && sent.is_ok() {
            let now = self.began.elapsed().as_nanos() as u64;
            lane.pace.post(len, now);
            self.adapters[lane.seat.adapter].watched += 1;
        }
        self.unless_failed(at, sent);
    }

    /// Sends what waits for a lane, as far as there is one.
    #[cold]
    pub(super) fn send_unsent(&mut self) -> Result<()> {
        self.unsent = false;
        for link in 0..self.outgoing.len() as u32 {
            while let Some((slot, len, body)) = self.outgoing[link as usize].first_unsent() {
                let put = self.outgoing[link as usize].put_of(slot, body);
                let at = self.lane_for(link, put.unwrap_or(len));
                let has_room = |at: &u32| put.is_none() || self.lanes[*at as usize].has_room_for_two();
                let Some(at) = at.filter(has_room) else {
                    self.unsent = true;
                    break;
                };
                let lane = at as usize;
                let bytes = self.bytes_of(body, len, lane)?;
                let back = self.outgoing[link as usize].back;
                let released = back.map_or(0, |back| self.incoming[back as usize].report());
                let rails = self.lanes[lane].seat.rails;
                let message = self.outgoing[link as usize].again(slot, (at, rails), released);
                self.lanes[lane].work.resent += 1;
                match put {
                    Some(_) => self.carry_put(link, lane, slot, message),
                    None => self.carry(link, lane, len, (body, bytes), message, None),
                }
            }
        }
        self.chores |= self.unsent;
        Ok(())
    }

    /// Whether messages wait for room on a lane that works.
    pub(super) fn unsent_are_near(&self) -> bool {
        let is_near = |link: &Outgoing| {
            let lanes = &self.groups[link.group as usize].lanes;
            !link.is_posted() && lanes.iter().any(|lane| self.lanes[*lane as usize].open)
        };
        self.unsent && self.outgoing.iter().any(is_near)
    }

    /// A queue pair that takes nothing has failed.
    #[inline(always)]
    pub(super) fn unless_failed(&mut self, lane: usize, posted: Result<()>) {
        if let Err(error) = posted {
            self.refused(lane, &error);
        }
    }

    #[cold]
    fn refused(&mut self, lane: usize, error: &Error) {
        self.part(lane, error.to_string());
    }

    /// Tells the sender of an incoming link how much is released, in a message of its own. Without room for it, later.
    pub(super) fn return_credits(&mut self, link: u32) {
        let incoming = &mut self.incoming[link as usize];
        let group = &self.groups[incoming.group as usize];
        let Some(at) = group.any(&self.lanes, incoming.home) else {
            if group.lanes.iter().any(|lane| self.lanes[*lane as usize].lacks_room()) {
                (self.owing, self.chores) = (true, true);
            }
            return;
        };
        let released = incoming.report();
        let sent = self.lanes[at as usize].return_credit(incoming.number, released);
        self.unless_failed(at as usize, sent);
    }
}
