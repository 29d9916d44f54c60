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
        self.adapters[adapter].polled(found);
        Ok(())
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
        self.chores = self.owing || !is_well || self.lost.is_some();
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
            }
            return;
        }
        let taken = self.lanes[lane].took_receive();
        self.unless_failed(lane, taken);
        let said = Immediate::decode(completion.immediate().unwrap_or(u32::MAX));
        let taken = match said {
            Some(Immediate::Piece { link, slot }) => self.piece(lane, link, slot, completion.bytes()),
            Some(Immediate::Credit { link, released }) => self.credit(lane, link, released),
            Some(Immediate::Direct { link, offer }) => self.direct(lane, link, offer, completion.bytes()),
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

    /// A piece has come. Gives the link if its credits should go back.
    #[inline]
    fn piece(&mut self, lane: usize, link: u32, slot: u32, bytes: usize) -> Result<Option<u32>, Corrupt> {
        let incoming = self.incoming.get_mut(link as usize).filter(|link| link.lane as usize == lane);
        let Some(incoming) = incoming else {
            return Err(Corrupt("a piece for a link of another connection"));
        };
        let released = incoming.arrive(slot, bytes)?;
        match incoming.back {
            Some(back) => drop(self.outgoing[back as usize].credit(released, u32::MAX, &mut self.pool)?),
            None if released != 0 => return Err(Corrupt("it returns credits of a link that is not open")),
            None => {}
        }
        Ok(incoming.owes().then_some(link))
    }

    /// A piece has come into memory that was offered.
    #[inline]
    fn direct(&mut self, lane: usize, link: u32, offer: u32, bytes: usize) -> Result<Option<u32>, Corrupt> {
        let incoming = self.incoming.get_mut(link as usize).filter(|link| link.lane as usize == lane);
        let incoming = incoming.ok_or(Corrupt("a piece for a link of another connection"))?;
        incoming.land(offer, bytes)?;
        Ok(incoming.owes().then_some(link))
    }

    fn offered(&mut self, lane: usize, link: u32) -> Result<Option<u32>, Corrupt> {
        let outgoing = self.outgoing.get_mut(link as usize).filter(|link| link.lane as usize == lane);
        outgoing.ok_or(Corrupt("an offer for a link of another connection"))?.hear()?;
        Ok(None)
    }

    fn credit(&mut self, lane: usize, link: u32, released: u32) -> Result<Option<u32>, Corrupt> {
        let outgoing = self.outgoing.get_mut(link as usize).filter(|link| link.lane as usize == lane);
        let Some(outgoing) = outgoing else {
            return Err(Corrupt("credits for a link of another connection"));
        };
        outgoing.credit(released, Immediate::MASK, &mut self.pool)?;
        Ok(None)
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
