//! Plans: what each rank does in a collective, as data.
//!
//! A [`Plan`] gives every rank a [`Program`] of a few [`Lane`]s; a lane is a straight line of
//! [`Move`]s, and the move is the only instruction:
//!
//! ```text
//! Move { from: [source, …], into: [sink, …] }
//! ```
//!
//! It combines its sources, in the order in which they are written, with the reduction operator of the
//! call (one source: a plain copy) and writes the result into every sink.
//!
//! # Buffers and chunks
//!
//! A buffer is a row of *blocks* of `count` elements each: one block, or one per rank, as
//! [`Collective`] says. Every block is cut into [`Spec::parts`] equal *parts*; chunk
//! `block * parts + part` is one part of one block. Parts of one number are of one length in every
//! block of every rank; the last ones may be shorter or empty when `count` does not divide.
//!
//! # Lanes and tiles
//!
//! At run time a lane is run once per *tile*: each chunk is cut into pieces that fit a link's slots, and
//! all moves of the lane run on piece 0, then on piece 1, and so on. All lanes of a call run the same
//! number of tiles; a piece past the end of a short chunk is empty and still travels, so that the
//! numbers of messages agree. Lanes never wait for each other.
//!
//! `Scratch` is one piece in size, private to its lane, and does not outlive the tile.
//!
//! # Links
//!
//! A link is a first-in-first-out queue from one rank to another on one *channel*. `Link` as a source is
//! the next piece from the peer; a sink `Links` sends the piece to one peer, or the same piece to
//! several. Each end of a link belongs to one lane, and its messages per tile are the same at both ends.
//! Channels tell apart links of one pair of ranks that belong to different lanes.

mod file;
mod graph;
mod placement;
mod text;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub use file::MAX_FILE_BYTES;
pub use placement::Placement;

/// A member of a communicator: 0 … n-1.
pub type Rank = u32;

/// What a call computes.
///
/// `count` is the number of elements of one block. For n ranks, the send buffer and the receive buffer
/// have this many blocks:
///
/// | collective | send | receive | result |
/// | --- | --- | --- | --- |
/// | `AllReduce` | 1 | 1 | the reduction of all send buffers, on every rank |
/// | `Reduce` | 1 | 1 (root only) | the same, on the root |
/// | `Broadcast` | 1 (root only) | 1 | the root's send buffer, on every rank |
/// | `AllGather` | 1 | n | block i is rank i's send buffer |
/// | `ReduceScatter` | n | 1 | the reduction of all ranks' block i, on rank i |
/// | `AllToAll` | n | n | block i is rank i's block (my rank) |
/// | `Gather` | 1 | n (root only) | block i is rank i's send buffer, on the root |
/// | `Scatter` | n (root only) | 1 | the root's block (my rank) |
///
/// and, not a collective but planned as one, between two ranks of which the root is the sender:
///
/// | `SendRecv` | 1 (root only) | 1 (not the root) | the root's send buffer |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Collective {
    /// Reduction of all, to all.
    AllReduce = 0,
    /// Reduction of all, to the root.
    Reduce = 1,
    /// The root's buffer to all.
    Broadcast = 2,
    /// Everybody's buffer to all.
    AllGather = 3,
    /// Reduction of all, scattered.
    ReduceScatter = 4,
    /// A block from each to each.
    AllToAll = 5,
    /// Everybody's buffer to the root.
    Gather = 6,
    /// The root's blocks, one to each.
    Scatter = 7,
    /// A transfer from one rank to another: a plan for two ranks, the root being the sender.
    SendRecv = 8,
}

impl Collective {
    /// Every collective, which a transfer is not.
    pub const ALL: [Collective; 8] = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
    ];

    /// Blocks in the send buffer of `rank`; 0 where it is not read.
    pub const fn input_blocks(self, ranks: u32, rank: Rank, root: Rank) -> u32 {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::AllGather | Collective::Gather => 1,
            Collective::ReduceScatter | Collective::AllToAll => ranks,
            Collective::Broadcast | Collective::SendRecv => (rank == root) as u32,
            Collective::Scatter => {
                if rank == root {
                    ranks
                } else {
                    0
                }
            }
        }
    }

    /// Blocks in the receive buffer of `rank`; 0 where it is not written.
    pub const fn output_blocks(self, ranks: u32, rank: Rank, root: Rank) -> u32 {
        match self {
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::ReduceScatter
            | Collective::Scatter => 1,
            Collective::AllGather | Collective::AllToAll => ranks,
            Collective::Reduce => (rank == root) as u32,
            Collective::SendRecv => (rank != root) as u32,
            Collective::Gather => {
                if rank == root {
                    ranks
                } else {
                    0
                }
            }
        }
    }

    /// Whether values are combined; the others only move them.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether the call names a root.
    pub const fn rooted(self) -> bool {
        matches!(self, Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter)
    }

    /// The output block that lies on input block `block` in an in-place call, as in NCCL:
    /// `AllGather` and `Gather` send from their own block of the receive buffer, `ReduceScatter` and
    /// `Scatter` receive into their own block of the send buffer, the others use one buffer for both.
    /// `None`: that input block is not part of the receive buffer.
    pub const fn in_place_output(self, rank: Rank, block: u32) -> Option<u32> {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::AllToAll => {
                Some(block)
            }
            Collective::AllGather | Collective::Gather => Some(rank),
            Collective::ReduceScatter | Collective::Scatter => {
                if block == rank {
                    Some(0)
                } else {
                    None
                }
            }
            Collective::SendRecv => None,
        }
    }

    /// The name in logs, plan files and errors: `all_reduce`, ….
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::SendRecv => "send_recv",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Collective::ALL.into_iter().find(|c| c.name() == s);
        known.ok_or_else(|| {
            let names: Vec<_> = Collective::ALL.iter().map(|c| c.name()).collect();
            format!("unknown collective '{s}': one of {}", names.join(", "))
        })
    }
}

/// What a plan is for: everything that its moves depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// What it computes.
    pub collective: Collective,
    /// Members of the communicator, at least 1.
    pub ranks: u32,
    /// The root of a rooted collective, 0 for the others.
    pub root: Rank,
    /// Parts into which each block is cut, at least 1.
    pub parts: u32,
    /// Hosts on which the ranks lie as [`Placement`] says; 1 where nothing is known of hosts.
    #[serde(default = "one_host", skip_serializing_if = "is_one_host")]
    pub hosts: u32,
}

const fn one_host() -> u32 {
    1
}

// Serde hands over a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_one_host(hosts: &u32) -> bool {
    *hosts == 1
}

impl Spec {
    /// For ranks of one host.
    pub const fn new(collective: Collective, ranks: u32, root: Rank, parts: u32) -> Spec {
        Spec { collective, ranks, root, parts, hosts: 1 }
    }

    /// For ranks that lie like this.
    pub const fn placed(collective: Collective, placement: Placement, root: Rank, parts: u32) -> Spec {
        Spec { collective, ranks: placement.ranks, root, parts, hosts: placement.hosts }
    }

    /// How its ranks lie on hosts.
    pub const fn placement(&self) -> Placement {
        Placement { ranks: self.ranks, hosts: self.hosts }
    }

    /// Chunks in the send buffer of `rank`.
    pub const fn input_chunks(&self, rank: Rank) -> u32 {
        self.collective.input_blocks(self.ranks, rank, self.root) * self.parts
    }

    /// Chunks in the receive buffer of `rank`.
    pub const fn output_chunks(&self, rank: Rank) -> u32 {
        self.collective.output_blocks(self.ranks, rank, self.root) * self.parts
    }

    /// The number of part `part` of block `block`.
    pub const fn chunk(&self, block: u32, part: u32) -> u32 {
        block * self.parts + part
    }

    /// The chunk of the receive buffer of `rank` on which a chunk of its send buffer lies in place.
    pub fn in_place_chunk(&self, rank: Rank, input: u32) -> Option<u32> {
        let block = self.collective.in_place_output(rank, input / self.parts)?;
        let inside = block < self.collective.output_blocks(self.ranks, rank, self.root);
        inside.then(|| self.chunk(block, input % self.parts))
    }
}

/// What every rank does in one collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// What the plan is for.
    #[serde(flatten)]
    pub spec: Spec,
    /// Who wrote it: the name of an algorithm, or what a plan file says.
    pub algorithm: String,
    /// One program per rank.
    pub programs: Vec<Program>,
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Lines of moves that do not wait for each other.
    pub lanes: Vec<Lane>,
}

impl Program {
    /// Whether it receives nothing.
    pub fn only_sends(&self) -> bool {
        let mut sources = self.lanes.iter().flat_map(|lane| &lane.moves).flat_map(|mv| &mv.from);
        !sources.any(|source| matches!(source, Source::Link(_)))
    }
}

/// A straight line of moves, run once per tile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Scratch pieces that the moves use, numbered from 0.
    #[serde(default)]
    pub scratch: u32,
    /// The moves, in order.
    pub moves: Vec<Move>,
}

/// Combines `from` in order and writes the result into all of `into`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// What is combined, in this order.
    pub from: Vec<Source>,
    /// Where the result goes.
    pub into: Vec<Sink>,
}

impl Move {
    /// The chunk of this rank's buffers that holds what the move sends, once it is made: its only source, or the
    /// first output that it writes. `None` where there is none, or where it sends nothing.
    pub fn referent(&self) -> Option<Referent> {
        if !self.into.iter().any(|sink| matches!(sink, Sink::Links(_))) {
            return None;
        }
        match self.from[..] {
            [Source::Input(_) | Source::Output(_)] => Some(Referent::Source),
            _ => self.into.iter().position(|sink| matches!(sink, Sink::Output(_))).map(Referent::Sink),
        }
    }

    /// Whether the move combines what it sends, keeps a copy of it, and sends it once, to one peer or to several.
    pub fn is_result(&self) -> bool {
        let links = self.into.iter().filter(|sink| matches!(sink, Sink::Links(_))).count();
        let keeps = self.into.iter().any(|sink| matches!(sink, Sink::Output(_)));
        self.from.len() > 1 && links == 1 && keeps
    }

    /// The output chunk that becomes a copy of what the move receives, the first where there are several. `None` where
    /// it receives nothing, combines it, or keeps no copy.
    pub fn landing(&self) -> Option<u32> {
        let [Source::Link(_)] = self.from[..] else { return None };
        self.into.iter().find_map(|sink| if let Sink::Output(chunk) = sink { Some(*chunk) } else { None })
    }
}

/// Which operand of a move holds what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referent {
    /// Its only source.
    Source,
    /// The sink of this number.
    Sink(usize),
}

/// Where a move reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A chunk of this rank's send buffer.
    Input(u32),
    /// A chunk of this rank's receive buffer, written before.
    Output(u32),
    /// A scratch piece of this lane, written before in this tile.
    Scratch(u32),
    /// The next piece that a peer sent.
    Link(Link),
}

/// Where a move writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// A chunk of this rank's receive buffer.
    Output(u32),
    /// A scratch piece of this lane.
    Scratch(u32),
    /// The same piece to each of these peers.
    Links(Links),
}

/// The receiving end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Who sends.
    pub peer: Rank,
    /// Which of the links from that peer.
    #[serde(default)]
    pub channel: u16,
}

/// The sending ends of one or more links that carry the same pieces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Who receives; not empty, each once.
    pub peers: Vec<Rank>,
    /// Which of the links to each of them.
    #[serde(default)]
    pub channel: u16,
}
