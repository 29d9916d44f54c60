//! What completions mean: pieces that came, credits that came back, sends that are done, and failures.

use super::failure;
use super::lane::split;
use super::outgoing::Corrupt;
use super::transport::IbTransport;
use super::wire::Immediate;
use crate::verbs::{Completion, Event, Opcode};
use ccl_core::Result;

impl IbTransport {
    /// Takes all completions of a device, of whichever link they are.
    #[inline]
    pub(super) fn progress(&mut self, adapter: usize) -> Result<()> {
        let mut found = 0;
        for queue in 0..self.adapters[adapter].queues.len() {
            loop {
                let count = self.adapters[adapter].queues[queue].poll(&mut self.completions)?.len();
                self.work.polls += 1;
                self.work.completions += count as u64;
                found += count;
                for at in 0..count {
                    let completion = self.completions[at];
                    self.complete(&completion)?;
                }
                if count < self.completions.len() {
                    break;
                }
            }
        }
        self.adapters[adapter].polled(found);
        if self.owing { self.pay() } else { Ok(()) }
    }

    pub(super) fn progress_all(&mut self) -> Result<()> {
        (0..self.adapters.len()).try_for_each(|adapter| self.progress(adapter))
    }

    #[inline]
    fn complete(&mut self, completion: &Completion) -> Result<()> {
        let (lane, sends) = split(completion.id());
        self.events += 1;
        if !completion.is_success() {
            self.fail(lane, completion);
            return Ok(());
        }
        if completion.opcode() != Opcode::ReceiveWrite {
            self.lanes[lane].done(sends);
            return Ok(());
        }
        self.lanes[lane].took_receive()?;
        let said = Immediate::decode(completion.immediate().unwrap_or(u32::MAX));
        let taken = match said {
            Some(Immediate::Piece { link, slot }) => self.piece(lane, link, slot, completion.bytes()),
            Some(Immediate::Credit { link, released }) => self.credit(lane, link, released),
            Some(Immediate::Goodbye) => {
                self.lanes[lane].gone = true;
                Ok(None)
            }
            None => Err(Corrupt("a message of unknown kind")),
        };
        match taken {
            Ok(None) => Ok(()),
            Ok(Some(owing)) => self.return_credits(owing),
            Err(what) => {
                let lane = &mut self.lanes[lane];
                let error = failure::corrupt(lane, what);
                lane.broken.get_or_insert(error);
                Ok(())
            }
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

    fn credit(&mut self, lane: usize, link: u32, released: u32) -> Result<Option<u32>, Corrupt> {
        let outgoing = self.outgoing.get_mut(link as usize).filter(|link| link.lane as usize == lane);
        let Some(outgoing) = outgoing else {
            return Err(Corrupt("credits for a link of another connection"));
        };
        outgoing.credit(released, Immediate::CREDIT_MASK, &mut self.pool)?;
        Ok(None)
    }

    #[cold]
    fn fail(&mut self, lane: usize, completion: &Completion) {
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        // After its goodbye a peer answers nothing, and nothing is wrong with that.
        if lane.broken.is_none() && !lane.gone {
            let error = failure::of_completion(lane, &self.adapters[lane.adapter], completion);
            tracing::warn!(target: "net", peer = lane.peer, %error, "connection lost");
            lane.broken = Some(error);
        }
    }

    /// Returns what could not be returned for want of room.
    #[cold]
    fn pay(&mut self) -> Result<()> {
        self.owing = false;
        for link in 0..self.incoming.len() {
            if self.incoming[link].owes() {
                self.return_credits(link as u32)?;
            }
        }
        Ok(())
    }

    /// Reads the devices' events.
    pub(super) fn read_events(&mut self) -> Result<()> {
        for adapter in &self.adapters {
            let device = adapter.context.name();
            while let Some(event) = adapter.context.next_event()? {
                self.events += 1;
                match event {
                    Event::PortError { .. }
                    | Event::QueuePairFatal { .. }
                    | Event::DeviceFatal
                    | Event::QueuePairAccessError { .. }
                    | Event::QueuePairRequestError { .. }
                    | Event::CompletionQueueError { .. } => {
                        tracing::warn!(target: "net", device, %event, "event of the device");
                    }
                    _ => tracing::info!(target: "net", device, %event, "event of the device"),
                }
            }
        }
        Ok(())
    }
}
