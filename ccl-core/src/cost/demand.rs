//! What an algorithm asks for, read off its programs, and the price of that.

use super::{Constants, Model};
use crate::algorithms::Algorithm;
use crate::plan::{Collective, Lane, Placement, Program, Rank, Sink, Source, Spec};
use std::collections::BTreeSet;

/// What a rank does in one tile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    moves: f64,
    /// Ends of messages.
    messages: f64,
    /// Pieces written, one for several peers counted once.
    writes: f64,
    /// Pieces written more if slots are not shared.
    unshared_writes: f64,
    /// Pieces read from links.
    reads: f64,
    /// Pieces read from the rank's own buffers.
    own_reads: f64,
    /// Times that the rank, having sent, waits for a message.
    waits: f64,
}

impl Work {
    fn of(program: &Program) -> Work {
        let mut work = Work::default();
        let mut has_sent = false;
        for m in program.lanes.iter().flat_map(|lane| &lane.moves) {
            let reads = m.from.iter().filter(|s| matches!(s, Source::Link(_))).count() as f64;
            if reads > 0.0 && has_sent {
                work.waits += 1.0;
                has_sent = false;
            }
            work.moves += 1.0;
            work.writes += m.into.len() as f64;
            work.reads += reads;
            work.own_reads += m.from.len() as f64 - reads;
            work.messages += reads;
            for sink in &m.into {
                if let Sink::Links(links) = sink {
                    has_sent = true;
                    work.messages += links.peers.len() as f64;
                    work.unshared_writes += links.peers.len() as f64 - 1.0;
                }
            }
        }
        work
    }

    /// Time for pieces of this many bytes.
    fn time(&self, model: &Model, beta: f64, piece: f64) -> f64 {
        let writes = self.writes + if model.shared_slots { 0.0 } else { self.unshared_writes };
        let Constants { step_ns, alpha_ns, read_per_write, .. } = model.constants;
        let (message_ns, gamma) = (model.message_ns(), model.gamma_ns_per_byte());
        self.moves * step_ns
            + self.messages * message_ns
            + self.waits * alpha_ns
            + piece * ((writes + self.own_reads * read_per_write) * beta + self.reads * gamma)
    }
}

/// What crosses from host to host in one tile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Crossing {
    /// Messages in a row.
    depth: f64,
    /// Messages that the busier direction of the busiest host carries.
    messages: f64,
    /// Whether a lane waits, before it can begin with the next tile, for what comes back on what it has sent.
    returns: bool,
}

impl Crossing {
    /// Of an algorithm whose rows of messages cross so many times.
    /// The hosts are those of some ranks.
    fn of(algorithm: &dyn Algorithm, spec: &Spec, depth: u32, sample: &BTreeSet<Rank>) -> Crossing {
        let placement = spec.placement();
        let firsts: BTreeSet<Rank> = sample.iter().map(|rank| rank - rank % placement.locals()).collect();
        let (mut messages, mut returns) = (0, false);
        for first in firsts {
            let (mut sent, mut received) = (0usize, 0usize);
            for rank in first..first + placement.locals() {
                for lane in &algorithm.program(spec, rank).lanes {
                    let (sends, receives) = ends_across(lane, placement, rank);
                    (sent, received) = (sent + sends, received + receives);
                    returns |= receives > 0 && begins_a_row(lane);
                }
            }
            messages = messages.max(sent).max(received);
        }
        Crossing { depth: f64::from(depth), messages: messages as f64, returns }
    }

    /// What the network adds to the first tile, and how long each further one takes with it if the busiest rank alone
    /// needs `tile` nanoseconds.
    fn add_to(&self, tile: f64, model: &Model, piece: f64) -> (f64, f64) {
        let message = model.net.share_ns(piece);
        let (wire, latency) = (self.messages * message, self.depth * model.net.latency_ns);
        if self.returns {
            // All wait for each other.
            (latency + wire.max(self.depth * message), tile + wire + latency)
        } else {
            // The last host of a row begins when all but one of its messages have come, and is busy from then on. Cards send and
            // receive while ranks work on other tiles.
            let next = if model.net.by_processor { tile + wire } else { tile.max(wire) };
            (latency + wire + (self.depth - 1.0).max(0.0) * message, next)
        }
    }
}

/// How many messages a lane sends to other hosts, and how many it receives from there.
fn ends_across(lane: &Lane, placement: Placement, rank: Rank) -> (usize, usize) {
    let across = |peer: &Rank| placement.are_apart(rank, *peer);
    let (mut sent, mut received) = (0, 0);
    for m in &lane.moves {
        received += m.from.iter().filter(|s| matches!(s, Source::Link(link) if across(&link.peer))).count();
        for sink in &m.into {
            if let Sink::Links(links) = sink {
                sent += links.peers.iter().filter(|peer| across(peer)).count();
            }
        }
    }
    (sent, received)
}

/// Whether a lane sends before it receives. One that receives first only passes on.
fn begins_a_row(lane: &Lane) -> bool {
    let receives = |s: &Source| matches!(s, Source::Link(_));
    let sends = |s: &Sink| matches!(s, Sink::Links(_));
    let first = lane.moves.iter().find(|m| m.from.iter().any(receives) || m.into.iter().any(sends));
    first.is_some_and(|m| !m.from.iter().any(receives))
}

/// What a call should take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// All of it, in nanoseconds.
    pub ns: f64,
    /// Without what messages between hosts take: the same on a single host.
    pub home_ns: f64,
}

/// What an algorithm asks for, whatever the size of the call.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    spec: Spec,
    depth: f64,
    /// `None` on one host.
    crossing: Option<Crossing>,
    /// Of the ranks that may have most to do.
    work: Vec<Work>,
}

impl Demand {
    /// Reads it off some ranks' programs, with several hosts off those of all ranks on their hosts; `None` where the algorithm
    /// does not do this. Takes time in proportion to the number of ranks, times that of those whose programs are read.
    pub fn new(
        algorithm: &dyn Algorithm,
        collective: Collective,
        placement: impl Into<Placement>,
        root: Rank,
    ) -> Option<Demand> {
        let placement = placement.into();
        let ranks = placement.ranks;
        let spec = Spec::placed(collective, placement, root, algorithm.parts(collective, placement)?);
        // The root and its neighbours, the tops of trees, and one of the crowd.
        let from_root = [0, 1, 2, ranks - 1, ranks / 2, 1 << ranks.ilog2() >> 1];
        let sample: BTreeSet<Rank> = from_root
            .iter()
            .map(|d| ((u64::from(root) + u64::from(*d)) % u64::from(ranks)) as Rank)
            .collect();
        let work = sample.iter().map(|rank| Work::of(&algorithm.program(&spec, *rank))).collect();
        let depth = f64::from(algorithm.depth(collective, placement));
        let crossing = (placement.hosts > 1)
            .then(|| Crossing::of(algorithm, &spec, algorithm.crossings(collective, placement), &sample));
        Some(Demand { spec, depth, crossing, work })
    }

    /// For blocks of `block_bytes` bytes in pieces of at most `tile_bytes`. Grows with the size of the blocks.
    pub fn price(&self, model: &Model, block_bytes: usize, tile_bytes: usize) -> Price {
        let Spec { collective, ranks, root, parts, .. } = self.spec;
        let constants = &model.constants;
        let part = block_bytes as f64 / f64::from(parts);
        let piece = part.min(tile_bytes.max(1) as f64);
        let tiles = if part > piece { part / piece } else { 1.0 };

        // All buffers of the ranks on this machine, the root among them.
        let blocks = |rank| {
            let input = collective.input_blocks(ranks, rank, root);
            f64::from(input) + f64::from(collective.output_blocks(ranks, rank, root))
        };
        let others = f64::from(model.local_ranks.max(1) - 1) * blocks((root + 1) % ranks);
        let footprint = block_bytes as f64 * (blocks(root) + others);
        let near = constants.cache_bytes.min(footprint);
        let beta = if footprint > 0.0 {
            (near * constants.beta_ns_per_byte + (footprint - near) * constants.far_beta_ns_per_byte)
                / footprint
        } else {
            constants.beta_ns_per_byte
        };

        let times = self.work.iter().map(|w| w.time(model, beta, piece));
        let (busiest, sum) = times.fold((0.0, 0.0), |(most, sum), t| (t.max(most), sum + t));
        let mean = sum / self.work.len() as f64;
        let tile = busiest.max(mean * model.crowding());

        let bytes = piece * (beta + model.gamma_ns_per_byte());
        let hop = constants.step_ns + 2.0 * model.message_ns() + bytes;
        let row = self.depth * (constants.alpha_ns + model.switches_ns()) + tile.max(self.depth * hop);
        let home_ns = row + (tiles - 1.0) * tile;
        let ns = self.crossing.map_or(home_ns, |crossing| {
            let (first, next) = crossing.add_to(tile, model, piece);
            row + first + (tiles - 1.0) * next
        });
        Price { ns, home_ns }
    }
}
