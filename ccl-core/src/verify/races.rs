//! Whether lanes of one rank meet in memory without an order.
//!
//! Two moves are ordered when they stand in one lane, or when a chain of messages leads from one to the
//! other. Credits order nothing here: how many there are is the transport's choice.

use super::Fault;
use super::graph::{Event, Graph, LaneId, Read, Write};

/// A move touches an output chunk of its rank.
struct Access {
    chunk: u32,
    /// The place of the move in the order in which the tile ran, which respects all messages.
    time: u32,
    lane: LaneId,
    event: Event,
    writes: bool,
}

/// Finds two moves that race; with `in_place`, reads of inputs count where they lie on outputs.
pub(super) fn find(graph: &Graph, order: &[Event], in_place: bool) -> Result<(), Fault> {
    let mut search = None;
    let lanes: Vec<LaneId> = (0..graph.lanes.len() as LaneId).collect();
    let rank_of = |&lane: &LaneId| graph.lanes[lane as usize].rank;
    for lanes in lanes.chunk_by(|a, b| rank_of(a) == rank_of(b)) {
        if lanes.len() < 2 {
            continue;
        }
        let search = search.get_or_insert_with(|| Search::new(graph, order));
        let mut accesses = accesses(graph, lanes, &search.times, in_place);
        accesses.sort_unstable_by_key(|access| (access.chunk, access.time, access.writes));
        for meeting in accesses.chunk_by(|a, b| a.chunk == b.chunk) {
            if let Some((first, second)) = search.race(meeting) {
                let what = if in_place { "input and output" } else { "output" };
                let (first, second) = (graph.place(first), graph.place(second));
                return Err(Fault::Race { first, second, what, chunk: meeting[0].chunk });
            }
        }
    }
    Ok(())
}

fn accesses(graph: &Graph, lanes: &[LaneId], times: &[u32], in_place: bool) -> Vec<Access> {
    let mut accesses = Vec::new();
    for &lane in lanes {
        let at = &graph.lanes[lane as usize];
        for event in at.first..at.end {
            let time = times[event as usize];
            let reads = graph.reads(event).iter().filter_map(|&read| match read {
                Read::Output(chunk) => Some(chunk),
                Read::Input(chunk) if in_place => graph.spec.in_place_chunk(at.rank, chunk),
                _ => None,
            });
            accesses.extend(reads.map(|chunk| Access { chunk, time, lane, event, writes: false }));
            for &write in graph.writes(event) {
                if let Write::Output(chunk) = write {
                    accesses.push(Access { chunk, time, lane, event, writes: true });
                }
            }
        }
    }
    accesses
}

/// Asks whether messages lead from one move to another.
pub(super) struct Search<'g> {
    graph: &'g Graph,
    times: Vec<u32>,
    /// Per lane, how far it was explored, and in which query.
    explored: Vec<(Event, u32)>,
    query: u32,
}

impl<'g> Search<'g> {
    pub(super) fn new(graph: &'g Graph, order: &[Event]) -> Search<'g> {
        let mut times = vec![0; order.len()];
        for (time, &event) in order.iter().enumerate() {
            times[event as usize] = time as u32;
        }
        Search { graph, times, explored: vec![(0, 0); graph.lanes.len()], query: 0 }
    }

    /// The place of a move in the order in which the tile ran.
    pub(super) fn time(&self, event: Event) -> u32 {
        self.times[event as usize]
    }

    /// Two accesses to one chunk that are not ordered. It is enough to compare each with the last write
    /// before it, and each write with the reads since.
    fn race(&mut self, accesses: &[Access]) -> Option<(Event, Event)> {
        let mut written: Option<&Access> = None;
        let mut reads: Vec<&Access> = Vec::new();
        for access in accesses {
            let before = written.iter().chain(if access.writes { &reads[..] } else { &[] });
            for earlier in before {
                if earlier.lane != access.lane
                    && !self.leads((earlier.lane, earlier.event), (access.lane, access.event))
                {
                    return Some((earlier.event, access.event));
                }
            }
            if access.writes {
                written = Some(access);
                reads.clear();
            } else {
                reads.retain(|read| read.lane != access.lane);
                reads.push(access);
            }
        }
        None
    }

    /// Whether a chain of messages leads from `start` to `end`: goes back from `end`, no further than the
    /// time of `start`.
    pub(super) fn leads(&mut self, start: (LaneId, Event), end: (LaneId, Event)) -> bool {
        let graph = self.graph;
        let (start_lane, start_event) = start;
        let start_time = self.time(start_event);
        self.query += 1;
        let mut open = vec![end];
        while let Some((lane, last)) = open.pop() {
            let first = graph.lanes[lane as usize].first;
            let (explored, query) = self.explored[lane as usize];
            let from = if query == self.query { explored } else { first };
            if from > last {
                continue;
            }
            self.explored[lane as usize] = (last + 1, self.query);
            for event in (from..=last).rev() {
                if self.times[event as usize] <= start_time {
                    break;
                }
                for &read in graph.reads(event) {
                    let Read::Message(message) = read else { continue };
                    let message = &graph.messages[message as usize];
                    let sender = graph.links[message.link as usize].sender;
                    if sender == start_lane && message.sender >= start_event {
                        return true;
                    }
                    if self.times[message.sender as usize] > start_time {
                        open.push((sender, message.sender));
                    }
                }
            }
        }
        false
    }
}
