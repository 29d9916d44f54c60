//! Which pieces may travel without a slot: from where they lie, or into where they go.
//!
//! A piece that is [sent by reference](crate::transport#references) is read when the receiver makes its move, not when
//! the sender made its own. So it is a read of the sender's chunk at the receiver's time, and it must not race with
//! what the sender writes there: each such write must come before the send, or a chain of messages must lead from the
//! receiver's move to it. With several receivers this holds for each. As for races, credits order nothing.
//!
//! The release of the piece comes right after the receiver's move, and what the receiver sends from that move on is
//! sent after it has read; so "after the move" means "after the bytes were read".
//!
//! A piece that comes into [memory that was offered](crate::transport#offers) is written when the sender makes its move,
//! not when the receiver makes its own. So it is a write of the receiver's chunk at the sender's time: from everything
//! that uses the chunk before the receiver's move, a chain of messages must lead to the sender's. To use it is to read
//! or to write it, or to have sent it by reference, until the receiver of that has read it. What uses the chunk later
//! comes after the receiver's move, which comes after the piece.

use super::graph::{Event, Graph, LaneId, Read, Write};
use super::races::Search;
use crate::plan::{Plan, Rank, Referent, Sink, Source};

/// For every move, which of its pieces may travel without a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortcuts {
    /// By rank; a rank's moves lane after lane.
    refers: Vec<Box<[May]>>,
    offers: Vec<Box<[May]>>,
    /// The same where the sender keeps a copy of what it combines, and nothing elsewhere.
    result_offers: Vec<Box<[May]>>,
    /// The same where the sender does nothing but send what it has.
    share_offers: Vec<Box<[May]>>,
}

/// Whether a move may do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct May {
    /// With two buffers.
    pub apart: bool,
    /// With input and output in one buffer; never where the plan does not hold in place.
    pub in_place: bool,
}

impl Shortcuts {
    /// Whether the moves of a rank, lane after lane, may send a reference to their
    /// [referent](crate::plan::Move::referent).
    pub fn refers(&self, rank: Rank) -> &[May] {
        &self.refers[rank as usize]
    }

    /// Whether the output chunk into which the moves of a rank, lane after lane, [copy what they
    /// receive](crate::plan::Move::landing) may be offered from the beginning of the call on.
    pub fn offers(&self, rank: Rank) -> &[May] {
        &self.offers[rank as usize]
    }

    /// The same for those moves only that receive a [result](crate::plan::Move::is_result).
    pub fn result_offers(&self, rank: Rank) -> &[May] {
        &self.result_offers[rank as usize]
    }

    /// The same for those moves only that receive what a rank has which [receives nothing](crate::plan::Program::only_sends) itself.
    pub fn share_offers(&self, rank: Rank) -> &[May] {
        &self.share_offers[rank as usize]
    }

    /// Reads it off a plan whose tile can run in this order, without races.
    pub(super) fn find(plan: &Plan, graph: &Graph, order: &[Event], in_place: bool) -> Shortcuts {
        let mut finder = Finder { graph, search: Search::new(graph, order), uses: [Vec::new(), Vec::new()] };
        let (mut refers, mut offers) = (Vec::new(), Vec::new());
        let (mut result_offers, mut share_offers) = (Vec::new(), Vec::new());
        let moves: Vec<_> = plan
            .programs
            .iter()
            .flat_map(|program| {
                let only_sends = program.only_sends();
                let moves = program.lanes.iter().flat_map(|lane| &lane.moves);
                moves.map(move |mv| (mv.is_result(), only_sends && mv.referent() == Some(Referent::Source)))
            })
            .collect();
        let mut event = 0;
        for (rank, program) in (0..).zip(&plan.programs) {
            let lanes = graph.lanes.iter().zip(0..).filter(|(lane, _)| lane.rank == rank);
            finder.gather_uses(rank, lanes.map(|(_, id)| id));
            let (mut may_refer, mut may_offer) = (Vec::new(), Vec::new());
            let (mut of_results, mut of_shares) = (Vec::new(), Vec::new());
            for mv in program.lanes.iter().flat_map(|lane| &lane.moves) {
                let chunks = match mv.referent() {
                    None => None,
                    Some(Referent::Source) => match mv.from[0] {
                        Source::Input(chunk) => Some((None, plan.spec.in_place_chunk(rank, chunk))),
                        Source::Output(chunk) => Some((Some(chunk), Some(chunk))),
                        Source::Scratch(_) | Source::Link(_) => None,
                    },
                    Some(Referent::Sink(at)) => match mv.into[at] {
                        Sink::Output(chunk) => Some((Some(chunk), Some(chunk))),
                        Sink::Scratch(_) | Sink::Links(_) => None,
                    },
                };
                may_refer.push(chunks.map_or(May::default(), |(apart, shared)| May {
                    apart: finder.is_stable(event, apart),
                    in_place: in_place && finder.is_stable(event, shared),
                }));
                let may = mv.landing().map_or(May::default(), |chunk| May {
                    apart: finder.is_unused(event, chunk, false),
                    in_place: in_place && finder.is_unused(event, chunk, true),
                });
                may_offer.push(may);
                let sender = finder.sender_to(event);
                let (is_result, is_share) = sender.map_or((false, false), |sender| moves[sender as usize]);
                of_results.push(if is_result { may } else { May::default() });
                of_shares.push(if is_share { may } else { May::default() });
                event += 1;
            }
            refers.push(may_refer.into());
            offers.push(may_offer.into());
            result_offers.push(of_results.into());
            share_offers.push(of_shares.into());
        }
        Shortcuts { refers, offers, result_offers, share_offers }
    }
}

struct Finder<'g> {
    graph: &'g Graph,
    search: Search<'g>,
    /// Who uses which output chunk of the rank at hand, with two buffers and in place; sorted by chunk.
    uses: [Vec<Use>; 2],
}

/// A move that reads or writes an output chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    chunk: u32,
    lane: LaneId,
    event: Event,
    writes: bool,
}

impl Finder<'_> {
    fn gather_uses(&mut self, rank: Rank, lanes: impl Iterator<Item = LaneId>) {
        let [apart, shared] = &mut self.uses;
        apart.clear();
        shared.clear();
        for lane in lanes {
            let at = &self.graph.lanes[lane as usize];
            for event in at.first..at.end {
                for write in self.graph.writes(event) {
                    if let Write::Output(chunk) = *write {
                        apart.push(Use { chunk, lane, event, writes: true });
                    }
                }
                for read in self.graph.reads(event) {
                    match *read {
                        Read::Output(chunk) => apart.push(Use { chunk, lane, event, writes: false }),
                        Read::Input(chunk) => {
                            let chunk = self.graph.spec.in_place_chunk(rank, chunk);
                            shared.extend(chunk.map(|chunk| Use { chunk, lane, event, writes: false }));
                        }
                        Read::Scratch(_) | Read::Message(_) => {}
                    }
                }
            }
        }
        shared.extend_from_slice(apart);
        self.uses.iter_mut().for_each(|uses| uses.sort_unstable());
    }

    fn uses(&self, chunk: u32, in_place: bool) -> Vec<Use> {
        let uses = &self.uses[usize::from(in_place)];
        let first = uses.partition_point(|one| one.chunk < chunk);
        uses[first..].iter().take_while(|one| one.chunk == chunk).copied().collect()
    }

    /// Who sends what a move receives, the first of its messages.
    fn sender_to(&self, receive: Event) -> Option<Event> {
        self.graph.reads(receive).iter().find_map(|read| match *read {
            Read::Message(message) => Some(self.graph.messages[message as usize].sender),
            _ => None,
        })
    }

    /// Who receives what a move sends.
    fn readers(&self, send: Event) -> Vec<(LaneId, Event)> {
        let messages = self.graph.writes(send).iter().filter_map(|write| match *write {
            Write::Message(message) => Some(&self.graph.messages[message as usize]),
            Write::Output(_) => None,
        });
        messages.map(|m| (self.graph.links[m.link as usize].receiver, m.receiver)).collect()
    }

    /// Whether one move comes before another, or is that move.
    fn comes_before(&mut self, first: (LaneId, Event), then: (LaneId, Event)) -> bool {
        if first.0 == then.0 { first.1 <= then.1 } else { self.search.leads(first, then) }
    }

    /// Whether all receivers of what `send` sends have read it before this rank writes `chunk` again. `None`:
    /// memory that no move writes.
    fn is_stable(&mut self, send: Event, chunk: Option<u32>) -> bool {
        let Some(chunk) = chunk else { return true };
        let sent_at = self.search.time(send);
        let readers = self.readers(send);
        // No races: the writes that can come after the send are those that the tile's order has after it.
        let mut later = self.uses(chunk, false);
        later.retain(|one| one.writes && self.search.time(one.event) > sent_at);
        later
            .iter()
            .all(|write| readers.iter().all(|&reader| self.search.leads(reader, (write.lane, write.event))))
    }

    /// Whether everything that uses `chunk` before `receive`, a move that copies a message into it, has ended before
    /// that message is sent.
    fn is_unused(&mut self, receive: Event, chunk: u32, in_place: bool) -> bool {
        let mut messages = self.graph.reads(receive).iter().filter_map(|read| match *read {
            Read::Message(message) => Some(&self.graph.messages[message as usize]),
            _ => None,
        });
        let Some(message) = messages.next() else { return false };
        let link = &self.graph.links[message.link as usize];
        // Which message of the call comes into which tile is clear only where each tile has one.
        if link.messages() != 1 {
            return false;
        }
        let send = (link.sender, message.sender);
        let received_at = self.search.time(receive);
        let mut earlier = self.uses(chunk, in_place);
        earlier.retain(|one| self.search.time(one.event) < received_at);
        earlier.iter().all(|one| {
            self.comes_before((one.lane, one.event), send)
                && self.readers(one.event).into_iter().all(|reader| self.comes_before(reader, send))
        })
    }
}
