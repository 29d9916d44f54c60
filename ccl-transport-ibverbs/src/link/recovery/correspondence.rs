//! Where words go, and who sends them.

use super::endpoint::Endpoint;
use super::word::{BYTES, Says, Word};
use crate::link::terms::Terms;
use crate::link::transport::IbTransport;
use crate::link::work::Id;
use crate::verbs::{AddressHandle, Completion, DatagramSetup};
use ccl_core::{Rank, Result};
use std::time::{Duration, Instant};

/// A way that could not be found is not looked for before: that may take the kernel a second.
const LOST: Duration = Duration::from_secs(3);

/// Where datagrams to a peer go.
#[derive(Debug, Default)]
pub(crate) struct Correspondence {
    /// What they must show.
    session: u64,
    /// By pair of rails.
    routes: Vec<Route>,
}

#[derive(Debug)]
struct Route {
    /// The peer's queue pair.
    number: u32,
    way: Option<AddressHandle>,
    /// When it was last looked for in vain.
    lost: Option<Instant>,
}

/// The key of a rank's queue pairs for datagrams. The highest bit would ask for a privilege.
fn key(session: u64) -> u32 {
    session as u32 >> 1
}

impl IbTransport {
    /// Makes the ends for datagrams.
    pub(in crate::link) fn open_endpoints(&mut self) -> Result<()> {
        for (port, rail) in self.ports.iter_mut().zip(0..) {
            if port.control.is_none() {
                let setup = DatagramSetup {
                    port: port.rail.port,
                    pkey_index: self.settings.pkey_index,
                    key: key(self.session),
                    first_packet: 0,
                };
                port.control = Some(Endpoint::new(&mut self.adapters[port.adapter], rail, setup)?);
            }
        }
        Ok(())
    }

    /// The number of the end for datagrams of a connection's pair of rails.
    pub(in crate::link) fn endpoint_to(&self, peer: Rank, pair: usize) -> u32 {
        let port = &self.ports[self.connections[&peer].rail(pair)];
        port.control.as_ref().map_or(0, Endpoint::number)
    }

    /// Notes where datagrams to a peer go.
    pub(in crate::link) fn correspond(&mut self, peer: Rank, theirs: &Terms) {
        if !self.connections[&peer].correspondence.routes.is_empty() {
            return;
        }
        let routes =
            theirs.rails.iter().map(|landing| Route { number: landing.control, way: None, lost: None });
        let correspondence = Correspondence { session: theirs.session, routes: routes.collect() };
        let pairs = correspondence.routes.len();
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.correspondence = correspondence;
        }
        for pair in 0..pairs {
            self.find_way(peer, pair);
        }
    }

    /// The way over a pair of rails, if there is one.
    fn find_way(&mut self, peer: Rank, pair: usize) -> Option<AddressHandle> {
        let route = self.connections[&peer].correspondence.routes.get(pair)?;
        if route.way.is_some() || route.lost.is_some_and(|when| when.elapsed() < LOST) {
            return route.way.clone();
        }
        let path = self.path_to(peer, pair, pair as u16);
        let adapter = &self.adapters[self.ports[self.connections[&peer].rail(pair)].adapter];
        let way = adapter.domain.address_handle(&path);
        let way =
            way.inspect_err(|error| tracing::debug!(target: "net", peer, %error, "no way for words")).ok();
        let route = self.connections.get_mut(&peer)?.correspondence.routes.get_mut(pair)?;
        route.lost = way.is_none().then(Instant::now);
        route.way.clone_from(&way);
        way
    }

    /// The address of a rail has changed.
    pub(super) fn forget_ways(&mut self, rail: usize) {
        for connection in self.connections.values_mut() {
            for pair in 0..connection.pairs.len() {
                if connection.rail(pair) == rail
                    && let Some(route) = connection.correspondence.routes.get_mut(pair)
                {
                    (route.way, route.lost) = (None, None);
                }
            }
        }
    }

    /// Says how far a lane is, over all pairs of rails.
    pub(super) fn speak(&mut self, lane: usize) {
        let pairs = self.connections[&self.lanes[lane].peer].pairs.len();
        (0..pairs).for_each(|pair| self.say(lane, pair));
    }

    /// Says it over one.
    pub(super) fn say(&mut self, lane: usize, pair: usize) {
        let says = if self.lanes[lane].broken.is_some() { Says::GivenUp } else { self.stage_in_words(lane) };
        self.tell(lane, pair, says);
    }

    /// Says something of a lane over a pair of rails.
    pub(super) fn tell(&mut self, lane: usize, pair: usize, says: Says) {
        let now = &self.lanes[lane];
        let peer = now.peer;
        if now.repair.as_ref().is_some_and(|repair| repair.quiet_until > Instant::now())
            || !self.connections[&peer].is_usable(&self.ports, &self.adapters, pair)
        {
            return;
        }
        let counts = now.repair.as_ref().filter(|_| now.broken.is_none()).map(|repair| repair.counts);
        let (place, generation, counts) = (now.place, now.generation, counts.unwrap_or_default());
        let Some(way) = self.find_way(peer, pair) else { return };
        let connection = &self.connections[&peer];
        let Correspondence { session, ref routes } = connection.correspondence;
        let (number, rail) = (routes[pair].number, connection.rail(pair));
        let word = Word { session, from: self.rank, place, generation, via: pair as u8, says, counts };
        if let Some(endpoint) = &mut self.ports[rail].control {
            endpoint.send(&way, (number, key(session)), word.encode());
            self.chores |= endpoint.failed;
        }
    }

    /// A word was sent, or has come.
    #[cold]
    pub(in crate::link) fn datagram(&mut self, id: Id, completion: &Completion) {
        let session = self.session;
        let Some(endpoint) = self.endpoint(id) else { return };
        let bytes: Option<[u8; BYTES]> = endpoint.complete(id.sends, completion.bytes());
        if let Some(word) = bytes.and_then(|bytes| Word::decode(&bytes, session)) {
            self.heard.push(word);
            self.chores = true;
        }
    }

    /// A word could not be sent, or a receive for one came back.
    #[cold]
    pub(in crate::link) fn datagram_failed(&mut self, id: Id) {
        self.chores = true;
        if let Some(endpoint) = self.endpoint(id) {
            endpoint.fail(id.sends);
        }
    }

    fn endpoint(&mut self, id: Id) -> Option<&mut Endpoint> {
        self.ports.get_mut(usize::from(id.era))?.control.as_mut()
    }

    /// Lets the ends for datagrams that have failed begin anew. Whether all are well.
    pub(super) fn revive_endpoints(&mut self) -> bool {
        let mut are_well = true;
        for port in &mut self.ports {
            let failed = port.control.as_mut().filter(|endpoint| endpoint.failed);
            if let Some(endpoint) = failed.filter(|_| port.active && !self.adapters[port.adapter].dead) {
                endpoint.revive();
                are_well &= !endpoint.failed;
            }
        }
        are_well
    }
}
