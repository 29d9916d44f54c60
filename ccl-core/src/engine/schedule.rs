//! A program bound to link ends, and the call that it makes.

use super::layout::Place;
use super::offers::Landing;
use super::reaches::Reaches;
use super::references::{Lending, Refers};
use super::stages::{Stage, StageInCall};
use super::task::Task;
use crate::error::{Error, Result};
use crate::kernels::{self, Direction, PieceMut, Slab};
use crate::plan::{Rank, Spec};
use crate::transport::{Fabric, ReceiverId, SenderId};
use std::ops::Range;
use std::sync::Arc;

/// A program bound to the link ends of a fabric, and the state of its running call.
///
/// One call runs at a time, from [`start`](Schedule::start) until [`step`](Schedule::step) says
/// [`Done`](super::Progress::Done). After an error the links are in the middle of a call: neither the
/// schedule nor any other on the same links can be used any more.
#[derive(Debug)]
pub struct Schedule {
    pub(super) spec: Spec,
    pub(super) rank: Rank,
    pub(super) ends: Vec<End>,
    /// What runs, or ran last: mostly it is run again.
    pub(super) task: Option<Arc<Task>>,
    pub(super) is_running: bool,
    /// The running call's fingerprint, which every piece carries and every arrival is compared with.
    pub(super) tag: u64,
    pub(super) sequence: u64,
    /// What of the running call's tiles it runs.
    pub(super) share: Share,
    pub(super) machine: Machine,
}

/// Some of a call's tiles: one of as many equal runs of them. Tiles do not depend on each other, so schedules of one program
/// with links of their own may each run a share, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which one: below `of`.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl Share {
    /// All tiles.
    pub const WHOLE: Share = Share { index: 0, of: 1 };

    /// Those of so many tiles.
    #[inline(always)]
    pub(super) fn tiles(self, tiles: usize) -> Range<usize> {
        // 128 bits: nobody need ask whether a product of a tile's number fits.
        let end = |index: u32| (tiles as u128 * u128::from(index) / u128::from(self.of)) as usize;
        if self.of == 1 { 0..tiles } else { end(self.index)..end(self.index + 1) }
    }
}

/// What a step works with: the bound program and where it is.
#[derive(Debug)]
pub(super) struct Machine {
    /// Where the running call is: one for each of its task's stages.
    pub(super) lanes: Vec<Lane>,
    /// The program's lanes, each as one stage.
    pub(super) whole: Box<[Stage]>,
    /// The same in all stages that they have.
    pub(super) stages: Box<[Stage]>,
    pub(super) moves: Vec<Code>,
    pub(super) operands: Vec<Operand>,
    /// Whether contributions are combined; else there is nothing to scale.
    pub(super) reduces: bool,
    /// Lanes of the call that are not at their end.
    pub(super) running: usize,
    /// Moves that one lane may make in one step.
    pub(super) quantum: usize,
    pub(super) scratch: Slab,
    /// Bytes in each scratch piece.
    pub(super) scratch_len: Vec<usize>,
    // The operands of the move at hand: as long as the largest move, and valid within one move only.
    pub(super) sources: Vec<kernels::Source>,
    pub(super) sinks: Vec<PieceMut>,
    pub(super) lending: Lending,
    /// What a call may offer.
    pub(super) landings: Vec<Landing>,
    /// Whether the running call has still to do so.
    pub(super) is_to_offer: bool,
    /// Which way the running call goes through its tiles, and through long ones.
    pub(super) direction: Direction,
    /// From a tile to the next, in bytes; backwards it is negative, so that adding it wraps.
    pub(super) stride: usize,
}

/// A stage of a lane, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) first: u32,
    pub(super) end: u32,
    /// The next move.
    pub(super) at: u32,
    /// The operand of that move (counted within the move) that it was last found to wait for, or
    /// [`READY`].
    pub(super) blocked: u32,
    /// How many tiles come before it in the order in which the call goes through them.
    pub(super) tile: usize,
    /// Bytes of each chunk that lie before the tile.
    pub(super) skip: usize,
    /// The tile before which it ends.
    pub(super) tiles: usize,
    /// Whether what it has sent last takes no room, in this call or one before: one rank was told of where it lies, or it was written where it was offered.
    pub(super) is_light: bool,
}

/// A lane that waits for nothing.
pub(super) const READY: u32 = u32::MAX;

/// A move: its sources are `operands[from..into]`, its sinks `operands[into..end]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    pub(super) from: u32,
    pub(super) into: u32,
    pub(super) end: u32,
    /// What may be sent by reference, if anything.
    pub(super) refers: Refers,
    /// Which of what it sends is written where its receivers have offered memory.
    pub(super) reaches: Reaches,
    /// Whether what it sends goes to one rank only.
    pub(super) has_one_receiver: bool,
}

/// A source or a sink.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Input(Place),
    Output(Place),
    Scratch(u32),
    Receive { from: ReceiverId, end: u32 },
    Send { to: SenderId, end: u32 },
}

impl Operand {
    /// Whether it is a part of a user's buffer.
    pub(super) fn is_of_a_buffer(&self) -> bool {
        matches!(self, Operand::Input(_) | Operand::Output(_))
    }
}

/// Who is at the other end of an operand's links: for errors and reports.
#[derive(Debug)]
pub(super) struct End {
    pub(super) peers: Vec<Rank>,
    pub(super) channel: u16,
}

impl Schedule {
    /// What the bound plan is for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The rank whose program this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of the call that runs, or 0.
    pub fn number(&self) -> u64 {
        if self.is_running { self.sequence } else { 0 }
    }

    /// Whether a call runs.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Whether the last call that was started is, or was, a share of one.
    pub fn is_share(&self) -> bool {
        self.share != Share::WHOLE
    }

    /// Tiles that the call which runs has done here, and all that it is to do here, over all lanes.
    pub fn progress(&self) -> (u64, u64) {
        let Some(task) = self.task.as_ref().filter(|_| self.is_running) else { return (0, 0) };
        // A tile is done with the last of its stages.
        let lanes = self.machine.lanes.iter().zip(&task.stages).filter(|(_, run)| !run.stage.leads);
        lanes.fold((0, 0), |(done, all), (lane, run)| {
            let share = self.share.tiles(run.tiles);
            (done + (lane.tile - share.start) as u64, all + share.len() as u64)
        })
    }

    /// Whether a piece has come on one of the links that it receives on.
    pub fn has_arrivals(&self, fabric: &mut impl Fabric) -> Result<bool> {
        for operand in &self.machine.operands {
            if let Operand::Receive { from, .. } = *operand
                && fabric.peek(from)?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins a call of a task of this schedule; the call before must be done. Every piece of it carries `tag`, the
    /// call's fingerprint; `sequence` is its number on the communicator, for errors.
    #[inline(always)]
    pub fn start(&mut self, task: &Arc<Task>, tag: u64, sequence: u64) -> Result<()> {
        self.begin(task, tag, sequence, Share::WHOLE)
    }

    /// [`start`](Schedule::start) for a share of the tiles. When all shares are done, one of their schedules
    /// [concludes](Schedule::conclude) the call.
    pub fn start_share(&mut self, task: &Arc<Task>, tag: u64, sequence: u64, share: Share) -> Result<()> {
        self.begin(task, tag, sequence, share)
    }

    #[inline(always)]
    fn begin(&mut self, task: &Arc<Task>, tag: u64, sequence: u64, share: Share) -> Result<()> {
        if self.is_running {
            return Err(Error::invalid("a call is started while another one runs", "finish that one first"));
        }
        self.take(task)?;
        let machine = &mut self.machine;
        machine.lending.start();
        machine.is_to_offer = task.offers;
        machine.running = 0;
        machine.face(task.direction(sequence), task);
        for (lane, run) in machine.lanes.iter_mut().zip(&task.stages) {
            let Range { start: tile, end: tiles } = share.tiles(run.tiles);
            let first = match machine.direction {
                Direction::Forwards => tile,
                // Of no tiles there is no last one; nobody goes there.
                Direction::Backwards => tiles.saturating_sub(1),
            };
            let skip = first * task.tile;
            *lane = Lane { at: lane.first, blocked: READY, tile, skip, tiles, ..*lane };
            machine.running += usize::from(tile < tiles);
        }
        (self.tag, self.sequence, self.share, self.is_running) = (tag, sequence, share, true);
        Ok(())
    }

    /// Makes room for a task, if it is not the last one.
    #[inline(always)]
    pub(super) fn take(&mut self, task: &Arc<Task>) -> Result<()> {
        if self.task.as_ref().is_some_and(|last| Arc::ptr_eq(last, task)) {
            return Ok(());
        }
        self.change_to(task)
    }

    #[inline(never)]
    fn change_to(&mut self, task: &Arc<Task>) -> Result<()> {
        let machine = &mut self.machine;
        if task.operands.len() != machine.operands.len() || task.layout.spec != self.spec {
            return Err(Error::invalid("a task of another schedule", "make it with this one"));
        }
        if !machine.scratch_len.is_empty() {
            machine.scratch.fit(machine.scratch_len.len(), task.layout.longest_piece());
        }
        machine.lanes.clear();
        machine.lanes.extend(task.stages.iter().map(|StageInCall { stage, .. }| Lane {
            first: stage.first,
            end: stage.end,
            at: stage.first,
            blocked: READY,
            tile: 0,
            skip: 0,
            tiles: 0,
            is_light: false,
        }));
        self.task = Some(Arc::clone(task));
        Ok(())
    }
}

impl Machine {
    /// Goes that way through the call that begins.
    #[inline(always)]
    pub(super) fn face(&mut self, direction: Direction, task: &Task) {
        self.direction = direction;
        self.stride = match direction {
            Direction::Forwards => task.tile,
            Direction::Backwards => task.tile.wrapping_neg(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm as _, OneShot};
    use crate::engine::{Layout, Progress};
    use crate::kernels::{Buffers, Reducer};
    use crate::plan::Collective;
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{LocalHub, LocalTransport};
    use crate::{DataType, ReduceOp};

    const TILE: usize = 64;

    /// What rank 1 of a broadcast has after each of its steps, with one credit: piece by piece.
    fn received(sequence: u64, share: Share, bytes: usize) -> Vec<Vec<u8>> {
        let hub = LocalHub::new(2, TILE, 1);
        let mut transports: [LocalTransport; 2] = [0, 1].map(|rank| hub.transport(rank));
        connect(&mut transports, &mesh(2, 1));
        let spec = Spec::new(Collective::Broadcast, 2, 0, 1);
        let mut rank = 0..;
        let mut schedules = transports.each_mut().map(|transport| {
            let rank = rank.next().unwrap();
            let mut schedule = Schedule::bind(&spec, rank, &OneShot.program(&spec, rank), transport).unwrap();
            let layout = Layout::new(&spec, rank, bytes, DataType::U8, TILE).unwrap();
            let task = schedule.task(layout, Reducer::new(DataType::U8, ReduceOp::Sum, 2).unwrap()).unwrap();
            schedule.start_share(&Arc::new(task), 7, sequence, share).unwrap();
            schedule
        });
        let input = vec![9; bytes];
        let (mut roots, mut output, mut seen) = (vec![0; bytes], vec![0; bytes], Vec::new());
        let [here, there] = &mut transports;
        while schedules[1].is_running() {
            if schedules[0].is_running() {
                schedules[0].step(here, &Buffers::new(&input, &mut roots)).unwrap();
            }
            if schedules[1].step(there, &Buffers::new(&[], &mut output)).unwrap() != Progress::Blocked {
                seen.push(output.clone());
            }
        }
        seen
    }

    #[test]
    fn every_other_call_goes_backwards_through_its_tiles_or_its_share_of_them() {
        // Three tiles, and one of ten bytes.
        let bytes = 3 * TILE + 10;
        let with = |range: Range<usize>| {
            (0..bytes).map(|at| if range.contains(&at) { 9 } else { 0 }).collect::<Vec<u8>>()
        };
        let forwards = [1, 2, 3, 4].map(|tiles| with(0..bytes.min(tiles * TILE)));
        let backwards = [3, 2, 1, 0].map(|tile| with(tile * TILE..bytes));
        for sequence in 0..4 {
            let expected = if sequence % 2 == 0 { &forwards } else { &backwards };
            assert_eq!(received(sequence, Share::WHOLE, bytes), expected, "call {sequence}");
        }
        let second = Share { index: 1, of: 2 };
        assert_eq!(received(3, second, bytes), [with(3 * TILE..bytes), with(2 * TILE..bytes)]);
        // Of two tiles the third of three threads has one, and the first none.
        assert_eq!(received(1, Share { index: 0, of: 3 }, TILE + 1), [vec![0; TILE + 1]]);
    }
}
