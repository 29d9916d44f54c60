//! The new queue pair of a lane: made, connected, opened.

use super::repair::Stage;
use super::word::{Count, Counts, Offer};
use crate::link::connect::first_packet;
use crate::link::lane::Lane;
use crate::link::outgoing::{Again, Body, Corrupt};
use crate::link::transport::IbTransport;
use ccl_core::Result;
use std::time::Instant;

/// Why a lane did not get on.
pub(super) enum Obstacle {
    /// The device, or the network.
    Device(String),
    /// The peer breaks the protocol.
    Peer(Corrupt),
}

impl From<ccl_core::Error> for Obstacle {
    fn from(error: ccl_core::Error) -> Obstacle {
        Obstacle::Device(error.to_string())
    }
}

impl IbTransport {
    /// The places of the links that a lane carries, outgoing ones or incoming ones.
    fn links_of(&self, lane: usize) -> (Vec<u32>, Vec<u32>) {
        let mine = |(link, of): (u32, u32)| (of as usize == lane).then_some(link);
        let outgoing = (0..).zip(self.outgoing.iter().map(|link| link.lane)).filter_map(mine).collect();
        let incoming = (0..).zip(self.incoming.iter().map(|link| link.lane)).filter_map(mine).collect();
        (outgoing, incoming)
    }

    /// What has come on the links of a lane.
    pub(super) fn counts_of(&self, lane: usize) -> Counts {
        let mut counts = Counts::default();
        for link in self.links_of(lane).1 {
            let link = &self.incoming[link as usize];
            let (next, released) = link.counts();
            counts.push(Count { channel: link.key.channel, next, released });
        }
        counts
    }

    /// A number that is another one whenever a message of the lane has got through.
    pub(super) fn progress_of(&self, lane: usize) -> u64 {
        let (outgoing, incoming) = self.links_of(lane);
        let came = incoming.iter().map(|link| u64::from(self.incoming[*link as usize].counts().0));
        came.chain(outgoing.iter().map(|link| u64::from(self.outgoing[*link as usize].taken()))).sum()
    }

    /// Whether the peer may lack messages of a lane.
    pub(super) fn may_lack(&self, lane: usize) -> bool {
        self.outgoing.iter().any(|link| link.lane as usize == lane && link.in_flight() > 0)
    }

    /// Gives a lane another queue pair, on a pair of rails.
    pub(super) fn prepare_seat(&mut self, at: usize, rails: usize, now: Instant) -> Result<(), Obstacle> {
        let peer = self.lanes[at].peer;
        let seat = self.seat(peer, rails)?;
        let lane = &mut self.lanes[at];
        let old = lane.take_seat(seat);
        lane.work.repairs += 1;
        lane.work.moves += u64::from(old.rails != rails);
        if let Some(repair) = &mut lane.repair {
            repair.enter(Stage::Prepared { first_packet: first_packet() }, now);
        }
        if let Some(trouble) = &mut lane.trouble {
            trouble.tries += 1;
        }
        self.adapters[old.adapter].give_back(old.queue, old.entries);
        drop(old);
        let (outgoing, incoming) = self.links_of(at);
        outgoing.iter().for_each(|link| self.outgoing[*link as usize].move_to(rails));
        incoming.iter().for_each(|link| self.incoming[*link as usize].forget_offers());
        Ok(self.lanes[at].fill()?)
    }

    /// Connects the new queue pair of a lane to that of the other end, and takes in what has come there.
    pub(super) fn connect_seat(&mut self, at: usize, offer: Offer, theirs: Counts) -> Result<(), Obstacle> {
        let Lane { peer, place, ref seat, ref repair, .. } = self.lanes[at];
        let Some(Stage::Prepared { first_packet }) = repair.as_ref().map(|repair| repair.stage) else {
            return Ok(());
        };
        let way = self.way_to(peer, (seat.rails, place.way), offer.number, offer.first_packet);
        let manner = self.manner_to(peer, first_packet);
        seat.pair.ready_to_receive(&way)?;
        seat.pair.ready_to_send(&manner)?;
        let mut expected = Vec::new();
        for link in self.links_of(at).0 {
            let outgoing = &mut self.outgoing[link as usize];
            if let Some(Count { next, released, .. }) = theirs.of(outgoing.key.channel) {
                outgoing.settle(next, released, &mut self.pool).map_err(Obstacle::Peer)?;
                expected.push((link, next));
            } else {
                expected.push((link, outgoing.taken()));
            }
        }
        if let Some(repair) = &mut self.lanes[at].repair {
            repair.expected = expected;
        }
        Ok(())
    }

    /// Sends again what the other end has not got, and goes on.
    pub(super) fn open_seat(&mut self, at: usize, now: Instant) -> Result<(), Obstacle> {
        let mark = self.progress_of(at);
        let lane = &mut self.lanes[at];
        let Some(repair) = lane.repair.take() else { return Ok(()) };
        lane.start();
        self.repairing -= 1;
        self.events += 1;
        let mut resent = 0;
        for (link, next) in repair.expected {
            resent += self.send_again(at, link, next)?;
        }
        let lane = &mut self.lanes[at];
        lane.work.resent += resent;
        let (tries, spent) = match &mut lane.trouble {
            Some(trouble) => {
                trouble.look(now);
                trouble.mark = mark;
                (trouble.tries, trouble.spent)
            }
            None => (1, Default::default()),
        };
        let (peer, rank, ends) = (lane.peer, self.rank, &lane.seat.ends);
        tracing::warn!(
            target: "net", rank, peer, resent, tries, after_ms = spent.as_millis() as u64, "resumed by the {ends}"
        );
        for link in self.links_of(at).1 {
            if self.incoming[link as usize].owes() {
                self.return_credits(link);
            }
        }
        Ok(())
    }

    /// Sends the messages of a link again from number `next` on; how many.
    fn send_again(&mut self, at: usize, link: u32, next: u32) -> Result<u64, Obstacle> {
        let missing = self.outgoing[link as usize].since(next);
        for ago in (1..=missing).rev() {
            let outgoing = &self.outgoing[link as usize];
            let released = outgoing.back.map_or(0, |back| self.incoming[back as usize].report());
            let Again { len, body, head, to, immediate } = outgoing.again(ago, released);
            let bytes = self.bytes_of(body, len, at)?;
            let lane = &mut self.lanes[at];
            let is_lent = matches!(body, Body::User(_));
            if is_lent {
                self.outgoing[link as usize].lent = Some(lane.next());
            }
            match bytes {
                None => lane.send_now(&[head], to, immediate, false)?,
                Some(bytes) => lane.send_now(&[head, bytes], to, immediate, is_lent)?,
            }
        }
        Ok(missing.into())
    }
}
