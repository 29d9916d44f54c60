//! Writing programs.

use super::layout::*;
use super::{Direction, End, ProgramError};
use ccl_core::engine::{Layout, mix};
use ccl_core::plan::{self, Move, Rank, Sink, Source, Spec};
use std::ops::Range;

/// How links are made, and how a call is shared out. All ranks of a call must be given the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a link's slot: whole lines of 64, and no fewer than a tile has.
    pub slot_bytes: usize,
    /// Slots of a link, for each share: a power of two.
    pub credits: u32,
    /// Thread blocks that share a lane: each runs every so many-th tile, over slots of its own.
    pub shares: u32,
}

impl Geometry {
    pub(super) fn check(&self, tile_bytes: usize) -> Result<(), ProgramError> {
        let wrong = |what, found, wanted| Err(ProgramError::Geometry { what, found, wanted });
        if self.slot_bytes == 0 || !self.slot_bytes.is_multiple_of(LINE) || self.slot_bytes > MAX_SLOT_BYTES {
            return wrong("slots", self.slot_bytes, "whole lines of 64 bytes, less than 16 MiB");
        }
        if tile_bytes == 0 || !tile_bytes.is_multiple_of(LINE) || tile_bytes > self.slot_bytes {
            return wrong("tiles", tile_bytes, "whole lines of 64 bytes, no longer than a slot");
        }
        if !self.credits.is_power_of_two() || self.credits > MAX_CREDITS {
            return wrong("credits", self.credits as usize, "a power of two, up to 16384");
        }
        if self.shares == 0 {
            return wrong("shares", 0, "at least one");
        }
        Ok(())
    }
}

/// One rank's part of a plan, for buffers of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(super) words: Vec<u64>,
    pub(super) ends: Vec<End>,
    pub(super) lanes: usize,
    pub(super) scratches: usize,
    pub(super) geometry: Geometry,
    pub(super) input_bytes: usize,
    pub(super) output_bytes: usize,
}

impl Program {
    /// A rank's program, for buffers that are cut like this. The plan must be one that the verifier accepts with these credits.
    ///
    /// Blocks may differ in length. Where a rank knows the lengths of its own blocks only, each lane is run as often as its own
    /// chunks need, as on the host.
    pub fn encode(
        program: &plan::Program,
        layout: &Layout,
        geometry: Geometry,
    ) -> Result<Program, ProgramError> {
        geometry.check(layout.tile_bytes())?;
        let (spec, rank) = (layout.spec(), layout.rank());
        let workers = program.lanes.len().saturating_mul(geometry.shares as usize);
        if workers > MAX_WORKERS {
            let (lanes, shares, limit) = (program.lanes.len(), geometry.shares, MAX_WORKERS);
            return Err(ProgramError::Workers { rank, lanes, shares, limit });
        }
        let mut writer = Writer {
            spec,
            rank,
            layout,
            lane: 0,
            mv: 0,
            ends: Vec::new(),
            longest: None,
            operands: Vec::new(),
        };
        let (mut lanes, mut moves, mut ends, mut scratches) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (index, lane) in program.lanes.iter().enumerate() {
            writer.lane = index;
            let first = moves.len() / MOVE;
            for (mv, code) in lane.moves.iter().enumerate() {
                writer.mv = mv;
                moves.extend(writer.mv(code, lane.scratch)?);
            }
            let own = std::mem::take(&mut writer.ends);
            writer.bound("ends of links", own.len(), MAX_ENDS)?;
            writer.bound("scratch pieces", lane.scratch as usize, MAX_SCRATCH)?;
            // All lanes together have numbers of 16 bits too.
            writer.bound("ends of links up to it", ends.len() + own.len(), usize::from(u16::MAX))?;
            writer.bound(
                "scratch pieces up to it",
                scratches + lane.scratch as usize,
                usize::from(u16::MAX),
            )?;
            lanes.push(pair(first as u32, lane.moves.len() as u32));
            lanes.push(four([ends.len(), own.len(), scratches, lane.scratch as usize]));
            lanes.push(writer.tiles()?.into());
            ends.extend(own);
            scratches += lane.scratch as usize;
        }
        let operands = writer.operands;
        let all = HEADER + lanes.len() + moves.len() + operands.len();
        let mut words = vec![
            MAGIC | u64::from(VERSION),
            pair(all as u32, program.lanes.len() as u32),
            pair(rank, spec.ranks),
            pair((moves.len() / MOVE) as u32, operands.len() as u32),
            pair(layout.tile_bytes() as u32, geometry.slot_bytes as u32),
            pair(0, geometry.credits),
            pair(geometry.shares, scratches as u32),
            pair(spec.collective.reduces().into(), ends.len() as u32),
        ];
        words.extend(lanes.into_iter().chain(moves).chain(operands));
        Ok(Program {
            words,
            ends,
            lanes: program.lanes.len(),
            scratches,
            geometry,
            input_bytes: layout.input_bytes(),
            output_bytes: layout.output_bytes(),
        })
    }

    /// What the kernel reads.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The ends of links that it uses, in the order in which the kernel wants their memory.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Thread blocks that run it: lanes times shares.
    pub fn workers(&self) -> usize {
        self.lanes * self.geometry.shares as usize
    }

    /// Bytes of scratch memory for all workers.
    pub fn scratch_bytes(&self) -> usize {
        self.scratches * self.geometry.slot_bytes * self.geometry.shares as usize
    }

    /// How its links are made.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Bytes that it reads of the send buffer and writes of the receive buffer: no buffer may be shorter.
    pub fn buffer_bytes(&self) -> (usize, usize) {
        (self.input_bytes, self.output_bytes)
    }
}

/// Four numbers in a word; they are bounded before.
pub(super) fn four(numbers: [usize; 4]) -> u64 {
    numbers.iter().rev().fold(0, |word, &number| word << 16 | number as u64)
}

/// Writes the moves of a program.
struct Writer<'a> {
    spec: &'a Spec,
    rank: Rank,
    layout: &'a Layout,
    // Where it is.
    lane: usize,
    mv: usize,
    /// Ends of the lane.
    ends: Vec<End>,
    /// The longest of its chunks, if it has any.
    longest: Option<usize>,
    /// Operands of the program.
    operands: Vec<u64>,
}

impl Writer<'_> {
    fn mv(&mut self, mv: &Move, scratch: u32) -> Result<[u64; MOVE], ProgramError> {
        let first = self.operands.len();
        let mut chunk = None;
        for source in &mv.from {
            let word = match *source {
                Source::Input(index) => {
                    self.chunk(INPUT, index, self.spec.input_chunks(self.rank), &mut chunk)?
                }
                Source::Output(index) => {
                    self.chunk(OUTPUT, index, self.spec.output_chunks(self.rank), &mut chunk)?
                }
                Source::Scratch(index) => self.scratch(index, scratch)?,
                Source::Link(link) => self.end(Direction::Receive, link.peer, link.channel, first)?,
            };
            self.operands.push(word);
        }
        let sources = self.operands.len() - first;
        for sink in &mv.into {
            match sink {
                Sink::Output(index) => {
                    let word = self.chunk(OUTPUT, *index, self.spec.output_chunks(self.rank), &mut chunk)?;
                    self.operands.push(word);
                }
                Sink::Scratch(index) => {
                    let word = self.scratch(*index, scratch)?;
                    self.operands.push(word);
                }
                Sink::Links(links) => {
                    for &peer in &links.peers {
                        let word = self.end(Direction::Send, peer, links.channel, first)?;
                        self.operands.push(word);
                    }
                }
            }
        }
        let sinks = self.operands.len() - first - sources;
        if sources == 0 || sinks == 0 {
            return Err(self.wrong("a move without source or sink".into()));
        }
        self.bound("operands of a move", sources + sinks, MAX_OPERANDS)?;
        // Of a block that no other rank knows its two have to find out whether they mean the same.
        let salt = match chunk {
            Some(bytes) if self.layout.is_pairwise() => salt(mix(0, bytes as u64 + 1)),
            _ => 0,
        };
        let counts =
            sources as u32 | (sinks as u32) << 8 | u32::from(chunk.is_some()) << 16 | salt << SALT_SHIFT;
        Ok([pair(first as u32, counts), chunk.unwrap_or(0) as u64])
    }

    /// A chunk's word. All chunks of a move are of one length, which is kept in `len`.
    fn chunk(
        &mut self,
        kind: u64,
        index: u32,
        chunks: u32,
        len: &mut Option<usize>,
    ) -> Result<u64, ProgramError> {
        if index >= chunks {
            return Err(self.wrong(format!("chunk {index} of a buffer of {chunks} chunks")));
        }
        let Range { start, end } =
            if kind == INPUT { self.layout.input_chunk(index) } else { self.layout.output_chunk(index) };
        if *len.get_or_insert(end - start) != end - start {
            return Err(self.wrong(format!("chunk {index} has another length than the others of the move")));
        }
        self.longest = self.longest.max(Some(end - start));
        Ok(kind << KIND_SHIFT | start as u64)
    }

    /// How often the lane is run, whose moves are written.
    fn tiles(&mut self) -> Result<u32, ProgramError> {
        let tiles = match self.longest.take() {
            Some(longest) if self.layout.is_pairwise() => self.layout.tiles_of(longest),
            _ => self.layout.tiles(),
        };
        u32::try_from(tiles).map_err(|_| ProgramError::Geometry {
            what: "tiles",
            found: self.layout.tile_bytes(),
            wanted: "longer: the call has 2^32 of them",
        })
    }

    fn scratch(&self, index: u32, pieces: u32) -> Result<u64, ProgramError> {
        if index >= pieces {
            return Err(self.wrong(format!("scratch piece {index} of {pieces}")));
        }
        Ok(SCRATCH << KIND_SHIFT | u64::from(index))
    }

    /// An end's word, of a move whose operands begin at `first`.
    fn end(
        &mut self,
        direction: Direction,
        peer: Rank,
        channel: u16,
        first: usize,
    ) -> Result<u64, ProgramError> {
        if peer >= self.spec.ranks || peer == self.rank {
            return Err(self.wrong(format!("a link with rank {peer} of {}", self.spec.ranks)));
        }
        let end = End { direction, peer, channel };
        let index = self.ends.iter().position(|known| *known == end).unwrap_or_else(|| {
            self.ends.push(end);
            self.ends.len() - 1
        });
        let kind = if direction == Direction::Receive { RECEIVE } else { SEND };
        let word = kind << KIND_SHIFT | index as u64;
        // One piece of a link in a move: a second one would be the same piece.
        if self.operands[first..].contains(&word) {
            return Err(self.wrong(format!("the link with rank {peer} twice")));
        }
        Ok(word)
    }

    fn bound(&self, what: &'static str, found: usize, limit: usize) -> Result<(), ProgramError> {
        if found <= limit {
            return Ok(());
        }
        Err(ProgramError::TooMany { rank: self.rank, lane: self.lane, what, found, limit })
    }

    fn wrong(&self, what: String) -> ProgramError {
        ProgramError::Plan { rank: self.rank, lane: self.lane, mv: self.mv, what }
    }
}
