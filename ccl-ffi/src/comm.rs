//! `cclComm_t`.

use crate::handles::{SLOTS, Slot, Table};
use crate::pointers::store;
use crate::result::{cclResult_t, guard};
use ccl::device::{DeviceEngine, DeviceLine};
use ccl::{AbortHandle, Communicator, Error, ErrorKind, Monitor, Record, ReduceOp, Result, Turn, Turnstile};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Never defined: a handle is a number, dressed as a pointer that is not followed.
pub struct cclComm {
    _never: (),
}

/// A communicator. NULL is none.
pub type cclComm_t = *mut cclComm;

/// What a communicator's slot holds: the part that calls take turns at, and the part that is known without a turn.
#[derive(Default)]
pub(crate) struct Comm {
    pub(crate) calls: Calls,
    face: Monitor<Option<Arc<Face>>>,
    /// The handle that was aborted last, so that a second abort is no error.
    pub(crate) aborted: AtomicU64,
    /// What `cclCommSetTimeout` has set last for the calls that are issued from now on, in milliseconds; 0: nothing.
    timeout_ms: AtomicU32,
    /// The [`Place`] of a communicator that takes calls, so that issuing one takes no lock; 0 otherwise. Written in a turn, or after one
    /// was taken, so in the order of what happens to the communicator.
    place: AtomicU64,
}

/// What a call has to know of its communicator to be checked.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

impl Place {
    /// Not 0, for there are no communicators of no ranks.
    fn packed(self) -> u64 {
        u64::from(self.size) << 32 | u64::from(self.rank)
    }

    fn unpack(packed: u64) -> Option<Place> {
        (packed > 0).then_some(Place { rank: packed as u32, size: (packed >> 32) as u32 })
    }
}

pub(crate) struct Calls(Turnstile<Content>);

impl Default for Calls {
    fn default() -> Calls {
        Calls(Turnstile::new(Content::Nothing))
    }
}

/// What is behind a communicator's turnstile.
pub(crate) enum Content {
    /// No communicator, or one that is still joining or has failed to: its [`Face`] knows.
    Nothing,
    Ready(Box<Communicator>),
    /// It makes no more calls, but its peers may still need it.
    #[expect(dead_code, reason = "it is there for its peers, and goes when it is destroyed")]
    Finalized(Box<Communicator>),
}

/// What is known about a communicator at any time, without waiting for its calls.
pub(crate) struct Face {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) name: String,
    /// Knows also what happens between calls, and while it joins.
    pub(crate) alarm: AbortHandle,
    /// Set when all ranks have joined.
    joined: OnceLock<Record>,
    /// What makes its calls on device memory by kernels, where it can.
    engine: OnceLock<Arc<DeviceEngine>>,
    /// The first error that no caller was told of, or that broke it.
    error: OnceLock<Error>,
    finalized: AtomicBool,
    /// What it has for calls on device memory, from the first of them on.
    pub(crate) line: Monitor<Option<DeviceLine>>,
    /// What `cclRedOpCreatePreMulSum` made, by number.
    pub(crate) operators: Monitor<Vec<Option<ReduceOp>>>,
}

/// Communicators that may live at once in a process.
pub(crate) const MOST: usize = SLOTS;

pub(crate) static COMMS: Table<Comm> = Table::new(0xc1, "communicator", "cclCommInitRank");

impl Face {
    pub(crate) fn new(rank: u32, size: u32, name: String, alarm: AbortHandle) -> Arc<Face> {
        Arc::new(Face {
            rank,
            size,
            name,
            alarm,
            joined: OnceLock::new(),
            engine: OnceLock::new(),
            error: OnceLock::new(),
            finalized: AtomicBool::new(false),
            line: Monitor::default(),
            operators: Monitor::default(),
        })
    }

    fn has_joined(&self) -> bool {
        self.joined.get().is_some()
    }

    /// What makes its calls on device memory by kernels, if something does.
    pub(crate) fn engine(&self) -> Option<&Arc<DeviceEngine>> {
        self.engine.get()
    }

    /// What it does and has done, once it has joined.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.joined.get()
    }

    /// Why it is not well: what happened to a call, or else what is known without one: a peer's death, say.
    pub(crate) fn error(&self) -> Option<Error> {
        let known = || self.has_joined().then(|| self.alarm.error()).flatten();
        self.error.get().cloned().or_else(known)
    }

    /// Keeps an error, if it is the first.
    pub(crate) fn note(&self, error: &Error) {
        let _ = self.error.set(error.clone());
    }

    pub(crate) fn is_joining(&self) -> bool {
        !self.has_joined() && self.error.get().is_none()
    }

    fn place(&self) -> Place {
        Place { rank: self.rank, size: self.size }
    }

    /// Whether calls can be issued.
    pub(crate) fn usable(&self) -> Result<()> {
        let rank = self.rank;
        if self.is_joining() {
            return Err(Error::unsupported(
                format!("a call on rank {rank} of a communicator that is still joining"),
                "wait until cclCommGetAsyncError gives something else than cclInProgress",
            ));
        }
        if !self.has_joined()
            && let Some(error) = self.error.get()
        {
            let what = format!("it could not be made: {error}");
            return Err(ErrorKind::Broken(what).into());
        }
        if self.finalized.load(Ordering::Relaxed) {
            let what = format!("a call on rank {rank} of a communicator that was finalized");
            return Err(Error::unsupported(what, "destroy it: cclCommFinalize is the last call but that"));
        }
        Ok(())
    }
}

impl Comm {
    /// What `cclCommSetTimeout` has set last, if it was called.
    #[inline]
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let milliseconds = self.timeout_ms.load(Ordering::Relaxed);
        (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()))
    }

    fn set_face(&self, face: Option<Arc<Face>>) {
        *self.face.lock() = face;
    }

    /// Takes no more calls from now on.
    pub(crate) fn finalize(&self, face: &Face) {
        face.finalized.store(true, Ordering::Relaxed);
        self.place.store(0, Ordering::Release);
    }

    /// After a handle was retired and its turn has come: nothing is left of the communicator but what is returned.
    pub(crate) fn clear(&self, content: &mut Content) -> Content {
        self.place.store(0, Ordering::Release);
        self.set_face(None);
        std::mem::replace(content, Content::Nothing)
    }
}

/// A handle for a communicator that is still joining.
pub(crate) fn insert(face: Arc<Face>) -> Result<cclComm_t> {
    let fill = |comm: &Comm| {
        comm.timeout_ms.store(0, Ordering::Relaxed);
        comm.set_face(Some(face));
    };
    COMMS.insert(fill).map(|handle| handle as cclComm_t)
}

/// Puts what has joined behind its handle; [`ErrorKind::Aborted`] if the handle was aborted meanwhile.
pub(crate) fn fill(comm: cclComm_t, face: &Face, communicator: Communicator) -> Result<()> {
    let Ok((slot, turn)) = turn(comm) else { return Err(ErrorKind::Aborted.into()) };
    let record = communicator.record();
    communicator.device_engine().map(|engine| face.engine.set(Arc::clone(engine)));
    let mut content = turn.enter();
    *content = Content::Ready(Box::new(communicator));
    // Whoever sees these finds the communicator, in a turn taken afterwards.
    let _ = face.joined.set(record);
    slot.held.place.store(face.place().packed(), Ordering::Release);
    Ok(())
}

/// A handle for a communicator that has joined.
pub(crate) fn insert_ready(communicator: Communicator, name: String) -> Result<cclComm_t> {
    let face = Face::new(communicator.rank(), communicator.size(), name, communicator.abort_handle());
    let comm = insert(Arc::clone(&face))?;
    fill(comm, &face, communicator)?;
    Ok(comm)
}

/// The next turn on a communicator.
///
/// A handle is made invalid before the turn is taken in which its communicator goes. So who takes a turn and then finds
/// the handle valid, finds the communicator when the turn comes.
#[inline]
pub(crate) fn turn(comm: cclComm_t) -> Result<(&'static Slot<Comm>, Turn<'static, Content>)> {
    let handle = comm as usize;
    let slot = COMMS.slot(handle)?;
    let turn = slot.held.calls.0.take();
    slot.check(handle, &COMMS)?;
    Ok((slot, turn))
}

/// A turn for who has made the handle invalid.
pub(crate) fn last_turn(slot: &'static Slot<Comm>) -> Turn<'static, Content> {
    slot.held.calls.0.take()
}

/// Works with the communicator of a handle when the calls issued before are over.
#[inline]
pub(crate) fn with<T>(comm: cclComm_t, work: impl FnOnce(&mut Communicator) -> Result<T>) -> Result<T> {
    let (slot, turn) = turn(comm)?;
    match &mut *turn.enter() {
        Content::Ready(communicator) => {
            if let Some(limit) = slot.held.timeout() {
                communicator.set_timeout(limit);
            }
            work(communicator).inspect_err(|_| note_broken(slot, communicator))
        }
        _ => Err(unusable(slot)),
    }
}

#[cold]
fn note_broken(slot: &Slot<Comm>, communicator: &Communicator) {
    if let Some(error) = communicator.broken()
        && let Some(face) = face_in(slot)
    {
        face.note(error);
    }
}

#[cold]
pub(crate) fn unusable(slot: &Slot<Comm>) -> Error {
    let why = face_in(slot).and_then(|face| face.usable().err());
    why.unwrap_or_else(|| {
        Error::unsupported("a call on a communicator that is being destroyed", "make a new one")
    })
}

fn face_in(slot: &Slot<Comm>) -> Option<Arc<Face>> {
    slot.held.face.lock().clone()
}

/// What is known about a communicator, without waiting for it.
pub(crate) fn face(comm: cclComm_t) -> Result<Arc<Face>> {
    look(comm, |face| Ok(Arc::clone(face)))
}

/// Looks at what is known about a communicator, without waiting for it.
#[inline]
pub(crate) fn look<T>(comm: cclComm_t, look: impl FnOnce(&Arc<Face>) -> Result<T>) -> Result<T> {
    let handle = comm as usize;
    let slot = COMMS.find(handle)?;
    let face = slot.held.face.lock();
    slot.check(handle, &COMMS)?;
    match &*face {
        Some(face) => look(face),
        None => Err(COMMS.foreign(handle)),
    }
}

/// The place in a communicator that takes calls, and how long one that is issued now may wait if that was set.
#[inline]
pub(crate) fn place(comm: cclComm_t) -> Result<(Place, Option<Duration>)> {
    let handle = comm as usize;
    let slot = COMMS.find(handle)?;
    let place = match Place::unpack(slot.held.place.load(Ordering::Acquire)) {
        // It is this handle's: it was read between two looks at which that was valid.
        Some(place) => slot.check(handle, &COMMS).map(|_| place)?,
        None => unplaced(comm)?,
    };
    Ok((place, slot.held.timeout()))
}

/// Why it takes no calls. It may take them by now.
#[cold]
fn unplaced(comm: cclComm_t) -> Result<Place> {
    look(comm, |face| face.usable().map(|()| face.place()))
}

/// What `cclCommSetTimeout` has set last on a communicator, if it was called.
pub(crate) fn timeout(comm: cclComm_t) -> Option<Duration> {
    COMMS.find(comm as usize).ok().and_then(|slot| slot.held.timeout())
}

/// [`face`] of a communicator that has joined.
pub(crate) fn joined(comm: cclComm_t) -> Result<Arc<Face>> {
    let face = face(comm)?;
    if !face.has_joined() {
        face.usable()?;
    }
    Ok(face)
}

/// Changes how long a call may wait for its peers without anything moving, for the calls of this rank that are issued from
/// now on, in whatever way: `timeoutMs` milliseconds, at least 1. So a call has a limit of its own if this is called before and
/// after it. Calls that were issued keep theirs. It waits for nothing (not in NCCL).
#[unsafe(no_mangle)]
pub extern "C" fn cclCommSetTimeout(comm: cclComm_t, timeoutMs: c_int) -> cclResult_t {
    guard(|| {
        let milliseconds = u32::try_from(timeoutMs).ok().filter(|limit| *limit > 0);
        let milliseconds = milliseconds
            .ok_or_else(|| Error::invalid(format!("timeoutMs = {timeoutMs}"), "give milliseconds from 1"))?;
        face(comm)?.usable()?;
        COMMS.find(comm as usize)?.held.timeout_ms.store(milliseconds, Ordering::Relaxed);
        Ok(())
    })
}

/// How many ranks the communicator has.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommCount(comm: cclComm_t, count: *mut c_int) -> cclResult_t {
    // SAFETY: the function's contract.
    guard(|| unsafe { store(count, joined(comm)?.size as c_int, "count") })
}

/// This rank's number.
///
/// # Safety
/// `rank` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommUserRank(comm: cclComm_t, rank: *mut c_int) -> cclResult_t {
    // SAFETY: the function's contract.
    guard(|| unsafe { store(rank, joined(comm)?.rank as c_int, "rank") })
}

/// The device of the communicator's buffers, by its number in this process: where kernels make its calls that of the thread which made it,
/// else that of the first call on device memory. -1: there was none.
///
/// # Safety
/// `device` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommDevice(comm: cclComm_t, device: *mut c_int) -> cclResult_t {
    guard(|| {
        let face = joined(comm)?;
        let line = || face.line.lock().as_ref().map(DeviceLine::device);
        let known = face.engine().map(|engine| engine.device()).or_else(line).map_or(-1, u32::cast_signed);
        // SAFETY: the function's contract.
        unsafe { store(device, known, "device") }
    })
}
