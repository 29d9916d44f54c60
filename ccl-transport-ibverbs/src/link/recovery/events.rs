//! What devices say by themselves, and what follows from it.

use crate::choice::survey::{GidKind, Layer};
use crate::link::adapter::Port;
use crate::link::lane::Seat;
use crate::link::transport::IbTransport;
use crate::verbs::{Event, GidKind as Kind};
use ccl_core::{Rank, Result};

impl IbTransport {
    /// Reads the devices' events.
    pub(in crate::link) fn read_events(&mut self) -> Result<()> {
        self.listened = self.now();
        for adapter in 0..self.adapters.len() {
            if self.adapters[adapter].dead {
                continue;
            }
            while let Some(event) = self.adapters[adapter].context.next_event()? {
                self.events += 1;
                self.act(adapter, event);
            }
        }
        Ok(())
    }

    fn act(&mut self, adapter: usize, event: Event) {
        let device = self.adapters[adapter].context.name();
        match event {
            Event::PortActive { .. } | Event::SubnetManagerChange { .. } | Event::Established { .. } => {
                tracing::info!(target: "net", device, %event, "event of the device");
            }
            _ => tracing::warn!(target: "net", device, %event, "event of the device"),
        }
        match event {
            Event::PortActive { port }
            | Event::PortError { port }
            | Event::GidChange { port }
            | Event::LidChange { port }
            | Event::PkeyChange { port }
            | Event::ClientReregister { port } => self.inspect(adapter, port),
            Event::QueuePairFatal { queue_pair }
            | Event::QueuePairAccessError { queue_pair }
            | Event::QueuePairRequestError { queue_pair } => {
                let is_it = |seat: &Seat| seat.adapter == adapter && seat.pair.number() == queue_pair;
                let Some(at) = self.lanes.iter().position(|lane| is_it(&lane.seat)) else { return };
                if !self.lanes[at].is_draining() {
                    self.part(at, format!("{}: {event}", self.lanes[at].seat.ends));
                }
            }
            Event::DeviceFatal | Event::CompletionQueueError { .. } => {
                self.bury(adapter, &event.to_string());
            }
            _ => {}
        }
    }

    /// Looks at a port and its addresses, and acts where they are not what they were.
    fn inspect(&mut self, adapter: usize, number: u8) {
        let is_it = |port: &Port| port.adapter == adapter && port.rail.port == number;
        let Some(rail) = self.ports.iter().position(is_it) else { return };
        let usable = |t: &IbTransport| -> Vec<bool> {
            t.lanes.iter().map(|lane| t.is_good(lane.peer, rail)).collect()
        };
        let before = usable(self);
        let context = &self.adapters[adapter].context;
        let active = context.port(number).is_ok_and(|port| port.is_active());
        let table = context.gids(number).unwrap_or_default();
        let offered = &mut self.proposal.offer.rails[rail];
        let by_lid = offered.layer == Layer::InfiniBand;
        let (mut missing, mut moved) = (Vec::new(), false);
        for (at, gid) in offered.gids.iter_mut().enumerate() {
            let there = table.iter().find(|entry| {
                entry.gid.0 == gid.address.octets()
                    && match entry.kind {
                        Kind::InfiniBand => gid.kind == GidKind::Ib,
                        Kind::RoceV1 => gid.kind == GidKind::RoceV1,
                        Kind::RoceV2 => gid.kind == GidKind::RoceV2,
                        Kind::Unknown => gid.kind == GidKind::Unknown,
                    }
            });
            match there {
                Some(entry) => {
                    moved |= gid.index != u32::from(entry.index);
                    gid.index = entry.index.into();
                }
                None if by_lid => {}
                None => missing.push(at),
            }
        }
        (self.ports[rail].active, self.ports[rail].missing) = (active, missing);
        if moved {
            self.forget_ways(rail);
        }
        // An end for datagrams may have waited for it.
        self.chores = true;
        let after = usable(self);
        for (at, (before, after)) in before.into_iter().zip(after).enumerate() {
            self.adjust(at, rail, before, after, moved);
        }
    }

    /// Whether the pair of a connection that uses a rail is usable.
    fn is_good(&self, peer: Rank, rail: usize) -> bool {
        let connection = &self.connections[&peer];
        let mut pairs = (0..connection.pairs.len()).filter(|pair| connection.rail(*pair) == rail);
        pairs.any(|pair| connection.is_usable(&self.ports, &self.adapters, pair))
    }

    /// A lane, when a rail has become usable or is not any more, or its address has moved.
    fn adjust(&mut self, at: usize, rail: usize, before: bool, after: bool, moved: bool) {
        let lane = &mut self.lanes[at];
        let connection = &self.connections[&lane.peer];
        let is_back = after && !before;
        let is_home = connection.rail(connection.pair_of(lane.place)) == rail;
        if let Some(repair) = &mut lane.repair {
            if is_back {
                repair.next_word = repair.quiet_until;
                repair.home_is_back |= is_home;
            }
            return;
        }
        if !lane.open {
            return;
        }
        let is_here = connection.rail(lane.seat.rails) == rail;
        let others = (0..connection.pairs.len()).filter(|pair| connection.rail(*pair) != rail);
        let has_other =
            others.into_iter().any(|pair| connection.is_usable(&self.ports, &self.adapters, pair));
        let ends = &lane.seat.ends;
        if is_here && after && moved {
            let what = format!("{ends}: the GID here has moved to another index");
            self.recall(at, what);
        } else if is_here && !after && has_other {
            let what = format!("{ends}: the port here is down, or its GID has gone");
            self.part(at, what);
        } else if is_back && is_home {
            self.go_home(at);
        }
    }

    /// Calls a lane back to the rail that it belongs to, if it is elsewhere.
    pub(super) fn go_home(&mut self, at: usize) {
        let lane = &self.lanes[at];
        let connection = &self.connections[&lane.peer];
        let home = connection.pair_of(lane.place);
        if lane.seat.rails != home && connection.is_usable(&self.ports, &self.adapters, home) {
            let what = format!("{}: the rail that it belongs to works again", lane.seat.ends);
            self.recall(at, what);
        }
    }

    /// A device has failed for good.
    pub(super) fn bury(&mut self, adapter: usize, why: &str) {
        if self.adapters[adapter].dead {
            return;
        }
        tracing::warn!(target: "net", device = self.adapters[adapter].context.name(), why, "the device has failed");
        self.adapters[adapter].bury();
        for at in 0..self.lanes.len() {
            if self.lanes[at].seat.adapter == adapter && self.lanes[at].open {
                let what = format!("{}: the device here has failed: {why}", self.lanes[at].seat.ends);
                self.part(at, what);
            }
        }
    }
}
