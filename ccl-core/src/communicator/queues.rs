//! The calls of a group in the lines in which they wait for each other.

use super::operation::{Operation, Transfer, What};
use super::plans::Prepared;
use super::transfers::{Side, transfer_of};
use super::{Communicator, record};
use crate::clock::monotonic_ns;
use crate::engine::Progress;
use crate::error::{Error, Result};
use crate::flight::Entry;
use crate::kernels::Buffers;
use crate::plan::Rank;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Those of a communicator; mostly they are a send and a receive, which shall not allocate.
pub(super) type Queues<'b> = SmallVec<[Queue<'b>; 2]>;

/// Calls that wait for each other: the collectives of a communicator, or the transfers of one link.
pub(super) struct Queue<'b> {
    line: Line,
    /// The next one; mostly it is the only one.
    pub(super) next: Option<Ready<'b>>,
    later: VecDeque<Ready<'b>>,
    pub(super) running: Option<Running<'b>>,
}

/// A call that has begun: its schedule, its memory, and where the flight record has it.
pub(super) type Running<'b> = (usize, Buffers<'b>, Entry);

/// Which queue a call belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Collectives,
    Transfers(Rank, Side),
    Copies,
}

/// A call that can be started.
pub(super) struct Ready<'b> {
    prepared: Prepared,
    buffers: Buffers<'b>,
}

/// Puts a call at the end of its line.
fn enqueue<'b>(queues: &mut Queues<'b>, line: Line, ready: Ready<'b>) {
    match queues.iter_mut().find(|queue| queue.line == line) {
        Some(queue) if queue.next.is_none() => queue.next = Some(ready),
        Some(queue) => queue.later.push_back(ready),
        None => queues.push(Queue { line, next: Some(ready), later: VecDeque::new(), running: None }),
    }
}

/// Puts calls that have begun at the head of their lines.
pub(super) fn head<'b>(queues: &mut Queues<'b>, begun: impl IntoIterator<Item = (Line, Running<'b>)>) {
    for (line, running) in begun {
        match queues.iter_mut().find(|queue| queue.line == line) {
            Some(queue) => queue.running = Some(running),
            None => {
                let running = Some(running);
                queues.push(Queue { line, next: None, later: VecDeque::new(), running });
            }
        }
    }
}

impl Queue<'_> {
    pub(super) fn step(&mut self, communicator: &mut Communicator) -> Result<Progress> {
        let mut moved = false;
        loop {
            let (schedule, buffers, entry) = match self.running {
                Some(running) => running,
                None => {
                    let Some(Ready { prepared, buffers }) = self.next.take() else {
                        return Ok(Progress::Done);
                    };
                    self.next = self.later.pop_front();
                    let number = communicator.number(self.line);
                    let entry = record::begin(&communicator.recorder, &prepared.about, number);
                    self.running = Some((prepared.schedule, buffers, entry));
                    moved = true;
                    match communicator.begin(&prepared, number, &buffers)? {
                        Progress::Done => {
                            communicator.recorder.end(entry, monotonic_ns);
                            self.running = None;
                            continue;
                        }
                        Progress::Moved => {}
                        Progress::Blocked => return Ok(Progress::Moved),
                    }
                    (prepared.schedule, buffers, entry)
                }
            };
            match communicator.step(schedule, &buffers)? {
                Progress::Done => {
                    communicator.recorder.end(entry, monotonic_ns);
                    (self.running, moved) = (None, true);
                }
                Progress::Moved => return Ok(Progress::Moved),
                Progress::Blocked if moved => return Ok(Progress::Moved),
                Progress::Blocked => return Ok(Progress::Blocked),
            }
        }
    }
}

impl Communicator {
    /// Whether these are transfers like the last ones on their links.
    pub(super) fn are_known(&self, operations: &[Operation<'_>]) -> Result<bool> {
        for operation in operations {
            if !self.is_known(operation)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins transfers that are all known, those that send before those that receive. What has begun and is not over is left with its
    /// line; what waits behind it on its link is queued up.
    pub(super) fn begin_known<'b>(
        &mut self,
        operations: &[Operation<'b>],
        left: &mut SmallVec<[(Line, Running<'b>); 2]>,
        behind: &mut Queues<'b>,
    ) -> Result<()> {
        for begun in [Side::Send, Side::Receive] {
            for operation in operations {
                let Some((side, what)) = transfer_of(operation).filter(|(side, _)| *side == begun) else {
                    continue;
                };
                let line = Line::Transfers(what.peer, side);
                if left.iter().any(|(waiting, _)| *waiting == line) {
                    let prepared = self.prepare_transfer(side, what)?;
                    enqueue(behind, line, Ready { prepared, buffers: operation.buffers });
                    continue;
                }
                let (schedule, entry, progress) = self.begin_transfer(side, what, &operation.buffers)?;
                if progress == Progress::Done {
                    self.recorder.end(entry, monotonic_ns);
                } else {
                    left.push((line, (schedule, operation.buffers, entry)));
                }
            }
        }
        Ok(())
    }

    /// The number of the next call of a line, which is about to be started.
    fn number(&mut self, line: Line) -> u64 {
        match line {
            Line::Collectives => {
                self.sequence += 1;
                self.sequence - 1
            }
            Line::Transfers(peer, side) => self.transfers.number(peer, side),
            Line::Copies => 0,
        }
    }

    /// Whether a call needs nothing that takes more than this rank.
    pub(super) fn is_prepared(&mut self, operation: &Operation<'_>) -> bool {
        let in_place = operation.buffers.is_in_place();
        match &operation.what {
            What::Collective(call) => self.plans.find(call, in_place).is_some(),
            What::Uneven(..) => false,
            What::Send(_) | What::Receive(_) => self.is_open(operation),
        }
    }

    /// Whether the link of a transfer is open.
    fn is_open(&self, operation: &Operation<'_>) -> bool {
        transfer_of(operation).is_none_or(|(side, transfer)| self.has_end(transfer.peer, side))
    }

    #[cold]
    fn open_ends_of(&mut self, operations: &[Operation<'_>]) -> Result<()> {
        let transfers: Vec<(Side, &Transfer)> = operations.iter().filter_map(transfer_of).collect();
        let calls = self.about_transfers(&transfers);
        let ends = transfers.iter().map(|(side, transfer)| (transfer.peer, *side));
        self.recorded(&calls, |this| this.open_ends(ends))
    }

    /// Prepares the calls. Nothing is started, so an error leaves the communicator whole.
    pub(super) fn line_up<'b>(
        &mut self,
        operations: &[Operation<'b>],
        queues: &mut Queues<'b>,
    ) -> Result<()> {
        self.usable()?;
        let prepared = self.prepare_all(operations, queues);
        self.unnumbered = 0;
        prepared
    }

    fn prepare_all<'b>(&mut self, operations: &[Operation<'b>], queues: &mut Queues<'b>) -> Result<()> {
        if !operations.iter().all(|operation| self.is_open(operation)) {
            self.open_ends_of(operations)?;
        }
        let mut to_self = (Vec::new(), Vec::new());
        for Operation { what, buffers } in operations {
            let (buffers, in_place) = (*buffers, buffers.is_in_place());
            let (line, prepared) = match what {
                What::Collective(call) => {
                    let index = self.index_of(call, in_place)?;
                    (Line::Collectives, self.plans.prepared[index].clone())
                }
                What::Uneven(call, blocks) => {
                    (Line::Collectives, self.prepare_uneven(call, blocks, in_place)?)
                }
                What::Send(transfer) if transfer.peer == self.rank => {
                    to_self.0.push((*transfer, buffers));
                    continue;
                }
                What::Receive(transfer) if transfer.peer == self.rank => {
                    to_self.1.push((*transfer, buffers));
                    continue;
                }
                What::Send(transfer) => {
                    (Line::Transfers(transfer.peer, Side::Send), self.prepare_transfer(Side::Send, transfer)?)
                }
                What::Receive(transfer) => (
                    Line::Transfers(transfer.peer, Side::Receive),
                    self.prepare_transfer(Side::Receive, transfer)?,
                ),
            };
            prepared.task.layout().check(&buffers)?;
            self.unnumbered += u64::from(line == Line::Collectives);
            enqueue(queues, line, Ready { prepared, buffers });
        }
        let (sends, receives) = to_self;
        if sends.len() != receives.len() {
            return Err(Error::invalid(
                format!(
                    "rank {} sends itself {} times and receives {} times in one group",
                    self.rank,
                    sends.len(),
                    receives.len()
                ),
                "let each send to itself have its receive in the same group",
            ));
        }
        for ((send, from), (receive, into)) in sends.into_iter().zip(receives) {
            let buffers = Buffers::joined(&from, &into);
            let prepared = self.prepare_copy(&send, &receive, &buffers)?;
            prepared.task.layout().check(&buffers)?;
            enqueue(queues, Line::Copies, Ready { prepared, buffers });
        }
        Ok(())
    }
}
