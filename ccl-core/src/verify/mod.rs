//! The verifier: proves a plan right before it runs, or says where it is wrong.
//!
//! It runs one tile of all ranks on symbols. Each piece holds a *term*: which element it is (a chunk of the
//! send buffers) and how the ranks' contributions to it were combined. What it proves:
//!
//! - *Postcondition.* Every output chunk ends with exactly what [`Collective`](crate::Collective) says:
//!   each contribution once, nothing else.
//! - *Memory.* No read of a chunk or scratch piece that holds nothing, none out of bounds, and no two
//!   lanes of a rank touch the same memory (one of them writing) without a message that orders them.
//! - *Links.* Every message that is sent is received; each end of a link belongs to one lane.
//! - *Progress.* No deadlock with the given credits per link.
//! - *Order.* The terms are the orders of reduction, so whether all ranks get the same bits is read off.
//!
//! # Why one tile is enough
//!
//! Pieces of different tiles are different memory, and scratch does not outlive a tile, so values and
//! races concern one tile. A deadlock is a cycle of waits. A move waits for the move before it in its
//! lane, for a piece of the same tile, or for the credit that the message `credits` places earlier on
//! its link gives back, which is of the same tile or an earlier one. No wait goes to a later tile, so a
//! cycle lies inside one tile, and there the waits of every tile are those of the first.
//!
//! # In place
//!
//! Where input and output lie on each other ([`Collective::in_place_output`](crate::Collective)), a plan may
//! be wrong that is right with two buffers. The verifier runs it a second time on shared memory;
//! [`Proof::in_place`] says whether it holds there too.
//!
//! # Shortcuts
//!
//! [`verify_shortcuts`] also says which pieces may be [sent by reference](crate::transport#references): those of
//! which the receiver's read is ordered with the sender's writes; and which may come into
//! [memory that was offered](crate::transport#offers): those of which the sender's write is ordered with all that the
//! receiver does there.
//!
//! Cost: linear in the number of moves, plus n for each different order of reduction. Shortcuts cost a search for
//! each send whose chunk is written later, and for each receive whose chunk is used before.

mod fault;
mod graph;
pub mod mutate;
mod races;
pub mod report;
mod schedule;
mod shapes;
mod shortcuts;
mod values;

pub use fault::{Awaits, Contribution, Fault, Place, Wait};
pub use shortcuts::{May, Shortcuts};

use crate::plan::Plan;
use graph::Graph;
use values::Tile;

/// What the engine and the links give to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots of every link: pieces that may be sent and not yet released, at least 1.
    pub credits: u32,
    /// Scratch pieces that a lane may have.
    pub scratch: u32,
}

impl Default for Limits {
    /// 8 credits, twice what any algorithm here needs; 1024 pieces of scratch, which is 64 MiB per lane with
    /// slots of 64 KiB and the bound on what a plan file may ask for.
    fn default() -> Limits {
        Limits { credits: 8, scratch: 1024 }
    }
}

/// What is known of a plan that was not rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// It also holds when input and output are the same memory.
    pub in_place: bool,
    /// The order of its reductions.
    pub order: Order,
    /// 64 bits that stand for the content of all output chunks, orders of reduction included: two plans
    /// with the same digest compute the same bits.
    pub digest: u64,
    /// Moves of all ranks in a tile.
    pub moves: u64,
    /// Messages of all links in a tile.
    pub messages: u64,
    /// Links that are used.
    pub links: u64,
    /// Messages in a tile on the link that carries most.
    pub busiest_link: u32,
}

/// In which order contributions are combined. All `true` where nothing is combined.
///
/// The order is a property of the plan: the same call gives the same bits on every run, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Every rank that gets an element combines it in the same order: all ranks get the same bits.
    pub same_on_every_rank: bool,
    /// All parts of a block are combined in the same order: an element's bits do not depend on where it
    /// stands in its block, nor on how long that is.
    pub same_at_every_size: bool,
    /// The order is that of a loop over the ranks, 0 first. Several moves may share the loop, and round to
    /// the element type in between.
    pub rank_order: bool,
}

/// Proves a plan, or finds a fault in it.
pub fn verify(plan: &Plan, limits: &Limits) -> Result<Proof, Fault> {
    prove(plan, limits).map(|(proof, _)| proof)
}

/// Proves a plan as [`verify`] does, and says which pieces may travel by a shorter way than through slots.
pub fn verify_shortcuts(plan: &Plan, limits: &Limits) -> Result<(Proof, Shortcuts), Fault> {
    let (proof, Proved { graph, order }) = prove(plan, limits)?;
    let shortcuts = Shortcuts::find(plan, &graph, &order, proof.in_place);
    Ok((proof, shortcuts))
}

/// A plan that was proved.
struct Proved {
    graph: Graph,
    /// An order in which the moves of a tile can run.
    order: Vec<graph::Event>,
}

fn prove(plan: &Plan, limits: &Limits) -> Result<(Proof, Proved), Fault> {
    if limits.credits == 0 {
        return Err(Fault::Spec { what: "links have 0 credits; they need at least 1".into() });
    }
    let graph = Graph::new(plan, limits)?;
    let order = schedule::schedule(&graph, limits.credits)?;
    let tile = Tile::run(&graph, &order, false)?;
    races::find(&graph, &order, false)?;
    tile.check()?;
    let digest = tile.digest();
    let in_place = Tile::run(&graph, &order, true)
        .is_ok_and(|shared| shared.check().is_ok() && shared.digest() == digest)
        && races::find(&graph, &order, true).is_ok();
    let proof = Proof {
        in_place,
        order: tile.order(),
        digest,
        moves: graph.moves() as u64,
        messages: graph.messages.len() as u64,
        links: graph.links.len() as u64,
        busiest_link: graph.busiest_link(),
    };
    Ok((proof, Proved { graph, order }))
}

/// The smallest number of credits per link with which the plan cannot deadlock. Looks at waits and links
/// only; [`Limits::credits`] plays no part.
pub fn min_credits(plan: &Plan, limits: &Limits) -> Result<u32, Fault> {
    schedule::min_credits(&Graph::new(plan, limits)?)
}
