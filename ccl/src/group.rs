//! Groups: calls made together.

use crate::{Call, Collective, Communicator, Element, Operation, Rank, ReduceOp, Result};
use ccl_core::communicator::{Communicator as Core, Member};
use ccl_core::kernels::Buffers;
use std::time::Duration;

/// Calls on one communicator that are made together: begun with [`Communicator::batch`], made by [`run`](Batch::run),
/// or with those of other communicators by [`run_together`].
///
/// Collectives run in the order in which they were added, one at a time; sends and receives run beside
/// them, those with one peer in order. So any pattern of transfers completes whose sends and receives fit.
///
/// ```
/// # let mut ranks = ccl::Communicator::local(1)?;
/// # let comm = &mut ranks[0];
/// let (next, previous) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
/// let (mine, mut theirs) = ([1.0f32, 2.0], [0.0f32; 2]);
/// comm.batch().send(&mine, next).receive(&mut theirs, previous).run()?;
/// # assert_eq!(theirs, mine);
/// # Ok::<(), ccl::Error>(())
/// ```
#[must_use = "a batch makes no call until `run`"]
pub struct Batch<'c, 'b> {
    core: &'c mut Core,
    operations: Vec<Operation<'b>>,
    limit: Option<Duration>,
    in_background: bool,
}

impl Communicator {
    /// Begins a group of calls.
    pub fn batch<'b>(&mut self) -> Batch<'_, 'b> {
        Batch { core: self.core(), operations: Vec::new(), limit: None, in_background: false }
    }

    /// Makes one call by itself, of whatever kind.
    pub fn run_one(&mut self, operation: Operation<'_>) -> Result<()> {
        self.core().run_one(operation)
    }

    /// Makes these calls together, as a [`Batch`] of them does.
    pub fn run_all(&mut self, operations: &[Operation<'_>]) -> Result<()> {
        self.core().run_all(operations)
    }

    /// Sends `data` to rank `peer`, which must [`receive`](Communicator::receive) it. May return before the peer has it.
    /// Ranks that send to each other one by one may wait for ever: such transfers belong into a
    /// [`batch`](Communicator::batch).
    pub fn send<T: Element>(&mut self, data: &[T], peer: Rank) -> Result<()> {
        let buffers = Buffers::new(bytemuck::cast_slice(data), &mut []);
        self.run_one(Operation::send(peer, T::TYPE, data.len(), buffers))
    }

    /// Whether something that rank `peer` [sends](Communicator::send) has come, so that a receive finds its beginning; waits for
    /// nothing. Never before the first receive from `peer`, in which the two open their link.
    pub fn has_arrived(&mut self, peer: Rank) -> Result<bool> {
        self.core().has_arrived(peer)
    }

    /// Fills `data` with what rank `peer` [sends](Communicator::send), which must be as long.
    pub fn receive<T: Element>(&mut self, data: &mut [T], peer: Rank) -> Result<()> {
        let count = data.len();
        let buffers = Buffers::new(&[], bytemuck::cast_slice_mut(data));
        self.run_one(Operation::receive(peer, T::TYPE, count, buffers))
    }
}

impl<'b> Batch<'_, 'b> {
    /// Adds any call.
    pub fn push(&mut self, operation: Operation<'b>) {
        self.operations.push(operation);
    }

    /// Adds a send of `data` to rank `peer`.
    pub fn send<T: Element>(mut self, data: &'b [T], peer: Rank) -> Self {
        let buffers = Buffers::new(bytemuck::cast_slice(data), &mut []);
        self.push(Operation::send(peer, T::TYPE, data.len(), buffers));
        self
    }

    /// Adds a receive from rank `peer` into `data`.
    pub fn receive<T: Element>(mut self, data: &'b mut [T], peer: Rank) -> Self {
        let count = data.len();
        let buffers = Buffers::new(&[], bytemuck::cast_slice_mut(data));
        self.push(Operation::receive(peer, T::TYPE, count, buffers));
        self
    }

    /// Adds an all-reduce of `send` into `recv`.
    pub fn all_reduce<T: Element>(mut self, send: &'b [T], recv: &'b mut [T], op: ReduceOp) -> Self {
        let call = Call { collective: Collective::AllReduce, count: send.len(), dtype: T::TYPE, op, root: 0 };
        let buffers = Buffers::new(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(recv));
        self.push(Operation::collective(call, buffers));
        self
    }

    /// These calls may wait so long for peers without anything moving, whatever the communicator's own limit is.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// They are made beside a thread that computes, such as by a [`Stream`](crate::Stream): where there are not cores for both, waiting leaves
    /// that thread its own.
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Makes the calls, and returns when this rank's part of all of them is done.
    pub fn run(self) -> Result<()> {
        match (self.limit, self.in_background) {
            (None, false) => self.core.run_all(&self.operations),
            _ => run_together(vec![self]),
        }
    }
}

/// Makes the calls of several communicators together, which may be ranks of one job that this thread drives alone.
pub fn run_together(batches: Vec<Batch<'_, '_>>) -> Result<()> {
    let member = |batch| {
        let Batch { core, operations, limit, in_background } = batch;
        let mut member = Member::new(core, operations);
        if in_background {
            member = member.in_background();
        }
        match limit {
            Some(limit) => member.timeout(limit),
            None => member,
        }
    };
    ccl_core::communicator::run_together(batches.into_iter().map(member).collect())
}
