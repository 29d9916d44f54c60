//! The streams and the memory of one communicator's calls on device buffers.

use super::call::DeviceCall;
use super::place::{Place, Wanted, buffers_at, places};
use crate::driver::Kind;
use crate::sys::{Event, Flags, PinnedMemory, Primary, Stream, awaited};
use ccl_core::communicator::{Operation, PIECE_BYTES};
use ccl_core::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps of one piece that are on their way at a time: one comes, one is worked on, one goes, and one is ahead.
const RING: usize = 4;
/// The slot of steps that are longer.
const LARGE: usize = RING;
/// Bytes of a step that goes through the slots of pieces, if it is none: a send and a receive buffer as long as one.
const PIECE_STEP: usize = 2 * PIECE_BYTES + 4096;
/// The least that is allocated.
const LEAST: usize = 64 << 10;
/// How long the end waits for the device, where nobody has waited before.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a communicator has for its calls on the buffers of one device.
pub struct Stage {
    primary: Arc<Primary>,
    /// From the device to the host.
    out: Stream,
    /// From the host to the device.
    back: Stream,
    /// Calls that have come.
    start: Event,
    /// Calls that have gone.
    end: Event,
    slots: Vec<Slot>,
    next: usize,
    flags: Arc<Flags>,
    /// Events of steps that are over.
    events: Arc<Mutex<Vec<Event>>>,
    /// Memory that was too short for a later step. The device may still copy from it.
    outgrown: Vec<Arc<PinnedMemory>>,
    allocated: usize,
    limit: usize,
    /// Why it takes no more calls, if so.
    broken: Option<Error>,
}

/// Memory of one step at a time. It is written by the device when the step before has gone.
struct Slot {
    memory: Option<Arc<PinnedMemory>>,
    /// The step before has gone.
    emptied: Event,
    /// Steps that it was used for: what its flag says when the host is done with the last of them.
    uses: u32,
}

/// A step that is not on its way yet.
struct Step {
    operations: Vec<Operation<'static>>,
    places: Vec<Place>,
    /// What they take.
    bytes: usize,
    slot: usize,
    filled: Event,
}

/// A step that is on its way. Dropping it is the word to the device that the host is done with it.
pub struct Staged {
    /// The calls that the host makes, on pinned memory.
    operations: Vec<Operation<'static>>,
    filled: Option<Event>,
    events: Arc<Mutex<Vec<Event>>>,
    flags: Arc<Flags>,
    slot: usize,
    ticket: u32,
    /// Lives as long as the host works on it.
    _memory: Option<Arc<PinnedMemory>>,
}

impl Staged {
    /// Whether the send buffers have come.
    pub fn is_ready(&self) -> Result<bool> {
        self.filled.as_ref().map_or(Ok(true), Event::is_done)
    }

    /// The calls to make, once it is ready; the second time there are none.
    pub fn take(&mut self) -> Vec<Operation<'static>> {
        std::mem::take(&mut self.operations)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.flags.set(self.slot, self.ticket);
        if let Some(event) = self.filled.take() {
            self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}

impl Stage {
    /// For the buffers of a device, with so much pinned memory at most. It allocates none yet but a page for flags.
    pub fn new(primary: &Arc<Primary>, limit: usize) -> Result<Stage> {
        let slot = || Ok(Slot { memory: None, emptied: Event::new(primary)?, uses: 0 });
        let slots: Result<Vec<_>> = (0..=LARGE).map(|_| slot()).collect();
        Ok(Stage {
            primary: Arc::clone(primary),
            out: Stream::new(primary)?,
            back: Stream::new(primary)?,
            start: Event::new(primary)?,
            end: Event::new(primary)?,
            slots: slots?,
            next: 0,
            flags: Arc::new(Flags::new(primary, LARGE + 1)?),
            events: Arc::default(),
            outgrown: Vec::new(),
            allocated: 0,
            limit,
            broken: None,
        })
    }

    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.primary.ordinal()
    }

    /// Puts all that the device does for these calls on streams, ordered on the caller's, and returns the steps for the host in
    /// the order in which they are to be made. Several calls are made together, in one step.
    ///
    /// The memory of the buffers stays until the caller's stream has passed the call.
    pub fn enqueue(&mut self, stream: usize, operations: Vec<Operation<'static>>) -> Result<Vec<Staged>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let caller = Stream::borrowed(&self.primary, stream)?;
        if caller.is_capturing()? {
            return Err(Error::unsupported(
                "a call on a stream that captures a graph: device buffers go through host memory, which a graph cannot",
                "make the call outside of the capture",
            ));
        }
        let steps: Vec<Vec<_>> = match <[_; 1]>::try_from(operations) {
            Ok([alone]) => alone.cut().into_iter().map(|piece| vec![piece]).collect(),
            Err(together) => vec![together],
        };
        let steps = self.prepare(steps)?;
        // From here on an error leaves streams that are not known to be in order.
        let staged = self.put(&caller, steps);
        if let Err(error) = &staged {
            self.broken = Some(error.clone());
        }
        staged
    }

    /// All that the driver might make wait for work on the device, and all that may be refused: done before any of the call
    /// is on its way.
    fn prepare(&mut self, steps: Vec<Vec<Operation<'static>>>) -> Result<Vec<Step>> {
        let are_pieces = steps.len() > 1;
        let prepared: Result<Vec<Step>> =
            steps.into_iter().map(|operations| self.step_of(operations)).collect();
        let mut prepared = prepared?;
        for step in &mut prepared {
            step.slot = if are_pieces || step.bytes <= PIECE_STEP { self.next } else { LARGE };
            if step.slot != LARGE {
                self.next = (self.next + 1) % RING;
            }
        }
        let mut needed = [0; LARGE + 1];
        prepared.iter().for_each(|step| needed[step.slot] = step.bytes.max(needed[step.slot]));
        self.reserve(&needed)?;
        Ok(prepared)
    }

    fn step_of(&self, operations: Vec<Operation<'static>>) -> Result<Step> {
        let on_device = |address: usize, is_empty: bool| -> Result<bool> {
            // Copies from pinned memory to pinned memory would not be asynchronous, and are not needed.
            Ok(!is_empty && matches!(self.primary.driver().kind(address)?, Kind::Device(_)))
        };
        let wanted = |operation: &Operation<'static>| {
            let buffers = operation.buffers();
            let (input, output) = (buffers.input(), buffers.output());
            let comes = on_device(input.as_ptr().addr(), input.is_empty())?;
            let goes = on_device(output.as_mut_ptr().addr(), output.is_empty())?;
            Ok(Wanted { buffers, comes, goes })
        };
        let wanted: Result<Vec<Wanted>> = operations.iter().map(wanted).collect();
        let (places, bytes) = places(&wanted?);
        let spare = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let filled = spare.map_or_else(|| Event::new(&self.primary), Ok)?;
        Ok(Step { operations, places, bytes, slot: 0, filled })
    }

    /// Makes calls and waits for them: `make` is given the host's part, and the stream is waited for in any case.
    pub fn run(
        &mut self,
        stream: &Stream,
        calls: Vec<DeviceCall<'_>>,
        make: impl FnOnce(Vec<Staged>) -> Result<()>,
    ) -> Result<()> {
        let calls = calls.into_iter().map(|call| awaited(call.0)).collect();
        let made = self.enqueue(stream.handle(), calls).and_then(make);
        let passed = stream.synchronize();
        if made.is_err() {
            // What was not put on the caller's stream any more may still be on the others.
            self.ends_within(PATIENCE);
        }
        made.and(passed)
    }

    fn put(&mut self, caller: &Stream, steps: Vec<Step>) -> Result<Vec<Staged>> {
        self.start.record(caller)?;
        self.out.wait(&self.start)?;
        let mut staged = Vec::new();
        for step in steps {
            self.step(step, &mut staged)?;
        }
        self.end.record(&self.back)?;
        caller.wait(&self.end)?;
        Ok(staged)
    }

    /// One step. It is among the steps that were staged as soon as the device waits for it.
    fn step(&mut self, step: Step, staged: &mut Vec<Staged>) -> Result<()> {
        let Step { operations, places, bytes, slot, filled } = step;
        let memory = self.slots[slot].memory.clone().filter(|_| bytes > 0);
        let piece = memory.as_ref().map(|memory| memory.piece());
        let of = |(operation, place): (&Operation<'static>, &Place)| {
            buffers_at(*place, &operation.buffers(), piece)
        };
        let on_host: Vec<_> = operations.iter().zip(&places).map(of).collect();
        let calls = || operations.iter().zip(&on_host).zip(&places);

        self.out.wait(&self.slots[slot].emptied)?;
        for ((operation, host), place) in calls() {
            if let (Some(at), Some(piece)) = (place.input, piece) {
                self.out.copy(operation.buffers().input(), piece.slice(at, host.input().len()))?;
            }
        }
        filled.record(&self.out)?;

        let ticket = self.slots[slot].uses.wrapping_add(1);
        self.back.wait_for(&self.flags, slot, ticket)?;
        self.slots[slot].uses = ticket;
        staged.push(Staged {
            operations: calls().map(|((operation, host), _)| operation.clone().with_buffers(*host)).collect(),
            filled: Some(filled),
            events: Arc::clone(&self.events),
            flags: Arc::clone(&self.flags),
            slot,
            ticket,
            _memory: memory.clone(),
        });
        for ((operation, host), _) in calls().filter(|(_, place)| place.output.is_some()) {
            let (from, to) = (host.output().as_piece(), operation.buffers().output());
            for range in operation.writes().into_iter().filter(|range| !range.is_empty()) {
                self.back.copy(from.slice(range.start, range.len()), to.slice(range.start, range.len()))?;
            }
        }
        self.slots[slot].emptied.record(&self.back)
    }

    /// Gives each slot so many bytes at least, within the limit.
    fn reserve(&mut self, needed: &[usize; LARGE + 1]) -> Result<()> {
        let short = |slot: &Slot, bytes: usize| slot.memory.as_ref().map_or(0, |memory| memory.len()) < bytes;
        let grows: usize = self
            .slots
            .iter()
            .zip(needed)
            .filter(|(slot, bytes)| short(slot, **bytes))
            .map(|(_, bytes)| *bytes)
            .sum();
        if self.allocated + grows > self.limit {
            let what = format!(
                "a call on device buffers that needs {grows} more bytes of pinned host memory, where {} of {} are taken",
                self.allocated, self.limit
            );
            return Err(Error::unsupported(what, "make smaller calls, or raise RDMACCL_STAGING_BYTES"));
        }
        // Room for longer steps, where that leaves room for these.
        let mut spare = self.limit - self.allocated - grows;
        for (slot, bytes) in self.slots.iter_mut().zip(needed).filter(|(slot, bytes)| short(slot, **bytes)) {
            let more = bytes.max(&LEAST).next_power_of_two() - bytes;
            let room = if more <= spare { bytes + more } else { *bytes };
            let memory = Arc::new(PinnedMemory::alloc(&self.primary, room)?);
            spare -= room - bytes;
            self.allocated += room;
            self.outgrown.extend(slot.memory.replace(memory));
        }
        Ok(())
    }

    /// Waits until the device has done all that was put on streams here, or has failed; not longer than this.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let is_busy =
            || matches!((self.out.is_done(), self.back.is_done()), (Ok(false), Ok(_)) | (Ok(_), Ok(false)));
        while is_busy() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.ends_within(PATIENCE) {
            // Memory that a device may still write must not be freed.
            let kept =
                self.slots.iter_mut().filter_map(|slot| slot.memory.take()).chain(self.outgrown.drain(..));
            kept.for_each(std::mem::forget);
            std::mem::forget(Arc::clone(&self.flags));
            let (device, bytes) = (self.device(), self.allocated);
            tracing::warn!(device, bytes, "work on a device did not end: pinned memory is left behind");
        }
    }
}
