//! Making calls that were issued: one on a stream, or those of a group.

use crate::comm::{self, Comm, Content, Face, cclComm_t};
use crate::device;
use crate::group;
use crate::handles::Slot;
use crate::meeting::Meeting;
use crate::stream::{self, Given, cclStream_t};
use ccl::{Batch, Entered, Operation, Result, Stream, Turn, run_together};
use std::sync::Arc;
use std::time::Duration;

/// Who makes a call whose arguments were checked, and which has no turn yet.
pub(crate) struct Issued {
    pub(crate) comm: usize,
    pub(crate) on: On,
    /// What was set when it was issued.
    pub(crate) limit: Option<Duration>,
}

/// Calls in the order in which they were issued: who makes each, and what it is.
pub(crate) struct Calls {
    issued: Vec<Issued>,
    operations: Vec<Operation<'static>>,
}

impl Calls {
    pub(crate) const fn new() -> Calls {
        Calls { issued: Vec::new(), operations: Vec::new() }
    }

    pub(crate) fn push(&mut self, issued: Issued, operation: Operation<'static>) {
        self.issued.push(issued);
        self.operations.push(operation);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.issued.is_empty()
    }

    /// Forgets them; the memory is there for others.
    pub(crate) fn clear(&mut self) {
        self.issued.clear();
        self.operations.clear();
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Issued, Operation<'static>)> {
        self.issued.drain(..).zip(self.operations.drain(..))
    }

    /// The communicator, if all calls are of one, its caller waits for all of them, and their limit is still the one that is set.
    fn only_comm(&self) -> Option<cclComm_t> {
        let comm = self.issued.first()?.comm;
        let limit = comm::timeout(comm as cclComm_t);
        let is_plain =
            |call: &Issued| call.comm == comm && matches!(call.on, On::Caller) && call.limit == limit;
        self.issued.iter().all(is_plain).then_some(comm as cclComm_t)
    }
}

/// What carries a call out.
pub(crate) enum On {
    /// Whoever issued it, and waits for its end.
    Caller,
    Stream(Arc<Stream>),
    /// A stream of a device, by its handle.
    Device {
        device: u32,
        stream: usize,
        /// Whether some of the buffers are pinned memory of the host.
        has_pinned: bool,
    },
}

/// Issues a call on a stream or in a group. `operation` checks its arguments, without waiting for anything.
pub(crate) fn issue(
    comm: cclComm_t,
    stream: cclStream_t,
    operation: impl FnOnce(&Face) -> Result<Operation<'static>>,
) -> Result<()> {
    let (rank, given, operation) = comm::look(comm, |face| {
        face.usable()?;
        Ok((face.rank, stream::find(stream)?, operation(face)?))
    })?;
    let on = match given {
        given if device::is_here() => device::place(&operation, given, rank)?,
        Given::Host(stream) => On::Stream(stream),
        _ => On::Caller,
    };
    let limit = comm::timeout(comm);
    group::submit(Issued { comm: comm as usize, on, limit }, operation)
}

/// The calls of a launch on one communicator, with their turn.
struct Part {
    comm: usize,
    face: Arc<Face>,
    turn: Turn<'static, Content>,
    work: Work,
}

/// What is to be done when the turn has come.
struct Work {
    slot: &'static Slot<Comm>,
    operations: Vec<Operation<'static>>,
    /// The shortest limit that was set for one of them: they are made together.
    limit: Option<Duration>,
}

/// Makes calls together: on this thread if one of them is without a stream, otherwise on the first stream's. The other
/// streams wait there until it is done, as their order asks.
pub(crate) fn launch(calls: &mut Calls) -> Result<()> {
    if let Some(comm) = calls.only_comm() {
        return comm::with(comm, |communicator| communicator.run_all(&calls.operations));
    }
    if calls.issued.iter().any(|call| matches!(call.on, On::Device { .. })) {
        return device::launch(calls);
    }
    let order = ccl::together();
    let mut parts: Vec<Part> = Vec::new();
    let mut streams: Vec<Arc<Stream>> = Vec::new();
    let mut caller_waits = false;
    for (Issued { comm, on, limit }, operation) in calls.drain() {
        match parts.iter_mut().find(|part| part.comm == comm) {
            Some(Part { work, .. }) => {
                work.operations.push(operation);
                work.limit = work.limit.into_iter().chain(limit).min();
            }
            None => {
                let face = comm::face(comm as cclComm_t)?;
                let (slot, turn) = comm::turn(comm as cclComm_t)?;
                let work = Work { slot, operations: vec![operation], limit };
                parts.push(Part { comm, face, turn, work });
            }
        }
        match on {
            On::Stream(stream) if streams.iter().any(|known| Arc::ptr_eq(known, &stream)) => {}
            On::Stream(stream) => streams.push(stream),
            _ => caller_waits = true,
        }
    }
    let mut streams = streams.into_iter();
    let leader = if caller_waits { None } else { streams.next() };
    let meeting = Meeting::new();
    for stream in streams {
        let guest = meeting.invite();
        stream.submit(move || guest.attend());
    }
    let is_asynchronous = leader.is_some();
    let work = move || meeting.lead(|| run(parts, is_asynchronous));
    match leader {
        Some(stream) => {
            stream.submit(work);
            Ok(())
        }
        None => {
            drop(order);
            work()
        }
    }
}

fn run(parts: Vec<Part>, is_asynchronous: bool) -> Result<()> {
    type InUse = (Entered<'static, Content>, Arc<Face>);
    // The order in which turns are waited for does not matter: they were taken together.
    let (mut entered, work): (Vec<InUse>, Vec<_>) =
        parts.into_iter().map(|part| ((part.turn.enter(), part.face), part.work)).unzip();
    let result = make(&mut entered, work, is_asynchronous);
    if let Err(error) = &result {
        for (content, face) in &entered {
            let is_broken = matches!(&**content, Content::Ready(c) if c.broken().is_some());
            if is_asynchronous || is_broken {
                face.note(error);
            }
        }
    }
    result
}

fn make(
    entered: &mut [(Entered<'static, Content>, Arc<Face>)],
    work: Vec<Work>,
    in_background: bool,
) -> Result<()> {
    let mut batches: Vec<Batch<'_, 'static>> = Vec::new();
    for ((content, _), Work { slot, operations, limit }) in entered.iter_mut().zip(work) {
        let Content::Ready(communicator) = &mut **content else { return Err(comm::unusable(slot)) };
        let mut batch = communicator.batch();
        operations.into_iter().for_each(|operation| batch.push(operation));
        if in_background {
            batch = batch.in_background();
        }
        batches.push(match limit {
            Some(limit) => batch.timeout(limit),
            None => batch,
        });
    }
    run_together(batches)
}
