//! Opening links: three words to each peer.

use super::adapter::Adapter;
use super::connection::Connection;
use super::failure::of_peer;
use super::group::Group;
use super::incoming::Incoming;
use super::lane::{self, Lane, Seat, Window};
use super::offers::Board;
use super::outgoing::{Outgoing, Rails};
use super::pace::Pace;
use super::proposal::Proposal;
use super::terms::{Landing, Newcomer, Place, Terms, decode_ready, encode_ready};
use super::transport::IbTransport;
use super::wire::{FRONT, LINE};
use crate::verbs::{Access, Memory, QueuePairKind, QueuePairSetup, Region, Remote};
use ccl_core::transport::{Exchange, LinkKey, NewLinks};
use ccl_core::{Error, Rank, Result};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// What was made for one peer, and what it was told of it.
struct Prepared {
    terms: Terms,
    /// Slots of the links from the peer, and what keeps them registered.
    rings: Option<(Memory, Vec<Region>)>,
    /// Lines of the links to the peer, and their regions by pair of rails.
    lines: Option<(Memory, Vec<Region>)>,
}

impl IbTransport {
    pub(super) fn open_links(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        let rows = self.directory.missing(links)?;
        if rows.is_empty() {
            return Ok(());
        }
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        // Half-made connections are of no use.
        self.connect_all(&rows, exchange).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn connect_all(&mut self, rows: &BTreeMap<Rank, NewLinks>, exchange: &mut dyn Exchange) -> Result<()> {
        let peers: Vec<Rank> = rows.keys().copied().collect();
        let strangers: Vec<Rank> =
            peers.iter().copied().filter(|peer| !self.connections.contains_key(peer)).collect();
        let mut outcome = self.meet(&strangers, exchange)?;
        let prepared = match &outcome {
            Ok(()) => self.prepare_all(rows),
            Err(error) => Err(error.clone()),
        };
        let words = match &prepared {
            Ok(prepared) => prepared.iter().map(|(peer, p)| (*peer, p.terms.encode())).collect(),
            Err(error) => refusal(&peers, error),
        };
        // Whoever has failed goes on to speak, so that nobody waits for it in vain.
        let answers = exchange.swap(&words)?;
        let opened = prepared.and_then(|prepared| {
            let theirs = self.read_terms(rows, &answers)?;
            for (peer, theirs) in &theirs {
                self.correspond(*peer, theirs);
            }
            let unconnected = self.go_live(&prepared, &theirs)?;
            Ok((prepared, theirs, unconnected))
        });
        let words = match &opened {
            Ok(_) => peers.iter().map(|peer| (*peer, encode_ready(Ok(())))).collect(),
            Err(error) => refusal(&peers, error),
        };
        let answers = exchange.swap(&words)?;
        let (prepared, theirs, unconnected) = opened?;
        for (&peer, answer) in peers.iter().zip(&answers) {
            outcome = outcome.and_then(|()| ready(peer, answer));
        }
        outcome?;
        for (peer, row) in rows {
            self.add(*peer, row, &prepared[peer], &theirs[peer])?;
        }
        for (lane, error) in unconnected {
            self.part(lane, error.to_string());
        }
        Ok(())
    }

    /// Tells new peers what we have, and agrees with each of them. The outer error is the exchange's.
    fn meet(&mut self, strangers: &[Rank], exchange: &mut dyn Exchange) -> Result<Result<()>> {
        if strangers.is_empty() {
            return Ok(Ok(()));
        }
        let word = self.proposal.encode();
        let words: Vec<_> = strangers.iter().map(|peer| (*peer, word.clone())).collect();
        let answers = exchange.swap(&words)?;
        let agree = |(&peer, answer): (&Rank, &Vec<u8>)| {
            let theirs = Proposal::decode(answer).filter(|theirs| theirs.rank == peer);
            let theirs = theirs.ok_or_else(|| of_peer(peer, "its version does not fit ours"))?;
            Ok((peer, Connection::agree(&self.proposal, theirs)?))
        };
        let agreed: Result<Vec<_>> = strangers.iter().zip(&answers).map(agree).collect();
        Ok(agreed.map(|agreed| self.connections.extend(agreed)))
    }

    fn prepare_all(&mut self, rows: &BTreeMap<Rank, NewLinks>) -> Result<BTreeMap<Rank, Prepared>> {
        self.open_endpoints()?;
        rows.iter().map(|(&peer, row)| Ok((peer, self.prepare(peer, row)?))).collect()
    }

    /// Makes queue pairs and memory for the new links with a peer.
    fn prepare(&mut self, peer: Rank, row: &NewLinks) -> Result<Prepared> {
        let mut newcomers = Vec::new();
        for &channel in row.to.iter().chain(&row.from) {
            let places: Vec<Place> = self.connections[&peer].group(channel).collect();
            if !self.connections[&peer].groups.contains_key(&places[0]) {
                for place in &places {
                    newcomers.push(self.add_lane(peer, *place)?);
                }
                self.add_group(peer, &places);
            }
        }
        let pairs = self.connections[&peer].pairs.len();
        let window = self.connections[&peer].window;
        let ring_bytes = row.from.len() * self.ring_bytes(window);
        let rings = self.on_every_rail(peer, ring_bytes, Adapter::register_slots)?;
        let line_bytes = row.to.len() * lines_of(window) * LINE;
        let lines = self.on_every_rail(peer, line_bytes, Adapter::register_slots)?;
        let rails = (0..pairs).map(|pair| {
            let remote = |(memory, regions): &(Memory, Vec<Region>)| {
                regions[pair].remote(memory.slice_mut(0, memory.len()))
            };
            let of = |made: &Option<_>| made.as_ref().map_or_else(Remote::default, remote);
            Landing { rings: of(&rings), lines: of(&lines), control: self.endpoint_to(peer, pair) }
        });
        let rails: Vec<_> = rails.collect();
        let of_terms = newcomers.len() + rails.len();
        if of_terms > Terms::MOST {
            let what = format!("ib: {of_terms} queue pairs and rails to rank {peer}");
            return Err(Error::invalid(what, "set RDMACCL_IB_QPS_PER_CONNECTION lower"));
        }
        let terms = Terms {
            rank: self.rank,
            to_peer: row.rows().0,
            from_peer: row.rows().1,
            newcomers,
            session: self.session,
            rails,
        };
        Ok(Prepared { terms, rings, lines })
    }

    /// Memory that each of a connection's rails knows, as links move from one to another. The regions are by pair of
    /// rails; ports of one adapter have the same.
    fn on_every_rail(
        &self,
        peer: Rank,
        bytes: usize,
        register: impl Fn(&Adapter, &Memory) -> Result<Region>,
    ) -> Result<Option<(Memory, Vec<Region>)>> {
        if bytes == 0 {
            return Ok(None);
        }
        let memory = Memory::allocate(bytes)?;
        let connection = &self.connections[&peer];
        let mut by_adapter: BTreeMap<usize, Region> = BTreeMap::new();
        let mut regions = Vec::new();
        for pair in 0..connection.pairs.len() {
            let at = self.ports[connection.rail(pair)].adapter;
            let region = match by_adapter.get(&at) {
                Some(region) => region.clone(),
                None => register(&self.adapters[at], &memory)?,
            };
            by_adapter.insert(at, region.clone());
            regions.push(region);
        }
        Ok(Some((memory, regions)))
    }

    fn stride(&self) -> usize {
        FRONT + self.slot_bytes
    }

    /// Slots, and room to write an offer down.
    fn ring_bytes(&self, window: Window) -> usize {
        self.stride() * window.slots as usize + LINE
    }

    /// A queue pair that can take receives.
    fn add_lane(&mut self, peer: Rank, place: Place) -> Result<Newcomer> {
        let home = self.connections[&peer].pair_of(place);
        let seat = self.seat(peer, home)?;
        let newcomer = Newcomer { place, number: seat.pair.number(), first_packet: first_packet() };
        let id = self.lanes.len() as u32;
        let connection = self.connections.get_mut(&peer).expect("met before");
        let pace = Pace::new(connection.gbps(&self.proposal, home), seat.pair.caps().sends as usize);
        let mut lane = Lane::new(seat, id, (peer, place), (connection.links(), connection.window), pace);
        connection.lanes.insert(place, id);
        lane.fill()?;
        self.lanes.push(lane);
        Ok(newcomer)
    }

    /// Lanes that carry the same links.
    fn add_group(&mut self, peer: Rank, places: &[Place]) {
        let at = self.groups.len() as u32;
        let connection = self.connections.get_mut(&peer).expect("met before");
        let lanes: Vec<u32> = places.iter().map(|place| connection.lanes[place]).collect();
        for (position, lane) in lanes.iter().enumerate() {
            let lane = &mut self.lanes[*lane as usize];
            (lane.group, lane.position) = (at, position);
        }
        connection.groups.insert(places[0], at);
        self.groups.push(Group::new(lanes));
    }

    /// A queue pair to a peer over a pair of rails, in its init state.
    pub(super) fn seat(&mut self, peer: Rank, rails: usize) -> Result<Seat> {
        let connection = &self.connections[&peer];
        let rail = connection.rail(rails);
        let (at, number) = (self.ports[rail].adapter, self.ports[rail].rail.port);
        let ends = connection.ends(&self.proposal, rails);
        let caps = lane::caps(connection.links(), connection.window);
        let adapter = &mut self.adapters[at];
        let entries = lane::completions(caps);
        let (place, queue) = adapter.queue(entries)?;
        let setup =
            QueuePairSetup { kind: QueuePairKind::Reliable, sends_to: &queue, receives_to: &queue, caps };
        let made = adapter.domain.queue_pair(&setup).and_then(|pair| {
            pair.init(number, self.settings.pkey_index, Access::REMOTE_WRITE)?;
            Ok(pair)
        });
        match made {
            Ok(pair) => Ok(Seat {
                pair,
                rails,
                adapter: at,
                port: number,
                rail,
                queue: place,
                entries,
                ends,
                sent: 0,
            }),
            Err(error) => {
                adapter.give_back(place, entries);
                Err(error)
            }
        }
    }

    fn read_terms(
        &self,
        rows: &BTreeMap<Rank, NewLinks>,
        answers: &[Vec<u8>],
    ) -> Result<BTreeMap<Rank, Terms>> {
        let read = |((&peer, row), answer): ((&Rank, &NewLinks), &Vec<u8>)| {
            let Some(theirs) = Terms::decode(answer) else {
                return Err(ready(peer, answer)
                    .err()
                    .unwrap_or_else(|| of_peer(peer, "its version does not fit ours")));
            };
            self.check(peer, row, &theirs)?;
            Ok((peer, theirs))
        };
        rows.iter().zip(answers).map(read).collect()
    }

    fn check(&self, peer: Rank, row: &NewLinks, theirs: &Terms) -> Result<()> {
        if theirs.rank != peer {
            return Err(of_peer(peer, format!("the word of rank {} came in its place", theirs.rank)));
        }
        if let Some(why) = row.differ_from((theirs.to_peer, theirs.from_peer)) {
            return Err(of_peer(peer, why));
        }
        if theirs.rails.len() != self.connections[&peer].pairs.len() {
            return Err(of_peer(peer, "it pairs the rails differently"));
        }
        Ok(())
    }

    /// Connects the new queue pairs. Gives the lanes whose queue pairs could not be, with the reasons.
    fn go_live(
        &mut self,
        prepared: &BTreeMap<Rank, Prepared>,
        theirs: &BTreeMap<Rank, Terms>,
    ) -> Result<Vec<(usize, Error)>> {
        let mut unconnected = Vec::new();
        for (&peer, Prepared { terms, .. }) in prepared {
            for ours in &terms.newcomers {
                let mut newcomers = theirs[&peer].newcomers.iter();
                let there = newcomers.find(|there| there.place == ours.place);
                let there = there
                    .ok_or_else(|| of_peer(peer, "it spreads the links over queue pairs differently"))?;
                let lane = self.connections[&peer].lanes[&ours.place] as usize;
                let rails = self.lanes[lane].seat.rails;
                let way = self.way_to(peer, (rails, ours.place.way), there.number, there.first_packet);
                let manner = self.manner_to(peer, ours.first_packet);
                let pair = &self.lanes[lane].seat.pair;
                match pair.ready_to_receive(&way).and_then(|()| pair.ready_to_send(&manner)) {
                    Ok(()) => self.lanes[lane].start(),
                    // Where there are other rails it begins as one that has failed on this.
                    Err(error) if self.connections[&peer].pairs.len() > 1 => unconnected.push((lane, error)),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(unconnected)
    }

    /// Adds the new links with a peer.
    fn add(&mut self, peer: Rank, row: &NewLinks, prepared: &Prepared, theirs: &Terms) -> Result<()> {
        let connection = &self.connections[&peer];
        let window = connection.window;
        let (stride, ring_bytes, lines_each) = (self.stride(), self.ring_bytes(window), lines_of(window));
        let home_of = |channel: u16| {
            let first = connection.group(channel).next().expect("a group has a lane");
            (connection.lanes[&connection.place(channel)], connection.groups[&first])
        };
        if let Some((memory, regions)) = &prepared.lines {
            for (i, &channel) in row.to.iter().enumerate() {
                let ((home, group), number) = (home_of(channel), connection.number(channel));
                let key = LinkKey { from: self.rank, to: peer, channel };
                let lines = memory.slice_mut(i * lines_each * LINE, lines_each * LINE);
                let rails = theirs.rails.iter().zip(regions).map(|(landing, region)| Rails {
                    ring: landing.rings.at((i * ring_bytes) as u64),
                    lines: region.sge_mut(lines),
                    _region: region.clone(),
                });
                let at = self.outgoing.len() as u32;
                self.directory.add_outgoing(peer, channel, at);
                self.groups[group as usize].add_outgoing(number, at);
                self.outgoing.push(Outgoing::new(
                    key,
                    (home, group, self.groups[group as usize].lanes.len()),
                    (number, stride as u64),
                    lines,
                    rails.collect(),
                    window.slots,
                ));
            }
        }
        let lines: Arc<[Remote]> = theirs.rails.iter().map(|landing| landing.lines).collect();
        let regions = prepared.rings.iter().flat_map(|(_, regions)| regions.iter().cloned());
        let regions: Arc<[Region]> = regions.collect();
        for (i, &channel) in row.from.iter().enumerate() {
            let (rings, _) = prepared.rings.as_ref().expect("made for these links");
            // Behind the lines of the link.
            let offset = ((i * lines_each + window.slots as usize) * LINE) as u64;
            let board = Board { regions: Arc::clone(&regions), lines: Arc::clone(&lines), offset };
            let ((home, group), number) = (home_of(channel), connection.number(channel));
            let key = LinkKey { from: peer, to: self.rank, channel };
            let at = self.incoming.len() as u32;
            self.directory.add_incoming(peer, channel, at);
            self.groups[group as usize].add_incoming(number, at);
            self.incoming.push(Incoming::new(
                key,
                (home, group),
                number,
                (rings.slice_mut(i * ring_bytes, ring_bytes), stride),
                board,
                window,
            ));
        }
        for &channel in row.to.iter().chain(&row.from) {
            let both = (self.directory.outgoing(peer, channel), self.directory.incoming(peer, channel));
            if let (Some(out), Some(back)) = both {
                self.outgoing[out as usize].back = Some(back);
                self.incoming[back as usize].back = Some(out);
            }
        }
        self.link_bytes += (row.to.len() * lines_each * LINE + row.from.len() * ring_bytes) as u64;
        if row.to.is_empty() { Ok(()) } else { self.pool.ensure(&self.adapters) }
    }
}

/// Lines of a link: one for each slot, and one for an offer.
fn lines_of(window: Window) -> usize {
    window.slots as usize + 1
}

/// What is said instead of a word by a rank that has failed.
fn refusal(peers: &[Rank], error: &Error) -> Vec<(Rank, Vec<u8>)> {
    let word = encode_ready(Err(&error.to_string()));
    peers.iter().map(|peer| (*peer, word.clone())).collect()
}

/// What the word of a peer that should be ready means.
fn ready(peer: Rank, word: &[u8]) -> Result<()> {
    match decode_ready(word) {
        Some(Ok(())) => Ok(()),
        Some(Err(why)) => Err(of_peer(peer, format!("it could not connect: {why}"))),
        None => Err(of_peer(peer, "its version does not fit ours")),
    }
}

/// Where packet numbers begin: those of an earlier connection that still travel fit no new one.
pub(super) fn first_packet() -> u32 {
    random() as u32 & 0xff_ffff
}

/// 64 bits that nobody else can guess.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}
