//! The new queue pair of a lane: made, connected, opened.

use super::repair::Stage;
use super::word::{Counts, Offer};
use crate::link::connect::first_packet;
use crate::link::lane::Lane;
use crate::link::outgoing::Corrupt;
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
    /// What has come on the links of a lane's group.
    pub(super) fn counts_of(&self, lane: usize) -> Counts {
        let mut counts = Counts::default();
        let group = &self.groups[self.lanes[lane].group as usize];
        group.all_incoming().for_each(|link| counts.push(self.incoming[link].count()));
        counts
    }

    /// Whether the peer may lack messages of a lane.
    pub(super) fn may_lack(&self, lane: usize) -> bool {
        let group = &self.groups[self.lanes[lane].group as usize];
        group.all_outgoing().any(|link| self.outgoing[link].may_lack(lane as u32))
    }

    /// Takes in what the other end has got by the old queue pair of a lane, which brings it nothing more. The rest goes by
    /// whichever lanes work, at once.
    pub(super) fn settle(&mut self, at: usize, theirs: &Counts) -> Result<(), Obstacle> {
        let Some(repair) = self.lanes[at].repair.as_mut().filter(|repair| !repair.is_settled) else {
            return Ok(());
        };
        repair.is_settled = true;
        for link in self.groups[self.lanes[at].group as usize].all_outgoing() {
            let outgoing = &mut self.outgoing[link];
            let came = theirs.of(outgoing.key.channel);
            outgoing.settle(at as u32, came, &mut self.pool).map_err(Obstacle::Peer)?;
            self.unsent |= !outgoing.is_posted();
        }
        Ok(self.send_unsent()?)
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
        self.ports[old.rail].sent += old.sent;
        self.adapters[old.adapter].give_back(old.queue, old.entries);
        drop(old);
        for link in self.groups[self.lanes[at].group as usize].all_incoming() {
            self.incoming[link].was_told_by(at as u32);
        }
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
        self.settle(at, &theirs)
    }

    /// Sends what has waited for a lane, and goes on.
    pub(super) fn open_seat(&mut self, at: usize, now: Instant) -> Result<(), Obstacle> {
        let lane = &mut self.lanes[at];
        let Some(repair) = lane.repair.take() else { return Ok(()) };
        lane.start();
        if lane.seat.rails == self.connections[&lane.peer].pair_of(lane.place) {
            lane.homing.came_back(now);
        } else {
            lane.homing.is_away(now);
        }
        let (mark, before) = (lane.moved, lane.work.resent);
        self.repairing -= 1;
        self.events += 1;
        self.send_unsent()?;
        let lane = &mut self.lanes[at];
        let resent = lane.work.resent - before;
        let (tries, spent) = match &mut lane.trouble {
            Some(trouble) => {
                trouble.mark = mark;
                (trouble.tries, now.saturating_duration_since(trouble.since))
            }
            None => (1, Default::default()),
        };
        let (peer, rank, ends) = (lane.peer, self.rank, &lane.seat.ends);
        tracing::warn!(
            target: "net", rank, peer, resent, tries, after_ms = spent.as_millis() as u64, "resumed by the {ends}"
        );
        for link in self.groups[self.lanes[at].group as usize].all_incoming() {
            if self.incoming[link].owes() {
                self.return_credits(link as u32);
            }
        }
        if repair.home_is_back {
            self.go_home(at);
        }
        Ok(())
    }
}
