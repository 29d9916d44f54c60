//! What two ranks have agreed on: pairs of rails, packet sizes, queue pairs.

use super::adapter::{Adapter, Port};
use super::failure;
use super::lane::{self, CHANNELS, Window};
use super::proposal::Proposal;
use super::recovery::Correspondence;
use super::terms::Place;
use super::transport::IbTransport;
use crate::choice::pairing::{Pair, Side, pair};
use crate::choice::patience::{self, Patience};
use crate::choice::survey::Layer;
use crate::choice::table::{Way, Ways};
use crate::choice::window::{self, SPREAD_SLOTS};
use crate::choice::{Choice, mtu, paths, quality};
use crate::verbs::{Gid, Mtu, Path, ReadyToReceive, ReadyToSend};
use ccl_core::{Rank, Result};
use std::collections::BTreeMap;

/// A receiver that is not ready is a fault of ours; the wait before the one retry that hardware makes does not matter.
const NOT_READY_TIMER: u8 = 12;

/// What two ranks have agreed on. Both come to the same from the two proposals.
#[derive(Debug)]
pub(crate) struct Connection {
    theirs: Proposal,
    is_low: bool,
    pub(crate) pairs: Vec<Pair>,
    mtus: Vec<Choice<u16>>,
    /// Queue pairs of each pair of rails.
    queue_pairs: u32,
    /// Channels that are at home on each queue pair.
    channels: u32,
    /// Whether pieces of a link go over all pairs of rails.
    is_spread: bool,
    pub(crate) window: Window,
    window_why: String,
    /// The lanes that are there, and the groups, by the place of each one's first lane.
    pub(crate) lanes: BTreeMap<Place, u32>,
    pub(crate) groups: BTreeMap<Place, u32>,
    /// Where datagrams to the peer go.
    pub(crate) correspondence: Correspondence,
}

impl Connection {
    pub(crate) fn agree(ours: &Proposal, theirs: Proposal) -> Result<Connection> {
        let peer = theirs.rank;
        if (theirs.slot_bytes, theirs.credits) != (ours.slot_bytes, ours.credits) {
            let named = |proposal: &Proposal| match proposal.credits {
                0 => "credits by the speed of the ports".to_string(),
                credits => format!("{credits} credits"),
            };
            let what = format!(
                "it uses {} and slots of {} bytes, this rank {} and {}; settings must agree",
                named(&theirs),
                theirs.slot_bytes,
                named(ours),
                ours.slot_bytes
            );
            return Err(failure::of_peer(peer, what));
        }
        let is_low = ours.rank < peer;
        let (low, high) = if is_low { (&ours.offer, &theirs.offer) } else { (&theirs.offer, &ours.offer) };
        let pairs = pair(low, high)?;
        let wanted = [ours.mtu, theirs.mtu].into_iter().filter(|mtu| *mtu > 0).min();
        let mtu = |pair: &Pair| {
            mtu::choose(&low.side(pair.low.0, pair.low.1), &high.side(pair.high.0, pair.high.1), wanted)
        };
        let mtus = pairs.iter().map(mtu).collect::<Result<_>>()?;
        let gbps = |pair: &Pair| {
            let (low, high) = (low.side(pair.low.0, pair.low.1), high.side(pair.high.0, pair.high.1));
            speed(&low, &high)
        };
        // A link may use all rails.
        let gbps = pairs.iter().map(gbps).sum();
        let (credits, work_requests) = (ours.credits, ours.work_requests.min(theirs.work_requests));
        let (window, window_why) = window_of(credits, gbps, ours.slot_bytes as usize, work_requests);
        let (links, many) = (lane::links(work_requests, window), pairs.len() as u32);
        let is_spread = many > 1 && links >= many && window.slots <= SPREAD_SLOTS;
        Ok(Connection {
            is_low,
            pairs,
            mtus,
            queue_pairs: ours.queue_pairs.max(theirs.queue_pairs),
            channels: CHANNELS.min(if is_spread { links / many } else { links }),
            is_spread,
            window,
            window_why,
            lanes: BTreeMap::new(),
            groups: BTreeMap::new(),
            correspondence: Correspondence::default(),
            theirs,
        })
    }

    fn ways(&self) -> u32 {
        self.pairs.len() as u32 * self.queue_pairs
    }

    /// The home of a channel: channels go round all ways, and to another queue pair when one has its number.
    pub(crate) fn place(&self, channel: u16) -> Place {
        let (channel, ways) = (u32::from(channel), self.ways());
        Place { way: (channel % ways) as u16, turn: (channel / ways / self.channels) as u16 }
    }

    /// The places of the group that a channel belongs to: the same queue pair of each pair of rails.
    pub(crate) fn group(&self, channel: u16) -> impl Iterator<Item = Place> + use<> {
        let (home, pairs) = (self.place(channel), self.pairs.len() as u16);
        let (first, of) = if self.is_spread { (home.way - home.way % pairs, pairs) } else { (home.way, 1) };
        (first..first + of).map(move |way| Place { way, ..home })
    }

    /// The number of a channel's links in its group.
    pub(crate) fn number(&self, channel: u16) -> u32 {
        let turn = u32::from(channel) / self.ways() % self.channels;
        if self.is_spread { self.pair_of(self.place(channel)) as u32 * self.channels + turn } else { turn }
    }

    /// Links of each direction that a queue pair carries.
    pub(crate) fn links(&self) -> u32 {
        if self.is_spread { self.pairs.len() as u32 * self.channels } else { self.channels }
    }

    /// Gigabits per second of a pair of rails; 0: not known.
    pub(crate) fn gbps(&self, ours: &Proposal, pair: usize) -> f64 {
        let (here, there) = self.sides(ours, pair);
        speed(&here, &there)
    }

    /// The pair of rails of a way.
    pub(crate) fn pair_of(&self, place: Place) -> usize {
        usize::from(place.way) % self.pairs.len()
    }

    /// The rail here of a pair.
    pub(crate) fn rail(&self, pair: usize) -> usize {
        self.pairs[pair].end(self.is_low).0
    }

    fn sides<'a>(&'a self, ours: &'a Proposal, pair: usize) -> (Side<'a>, Side<'a>) {
        let ((here, gid), (there, their_gid)) =
            (self.pairs[pair].end(self.is_low), self.pairs[pair].end(!self.is_low));
        (ours.offer.side(here, gid), self.theirs.offer.side(there, their_gid))
    }

    /// Whether a pair of rails has all that it needs at this end.
    pub(crate) fn is_usable(&self, ports: &[Port], adapters: &[Adapter], pair: usize) -> bool {
        let (rail, gid) = self.pairs[pair].end(self.is_low);
        let port = &ports[rail];
        port.active && !adapters[port.adapter].dead && !port.missing.contains(&gid)
    }

    /// Both ends in words.
    pub(crate) fn ends(&self, ours: &Proposal, pair: usize) -> String {
        let (here, there) = self.sides(ours, pair);
        format!(
            "connection from {here} (GID {}) to {there} (GID {}) of rank {}",
            here.gid().ip(),
            there.gid().ip(),
            self.theirs.rank
        )
    }
}

impl IbTransport {
    /// The way to a peer over a pair of rails, for queue pairs of such a way.
    pub(super) fn path_to(&self, peer: Rank, pair: usize, way: u16) -> Path {
        let connection = &self.connections[&peer];
        let (here, there) = connection.sides(&self.proposal, pair);
        let rail = &self.ports[connection.rail(pair)].rail;
        let gid = Gid(there.gid().address.octets());
        let index = here.gid().index as u8;
        let same_subnet = gid.subnet_prefix() == Gid(here.gid().address.octets()).subnet_prefix();
        let path = match here.rail().layer {
            Layer::InfiniBand if same_subnet => Path::to_lid(rail.port, there.rail().lid),
            Layer::InfiniBand => Path { lid: there.rail().lid, ..Path::to_gid(rail.port, index, gid) },
            Layer::Ethernet => Path::to_gid(rail.port, index, gid),
        };
        // Queue pairs of one pair of rails differ in their way; other turns take the same ways again.
        let labels = paths::flow_labels(seed(&here, &there), connection.ways());
        Path {
            flow_label: if path.gid.is_some() { labels[usize::from(way)] } else { 0 },
            traffic_class: quality::traffic_class(rail, &self.settings).value,
            service_level: quality::service_level(&self.settings).value,
            ..path
        }
    }

    /// How a queue pair becomes ready to receive.
    pub(super) fn way_to(
        &self,
        peer: Rank,
        (pair, way): (usize, u16),
        number: u32,
        first_packet: u32,
    ) -> ReadyToReceive {
        let connection = &self.connections[&peer];
        let path = self.path_to(peer, pair, way);
        let mtu = Mtu::of_bytes(connection.mtus[pair].value.into()).unwrap_or(Mtu::M256);
        ReadyToReceive {
            path,
            mtu,
            peer: number,
            first_packet,
            reads_answered: 1,
            not_ready_timer: NOT_READY_TIMER,
        }
    }

    fn patience(&self, peer: Rank) -> Choice<Patience> {
        let software = self.ports.iter().any(|port| port.rail.software);
        patience::choose(self.connections[&peer].pairs.len(), software, &self.settings)
    }

    /// How it becomes ready to send.
    pub(super) fn manner_to(&self, peer: Rank, first_packet: u32) -> ReadyToSend {
        let patience = self.patience(peer).value;
        ReadyToSend {
            timeout: patience.timeout,
            retries: patience.retry_count,
            not_ready_retries: patience.rnr_retry,
            first_packet,
            reads_started: 1,
        }
    }

    /// What was chosen for a peer.
    pub(super) fn ways_to(&self, peer: Rank) -> Ways {
        let connection = &self.connections[&peer];
        let way = |pair: usize| {
            let (here, there) = connection.sides(&self.proposal, pair);
            Way {
                here: (here.rail().name.clone(), here.gid().ip()),
                there: (there.rail().name.clone(), there.gid().ip()),
                mtu: connection.mtus[pair].clone(),
                why: connection.pairs[pair].why.clone(),
            }
        };
        let rail = &self.ports[connection.rail(0)].rail;
        let own = paths::queue_pairs(rail, &self.settings);
        let queue_pairs = match own.value == connection.queue_pairs {
            true => own,
            false => Choice::new(connection.queue_pairs, "the peer wants so many"),
        };
        Ways {
            host: connection.theirs.offer.host.clone(),
            ways: (0..connection.pairs.len()).map(way).collect(),
            queue_pairs,
            gid_why: rail.gid_why.clone(),
            traffic_class: quality::traffic_class(rail, &self.settings),
            service_level: quality::service_level(&self.settings),
            patience: self.patience(peer),
            window: Choice::new(connection.window.slots, connection.window_why.clone()),
        }
    }
}

/// Gigabits per second between two ports; 0: not known. As it is told, so that both ends come to the same.
fn speed(a: &Side<'_>, b: &Side<'_>) -> f64 {
    f64::from((a.rail().gbps as f32).min(b.rail().gbps as f32))
}

/// The window of a connection over rails of `gbps` together, and why; `named` by the user, or 0.
fn window_of(named: u32, gbps: f64, slot_bytes: usize, work_requests: u32) -> (Window, String) {
    if named > 0 {
        return (Window::of(named), "RDMACCL_CREDITS".into());
    }
    let wanted = window::credits(gbps, slot_bytes);
    let carried = |credits: u32| lane::links(work_requests, Window::of(credits));
    if carried(wanted.value) < carried(window::FEWEST) {
        return (Window::of(window::FEWEST), "the fewest: the queues of a device are short".into());
    }
    (Window::of(wanted.value), wanted.why)
}

/// Differs between connections, so that their packets take other ways.
fn seed(here: &Side<'_>, there: &Side<'_>) -> u64 {
    let fold = |gid: u128| (gid as u64 ^ (gid >> 64) as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    fold(here.gid().address.into()) ^ fold(there.gid().address.into()).rotate_left(17)
}
