//! Calls on device memory: which they are, and how they go.
//!
//! Without a CUDA driver a call finds out by one load that it is on host memory. With one, the driver is asked for the kind of
//! each buffer, and a call on device memory is enqueued on a CUDA stream; the communicator's `DeviceLine` makes it.

use crate::comm::{self, Content, Face, cclComm_t};
use crate::init::environment;
use crate::launch::{Calls, Issued, On};
use crate::stream::Given;
use ccl::device::{DeviceLine, Kind, Ready, driver};
use ccl::{Communicator, Error, Operation, Result};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use ccl::device::is_here;

/// Whether a call without a stream, on these buffers if it uses them, is one that the host cannot just make.
#[inline(always)]
pub(crate) fn concerns(send: *const c_void, recv: *const c_void) -> bool {
    is_here() && is_any_beyond(send, recv)
}

#[cold]
#[inline(never)]
fn is_any_beyond(send: *const c_void, recv: *const c_void) -> bool {
    let Ok(driver) = driver() else { return false };
    [send, recv].into_iter().filter(|at| !at.is_null()).any(|at| {
        // An error of the driver is told by `place`.
        !matches!(driver.kind(at.addr()), Ok(Kind::Host | Kind::Pinned))
    })
}

/// A buffer that a call uses, by its name.
struct Buffer {
    name: &'static str,
    at: usize,
    kind: Kind,
}

/// What carries a call out, by the kinds of its buffers and what was given as its stream.
pub(crate) fn place(operation: &Operation<'_>, given: Given, rank: u32) -> Result<On> {
    let driver = driver()?;
    let (input, output) = (operation.buffers().input(), operation.buffers().output());
    let sides = [
        ("sendbuff", input.as_ptr().addr(), input.len()),
        ("recvbuff", output.as_mut_ptr().addr(), output.len()),
    ];
    let used = sides.into_iter().filter(|(_, _, len)| *len > 0);
    let buffers: Vec<Buffer> =
        used.map(|(name, at, _)| Ok(Buffer { name, at, kind: driver.kind(at)? })).collect::<Result<_>>()?;
    let refused = |buffer: &Buffer, why: &str, remedy: &str| {
        let Buffer { name, at, kind } = buffer;
        Err(Error::invalid(format!("{name} {at:#x} of rank {rank} is {kind}{why}"), remedy))
    };
    for buffer in &buffers {
        match buffer.kind {
            Kind::Nothing => {
                return refused(buffer, "", "give memory that is allocated until the call is over");
            }
            Kind::Managed => {
                let remedy = "give device memory (cudaMalloc) or host memory: what moves by itself is moved back and \
                              forth under a call";
                return refused(buffer, "", remedy);
            }
            _ => {}
        }
    }
    let on_device = buffers.iter().filter_map(|buffer| match buffer.kind {
        Kind::Device(device) => Some((buffer, device)),
        _ => None,
    });
    let on_device: Vec<_> = on_device.collect();
    if let [(one, first), (_, second)] = on_device[..]
        && first != second
    {
        let why = format!(", and recvbuff is memory of device {second}");
        return refused(one, &why, "give buffers of one device");
    }
    let device = on_device.first().map(|(_, device)| *device);
    let stream = match (device, given) {
        (None, Given::Nothing) => return Ok(On::Caller),
        (None, Given::Host(stream)) => return Ok(On::Stream(stream)),
        (Some(_), Given::Host(_)) => {
            let remedy = "give a CUDA stream of that device, or NULL for its default stream";
            return refused(on_device[0].0, ", and the stream is a host stream", remedy);
        }
        (Some(_), Given::Nothing) => 0,
        (_, Given::Device(stream)) => stream,
    };
    if let Some(buffer) = buffers.iter().find(|buffer| buffer.kind == Kind::Host) {
        let why = if device.is_some() {
            ", and the other buffer is on a device"
        } else {
            ", and the stream is a CUDA stream"
        };
        let remedy = "give device memory or pinned memory (cudaMallocHost), or NULL or a host stream and no device memory";
        return refused(buffer, why, remedy);
    }
    let of_stream = driver.device_of(stream)?;
    let device = match (device, of_stream) {
        (Some(device), Some(other)) if device != other && stream != 0 => {
            let why = format!(", and the stream is of device {other}");
            return refused(on_device[0].0, &why, "give a stream of the device of the buffers");
        }
        (Some(device), _) | (None, Some(device)) => device,
        (None, None) => {
            let what = format!("a call of rank {rank} on a default stream, of no device that is known");
            return Err(Error::invalid(
                what,
                "select a device before (cudaSetDevice), or give a stream of one",
            ));
        }
    };
    let has_pinned = buffers.iter().any(|buffer| buffer.kind == Kind::Pinned);
    Ok(On::Device { device, stream, has_pinned })
}

/// Ranks of this process on its devices: where the calling thread has a device and there are enough of them rank i is on device i, as NCCL
/// has it; else all are on the thread's.
pub(crate) fn local(size: u32) -> Result<Vec<Communicator>> {
    let own = ccl::device::current_after(&environment()?)?;
    let enough = || driver().and_then(|driver| driver.devices()).is_ok_and(|all| all.len() >= size as usize);
    let one_each = own.is_some() && enough();
    Communicator::local_on(size, |rank| if one_each { Some(rank) } else { own })
}

/// The calls of a launch on one communicator.
struct Part {
    comm: usize,
    face: Arc<Face>,
    device: u32,
    stream: usize,
    /// Whether some of the buffers are pinned memory.
    has_pinned: bool,
    operations: Vec<Operation<'static>>,
    limit: Option<Duration>,
}

/// Enqueues calls on device memory. Those of a group go together on each communicator; communicators do not wait for each other,
/// since each has a thread of its own, or kernels.
pub(crate) fn launch(calls: &mut Calls) -> Result<()> {
    let mut parts: Vec<Part> = Vec::new();
    for (Issued { comm, on, limit }, operation) in calls.drain() {
        let face = comm::face(comm as cclComm_t)?;
        let On::Device { device, stream, has_pinned } = on else {
            let what = format!(
                "a group with calls of rank {} on host memory and others on device memory",
                face.rank
            );
            return Err(Error::unsupported(what, "make two groups"));
        };
        match parts.iter_mut().find(|part| part.comm == comm) {
            Some(part) if part.stream != stream => {
                let what = format!("a group with calls of rank {} on several CUDA streams", face.rank);
                return Err(Error::unsupported(
                    what,
                    "give one stream to all calls of a group on a communicator",
                ));
            }
            Some(part) => {
                part.operations.push(operation);
                part.has_pinned |= has_pinned;
                part.limit = part.limit.into_iter().chain(limit).min();
            }
            None => {
                let operations = vec![operation];
                parts.push(Part { comm, face, device, stream, has_pinned, operations, limit });
            }
        }
    }
    // Kernels make all calls of a communicator that has them. All is made ready before the first one waits for a peer, which may be in
    // this group, too.
    let (by_kernels, staged): (Vec<Part>, Vec<Part>) =
        parts.into_iter().partition(|part| part.face.engine().is_some());
    let ready: Vec<Option<Ready>> = by_kernels.iter().map(Part::ready).collect::<Result<_>>()?;
    for (part, ready) in by_kernels.iter().zip(ready) {
        if let Some((engine, ready)) = part.face.engine().zip(ready) {
            part.limit.iter().for_each(|limit| engine.set_timeout(*limit));
            engine.launch(ready)?;
        }
    }
    staged.into_iter().try_for_each(Part::enqueue)
}

impl Part {
    /// Prepares what kernels make.
    fn ready(&self) -> Result<Option<Ready>> {
        let Some(engine) = self.face.engine() else { return Ok(None) };
        if engine.device() != self.device {
            let (rank, own, other) = (self.face.rank, engine.device(), self.device);
            let what = format!(
                "a call of rank {rank} on device {other}, in a communicator where it is on device {own}"
            );
            let remedy = "select the device of the buffers (cudaSetDevice) before the communicator is made";
            return Err(Error::invalid(what, remedy));
        }
        engine.ready(self.stream, &self.operations, self.has_pinned).map(Some)
    }

    fn enqueue(self) -> Result<()> {
        let Part { comm, face, device, stream, operations, limit, .. } = self;
        let held = Arc::clone(&face);
        // Held until the job is submitted: the order of the device's work is the order of turns.
        let mut line = held.line.lock();
        let line = match &mut *line {
            Some(line) if line.device() != device => {
                let what = format!(
                    "a call of rank {} on device {device}, after calls on device {}",
                    face.rank,
                    line.device()
                );
                return Err(Error::unsupported(what, "make a communicator for each device of a process"));
            }
            Some(line) => line,
            none => none.insert(DeviceLine::new(driver()?, device, environment()?.staging_bytes)?),
        };
        let steps = line.enqueue(stream, operations)?;
        let (slot, turn) = comm::turn(comm as cclComm_t)?;
        line.submit(move || {
            let mut content = turn.enter();
            let made = match &mut *content {
                Content::Ready(communicator) => DeviceLine::make(steps, &face.alarm, |operations| {
                    let mut batch = communicator.batch().in_background();
                    operations.into_iter().for_each(|operation| batch.push(operation));
                    let batch = match limit {
                        Some(limit) => batch.timeout(limit),
                        None => batch,
                    };
                    // Before the stream runs on: whoever has waited for that finds it.
                    batch.run().inspect_err(|error| face.note(error))
                }),
                _ => Err(comm::unusable(slot)),
            };
            made.inspect_err(|error| face.note(error))
        });
        Ok(())
    }
}
