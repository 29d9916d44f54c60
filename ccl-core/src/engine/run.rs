//! Running a schedule, step by step.

use super::layout::Layout;
use super::schedule::{Call, Lane, Operand, READY, Schedule};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use crate::simd::{Buffers, Source};
use crate::transport::{Arrival, Fabric};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is complete on this rank.
    Done,
    /// Some move was made, and others are left.
    Moved,
    /// Every lane waits for a link; [`Schedule::waits`] says which.
    Blocked,
}

/// What a lane was waiting for when it was last tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait<'a> {
    /// The lane, as numbered in the program.
    pub lane: usize,
    /// The move, as numbered in the lane.
    pub mv: usize,
    /// The tile.
    pub tile: usize,
    /// The link.
    pub on: WaitOn<'a>,
}

/// A link that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOn<'a> {
    /// The next piece from a peer.
    Piece {
        /// Who sends.
        peer: Rank,
        /// Which of the links from it.
        channel: u16,
    },
    /// A free slot: one of these peers has not released enough pieces.
    Credit {
        /// Who receives.
        peers: &'a [Rank],
        /// Which of the links to them.
        channel: u16,
    },
}

impl Schedule {
    /// Runs every lane as far as its links let it, at most some 64 moves in all.
    ///
    /// `buffers` must be the same at every step of a call. After `Done` no call runs any more, and the
    /// output holds the result.
    #[inline]
    pub fn step<F: Fabric + ?Sized>(&mut self, fabric: &mut F, buffers: &Buffers<'_>) -> Result<Progress> {
        let Some(call) = self.call else {
            return Err(Error::invalid("a step without a call", "start one"));
        };
        if buffers.input().len() < call.layout.input_bytes()
            || buffers.output().len() < call.layout.output_bytes()
        {
            return Err(short_buffers(&call.layout, buffers));
        }
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            for _ in 0..self.quantum {
                if self.lanes[lane].tile == call.layout.tiles() {
                    break;
                }
                match self.try_move(lane, &call, fabric, buffers)? {
                    READY => moved = true,
                    waits_for => {
                        self.lanes[lane].blocked = waits_for;
                        break;
                    }
                }
                self.advance(lane, call.layout.tiles());
            }
        }
        if self.running == 0 {
            self.call = None;
            if self.spec.collective.reduces() {
                call.reducer.finish(buffers.output().slice(0, call.layout.output_bytes()));
            }
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Blocked })
    }

    /// What the lanes wait for: those that the last step found blocked.
    pub fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        let blocked = |(_, lane): &(usize, &Lane)| self.call.is_some() && lane.blocked != READY;
        self.lanes.iter().enumerate().filter(blocked).filter_map(|(index, lane)| {
            let code = self.moves[lane.at as usize];
            let on = match self.operands[(code.from + lane.blocked) as usize] {
                Operand::Receive { end, .. } => {
                    let end = &self.ends[end as usize];
                    WaitOn::Piece { peer: end.peers[0], channel: end.channel }
                }
                Operand::Send { end, .. } => {
                    let end = &self.ends[end as usize];
                    WaitOn::Credit { peers: &end.peers, channel: end.channel }
                }
                Operand::Input(_) | Operand::Output(_) | Operand::Scratch(_) => return None,
            };
            Some(Wait { lane: index, mv: (lane.at - lane.first) as usize, tile: lane.tile, on })
        })
    }

    #[inline]
    fn advance(&mut self, lane: usize, tiles: usize) {
        let lane = &mut self.lanes[lane];
        lane.blocked = READY;
        lane.at += 1;
        if lane.at == lane.end {
            lane.at = lane.first;
            lane.tile += 1;
            if lane.tile == tiles {
                self.running -= 1;
            }
        }
    }

    /// Makes the lane's next move and returns [`READY`], or returns the operand that it waits for.
    ///
    /// What was found ready stays ready (`peek` and `reserve` are idempotent), so the try begins with the
    /// operand that was missing last time.
    #[inline]
    fn try_move<F: Fabric + ?Sized>(
        &mut self,
        lane: usize,
        call: &Call,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<u32> {
        let lane = self.lanes[lane];
        let code = self.moves[lane.at as usize];
        let sources = &self.operands[code.from as usize..code.into as usize];
        let sinks = &self.operands[code.into as usize..code.end as usize];
        let reduces = self.spec.collective.reduces();
        let resume = if lane.blocked == READY { 0 } else { lane.blocked as usize };

        // A missing slot is asked for with the length that is known once the sources are: all of them are
        // here, so they are gathered again.
        let first = if resume < sources.len() { resume } else { 0 };
        for index in (first..sources.len()).chain(0..first) {
            let source = match sources[index] {
                Operand::Input(place) => {
                    let (at, len) = call.layout.at(place, lane.tile);
                    Source { piece: buffers.input().slice(at, len), scaled: reduces }
                }
                Operand::Output(place) => {
                    let (at, len) = call.layout.at(place, lane.tile);
                    Source { piece: buffers.output().as_piece().slice(at, len), scaled: false }
                }
                Operand::Scratch(scratch) => {
                    let len = self.scratch_len[scratch as usize];
                    Source { piece: self.scratch.source(scratch as usize, len), scaled: false }
                }
                Operand::Receive { from, end } => match fabric.peek(from)? {
                    None => return Ok(index as u32),
                    Some(Arrival { piece, tag }) if tag == call.tag => Source { piece, scaled: false },
                    Some(arrival) => return Err(self.mismatch(call, end, arrival.tag)),
                },
                Operand::Send { .. } => unreachable!("the binder makes no source of a sender"),
            };
            self.sources[index] = source;
        }
        let from = &self.sources[..sources.len()];
        let len = from[0].piece.len();
        if len & (call.layout.element_bytes() - 1) != 0 {
            return Err(self.uneven(call, &lane, 0, len, len));
        }
        for (index, source) in from.iter().enumerate() {
            if source.piece.len() != len {
                return Err(self.uneven(call, &lane, index, source.piece.len(), len));
            }
        }

        for (index, sink) in sinks.iter().enumerate() {
            self.sinks[index] = match *sink {
                Operand::Output(place) => {
                    let (at, wanted) = call.layout.at(place, lane.tile);
                    if wanted != len {
                        return Err(self.uneven(call, &lane, sources.len() + index, wanted, len));
                    }
                    buffers.output().slice(at, len)
                }
                Operand::Scratch(scratch) => {
                    if len > call.layout.longest_piece() {
                        let longest = call.layout.longest_piece();
                        return Err(self.uneven(call, &lane, sources.len() + index, longest, len));
                    }
                    self.scratch_len[scratch as usize] = len;
                    self.scratch.sink(scratch as usize, len)
                }
                Operand::Send { to, .. } => match fabric.reserve(to, len)? {
                    Some(slot) => slot,
                    None => return Ok((sources.len() + index) as u32),
                },
                Operand::Input(_) | Operand::Receive { .. } => {
                    unreachable!("the binder makes no sink of an input or a receiver")
                }
            };
        }

        call.reducer.apply(&self.sources[..sources.len()], &self.sinks[..sinks.len()]);

        for sink in sinks {
            if let Operand::Send { to, .. } = *sink {
                fabric.publish(to, call.tag)?;
            }
        }
        for source in sources {
            if let Operand::Receive { from, .. } = *source {
                fabric.release(from)?;
            }
        }
        Ok(READY)
    }

    #[cold]
    fn mismatch(&self, call: &Call, end: u32, theirs: u64) -> Error {
        ErrorKind::Mismatch {
            peer: self.ends[end as usize].peers[0],
            here: self.spec.collective,
            sequence: call.sequence,
            ours: call.tag,
            theirs,
        }
        .into()
    }

    /// A piece that is not in whole elements, or not as long as its move's first source: the tags agree, so
    /// this is a fault of the plan or of a transport.
    #[cold]
    fn uneven(&self, call: &Call, lane: &Lane, operand: usize, len: usize, first: usize) -> Error {
        let code = self.moves[lane.at as usize];
        let what = match self.operands[code.from as usize + operand] {
            Operand::Input(_) => "input".to_string(),
            Operand::Output(_) => "output".to_string(),
            Operand::Scratch(_) => "scratch".to_string(),
            Operand::Receive { end, .. } => format!("message from rank {}", self.ends[end as usize].peers[0]),
            Operand::Send { end, .. } => format!("slot to ranks {:?}", self.ends[end as usize].peers),
        };
        ErrorKind::Malformed {
            what: format!(
                "piece in {} #{} (rank {}, move {}, tile {})",
                self.spec.collective,
                call.sequence,
                self.rank,
                lane.at - lane.first,
                lane.tile
            ),
            cause: format!(
                "the {what} has {len} bytes where the move's first source has {first}, in elements of {}",
                call.layout.element_bytes()
            ),
        }
        .into()
    }
}

#[cold]
fn short_buffers(layout: &Layout, buffers: &Buffers<'_>) -> Error {
    Error::invalid(
        format!("buffers of {} and {} bytes", buffers.input().len(), buffers.output().len()),
        format!("this call reads {} and writes {} bytes", layout.input_bytes(), layout.output_bytes()),
    )
}
