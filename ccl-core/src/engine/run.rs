//! Running a schedule, step by step.

use super::quick::Tried;
use super::schedule::{Lane, Machine, Operand, READY, Schedule, Share};
use super::stages::StageInCall;
use super::task::{Bound, Task};
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{Buffers, PieceMut, Source, Store};
use crate::plan::Rank;
use crate::transport::{Arrival, Fabric, Refer, Stretch};

/// What a step came to. As wide as an error, so that a result of it is returned in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
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
        peer: &'a Rank,
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

impl<'a> WaitOn<'a> {
    /// Who could end the wait.
    pub fn peers(self) -> &'a [Rank] {
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
        let (true, Some(task)) = (self.is_running, self.task.as_deref()) else { return Err(not_started()) };
        task.layout.check(buffers)?;
        let machine = &mut self.machine;
        if std::mem::take(&mut machine.is_to_offer) {
            machine.offer(task, self.share, self.tag, fabric, buffers)?;
        }
        let mut moved = false;
        for index in 0..machine.lanes.len() {
            let until = if task.is_staged { machine.until(task, index) } else { machine.lanes[index].tiles };
            let stretches = task.stages[index].stretches;
            for _ in 0..machine.quantum {
                // Not copied: what was just written in parts is slow to be read as a whole.
                let lane = &machine.lanes[index];
                if lane.tile >= until {
                    break;
                }
                if stretches && until - lane.tile > 1 {
                    let tiles = machine.try_stretch(index, until, task, self.tag, fabric, buffers)?;
                    if tiles > 0 {
                        moved = true;
                        machine.running -=
                            usize::from(machine.lanes[index].skip_tiles(tiles, machine.stride));
                        continue;
                    }
                }
                let lane = &machine.lanes[index];
                let quick = &task.quick[lane.at as usize];
                let made = match quick.try_move::<true, F>(
                    &task.reducer,
                    (self.tag, machine.direction),
                    fabric,
                    buffers,
                ) {
                    Tried::Made => Ok(READY),
                    Tried::Lent { to, end } => {
                        machine.lending.note(to, end, lane.at);
                        Ok(READY)
                    }
                    Tried::Waits(operand) => Ok(operand),
                    Tried::Unforeseen => machine.try_move(index, task, self.tag, fabric, buffers),
                    Tried::Failed(error) => Err(Stop::Fabric(error)),
                };
                let lane = &mut machine.lanes[index];
                match made {
                    Ok(READY) => moved = true,
                    Ok(waits_for) => {
                        lane.blocked = waits_for;
                        break;
                    }
                    Err(stop) => return Err(self.explain(index, stop)),
                }
                if lane.advance(machine.stride) {
                    machine.running -= 1;
                }
            }
        }
        if machine.running == 0 && machine.settle(fabric)? {
            self.is_running = false;
            if self.share == Share::WHOLE {
                self.conclude(buffers);
            }
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Blocked })
    }

    /// What is done to the result as a whole, once all shares of the call are done.
    #[inline]
    pub fn conclude(&self, buffers: &Buffers<'_>) {
        if let Some(task) = self.task.as_deref()
            && self.machine.reduces
            && task.reducer.divides()
        {
            let (at, len) = task.layout.result();
            task.reducer.finish(buffers.output().slice(at, len));
        }
    }

    /// What the lanes wait for: those that the last step found blocked.
    pub fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        let machine = &self.machine;
        let stages = self.task.as_deref().map_or(&[][..], |task| &task.stages);
        let blocked = |(lane, _): &(&Lane, &StageInCall)| self.is_running && lane.blocked != READY;
        let lanes = machine.lanes.iter().zip(stages).filter(blocked).filter_map(
            |(lane, StageInCall { stage, .. })| {
                let code = machine.moves[lane.at as usize];
                let on = match machine.operands[(code.from + lane.blocked) as usize] {
                    Operand::Receive { end, .. } => {
                        let end = &self.ends[end as usize];
                        WaitOn::Piece { peer: &end.peers[0], channel: end.channel }
                    }
                    Operand::Send { end, .. } => {
                        let end = &self.ends[end as usize];
                        WaitOn::Credit { peers: &end.peers, channel: end.channel }
                    }
                    Operand::Input(_) | Operand::Output(_) | Operand::Scratch(_) => return None,
                };
                let mv = (lane.at - stage.base) as usize;
                Some(Wait { lane: stage.lane as usize, mv, tile: lane.tile, on })
            },
        );
        lanes.chain(self.unsettled())
    }

    /// Who could end these waits, some of them more than once.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> {
        self.waits().flat_map(|wait| wait.on.peers()).copied()
    }

    /// What stopped a lane, in words.
    #[cold]
    fn explain(&self, lane: usize, stop: Stop) -> Error {
        let (Some(task), machine) = (&self.task, &self.machine) else { return not_started() };
        let (StageInCall { stage, .. }, lane) = (&task.stages[lane], &machine.lanes[lane]);
        let peers = |end: u32| &self.ends[end as usize].peers;
        match stop {
            Stop::Fabric(error) => error,
            Stop::Mismatch { end, ours, theirs } => ErrorKind::Mismatch {
                peer: peers(end)[0],
                here: self.spec.collective,
                sequence: self.sequence,
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
                        self.sequence,
                        self.rank,
                        lane.at - stage.base,
                        lane.tile
                    ),
                    cause: format!(
                        "the {what} has {len} bytes where the move's first source has {first}, in elements of {}",
                        task.layout.element_bytes()
                    ),
                }
                .into()
            }
        }
    }
}

#[cold]
fn not_started() -> Error {
    Error::invalid("a step without a call", "start one")
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

impl Lane {
    /// Goes on to the next move; whether there is none.
    #[inline(always)]
    fn advance(&mut self, stride: usize) -> bool {
        if self.at + 1 < self.end {
            (self.at, self.blocked) = (self.at + 1, READY);
            return false;
        }
        self.at = self.first;
        self.skip_tiles(1, stride)
    }

    /// Goes on by so many tiles; whether there are no more.
    #[inline(always)]
    fn skip_tiles(&mut self, tiles: usize, stride: usize) -> bool {
        self.blocked = READY;
        self.tile += tiles;
        self.skip = self.skip.wrapping_add(stride.wrapping_mul(tiles));
        self.tile == self.tiles
    }
}

impl Machine {
    /// The tile before which a stage must stop for now: what the one before it has done, and as far as it may be ahead of the one behind.
    #[inline]
    fn until(&self, task: &Task, index: usize) -> usize {
        let StageInCall { stage, lead, light_lead, .. } = &task.stages[index];
        let before = if stage.follows { self.lanes[index - 1].tile } else { self.lanes[index].tiles };
        if !stage.leads {
            return before;
        }
        let lead = if self.lanes[index].is_light { light_lead } else { lead };
        before.min(self.lanes[index + 1].tile + lead)
    }

    /// Makes the lane's next move, of whatever kind, and returns [`READY`], or returns the operand that it waits for.
    ///
    /// What was found ready stays ready (`peek` and `reserve` are idempotent), so a move that waits for a
    /// piece asks for that one alone, and begins again when it is there.
    #[inline(always)]
    fn try_move<F: Fabric + ?Sized>(
        &mut self,
        index_of_lane: usize,
        task: &Task,
        tag: u64,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<u32, Stop> {
        let lane = self.lanes[index_of_lane];
        let code = self.moves[lane.at as usize];
        let first_sink = (code.into - code.from) as usize;
        let operands = &task.operands[code.from as usize..code.end as usize];
        let mut awaited = None;
        if lane.blocked < first_sink as u32
            && let Operand::Receive { from, .. } = operands[lane.blocked as usize].operand
        {
            awaited = fabric.peek(from)?;
            if awaited.is_none() {
                return Ok(lane.blocked);
            }
        }

        let tag = task.tag_of(&code, tag);
        let (mut len, mut copied) = (0, Store::Cached);
        let (from, into) = operands.split_at(first_sink);
        for (index, Bound { operand, span, .. }) in from.iter().enumerate() {
            let source = match *operand {
                Operand::Input(_) => {
                    let (at, len) = span.piece(lane.skip, task.tile);
                    Source { piece: buffers.input().slice(at, len), scaled: self.reduces }
                }
                Operand::Output(_) => {
                    let (at, len) = span.piece(lane.skip, task.tile);
                    Source { piece: buffers.output().as_piece().slice(at, len), scaled: false }
                }
                Operand::Scratch(scratch) => {
                    let len = self.scratch_len[scratch as usize];
                    Source { piece: self.scratch.source(scratch as usize, len), scaled: false }
                }
                Operand::Receive { from, end } => {
                    let arrival = match awaited {
                        Some(arrival) if index as u32 == lane.blocked => arrival,
                        _ => match fabric.peek(from)? {
                            Some(arrival) => arrival,
                            None => return Ok(index as u32),
                        },
                    };
                    let Arrival { piece, tag: theirs, store } = arrival;
                    if theirs != tag {
                        return Err(Stop::Mismatch { end, ours: tag, theirs });
                    }
                    copied = store;
                    Source { piece, scaled: false }
                }
                Operand::Send { .. } => unreachable!("the binder makes no source of a sender"),
            };
            let found = source.piece.len();
            self.sources[index] = source;
            if index == 0 {
                len = found;
            }
            if found != len || found & task.element_mask != 0 {
                return Err(Stop::Uneven { operand: index, len: found, first: len });
            }
        }
        let sources = &self.sources[..first_sink];

        // Short pieces are told apart first: theirs is the time that counts.
        let referent = match len < task.refers.piece {
            true => None,
            false => self.referent(&code, &lane, task, buffers, sources),
        };
        let mut written = 0;
        for (index, Bound { operand, span, store: kept_as }) in into.iter().enumerate() {
            let index = first_sink + index;
            let sink = match *operand {
                Operand::Output(_) => {
                    let (at, room) = span.piece(lane.skip, task.tile);
                    if room != len {
                        return Err(Stop::Uneven { operand: index, len: room, first: len });
                    }
                    let output = buffers.output().slice(at, len).stored(*kept_as);
                    // What was offered is there already.
                    if let [source] = sources
                        && !source.scaled
                        && source.piece.is(output.as_piece())
                    {
                        continue;
                    }
                    output
                }
                Operand::Scratch(scratch) => {
                    let room = task.layout.longest_piece();
                    if len > room {
                        return Err(Stop::Uneven { operand: index, len: room, first: len });
                    }
                    self.scratch_len[scratch as usize] = len;
                    self.scratch.sink(scratch as usize, len)
                }
                Operand::Send { to, end } => {
                    // Who copies what it sends to its own output has enough to do.
                    let is_busy = code.reaches.is_share() && written > 0;
                    if !is_busy && code.reaches.at(lane.skip, task.tile) && len >= task.refers.piece {
                        // Asked first: who has released something has offered before.
                        let is_early = code.reaches.awaits_receiver(lane.tile)
                            && self.lending.is_open(end)
                            && !fabric.settled(to)?;
                        let offered =
                            fabric.reserve_offered(to, Stretch::one(len), tag, &mut self.sinks[written..])?;
                        if offered > 0 {
                            let (own, sinks) = self.sinks.split_at_mut(written);
                            sinks[..offered].iter_mut().for_each(|sink| *sink = sink.stored(*kept_as));
                            if task.keeps {
                                own.iter_mut().for_each(|sink| *sink = sink.stored(Store::Cached));
                            }
                            written += offered;
                            continue;
                        }
                        if is_early {
                            return Ok(index as u32);
                        }
                    }
                    if let Some(piece) = referent {
                        match fabric.refer(to, piece)? {
                            Refer::Ready => {
                                self.lending.note(to, end, lane.at);
                                self.lanes[index_of_lane].is_light = written == 0 && code.has_one_receiver;
                                // The peer reads it from the caches, also where nobody else will.
                                let is_lent = |sink: &&mut PieceMut| sink.as_piece().is(piece);
                                if let Some(sink) = self.sinks[..written].iter_mut().find(is_lent) {
                                    *sink = sink.stored(Store::Cached);
                                }
                                continue;
                            }
                            Refer::NoCredit => return Ok(index as u32),
                            Refer::NotMapped => {}
                        }
                    }
                    self.lanes[index_of_lane].is_light = false;
                    match fabric.reserve(to, len)? {
                        Some(slot) => slot,
                        None => return Ok(index as u32),
                    }
                }
                Operand::Input(_) | Operand::Receive { .. } => {
                    unreachable!("the binder makes no sink of an input or a receiver")
                }
            };
            self.sinks[written] = sink;
            written += 1;
        }

        if written > 0 {
            if copied == Store::Words {
                self.sinks[..written].iter_mut().for_each(|sink| *sink = sink.copied(copied));
            }
            task.reducer.apply(sources, &self.sinks[..written], self.direction);
        }

        // In this order: bytes that were withdrawn while they were read must not be passed on.
        for bound in from {
            if let Operand::Receive { from, .. } = bound.operand {
                fabric.release(from)?;
            }
        }
        for bound in into {
            if let Operand::Send { to, .. } = bound.operand {
                fabric.publish(to, tag)?;
            }
        }
        Ok(READY)
    }
}
