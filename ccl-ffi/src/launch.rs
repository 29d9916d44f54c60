//! Making calls that were issued: one on a stream, or those of a group.

use crate::comm::{self, Comm, Content, Face, Place, cclComm_t};
use crate::depth;
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

/// Calls in the order in which they were issued: what each is, and who makes it, which is said once for calls in a row that their
/// caller makes alike.
pub(crate) struct Calls {
    issued: Vec<(Issued, usize)>,
    operations: Vec<Operation<'static>>,
}

impl Calls {
    pub(crate) const fn new() -> Calls {
        Calls { issued: Vec::new(), operations: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, issued: Issued, operation: Operation<'static>) {
        match self.issued.last_mut() {
            Some((last, calls)) if last.makes_like(&issued) => *calls += 1,
            _ => self.issued.push((issued, 1)),
        }
        self.operations.push(operation);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Forgets them; the memory is there for others.
    pub(crate) fn clear(&mut self) {
        self.issued.clear();
        self.operations.clear();
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Issued, Operation<'static>)> {
        let issued = self.issued.drain(..).flat_map(|(issued, calls)| {
            let (comm, limit) = (issued.comm, issued.limit);
            let alike = std::iter::repeat_with(move || Issued { comm, on: On::Caller, limit });
            std::iter::once(issued).chain(alike.take(calls - 1))
        });
        issued.zip(self.operations.drain(..))
    }

    /// The communicator, if all calls are of one, its caller waits for all of them, and their limit is still the one that is set.
    #[inline]
    pub(crate) fn only_comm(&self) -> Option<cclComm_t> {
        let [(Issued { comm, on: On::Caller, limit }, _)] = &*self.issued else { return None };
        let comm = *comm as cclComm_t;
        (comm::timeout(comm) == *limit).then_some(comm)
    }

    /// Makes them on their [only communicator](Calls::only_comm), where they stand.
    #[inline]
    pub(crate) fn make(&self, only: cclComm_t) -> Result<()> {
        comm::with(only, |communicator| communicator.run_all(&self.operations))
    }

    fn makers(&self) -> impl Iterator<Item = &Issued> {
        self.issued.iter().map(|(issued, _)| issued)
    }
}

impl Issued {
    /// Whether both are made by their caller, on one communicator, within one limit.
    #[inline(always)]
    fn makes_like(&self, other: &Issued) -> bool {
        let by_caller = matches!((&self.on, &other.on), (On::Caller, On::Caller));
        by_caller && self.comm == other.comm && self.limit == other.limit
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

/// Issues a call on a stream or in a group. `operation` checks its arguments, without waiting for anything. Out of line: calls that are
/// made at once need none of it.
#[inline(never)]
pub(crate) fn issue(
    comm: cclComm_t,
    stream: cclStream_t,
    operation: impl FnOnce(Place) -> Result<Operation<'static>>,
) -> Result<()> {
    let (place, limit) = comm::place(comm)?;
    let comm = comm as usize;
    if stream.is_null() && !device::is_here() && depth::is_in_group() {
        return group::keep(Issued { comm, on: On::Caller, limit }, || operation(place));
    }
    let given = stream::find(stream)?;
    submit((comm, limit), given, place, operation)
}

/// Makes a call, or keeps it for the end of the group.
#[inline(never)]
fn submit(
    (comm, limit): (usize, Option<Duration>),
    given: Given,
    place: Place,
    operation: impl FnOnce(Place) -> Result<Operation<'static>>,
) -> Result<()> {
    let operation = operation(place)?;
    let on = match given {
        given if device::is_here() => device::place(&operation, given, place.rank)?,
        Given::Host(stream) => On::Stream(stream),
        _ => On::Caller,
    };
    let issued = Issued { comm, on, limit };
    if depth::is_in_group() {
        return group::keep(issued, || Ok(operation));
    }
    let mut calls = Calls::new();
    calls.push(issued, operation);
    launch(&mut calls)
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
    if let Some(only) = calls.only_comm() {
        return calls.make(only);
    }
    if calls.makers().any(|call| matches!(call.on, On::Device { .. })) {
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
            let own = match &**content {
                Content::Ready(communicator) => communicator.broken(),
                _ => None,
            };
            if let Some(error) = own.or(is_asynchronous.then_some(error)) {
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
