//! Running a schedule, step by step.

use super::schedule::{Call, Lane, Machine, Operand, READY, Schedule};
use super::tag::mix;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use crate::simd::{Buffers, Source};
use crate::transport::{Arrival, Fabric, Refer};

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

impl WaitOn<'_> {
    /// Who could end the wait.
    pub fn peers(&self) -> &[Rank] {
        match self {
            WaitOn::Piece { peer, .. } => std::slice::from_ref(peer),
            WaitOn::Credit { peers, .. } => peers,
        }
    }
}

impl Schedule {
    /// Runs every lane as far as its links let it, at most some 64 moves in all.
    ///
    /// `buffers` must be the same at every step of a call. After `Done` no call runs any more, and the
    /// output holds the result.
    #[inline(always)]
    pub fn step<F: Fabric + ?Sized>(&mut self, fabric: &mut F, buffers: &Buffers<'_>) -> Result<Progress> {
        let Some(call) = &self.call else {
            return Err(Error::invalid("a step without a call", "start one"));
        };
        call.layout.check(buffers)?;
        let machine = &mut self.machine;
        let mut moved = false;
        for lane in 0..machine.lanes.len() {
            for _ in 0..machine.quantum {
                if machine.lanes[lane].tile == machine.lanes[lane].tiles {
                    break;
                }
                match machine.try_move(lane, call, fabric, buffers) {
                    Ok(READY) => moved = true,
                    Ok(waits_for) => {
                        machine.lanes[lane].blocked = waits_for;
                        break;
                    }
                    Err(stop) => return Err(self.explain(lane, stop)),
                }
                machine.advance(lane);
            }
        }
        if machine.running == 0 && machine.settle(fabric)? {
            if machine.reduces {
                let (at, len) = call.layout.result();
                call.reducer.finish(buffers.output().slice(at, len));
            }
            self.call = None;
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Blocked })
    }

    /// What the lanes wait for: those that the last step found blocked.
    pub fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        let machine = &self.machine;
        let blocked = |(_, lane): &(usize, &Lane)| self.call.is_some() && lane.blocked != READY;
        let lanes = machine.lanes.iter().enumerate().filter(blocked).filter_map(|(index, lane)| {
            let code = machine.moves[lane.at as usize];
            let on = match machine.operands[(code.from + lane.blocked) as usize] {
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
        });
        lanes.chain(self.unsettled())
    }

    /// What stopped a lane, in words.
    #[cold]
    fn explain(&self, lane: usize, stop: Stop) -> Error {
        let (Some(call), machine) = (&self.call, &self.machine) else {
            return Error::invalid("a step without a call", "start one");
        };
        let lane = &machine.lanes[lane];
        let peers = |end: u32| &self.ends[end as usize].peers;
        match stop {
            Stop::Fabric(error) => error,
            Stop::Mismatch { end, ours, theirs } => ErrorKind::Mismatch {
                peer: peers(end)[0],
                here: self.spec.collective,
                sequence: call.sequence,
                ours,
                theirs,
            }
            .into(),
            // The tags agree, so this is a fault of the plan or of a transport.
            Stop::Uneven { operand, len, first } => {
                let code = machine.moves[lane.at as usize];
                let what = match machine.operands[code.from as usize + operand] {
                    Operand::Input(_) => "input".to_string(),
                    Operand::Output(_) => "output".to_string(),
                    Operand::Scratch(_) => "scratch".to_string(),
                    Operand::Receive { end, .. } => format!("message from rank {}", peers(end)[0]),
                    Operand::Send { end, .. } => format!("slot to ranks {:?}", peers(end)),
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
    }
}

/// Why a move cannot be made at all.
enum Stop {
    /// The transport failed.
    Fabric(Error),
    /// A message of another call came in.
    Mismatch { end: u32, ours: u64, theirs: u64 },
    /// A piece, of the operand so numbered within the move, is not in whole elements, or not as long as the
    /// move's first source.
    Uneven { operand: usize, len: usize, first: usize },
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Fabric(error)
    }
}

impl Machine {
    #[inline]
    fn advance(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        lane.blocked = READY;
        lane.at += 1;
        if lane.at == lane.end {
            lane.at = lane.first;
            lane.tile += 1;
            if lane.tile == lane.tiles {
                self.running -= 1;
            }
        }
    }

    /// Makes the lane's next move and returns [`READY`], or returns the operand that it waits for.
    ///
    /// What was found ready stays ready (`peek` and `reserve` are idempotent), so a move that waits for a
    /// piece asks for that one alone, and begins again when it is there.
    #[inline(always)]
    fn try_move<F: Fabric + ?Sized>(
        &mut self,
        lane: usize,
        call: &Call,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<u32, Stop> {
        let lane = self.lanes[lane];
        let code = self.moves[lane.at as usize];
        let (from, into) =
            self.operands[code.from as usize..code.end as usize].split_at((code.into - code.from) as usize);
        if let Some(&Operand::Receive { from, .. }) = from.get(lane.blocked as usize)
            && fabric.peek(from)?.is_none()
        {
            return Ok(lane.blocked);
        }

        let tag = match call.layout.is_pairwise() {
            false => call.tag,
            true => pair_tag(call, from.iter().chain(into)),
        };
        for (index, (source, operand)) in self.sources.iter_mut().zip(from).enumerate() {
            *source = match *operand {
                Operand::Input(place) => {
                    let (at, len) = call.layout.input_at(place, lane.tile);
                    Source { piece: buffers.input().slice(at, len), scaled: self.reduces }
                }
                Operand::Output(place) => {
                    let (at, len) = call.layout.output_at(place, lane.tile);
                    Source { piece: buffers.output().as_piece().slice(at, len), scaled: false }
                }
                Operand::Scratch(scratch) => {
                    let len = self.scratch_len[scratch as usize];
                    Source { piece: self.scratch.source(scratch as usize, len), scaled: false }
                }
                Operand::Receive { from, end } => match fabric.peek(from)? {
                    None => return Ok(index as u32),
                    Some(Arrival { piece, tag: theirs }) if theirs == tag => Source { piece, scaled: false },
                    Some(Arrival { tag: theirs, .. }) => {
                        return Err(Stop::Mismatch { end, ours: tag, theirs });
                    }
                },
                Operand::Send { .. } => unreachable!("the binder makes no source of a sender"),
            };
        }
        let sources = &self.sources[..from.len()];
        let first = sources[0].piece.len();
        let uneven = |operand, len| Err(Stop::Uneven { operand, len, first });
        if first & (call.layout.element_bytes() - 1) != 0 {
            return uneven(0, first);
        }
        for (index, source) in sources.iter().enumerate().skip(1) {
            if source.piece.len() != first {
                return uneven(index, source.piece.len());
            }
        }

        // Short pieces are told apart first: theirs is the time that counts.
        let referent = match first < self.lending.refer_from() {
            true => None,
            false => self.referent(&code, &lane, call, buffers, sources),
        };
        let mut written = 0;
        for (index, operand) in into.iter().enumerate() {
            self.sinks[written] = match *operand {
                Operand::Output(place) => {
                    let (at, len) = call.layout.output_at(place, lane.tile);
                    if len != first {
                        return uneven(from.len() + index, len);
                    }
                    buffers.output().slice(at, first)
                }
                Operand::Scratch(scratch) => {
                    if first > call.layout.longest_piece() {
                        return uneven(from.len() + index, call.layout.longest_piece());
                    }
                    self.scratch_len[scratch as usize] = first;
                    self.scratch.sink(scratch as usize, first)
                }
                Operand::Send { to, end } => {
                    if let Some(piece) = referent {
                        match fabric.refer(to, piece)? {
                            Refer::Ready => {
                                self.lending.note(to, end, &lane);
                                continue;
                            }
                            Refer::NoCredit => return Ok((from.len() + index) as u32),
                            Refer::NotMapped => {}
                        }
                    }
                    match fabric.reserve(to, first)? {
                        Some(slot) => slot,
                        None => return Ok((from.len() + index) as u32),
                    }
                }
                Operand::Input(_) | Operand::Receive { .. } => {
                    unreachable!("the binder makes no sink of an input or a receiver")
                }
            };
            written += 1;
        }

        if written > 0 {
            call.reducer.apply(sources, &self.sinks[..written]);
        }

        // In this order: bytes that were withdrawn while they were read must not be passed on.
        for operand in from {
            if let Operand::Receive { from, .. } = *operand {
                fabric.release(from)?;
            }
        }
        for operand in into {
            if let Operand::Send { to, .. } = *operand {
                fabric.publish(to, tag)?;
            }
        }
        Ok(READY)
    }
}

/// The tag of a move whose ranks know no more of the call than the block that travels between them: it covers
/// that block's length.
fn pair_tag<'a>(call: &Call, mut operands: impl Iterator<Item = &'a Operand>) -> u64 {
    let length = operands.find_map(|operand| operand.chunk(&call.layout));
    mix(call.tag, length.map_or(0, |bytes| bytes as u64 + 1))
}
