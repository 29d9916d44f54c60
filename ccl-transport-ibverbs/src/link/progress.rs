//! What completions mean: pieces that came, credits that came back, sends that are done, and failures.

use super::failure;
use super::outgoing::Corrupt;
use super::transport::{IbTransport, POLLED};
use super::wire::Immediate;
use super::work::Id;
use crate::verbs::{Completion, Opcode};
use ccl_core::Result;

impl IbTransport {
    /// Takes all completions of a device, of whichever link they are.
    #[inline(always)]
    pub(super) fn progress(&mut self, adapter: usize) -> Result<()> {
        self.poll(adapter)?;
        if self.chores { self.do_chores() } else { Ok(()) }
    }

    #[inline(always)]
    fn poll(&mut self, adapter: usize) -> Result<()> {
        let device = &mut self.adapters[adapter];
        if device.watched > 0 {
            return self.poll_watched(adapter);
        }
        let found = device.poll(&mut *self.completions)?;
        self.complete_all(found);
        if found < POLLED { Ok(()) } else { self.poll_on(adapter) }
    }

    /// The same while pieces are on their way whose time is taken.
    #[inline(never)]
    fn poll_watched(&mut self, adapter: usize) -> Result<()> {
        self.polled = self.now();
        self.poll_on(adapter)?;
        self.adapters[adapter].looked = self.polled;
        Ok(())
    }

    fn poll_on(&mut self, adapter: usize) -> Result<()> {
        loop {
            let found = self.adapters[adapter].poll(&mut *self.completions)?;
            self.complete_all(found);
            if found < POLLED {
                return Ok(());
            }
        }
    }

    #[inline(always)]
    fn complete_all(&mut self, found: usize) {
        self.events += found as u64;
        (0..found).for_each(|at| self.complete(at));
    }

    /// Nanoseconds since the rank began.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Takes the completions of all devices that carry a group of lanes, that of `home` first, until `enough`.
    #[inline]
    pub(super) fn progress_group(
        &mut self,
        home: u32,
        mut enough: impl FnMut(&mut IbTransport) -> bool,
    ) -> Result<bool> {
        let first = self.lanes[home as usize].seat.adapter;
        self.progress(first)?;
        if enough(self) {
            return Ok(true);
        }
        if self.adapters.len() == 1 {
            return Ok(false);
        }
        let group = self.lanes[home as usize].group as usize;
        for at in 0..self.groups[group].lanes.len() {
            let adapter = self.lanes[self.groups[group].lanes[at] as usize].seat.adapter;
            if adapter != first {
                self.progress(adapter)?;
                if enough(self) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What there is to do besides the completions.
    #[cold]
    fn do_chores(&mut self) -> Result<()> {
        if self.owing {
            self.pay();
        }
        if self.repairing > 0 {
            // Words come over any rail.
            (0..self.adapters.len()).try_for_each(|adapter| self.poll(adapter))?;
        }
        let is_well = self.recover()?;
        if self.unsent {
            self.send_unsent()?;
        }
        self.chores = self.owing || self.unsent || !is_well || self.lost.is_some();
        Ok(())
    }

    pub(super) fn progress_all(&mut self) -> Result<()> {
        (0..self.adapters.len()).try_for_each(|adapter| self.progress(adapter))
    }

    /// What a completion means that was polled. Mostly a piece has come.
    #[inline(never)]
    fn complete(&mut self, at: usize) {
        let completion = &self.completions[at];
        if !completion.is_success() || completion.opcode() != Opcode::ReceiveWrite {
            return self.complete_other(at);
        }
        let at = Id::decode(completion.id()).lane as usize;
        let (word, bytes) = (completion.immediate(), completion.bytes());
        let lane = &mut self.lanes[at];
        let group = lane.group as usize;
        let taken = lane.took_receive();
        self.unless_failed(at, taken);
        let taken = match word.and_then(Immediate::decode) {
            Some(Immediate::Piece { link, slot }) => self.piece(group, link, slot, bytes),
            Some(Immediate::Credit { link, released }) => self.credit(group, link, released),
            Some(Immediate::Direct { link, number, offer }) => {
                self.direct(group, link, (number, offer), bytes)
            }
            Some(Immediate::Offer { link }) => self.offered(group, link),
            Some(Immediate::Goodbye) => {
                self.lanes[at].leave();
                Ok(None)
            }
            None => Err(Corrupt("a message of unknown kind")),
        };
        match taken {
            Ok(None) => {}
            Ok(Some(owing)) => self.return_credits(owing),
            Err(what) => self.corrupt(at, what),
        }
    }

    /// Sends that are done, datagrams, and failures.
    fn complete_other(&mut self, at: usize) {
        let completion = self.completions[at];
        let id = Id::decode(completion.id());
        let lane = id.lane as usize;
        if !completion.is_success() {
            self.failed(id, &completion);
        } else if id.lane == Id::CONTROL {
            self.datagram(id, &completion);
        } else if self.lanes[lane].is_of_now(id) {
            self.lanes[lane].done(id.sends.into());
            if id.timed {
                self.timed(lane);
            }
        }
    }

    /// A piece is through whose time was taken.
    #[inline]
    fn timed(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let adapter = &mut self.adapters[lane.seat.adapter];
        adapter.watched -= u32::from(lane.pace.done(adapter.looked, self.polled));
    }

    /// A piece has come. Gives the link if its credits should go back.
    #[inline]
    fn piece(&mut self, group: usize, link: u32, slot: u32, bytes: usize) -> Result<Option<u32>, Corrupt> {
        let at = self.incoming_of(group, link)?;
        let incoming = &mut self.incoming[at as usize];
        let released = incoming.arrive(slot, bytes)?;
        match incoming.back {
            Some(back) => self.outgoing[back as usize].credit(released, u32::MAX, &mut self.pool)?,
            None if released != 0 => return Err(Corrupt("it returns credits of a link that is not open")),
            None => {}
        }
        Ok(incoming.owes().then_some(at))
    }

    /// A piece has come into memory that was offered.
    #[inline]
    fn direct(
        &mut self,
        group: usize,
        link: u32,
        (number, offer): (u32, u32),
        bytes: usize,
    ) -> Result<Option<u32>, Corrupt> {
        let at = self.incoming_of(group, link)?;
        let incoming = &mut self.incoming[at as usize];
        incoming.land(number, offer, bytes)?;
        Ok(incoming.owes().then_some(at))
    }

    fn offered(&mut self, group: usize, link: u32) -> Result<Option<u32>, Corrupt> {
        let at = self.groups[group].outgoing(link);
        let at = at.ok_or(Corrupt("an offer for a link that is not there"))?;
        self.outgoing[at as usize].hear()?;
        Ok(None)
    }

    fn credit(&mut self, group: usize, link: u32, released: u32) -> Result<Option<u32>, Corrupt> {
        let at = self.groups[group].outgoing(link);
        let at = at.ok_or(Corrupt("credits for a link that is not there"))?;
        self.outgoing[at as usize].credit(released, Immediate::MASK, &mut self.pool)?;
        Ok(None)
    }

    #[inline]
    fn incoming_of(&self, group: usize, link: u32) -> Result<u32, Corrupt> {
        let at = self.groups[group].incoming(link);
        at.ok_or(Corrupt("a piece for a link that is not there"))
    }

    #[cold]
    fn failed(&mut self, id: Id, completion: &Completion) {
        if id.lane == Id::CONTROL {
            self.datagram_failed(id);
            return;
        }
        let at = id.lane as usize;
        let Some(lane) = self.lanes.get_mut(at).filter(|lane| lane.is_of_now(id)) else { return };
        if id.sends == 0 {
            lane.flushed_receive();
        }
        // After its goodbye a peer answers nothing, and nothing is wrong with that.
        if lane.broken.is_some() || lane.gone || lane.is_draining() {
            return;
        }
        let what = failure::of_completion(lane, &self.adapters[lane.seat.adapter], completion);
        if failure::is_fault(completion.status()) {
            self.give_up(at, what);
        } else {
            self.part(at, what);
        }
    }

    #[cold]
    pub(super) fn corrupt(&mut self, lane: usize, what: Corrupt) {
        if self.lanes[lane].broken.is_none() {
            let what = failure::corrupt(&self.lanes[lane], what);
            self.give_up(lane, what);
        }
    }

    /// Returns what could not be returned for want of room.
    #[cold]
    fn pay(&mut self) {
        self.owing = false;
        for link in 0..self.incoming.len() {
            if self.incoming[link].owes() {
                self.return_credits(link as u32);
            }
        }
    }
}
