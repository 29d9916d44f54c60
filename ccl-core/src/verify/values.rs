//! Runs one tile on symbols instead of numbers, and compares the result with what was asked for.

use super::fault::Contribution;
use super::graph::{Event, Graph, Read, Write};
use super::shapes::{Census, Counter, Shape, Shapes, mix};
use super::{Fault, Order};
use crate::plan::{Collective, Rank, Spec};

/// What a piece holds: the chunk numbered `index` of several ranks' inputs, combined as `shape` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) shape: Shape,
    pub(super) index: u32,
}

const UNWRITTEN: Value = Value { shape: u32::MAX, index: u32::MAX };
/// An output chunk that no move has written.
const NOBODY: Event = u32::MAX;

/// One tile on symbols.
pub(super) struct Tile<'g> {
    graph: &'g Graph,
    in_place: bool,
    pub(super) shapes: Shapes,
    /// Per rank, its first output chunk in `outputs`.
    first: Vec<usize>,
    outputs: Vec<Value>,
    written_by: Vec<Event>,
    /// What each move wrote.
    results: Vec<Value>,
}

impl<'g> Tile<'g> {
    /// Runs the moves in this order; with `in_place`, input and output share their memory.
    pub(super) fn run(graph: &'g Graph, order: &[Event], in_place: bool) -> Result<Tile<'g>, Fault> {
        let spec = &graph.spec;
        let mut first = Vec::with_capacity(spec.ranks as usize);
        let mut len = 0;
        for rank in 0..spec.ranks {
            first.push(len);
            len += spec.output_chunks(rank) as usize;
        }
        let mut tile = Tile {
            graph,
            in_place,
            shapes: Shapes::new(spec.ranks),
            first,
            outputs: vec![UNWRITTEN; len],
            written_by: vec![NOBODY; len],
            results: vec![UNWRITTEN; graph.moves()],
        };
        if in_place {
            for rank in 0..spec.ranks {
                for index in 0..spec.input_chunks(rank) {
                    if let Some(output) = spec.in_place_chunk(rank, index) {
                        let cell = tile.cell(rank, output);
                        tile.outputs[cell] = Value { shape: rank, index };
                    }
                }
            }
        }
        let mut shapes = Vec::new();
        let mut lane = 0;
        for &event in order {
            // Moves of a lane come in runs, so the lane is mostly the one before.
            if !(graph.lanes[lane].first..graph.lanes[lane].end).contains(&event) {
                lane = graph.lane_of(event) as usize;
            }
            tile.step(event, graph.lanes[lane].rank, &mut shapes)?;
        }
        Ok(tile)
    }

    fn cell(&self, rank: Rank, output: u32) -> usize {
        self.first[rank as usize] + output as usize
    }

    fn step(&mut self, event: Event, rank: Rank, shapes: &mut Vec<Shape>) -> Result<(), Fault> {
        let graph = self.graph;
        shapes.clear();
        let mut index = None;
        for (i, &read) in graph.reads(event).iter().enumerate() {
            let value = self.read(event, rank, read)?;
            if *index.get_or_insert(value.index) != value.index {
                let first = Value { shape: shapes[0], index: index.unwrap_or_default() };
                let (first, other) = (self.contribution(first), self.contribution(value));
                return Err(Fault::Mixed { at: graph.place(event), first, source_index: i, other });
            }
            shapes.push(value.shape);
        }
        let shape = match shapes[..] {
            [one] => one,
            _ if graph.spec.collective.reduces() => self.shapes.fold(shapes),
            _ => {
                let (at, collective) = (graph.place(event), graph.spec.collective);
                return Err(Fault::Combines { at, sources: shapes.len(), collective });
            }
        };
        let value = Value { shape, index: index.unwrap_or_default() };
        self.results[event as usize] = value;
        for &write in graph.writes(event) {
            if let Write::Output(chunk) = write {
                let (part, wants) = (value.index % graph.spec.parts, chunk % graph.spec.parts);
                if part != wants {
                    return Err(Fault::WrongPart { at: graph.place(event), part, chunk, wants });
                }
                let cell = self.cell(rank, chunk);
                self.outputs[cell] = value;
                self.written_by[cell] = event;
            }
        }
        Ok(())
    }

    fn read(&self, event: Event, rank: Rank, read: Read) -> Result<Value, Fault> {
        let output = match read {
            Read::Scratch(writer) => return Ok(self.results[writer as usize]),
            Read::Message(message) => {
                return Ok(self.results[self.graph.messages[message as usize].sender as usize]);
            }
            Read::Input(index) => match self.graph.spec.in_place_chunk(rank, index) {
                Some(output) if self.in_place => output,
                _ => return Ok(Value { shape: rank, index }),
            },
            Read::Output(output) => output,
        };
        match self.outputs[self.cell(rank, output)] {
            UNWRITTEN => {
                let at = self.graph.place(event);
                Err(Fault::Unwritten { at, what: "output chunk", index: output })
            }
            value => Ok(value),
        }
    }

    fn contribution(&self, value: Value) -> Contribution {
        Contribution { rank: self.shapes.some_rank(value.shape), chunk: value.index }
    }

    /// Whether every output chunk holds what the collective says, each contribution once.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let spec = &self.graph.spec;
        let mut counter = Counter::new(&self.shapes);
        for rank in 0..spec.ranks {
            for chunk in 0..spec.output_chunks(rank) {
                let cell = self.cell(rank, chunk);
                let by = self.written_by[cell];
                if by == NOBODY {
                    return Err(Fault::NeverWritten { rank, chunk });
                }
                let by = self.graph.place(by);
                let value = self.outputs[cell];
                let (from, index) = wanted(spec, rank, chunk);
                let wrong = value.index != index || from.is_some_and(|from| from != value.shape);
                if wrong {
                    let holds = self.contribution(value);
                    let wants = Contribution { rank: from.unwrap_or(holds.rank), chunk: index };
                    return Err(Fault::Misplaced { rank, chunk, by, holds, wants });
                }
                if from.is_some() {
                    continue;
                }
                match counter.count(&self.shapes, value.shape) {
                    Census::Exact => {}
                    Census::Missing(absent) => {
                        let missing = Contribution { rank: absent, chunk: index };
                        return Err(Fault::Missing { rank, chunk, by, missing });
                    }
                    Census::Double(twice, shape) => {
                        let double = Contribution { rank: twice, chunk: index };
                        let maker = Value { shape, index };
                        let at = self.results.iter().position(|&result| result == maker);
                        let at = at.map_or(by, |event| self.graph.place(event as Event));
                        return Err(Fault::Double { at, double, rank, chunk });
                    }
                }
            }
        }
        Ok(())
    }

    /// What the results say about the order of reduction.
    pub(super) fn order(&self) -> Order {
        let spec = &self.graph.spec;
        let mut order = Order { same_on_every_rank: true, same_at_every_size: true, rank_order: true };
        let mut known = None;
        for rank in 0..spec.ranks {
            for chunk in 0..spec.output_chunks(rank) {
                let shape = self.outputs[self.cell(rank, chunk)].shape;
                if spec.collective == Collective::AllReduce {
                    order.same_on_every_rank &= shape == self.outputs[self.cell(0, chunk)].shape;
                }
                if spec.collective.reduces() {
                    order.same_at_every_size &= shape == self.outputs[self.cell(rank, 0)].shape;
                    if known != Some(shape) {
                        order.rank_order &= self.shapes.is_rank_order(shape);
                        known = Some(shape);
                    }
                }
            }
        }
        order
    }

    /// 64 bits that stand for everything that the output chunks hold, orders included.
    pub(super) fn digest(&self) -> u64 {
        let start = self.outputs.len() as u64;
        self.outputs
            .iter()
            .fold(start, |d, value| mix(mix(d, self.shapes.digest(value.shape)), u64::from(value.index)))
    }
}

/// What an output chunk must hold in the end: which chunk of the inputs, and whose (`None`: everybody's,
/// reduced).
fn wanted(spec: &Spec, rank: Rank, chunk: u32) -> (Option<Rank>, u32) {
    let (block, part) = (chunk / spec.parts, chunk % spec.parts);
    match spec.collective {
        Collective::AllReduce | Collective::Reduce => (None, part),
        Collective::ReduceScatter => (None, spec.chunk(rank, part)),
        Collective::Broadcast | Collective::SendRecv => (Some(spec.root), part),
        Collective::AllGather | Collective::Gather => (Some(block), part),
        Collective::AllToAll => (Some(block), spec.chunk(rank, part)),
        Collective::Scatter => (Some(spec.root), spec.chunk(rank, part)),
    }
}
