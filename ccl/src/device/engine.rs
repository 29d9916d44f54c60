//! A communicator's kernels: how they are brought together, watched, and taken leave of.

use super::{DeviceStream, driver};
use crate::{AbortHandle, Call, Collective, Error, ErrorKind, Rank, Result, spawn_quiet};
use ccl_core::clock::monotonic_ns;
use ccl_core::communicator::Communicator as Core;
use ccl_core::config::DeviceEngine as Choice;
use ccl_core::flight::Reason;
use ccl_core::monitor::Monitor;
use ccl_core::simd::Buffers;
use ccl_transport_cuda::engine::{Engine, Founding, MOST_RANKS, Parting, Place, Ready, Trouble, Wanted};
use ccl_transport_cuda::program::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the watcher looks while calls run, and while none does.
const LOOK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// For so long after a launch calls may run, whether a kernel has said so or not.
const LIVELY: Duration = Duration::from_secs(1);
/// How long a verdict takes at most.
const VERDICT: Duration = Duration::from_secs(5);
/// How long the end of a communicator that has failed waits for its kernels, which were told to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// What makes a communicator's calls on device memory by kernels.
///
/// A thread, `ccl-kernels`, looks at what the kernels say. It ends them when the communicator ends, and ends the communicator when a kernel
/// has given up, or takes longer than a call may.
pub struct DeviceEngine {
    shared: Arc<Shared>,
}

struct Shared {
    rank: Rank,
    engine: Engine,
    alarm: AbortHandle,
    /// Nanoseconds that a call may take.
    limit: AtomicU64,
    /// When the last call was launched, in nanoseconds of the host's clock.
    launched: AtomicU64,
    /// Whether the watcher is to end.
    closed: Monitor<bool>,
}

impl DeviceEngine {
    /// Brings the ranks' devices together, after all of them have joined. All find the same: an engine, or none, and why is in the log.
    pub(crate) fn found(core: &mut Core, device: Option<u32>) -> Result<Option<DeviceEngine>> {
        let places = core.device_places();
        let places: Vec<Option<Place>> =
            places.iter().map(|words| Place::from_bytes(words)).collect::<Result<_>>()?;
        if let Some(why) = unfit(core, &places) {
            tracing::info!(target: "cuda", rank = core.rank(), why, "calls on device memory go through the host");
            return Ok(None);
        }
        let places: Vec<Place> = places.into_iter().flatten().collect();
        // Whatever happens to a rank, all take part in the same two rounds.
        let rank = core.rank();
        let config = core.config().clone();
        let founding = || {
            let device = device.ok_or_else(|| Error::invalid("a rank on no device", "give it one"))?;
            let primary = driver()?.device(device)?.primary()?;
            let founding = Founding::new(&primary, rank, &places, &config)?;
            let words = founding.words()?;
            Ok((founding, words))
        };
        let founding = founding();
        let said = core.share(&told(founding.as_ref().map(|(_, words)| words.as_slice())))?;
        let engine = match (founding, heard(&said)) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok((founding, _)), Ok(words)) => founding.meet(&words, Wanted::default()),
        };
        let said = core.share(&told(engine.as_ref().map(|_| [].as_slice())))?;
        let engine = match (engine, heard(&said)) {
            (Ok(engine), Ok(_)) => engine,
            (Err(error), _) | (Ok(_), Err(error)) => {
                tracing::warn!(target: "cuda", rank, %error, "calls on device memory go through the host");
                return Ok(None);
            }
        };
        tracing::info!(target: "cuda", rank, device = engine.device(), "kernels make calls on device memory");
        core.observe_kernels(Box::new(engine.observer()));
        let shared = Arc::new(Shared {
            rank,
            engine,
            alarm: core.abort_handle(),
            limit: AtomicU64::new(nanoseconds(config.timeout)),
            launched: AtomicU64::new(0),
            closed: Monitor::new(false),
        });
        let watched = Arc::clone(&shared);
        spawn_quiet("ccl-kernels", move || watched.watch()).map_err(|cause| {
            Error::system("starting a thread that watches kernels", cause, "raise the limit of threads")
        })?;
        Ok(Some(DeviceEngine { shared }))
    }

    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.shared.engine.device()
    }

    /// Uses the algorithms that `wanted` says from now on.
    pub(crate) fn set_algorithms(
        &self,
        wanted: impl Fn(Collective) -> Result<Option<&'static str>>,
    ) -> Result<()> {
        let mut all = Wanted::default();
        for (place, collective) in all.iter_mut().zip(Collective::ALL) {
            *place = wanted(collective)?;
        }
        self.shared.engine.set_wanted(all);
        Ok(())
    }

    /// Changes how long a call may take.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.limit.store(nanoseconds(timeout), Ordering::Relaxed);
    }

    /// Prepares a call on memory that the device reaches, for a stream. Of several, all are made ready before the first is launched.
    pub fn ready(&self, stream: usize, call: &Call, buffers: &Buffers<'_>) -> Result<Ready> {
        self.shared.alarm.error().map_or(Ok(()), Err)?;
        self.shared.engine.ready(stream, call, buffers)
    }

    /// Launches calls on a stream, in order, behind those that were launched before; on a stream that captures a graph, captures
    /// them. The memory of their buffers stays until the stream has passed them.
    pub fn launch(&self, stream: usize, calls: Vec<Ready>) -> Result<()> {
        self.shared.alarm.error().map_or(Ok(()), Err)?;
        self.shared.launched.store(monotonic_ns(), Ordering::Relaxed);
        self.shared.engine.launch(stream, calls).inspect_err(|error| {
            // Its peers may wait for a call that was not launched.
            self.shared.alarm.fail(&error.to_string());
        })
    }

    /// Makes calls and waits for them.
    pub(crate) fn run(&self, stream: &DeviceStream, calls: &[(&Call, Buffers<'_>)]) -> Result<()> {
        let ready = calls.iter().map(|(call, buffers)| self.ready(stream.handle(), call, buffers));
        self.launch(stream.handle(), ready.collect::<Result<_>>()?)?;
        stream.synchronize()?;
        // A kernel that was ended leaves the stream in order.
        self.shared.alarm.error().or_else(|| self.shared.wait_for_trouble()).map_or(Ok(()), Err)
    }

    /// Waits for the calls that were launched, as long as they may take, and leaves the rest to a thread: its peers' kernels
    /// may still use its memory.
    pub(crate) fn close(&self) {
        let shared = &self.shared;
        let begin = Instant::now();
        let limit = Duration::from_nanos(shared.limit.load(Ordering::Relaxed));
        while !shared.engine.is_idle().unwrap_or(true) {
            let patience = if shared.alarm.error().is_some() { PATIENCE } else { limit };
            if begin.elapsed() >= patience {
                break;
            }
            nap(begin);
        }
        *shared.closed.lock() = true;
        shared.closed.lock().notify();
        let Some(parting) = shared.engine.close() else { return };
        let alarm = shared.alarm.clone();
        // Without a thread its memory stays: a peer may use it.
        let _ = spawn_quiet("ccl-device", move || part(parting, &alarm, limit));
    }
}

/// Takes leave: waits for this rank's kernels, and then for those of its peers.
fn part(mut parting: Parting, alarm: &AbortHandle, limit: Duration) {
    let begin = Instant::now();
    loop {
        if alarm.error().is_some() || begin.elapsed() >= limit {
            parting.alarm();
        }
        // What does not answer any more is a device that has gone wrong: nothing there uses memory.
        if parting.step(&alarm.health().lost()).unwrap_or(true) {
            return;
        }
        nap(begin);
    }
}

/// Ever longer, up to some milliseconds.
fn nap(begin: Instant) {
    std::thread::sleep((begin.elapsed() / 8).clamp(Duration::from_micros(20), Duration::from_millis(10)));
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Why kernels cannot make these ranks' calls, if so: all ranks find the same.
fn unfit(core: &Core, places: &[Option<Place>]) -> Option<String> {
    if core.config().device_engine == Choice::Off {
        return Some("RDMACCL_DEVICE_ENGINE=off".into());
    }
    if let Some(rank) = places.iter().position(Option::is_none) {
        return Some(format!("rank {rank} has joined on no device"));
    }
    if core.placement().hosts > 1 {
        return Some("the ranks are on several hosts".into());
    }
    (places.len() > MOST_RANKS).then(|| format!("there are more than {MOST_RANKS} ranks"))
}

const WELL: u8 = 1;
const NOT: u8 = 0;
/// Bytes of a reason that is told.
const REASON: usize = 1000;

/// A rank's words for the others, or why it has none.
fn told(words: std::result::Result<&[u8], &Error>) -> Vec<u8> {
    match words {
        Ok(words) => std::iter::once(WELL).chain(words.iter().copied()).collect(),
        Err(error) => {
            let text = error.to_string();
            std::iter::once(NOT).chain(text.bytes().take(REASON)).collect()
        }
    }
}

/// The words of all, or the first rank's reason that has none.
fn heard(said: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let one = |(rank, words): (usize, &Vec<u8>)| match words.split_first() {
        Some((&WELL, words)) => Ok(words.to_vec()),
        other => {
            let text = other.map_or_else(Default::default, |(_, text)| String::from_utf8_lossy(text));
            Err(Error::unsupported(format!("rank {rank}: {text}"), "the ranks do without"))
        }
    };
    said.iter().enumerate().map(one).collect()
}

impl Shared {
    /// Looks after the kernels until the communicator is closed or has ended.
    fn watch(&self) {
        let mut closed = self.closed.lock();
        while !*closed {
            drop(closed);
            if let Some(error) = self.look() {
                self.alarm.error().is_none().then(|| self.alarm.fail(&error.to_string()));
                self.engine.fail(error);
                return;
            }
            let launched = self.launched.load(Ordering::Relaxed);
            let is_lively = self.engine.mark().0.is_inside
                || monotonic_ns().saturating_sub(launched) < nanoseconds(LIVELY);
            closed = self.closed.lock();
            if !*closed {
                closed.wait(Some(LOOK[usize::from(!is_lively)]));
            }
        }
    }

    /// The end of the communicator, if a kernel has given up: the watcher sees to it.
    fn wait_for_trouble(&self) -> Option<Error> {
        self.engine.trouble()?;
        self.alarm.health().wait_for_error(VERDICT)
    }

    /// Why the calls end, if so.
    fn look(&self) -> Option<Error> {
        if let Some(error) = self.alarm.error() {
            return Some(error);
        }
        if let Some(trouble) = self.engine.trouble() {
            return Some(self.judged(&trouble));
        }
        let (mark, since) = self.engine.mark();
        let waited = Duration::from_nanos(monotonic_ns().saturating_sub(since));
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        (mark.is_inside && waited >= limit).then(|| self.late(waited))
    }

    /// A kernel has given up: what all ranks say of it, or else this one.
    fn judged(&self, trouble: &Trouble) -> Error {
        tracing::warn!(target: "cuda", rank = self.rank, ?trouble, "a kernel has given up");
        let own = || trouble.error(self.rank);
        match (trouble.report.failure, trouble.peer) {
            (Failure::Mismatch | Failure::Length, Some(peer)) => {
                let verdict = self.alarm.inquire(&Reason::Mismatch { by: self.rank, peer });
                verdict.unwrap_or_else(own)
            }
            _ => own(),
        }
    }

    /// A call takes too long.
    fn late(&self, waited: Duration) -> Error {
        let verdict = self.alarm.inquire(&Reason::Timeout { by: self.rank, waited });
        // The kernels say for whom they waited when they are ended.
        self.engine.alarm();
        verdict.unwrap_or_else(|| {
            std::thread::sleep(Duration::from_millis(50));
            let trouble = self.engine.trouble();
            let call = trouble.as_ref().and_then(|trouble| trouble.call.as_ref());
            ErrorKind::Timeout {
                phase: format!(
                    "{} of rank {} on its device",
                    call.map_or_else(|| "a call".to_string(), ToString::to_string),
                    self.rank
                ),
                waited,
                absent: trouble.iter().filter_map(|trouble| trouble.peer).collect(),
                remedy: "look at what those ranks do, or raise RDMACCL_TIMEOUT".into(),
            }
            .into()
        })
    }
}
