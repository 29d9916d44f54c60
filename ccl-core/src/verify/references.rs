//! Which sends may hand over the place of their bytes instead of the bytes.
//!
//! A piece that is [sent by reference](crate::transport#references) is read when the receiver makes its move, not when
//! the sender made its own. So it is a read of the sender's chunk at the receiver's time, and it must not race with
//! what the sender writes there: each such write must come before the send, or a chain of messages must lead from the
//! receiver's move to it. With several receivers this holds for each. As for races, credits order nothing.
//!
//! The release of the piece comes right after the receiver's move, and what the receiver sends from that move on is
//! sent after it has read; so "after the move" means "after the bytes were read".

use super::graph::{Event, Graph, LaneId, Write};
use super::races::Search;
use super::values::alias;
use crate::plan::{Plan, Rank, Referent, Sink, Source};

/// For every move, whether what it sends may be sent by reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct References {
    /// By rank; a rank's moves lane after lane.
    ranks: Vec<Box<[MayRefer]>>,
}

/// Whether a move may send a reference to its [referent](crate::plan::Move::referent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MayRefer {
    /// With two buffers.
    pub apart: bool,
    /// With input and output in one buffer; never where the plan does not hold in place.
    pub in_place: bool,
}

impl References {
    /// The moves of a rank, lane after lane.
    pub fn of(&self, rank: Rank) -> &[MayRefer] {
        &self.ranks[rank as usize]
    }

    /// Reads it off a plan whose tile can run in this order, without races.
    pub(super) fn find(plan: &Plan, graph: &Graph, order: &[Event], in_place: bool) -> References {
        let mut finder = Finder { graph, search: Search::new(graph, order), writes: Vec::new() };
        let mut event = 0;
        let ranks = (0..).zip(&plan.programs).map(|(rank, program)| {
            let lanes = graph.lanes.iter().zip(0..).filter(|(lane, _)| lane.rank == rank);
            finder.gather_writes(lanes.map(|(_, id)| id));
            let moves = program.lanes.iter().flat_map(|lane| &lane.moves).map(|mv| {
                event += 1;
                let (apart, shared) = match mv.referent() {
                    None => return MayRefer::default(),
                    Some(Referent::Source) => match mv.from[0] {
                        Source::Input(chunk) => (None, alias(&plan.spec, rank, chunk)),
                        Source::Output(chunk) => (Some(chunk), Some(chunk)),
                        Source::Scratch(_) | Source::Link(_) => return MayRefer::default(),
                    },
                    Some(Referent::Sink(at)) => match mv.into[at] {
                        Sink::Output(chunk) => (Some(chunk), Some(chunk)),
                        Sink::Scratch(_) | Sink::Links(_) => return MayRefer::default(),
                    },
                };
                MayRefer {
                    apart: finder.is_stable(event - 1, apart),
                    in_place: in_place && finder.is_stable(event - 1, shared),
                }
            });
            moves.collect()
        });
        References { ranks: ranks.collect() }
    }
}

struct Finder<'g> {
    graph: &'g Graph,
    search: Search<'g>,
    /// Who writes which output chunk of the rank at hand: chunk, lane and move, sorted.
    writes: Vec<(u32, LaneId, Event)>,
}

impl Finder<'_> {
    fn gather_writes(&mut self, lanes: impl Iterator<Item = LaneId>) {
        self.writes.clear();
        for lane in lanes {
            let at = &self.graph.lanes[lane as usize];
            for event in at.first..at.end {
                let chunks = self.graph.writes(event).iter().filter_map(|write| match *write {
                    Write::Output(chunk) => Some(chunk),
                    Write::Message(_) => None,
                });
                self.writes.extend(chunks.map(|chunk| (chunk, lane, event)));
            }
        }
        self.writes.sort_unstable();
    }

    /// Whether all receivers of what `send` sends have read it before this rank writes `chunk` again. `None`:
    /// memory that no move writes.
    fn is_stable(&mut self, send: Event, chunk: Option<u32>) -> bool {
        let Some(chunk) = chunk else { return true };
        let first = self.writes.partition_point(|&(written, ..)| written < chunk);
        let messages = self.graph.writes(send).iter().filter_map(|write| match *write {
            Write::Message(message) => Some(&self.graph.messages[message as usize]),
            Write::Output(_) => None,
        });
        let search = &mut self.search;
        // No races: the writes that can come after the send are those that the tile's order has after it.
        let sent_at = search.time(send);
        let writes = self.writes[first..].iter().take_while(|(written, ..)| *written == chunk);
        let mut later =
            writes.filter(|(.., write)| search.time(*write) > sent_at).collect::<Vec<_>>().into_iter();
        later.all(|&(_, lane, write)| {
            messages.clone().all(|message| {
                let reader = self.graph.links[message.link as usize].receiver;
                search.leads((reader, message.receiver), (lane, write))
            })
        })
    }
}
