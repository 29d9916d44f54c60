//! A plan with its names resolved: what depends on what.
//!
//! Lanes are straight lines and a link's end belongs to one lane, so almost everything is known before
//! anything runs: which send feeds which receive, and which move wrote a scratch piece last.

use super::{Fault, Limits, Place};
use crate::plan::{Placement, Plan, Rank, Sink, Source, Spec};
use std::collections::HashMap;

/// A move, numbered through all lanes of all ranks.
pub(super) type Event = u32;
/// A message of one tile, numbered through all links.
pub(super) type Message = u32;
/// A lane, numbered through all ranks.
pub(super) type LaneId = u32;

/// What a move reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read {
    Input(u32),
    Output(u32),
    /// A scratch piece, as the move of the same lane that wrote it.
    Scratch(Event),
    Message(Message),
}

/// What a move writes. Scratch needs no entry: its readers name their writer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Write {
    Output(u32),
    Message(Message),
}

pub(super) struct LaneAt {
    pub(super) rank: Rank,
    pub(super) lane: u32,
    /// Its first move.
    pub(super) first: Event,
    /// One past its last move.
    pub(super) end: Event,
}

pub(super) struct LinkAt {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) channel: u16,
    pub(super) sender: LaneId,
    pub(super) receiver: LaneId,
    /// Its first message; its others follow.
    pub(super) first: Message,
    sent: u32,
    received: u32,
}

impl LinkAt {
    /// Messages in a tile.
    pub(super) fn messages(&self) -> u32 {
        self.sent
    }
}

pub(super) struct MessageAt {
    pub(super) link: u32,
    pub(super) sender: Event,
    pub(super) receiver: Event,
}

pub(super) struct Graph {
    pub(super) spec: Spec,
    pub(super) lanes: Vec<LaneAt>,
    pub(super) links: Vec<LinkAt>,
    pub(super) messages: Vec<MessageAt>,
    /// Per move, where its reads and writes end; they start where those of the move before end.
    ends: Vec<(u32, u32)>,
    reads: Vec<Read>,
    writes: Vec<Write>,
}

/// No lane or move yet.
const NONE: u32 = u32::MAX;

impl Graph {
    /// Resolves a plan, or says what in it names something that is not there.
    pub(super) fn new(plan: &Plan, limits: &Limits) -> Result<Graph, Fault> {
        check_spec(plan)?;
        for rank in 0..plan.spec.ranks {
            check_coverage(plan, rank)?;
        }
        let mut builder = Builder::new(plan, limits);
        for (rank, program) in plan.programs.iter().enumerate() {
            for lane in 0..program.lanes.len() {
                builder.lane(plan, rank as u32, lane)?;
            }
        }
        builder.finish()
    }

    pub(super) fn moves(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn reads(&self, event: Event) -> &[Read] {
        let start = if event == 0 { 0 } else { self.ends[event as usize - 1].0 };
        &self.reads[start as usize..self.ends[event as usize].0 as usize]
    }

    pub(super) fn writes(&self, event: Event) -> &[Write] {
        let start = if event == 0 { 0 } else { self.ends[event as usize - 1].1 };
        &self.writes[start as usize..self.ends[event as usize].1 as usize]
    }

    pub(super) fn lane_of(&self, event: Event) -> LaneId {
        self.lanes.partition_point(|lane| lane.end <= event) as u32
    }

    pub(super) fn place(&self, event: Event) -> Place {
        let lane = &self.lanes[self.lane_of(event) as usize];
        Place { rank: lane.rank, lane: lane.lane, step: event - lane.first }
    }

    /// The most messages that any link carries in a tile.
    pub(super) fn busiest_link(&self) -> u32 {
        self.links.iter().map(|link| link.sent).max().unwrap_or(0)
    }

    /// The message `distance` places later on the same link.
    pub(super) fn later(&self, message: Message, distance: u32) -> Option<Message> {
        let later = message.checked_add(distance)?;
        let link = self.messages.get(later as usize)?.link;
        (link == self.messages[message as usize].link).then_some(later)
    }

    /// The message `distance` places earlier on the same link.
    pub(super) fn earlier(&self, message: Message, distance: u32) -> Option<Message> {
        let first = self.links[self.messages[message as usize].link as usize].first;
        message.checked_sub(distance).filter(|&earlier| earlier >= first)
    }
}

fn check_spec(plan: &Plan) -> Result<(), Fault> {
    let Spec { collective, ranks, root, parts, hosts } = plan.spec;
    let fault = |what: String| Err(Fault::Spec { what });
    if ranks == 0 {
        return fault("the plan is for 0 ranks; it needs at least 1".into());
    }
    if parts == 0 {
        return fault("blocks are cut into 0 parts; it needs at least 1".into());
    }
    if Placement::even(ranks, hosts).is_none() {
        return fault(format!("{ranks} ranks cannot lie on {hosts} hosts in equal numbers"));
    }
    if plan.programs.len() as u64 != u64::from(ranks) {
        return fault(format!("the plan has {} programs for {ranks} ranks", plan.programs.len()));
    }
    if root >= ranks {
        return fault(format!("root {root} is not one of the ranks 0 to {}", ranks - 1));
    }
    if root != 0 && !collective.rooted() {
        return fault(format!("{collective} has no root, so that root must be 0, not {root}"));
    }
    if u64::from(ranks) * u64::from(parts) >= u64::from(NONE) {
        return fault(format!("{ranks} blocks of {parts} parts are more chunks than can be numbered"));
    }
    let moves = plan.programs.iter().flat_map(|p| &p.lanes).flat_map(|l| &l.moves);
    let (mut count, mut reads, mut writes) = (0u64, 0u64, 0u64);
    for m in moves {
        count += 1;
        reads += m.from.len() as u64;
        for sink in &m.into {
            writes += if let Sink::Links(links) = sink { links.peers.len() as u64 } else { 1 };
        }
    }
    if count.max(reads).max(writes) >= u64::from(NONE) {
        return fault("the plan has more moves, sources or sinks than can be numbered".into());
    }
    Ok(())
}

/// Every input chunk is read and every output chunk written at least once. Checked first, because it
/// bounds the number of chunks by the size of the plan.
fn check_coverage(plan: &Plan, rank: Rank) -> Result<(), Fault> {
    let moves = || plan.programs[rank as usize].lanes.iter().flat_map(|lane| &lane.moves);
    let read = || {
        moves().flat_map(|m| &m.from).filter_map(|s| if let Source::Input(c) = s { Some(*c) } else { None })
    };
    let written = || {
        moves().flat_map(|m| &m.into).filter_map(|s| if let Sink::Output(c) = s { Some(*c) } else { None })
    };
    if let Some(chunk) = first_absent(read, plan.spec.input_chunks(rank)) {
        return Err(Fault::NeverRead { rank, chunk });
    }
    if let Some(chunk) = first_absent(written, plan.spec.output_chunks(rank)) {
        return Err(Fault::NeverWritten { rank, chunk });
    }
    Ok(())
}

/// The least of `0..len` that is not among `numbers`. Among k numbers, one of 0 … k is absent.
fn first_absent<I: Iterator<Item = u32>>(numbers: impl Fn() -> I, len: u32) -> Option<u32> {
    let bound = (len as usize).min(numbers().count() + 1);
    let mut seen = vec![false; bound];
    for number in numbers() {
        if let Some(seen) = seen.get_mut(number as usize) {
            *seen = true;
        }
    }
    seen.iter().position(|seen| !seen).map(|absent| absent as u32)
}

struct Builder {
    graph: Graph,
    scratch_limit: u32,
    by_name: HashMap<(Rank, Rank, u16), u32>,
    /// Per scratch piece, the move of the current lane that wrote it last.
    scratch: Vec<u32>,
}

impl Builder {
    fn new(plan: &Plan, limits: &Limits) -> Builder {
        let graph = Graph {
            spec: plan.spec,
            lanes: Vec::new(),
            links: Vec::new(),
            messages: Vec::new(),
            ends: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
        };
        Builder { graph, scratch_limit: limits.scratch, by_name: HashMap::new(), scratch: Vec::new() }
    }

    fn lane(&mut self, plan: &Plan, rank: Rank, lane: usize) -> Result<(), Fault> {
        let code = &plan.programs[rank as usize].lanes[lane];
        let lane = lane as u32;
        if code.scratch > self.scratch_limit {
            let limit = self.scratch_limit;
            return Err(Fault::ScratchLimit { rank, lane, scratch: code.scratch, limit });
        }
        self.scratch.clear();
        self.scratch.resize(code.scratch as usize, NONE);
        let first = self.graph.ends.len() as Event;
        let end = first + code.moves.len() as u32;
        self.graph.lanes.push(LaneAt { rank, lane, first, end });
        for (step, m) in code.moves.iter().enumerate() {
            let at = Place { rank, lane, step: step as u32 };
            self.sources(&m.from, at)?;
            self.sinks(&m.into, at, first + step as u32)?;
            let graph = &mut self.graph;
            graph.ends.push((graph.reads.len() as u32, graph.writes.len() as u32));
        }
        Ok(())
    }

    fn sources(&mut self, from: &[Source], at: Place) -> Result<(), Fault> {
        if from.is_empty() {
            return Err(Fault::Empty { at, side: "source" });
        }
        let spec = self.graph.spec;
        let start = self.graph.reads.len();
        for source in from {
            let read = match *source {
                Source::Input(chunk) => {
                    in_bounds(at, "reads", "input chunk", chunk, spec.input_chunks(at.rank))?;
                    Read::Input(chunk)
                }
                Source::Output(chunk) => {
                    in_bounds(at, "reads", "output chunk", chunk, spec.output_chunks(at.rank))?;
                    Read::Output(chunk)
                }
                Source::Scratch(index) => {
                    in_bounds(at, "reads", "scratch", index, self.scratch.len() as u32)?;
                    match self.scratch[index as usize] {
                        NONE => return Err(Fault::Unwritten { at, what: "scratch", index }),
                        writer => Read::Scratch(writer),
                    }
                }
                Source::Link(link) => {
                    let id = self.link(at, link.peer, link.peer, at.rank, link.channel)?;
                    let lane = self.graph.lanes.len() as LaneId - 1;
                    self.own(at, id, lane, "receiving")?;
                    self.graph.links[id as usize].received += 1;
                    Read::Message(id) // the link for now; `finish` puts the message
                }
            };
            self.graph.reads.push(read);
        }
        let mut links: Vec<u32> = Vec::new();
        for read in &self.graph.reads[start..] {
            if let Read::Message(link) = read {
                links.push(*link);
            }
        }
        if let Some(link) = first_repeated(&mut links) {
            let what = format!("receives from rank {}", self.graph.links[link as usize].from);
            return Err(Fault::Twice { at, what });
        }
        Ok(())
    }

    fn sinks(&mut self, into: &[Sink], at: Place, event: Event) -> Result<(), Fault> {
        if into.is_empty() {
            return Err(Fault::Empty { at, side: "sink" });
        }
        let (mut chunks, mut pieces, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for sink in into {
            match sink {
                Sink::Output(chunk) => {
                    let len = self.graph.spec.output_chunks(at.rank);
                    in_bounds(at, "writes", "output chunk", *chunk, len)?;
                    chunks.push(*chunk);
                    self.graph.writes.push(Write::Output(*chunk));
                }
                Sink::Scratch(index) => {
                    in_bounds(at, "writes", "scratch", *index, self.scratch.len() as u32)?;
                    pieces.push(*index);
                    self.scratch[*index as usize] = event;
                }
                Sink::Links(sink) => {
                    if sink.peers.is_empty() {
                        return Err(Fault::Empty { at, side: "peer in a sink" });
                    }
                    for &peer in &sink.peers {
                        let id = self.link(at, peer, at.rank, peer, sink.channel)?;
                        let lane = self.graph.lanes.len() as LaneId - 1;
                        self.own(at, id, lane, "sending")?;
                        self.graph.links[id as usize].sent += 1;
                        links.push(id);
                        self.graph.writes.push(Write::Message(id));
                    }
                }
            }
        }
        let what = if let Some(chunk) = first_repeated(&mut chunks) {
            format!("writes output chunk {chunk}")
        } else if let Some(piece) = first_repeated(&mut pieces) {
            format!("writes scratch {piece}")
        } else if let Some(link) = first_repeated(&mut links) {
            format!("sends to rank {}", self.graph.links[link as usize].to)
        } else {
            return Ok(());
        };
        Err(Fault::Twice { at, what })
    }

    /// The number of a link.
    fn link(&mut self, at: Place, peer: Rank, from: Rank, to: Rank, channel: u16) -> Result<u32, Fault> {
        if peer >= self.graph.spec.ranks || peer == at.rank {
            return Err(Fault::Peer { at, peer, ranks: self.graph.spec.ranks });
        }
        let links = &mut self.graph.links;
        let id = *self.by_name.entry((from, to, channel)).or_insert(links.len() as u32);
        if id as usize == links.len() {
            let (sender, receiver) = (NONE, NONE);
            links.push(LinkAt { from, to, channel, sender, receiver, first: 0, sent: 0, received: 0 });
        }
        Ok(id)
    }

    /// Makes `lane` the owner of an end of a link.
    fn own(&mut self, at: Place, link: u32, lane: LaneId, end: &'static str) -> Result<(), Fault> {
        let link = &mut self.graph.links[link as usize];
        let owner = if end == "sending" { &mut link.sender } else { &mut link.receiver };
        if *owner == NONE {
            *owner = lane;
        }
        if *owner == lane {
            return Ok(());
        }
        let owner = self.graph.lanes[*owner as usize].lane;
        let (from, to, channel) = (link.from, link.to, link.channel);
        Err(Fault::SharedLink { at, end, from, to, channel, owner })
    }

    /// Numbers the messages and joins both ends of each.
    fn finish(self) -> Result<Graph, Fault> {
        let mut graph = self.graph;
        let mut first = 0u32;
        for link in &mut graph.links {
            link.first = first;
            first += link.sent.min(link.received);
        }
        let unknown = || MessageAt { link: NONE, sender: NONE, receiver: NONE };
        graph.messages.resize_with(first as usize, unknown);
        let mut seen = vec![(0u32, 0u32); graph.links.len()];
        let (mut read, mut write) = (0, 0);
        for event in 0..graph.ends.len() as Event {
            let ends = graph.ends[event as usize];
            for index in std::mem::replace(&mut write, ends.1 as usize)..ends.1 as usize {
                let Write::Message(id) = graph.writes[index] else { continue };
                let link = &graph.links[id as usize];
                let nth = &mut seen[id as usize].0;
                if *nth == link.received {
                    let (to, channel, received) = (link.to, link.channel, link.received);
                    return Err(Fault::Unreceived { at: graph.place(event), to, channel, received });
                }
                let message = link.first + *nth;
                *nth += 1;
                graph.writes[index] = Write::Message(message);
                graph.messages[message as usize].sender = event;
                graph.messages[message as usize].link = id;
            }
            for index in std::mem::replace(&mut read, ends.0 as usize)..ends.0 as usize {
                let Read::Message(id) = graph.reads[index] else { continue };
                let link = &graph.links[id as usize];
                let nth = &mut seen[id as usize].1;
                if *nth == link.sent {
                    let (from, channel, sent) = (link.from, link.channel, link.sent);
                    return Err(Fault::Unsent { at: graph.place(event), from, channel, sent });
                }
                let message = link.first + *nth;
                *nth += 1;
                graph.reads[index] = Read::Message(message);
                graph.messages[message as usize].receiver = event;
            }
        }
        Ok(graph)
    }
}

fn in_bounds(at: Place, verb: &'static str, what: &'static str, index: u32, len: u32) -> Result<(), Fault> {
    if index < len { Ok(()) } else { Err(Fault::OutOfBounds { at, verb, what, index, len }) }
}

/// The least number that is there twice. Sorts.
fn first_repeated(numbers: &mut [u32]) -> Option<u32> {
    numbers.sort_unstable();
    numbers.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
