//! What completions mean: pieces that came, credits that came back, sends that are done, and failures.

use super::failure;
use super::outgoing::Corrupt;
use super::transport::IbTransport;
use super::wire::Immediate;
use super::work::Id;
use crate::verbs::{Completion, Opcode};
use ccl_core::Result;

impl IbTransport {
    /// Takes all completions of a device, of whichever link they are.
    #[inline]
    pub(super) fn progress(&mut self, adapter: usize) -> Result<()> {
        self.poll(adapter)?;
        if self.chores { self.do_chores() } else { Ok(()) }
    }

    #[inline]
    fn poll(&mut self, adapter: usize) -> Result<()> {
        let mut found = 0;
        let is_watched = self.adapters[adapter].watched > 0;
        if is_watched {
            self.polled = self.now();
        }
        for queue in 0..self.adapters[adapter].queues.len() {
            loop {
                let count = self.adapters[adapter].queues[queue].poll(&mut self.completions)?.len();
                self.work.polls += 1;
                self.work.completions += count as u64;
                found += count;
                for at in 0..count {
                    let completion = self.completions[at];
                    self.complete(&completion);
                }
                if count < self.completions.len() {
                    break;
                }
            }
        }
        if is_watched {
            self.adapters[adapter].looked = self.polled;
        }
        self.adapters[adapter].polled(found);
        Ok(())
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
        let group = self.lanes[home as usize].group as usize;
        if !self.groups[group].is_spread() {
            return Ok(false);
        }
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

    #[inline]
    fn complete(&mut self, completion: &Completion) {
        let id = Id::decode(completion.id());
        let lane = id.lane as usize;
        self.events += 1;
        if !completion.is_success() {
            self.failed(id, completion);
            return;
        }
        if completion.opcode() != Opcode::ReceiveWrite {
            if id.lane == Id::CONTROL {
                self.datagram(id, completion);
            } else if self.lanes[lane].is_of_now(id) {
                self.lanes[lane].done(id.sends.into());
                if id.timed {
                    self.timed(lane);
                }
            }
            return;
        }
        let taken = self.lanes[lane].took_receive();
        self.unless_failed(lane, taken);
        let said = Immediate::decode(completion.immediate().unwrap_or(u32::MAX));
        let taken = match said {
            Some(Immediate::Piece { link, slot }) => self.piece(lane, link, slot, completion.bytes()),
            Some(Immediate::Credit { link, released }) => self.credit(lane, link, released),
            Some(Immediate::Direct { link, number, offer }) => {
                self.direct(lane, link, (number, offer), completion.bytes())
            }
            Some(Immediate::Offer { link }) => self.offered(lane, link),
            Some(Immediate::Goodbye) => {
                self.lanes[lane].leave();
                Ok(None)
            }
            None => Err(Corrupt("a message of unknown kind")),
        };
        match taken {
            Ok(None) => {}
            Ok(Some(owing)) => self.return_credits(owing),
            Err(what) => self.corrupt(lane, what),
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
    fn piece(&mut self, lane: usize, link: u32, slot: u32, bytes: usize) -> Result<Option<u32>, Corrupt> {
        let at = self.incoming_of(lane, link)?;
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
        lane: usize,
        link: u32,
        (number, offer): (u32, u32),
        bytes: usize,
    ) -> Result<Option<u32>, Corrupt> {
        let at = self.incoming_of(lane, link)?;
        let incoming = &mut self.incoming[at as usize];
        incoming.land(number, offer, bytes)?;
        Ok(incoming.owes().then_some(at))
    }

    fn offered(&mut self, lane: usize, link: u32) -> Result<Option<u32>, Corrupt> {
        let at = self.groups[self.lanes[lane].group as usize].outgoing(link);
        let at = at.ok_or(Corrupt("an offer for a link that is not there"))?;
        self.outgoing[at as usize].hear()?;
        Ok(None)
    }

    fn credit(&mut self, lane: usize, link: u32, released: u32) -> Result<Option<u32>, Corrupt> {
        let at = self.groups[self.lanes[lane].group as usize].outgoing(link);
        let at = at.ok_or(Corrupt("credits for a link that is not there"))?;
        self.outgoing[at as usize].credit(released, Immediate::MASK, &mut self.pool)?;
        Ok(None)
    }

    #[inline]
    fn incoming_of(&self, lane: usize, link: u32) -> Result<u32, Corrupt> {
        let at = self.groups[self.lanes[lane].group as usize].incoming(link);
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
