//! Binding a program to link ends.

use super::layout::Place;
use super::reaches::Reaches;
use super::references::{Lending, Refers};
use super::schedule::{Code, End, Machine, Operand, Schedule, Share};
use super::stages;
use crate::error::{Error, Result};
use crate::kernels::{self, Direction, PieceMut, Slab};
use crate::plan::{Program, Rank, Sink, Source, Spec};
use crate::transport::{ReceiverId, SenderId, Transport};

/// Where the ends of links come from: a transport, or a communicator that spans several.
pub trait Links {
    /// The sending ends that together reach all of `peers`: one per transport involved.
    fn senders(&mut self, peers: &[Rank], channel: u16) -> Result<Vec<SenderId>>;

    /// The receiving end of the link from `peer`.
    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId>;
}

/// Those of a transport that reaches all peers by itself.
impl<T: Transport> Links for T {
    fn senders(&mut self, peers: &[Rank], channel: u16) -> Result<Vec<SenderId>> {
        Ok(vec![self.sender(peers, channel)?])
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        Transport::receiver(self, peer, channel)
    }
}

impl Schedule {
    /// Binds the program of `rank`, which the verifier has accepted.
    pub fn bind(spec: &Spec, rank: Rank, program: &Program, links: &mut dyn Links) -> Result<Schedule> {
        let mut binder = Binder { spec, rank, links, operands: Vec::new(), ends: Vec::new() };
        let mut moves = Vec::new();
        let (mut scratch, mut widest) = (0, (0, 0));
        for (index, lane) in program.lanes.iter().enumerate() {
            for mv in &lane.moves {
                let from = binder.operands.len();
                for source in &mv.from {
                    binder.source(source, scratch, lane.scratch).map_err(|e| e.in_lane(rank, index))?;
                }
                let into = binder.operands.len();
                for sink in &mv.into {
                    binder.sink(sink, scratch, lane.scratch).map_err(|e| e.in_lane(rank, index))?;
                }
                let end = binder.operands.len();
                if from == into || into == end {
                    return Err(Unbound::Plan("a move without source or sink".into()).in_lane(rank, index));
                }
                // Each receiver of what is sent may have memory of its own for it.
                let ends = binder.operands[into..end].iter().map(|operand| match operand {
                    Operand::Send { end, .. } => binder.ends[*end as usize].peers.len(),
                    _ => 1,
                });
                let sinks: usize = ends.sum();
                widest = (widest.0.max(into - from), widest.1.max(sinks));
                let sends = |operand: &&Operand| matches!(operand, Operand::Send { .. });
                let kept = binder.operands[into..end].iter().filter(|operand| !sends(operand)).count();
                let has_one_receiver = sinks - kept == 1;
                let reaches = Reaches::of_result(mv, &binder.operands[into..end]);
                let refers = Refers::default();
                let (from, into, end) = (from as u32, into as u32, end as u32);
                moves.push(Code { from, into, end, refers, reaches, has_one_receiver });
            }
            scratch += lane.scratch;
        }
        // Every lane gets its turn within the bound of a step.
        const MOVES_PER_STEP: usize = 64;
        let stages = stages::stages(program);
        let machine = Machine {
            quantum: (MOVES_PER_STEP / stages.len().max(1)).max(1),
            lanes: Vec::with_capacity(stages.len()),
            whole: stages::whole(program).into(),
            stages: stages.into(),
            moves,
            operands: binder.operands,
            reduces: spec.collective.reduces(),
            running: 0,
            scratch: Slab::default(),
            scratch_len: vec![0; scratch as usize],
            sources: vec![kernels::Source { piece: kernels::Piece::EMPTY, scaled: false }; widest.0],
            sinks: vec![PieceMut::EMPTY; widest.1],
            lending: Lending::new(binder.ends.len()),
            landings: Vec::new(),
            is_to_offer: false,
            direction: Direction::Forwards,
            stride: 0,
        };
        Ok(Schedule {
            spec: *spec,
            rank,
            ends: binder.ends,
            task: None,
            is_running: false,
            tag: 0,
            sequence: 0,
            share: Share::WHOLE,
            machine,
        })
    }
}

/// Turns the plan's sources and sinks into operands.
struct Binder<'a> {
    spec: &'a Spec,
    rank: Rank,
    links: &'a mut dyn Links,
    operands: Vec<Operand>,
    ends: Vec<End>,
}

/// Why an operand cannot be bound.
enum Unbound {
    Plan(String),
    Links(Error),
}

impl Unbound {
    #[cold]
    fn in_lane(self, rank: Rank, lane: usize) -> Error {
        match self {
            Unbound::Plan(what) => {
                crate::error::ErrorKind::PlanRejected(format!("rank {rank}, lane {lane}: {what}")).into()
            }
            Unbound::Links(error) => error,
        }
    }
}

impl Binder<'_> {
    fn source(&mut self, source: &Source, scratch_base: u32, scratch: u32) -> Result<(), Unbound> {
        let operand = match *source {
            Source::Input(chunk) => Operand::Input(self.place(chunk, self.spec.input_chunks(self.rank))?),
            Source::Output(chunk) => Operand::Output(self.place(chunk, self.spec.output_chunks(self.rank))?),
            Source::Scratch(index) => Operand::Scratch(scratch_base + inside(index, scratch)?),
            Source::Link(link) => {
                let from = self.links.receiver(link.peer, link.channel).map_err(Unbound::Links)?;
                Operand::Receive { from, end: self.end(vec![link.peer], link.channel) }
            }
        };
        self.operands.push(operand);
        Ok(())
    }

    fn sink(&mut self, sink: &Sink, scratch_base: u32, scratch: u32) -> Result<(), Unbound> {
        match sink {
            Sink::Output(chunk) => {
                let place = self.place(*chunk, self.spec.output_chunks(self.rank))?;
                self.operands.push(Operand::Output(place));
            }
            Sink::Scratch(index) => {
                self.operands.push(Operand::Scratch(scratch_base + inside(*index, scratch)?));
            }
            Sink::Links(links) => {
                let senders = self.links.senders(&links.peers, links.channel).map_err(Unbound::Links)?;
                let end = self.end(links.peers.clone(), links.channel);
                self.operands.extend(senders.into_iter().map(|to| Operand::Send { to, end }));
            }
        }
        Ok(())
    }

    fn place(&self, chunk: u32, chunks: u32) -> Result<Place, Unbound> {
        if chunk >= chunks {
            return Err(Unbound::Plan(format!("chunk {chunk} of a buffer of {chunks} chunks")));
        }
        Ok(Place::of(chunk, self.spec.parts))
    }

    fn end(&mut self, peers: Vec<Rank>, channel: u16) -> u32 {
        self.ends.push(End { peers, channel });
        self.ends.len() as u32 - 1
    }
}

fn inside(index: u32, scratch: u32) -> Result<u32, Unbound> {
    if index >= scratch {
        return Err(Unbound::Plan(format!("scratch piece {index} of {scratch}")));
    }
    Ok(index)
}
