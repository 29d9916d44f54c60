//! A communicator's kernels: how they are brought together, watched, and taken leave of.

use super::proxy::Proxy;
use super::windows::{self, Away};
use super::{DeviceStream, driver};
use crate::{AbortHandle, Collective, Error, ErrorKind, Operation, Rank, Result, spawn_quiet};
use ccl_core::clock::monotonic_ns;
use ccl_core::communicator::{Communicator as Core, Opener, SideLinks};
use ccl_core::config::DeviceEngine as Choice;
use ccl_core::flight::Reason;
use ccl_core::monitor::Monitor;
use ccl_transport_cuda::engine::{
    Engine, Founding, MOST_RANKS, MOST_RANKS_OF_ALL_HOSTS, Parting, Place, Ready, Trouble, Wanted, heard,
    told,
};
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
/// has given up, or takes longer than a call may. Where ranks are on several hosts another one, `ccl-proxy`, carries what
/// kernels send from host to host.
pub struct DeviceEngine {
    shared: Arc<Shared>,
}

struct Shared {
    rank: Rank,
    engine: Engine,
    /// Where there are other hosts.
    proxy: Option<Proxy>,
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
    pub(crate) fn found(
        core: &mut Core,
        device: Option<u32>,
        opener: &dyn Opener,
    ) -> Result<Option<DeviceEngine>> {
        let places = core.device_places();
        let places: Vec<Option<Place>> =
            places.iter().map(|words| Place::from_bytes(words)).collect::<Result<_>>()?;
        let hosts = core.hosts();
        if let Some(why) = unfit(core, &places, &hosts) {
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
            let founding = Founding::new(&primary, rank, &places, (&hosts, core.placement()), &config)?;
            let words = founding.words();
            Ok((founding, words))
        };
        let founding = founding();
        let said = core.share(&told(founding.as_ref().map(|(_, words)| words.as_slice())))?;
        let engine = match (founding, heard(&said)) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok((mut founding, _)), Ok(words)) => {
                // All ranks come here, or none.
                founding.join_multicast(&words, &mut |words| core.share(words))?;
                let away = founding
                    .draft()
                    .map(|draft| windows::open(core, opener, draft, founding.device()))
                    .transpose()?;
                let (away, slots) = match away {
                    Some(Away { links, crossings, slots }) => (Some((links, crossings)), slots),
                    None => (None, Ok(Vec::new())),
                };
                let engine = slots.and_then(|slots| founding.meet(&words, slots, Wanted::default()));
                engine.map(|engine| (engine, away))
            }
        };
        let said = core.share(&told(engine.as_ref().map(|_| [].as_slice())))?;
        let (engine, away) = match (engine, heard(&said)) {
            (Ok(engine), Ok(_)) => engine,
            (Err(error), _) | (Ok(_), Err(error)) => {
                tracing::warn!(target: "cuda", rank, %error, "calls on device memory go through the host");
                return Ok(None);
            }
        };
        tracing::info!(target: "cuda", rank, device = engine.device(), "kernels make calls on device memory");
        let alarm = core.abort_handle();
        let carried = engine.gate().cloned().zip(away);
        let proxy = carried.map(|(gate, away)| Proxy::start(gate, away, alarm.clone())).transpose()?;
        core.observe_kernels(Box::new(engine.observer()));
        let shared = Arc::new(Shared {
            rank,
            engine,
            proxy,
            alarm,
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

    /// Registers memory of its device: long all-reduces whose buffers all ranks have registered are made where they lie.
    pub(crate) fn register(&self, address: usize, len: usize) -> Result<()> {
        self.shared.alarm.error().map_or(Ok(()), Err)?;
        self.shared.engine.register(address, len)
    }

    /// Whether this is registered.
    pub(crate) fn has_registered(&self, address: usize, len: usize) -> bool {
        self.shared.engine.registrations().contains(&(address, len))
    }

    /// Undoes it. Returns when this rank's calls are over, and no peer has the memory any more.
    pub(crate) fn deregister(&self, address: usize, len: usize) -> Result<()> {
        self.shared.deregister(address, len)
    }

    /// Prepares calls that are made together on memory that the device reaches, for a stream. Those of several communicators are all made ready
    /// before the first is launched. `has_pinned` is whether some of the memory is the host's.
    pub fn ready(&self, stream: usize, operations: &[Operation<'_>], has_pinned: bool) -> Result<Ready> {
        self.shared.alarm.error().map_or(Ok(()), Err)?;
        self.shared.engine.ready(stream, operations, has_pinned)
    }

    /// Launches calls on their stream, in order, behind those that were launched before; on a stream that captures a graph, captures
    /// them. The memory of their buffers stays until the stream has passed them.
    pub fn launch(&self, calls: Ready) -> Result<()> {
        self.shared.alarm.error().map_or(Ok(()), Err)?;
        self.shared.launched.store(monotonic_ns(), Ordering::Relaxed);
        let launched = self.shared.engine.launch(calls).inspect_err(|error| {
            // Its peers may wait for a call that was not launched.
            self.shared.alarm.fail(&error.to_string());
        });
        self.shared.proxy.iter().for_each(Proxy::ring);
        launched
    }

    /// Makes calls and waits for them.
    pub(crate) fn run(&self, stream: &DeviceStream, calls: &[Operation<'_>]) -> Result<()> {
        let ready = self.ready(stream.handle(), calls, false)?;
        self.launch(ready)?;
        stream.synchronize()?;
        // A kernel that was ended leaves the stream in order.
        self.shared.alarm.error().or_else(|| self.shared.wait_for_trouble()).map_or(Ok(()), Err)
    }

    /// Waits for the calls that were launched, as long as they may take, and leaves the rest to a thread: its peers' kernels
    /// may still use its memory. What is returned is dropped when the peers know that this rank has left.
    pub(crate) fn close(&self) -> Option<SideLinks> {
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
        for (address, len) in shared.engine.registrations() {
            // What a peer has yet may not be freed: whoever does so is told by the log.
            if let Err(error) = shared.deregister(address, len) {
                tracing::warn!(target: "cuda", rank = shared.rank, %error, "a registration has not ended");
            }
        }
        *shared.closed.lock() = true;
        shared.closed.lock().notify();
        let links = shared.proxy.as_ref().and_then(|proxy| proxy.close(begin + limit));
        if let Some(parting) = shared.engine.close() {
            let alarm = shared.alarm.clone();
            // Without a thread its memory stays: a peer may use it.
            let _ = spawn_quiet("ccl-device", move || part(parting, &alarm, limit));
        }
        links
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
fn unfit(core: &Core, places: &[Option<Place>], hosts: &[u32]) -> Option<String> {
    if core.config().device_engine == Choice::Off {
        return Some("RDMACCL_DEVICE_ENGINE=off".into());
    }
    if let Some(rank) = places.iter().position(Option::is_none) {
        return Some(format!("rank {rank} has joined on no device"));
    }
    let of = |host: &u32| hosts.iter().filter(|other| *other == host).count();
    if hosts.iter().any(|host| of(host) > MOST_RANKS) {
        return Some(format!("there are more than {MOST_RANKS} ranks on a host"));
    }
    (places.len() > MOST_RANKS_OF_ALL_HOSTS)
        .then(|| format!("there are more than {MOST_RANKS_OF_ALL_HOSTS} ranks"))
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
                self.let_go();
                return;
            }
            if let Err(error) = self.engine.attend() {
                tracing::warn!(target: "cuda", rank = self.rank, %error, "buffers that peers have registered");
            }
            let launched = self.launched.load(Ordering::Relaxed);
            let is_lively = self.engine.inside_since().is_some()
                || monotonic_ns().saturating_sub(launched) < nanoseconds(LIVELY);
            closed = self.closed.lock();
            if !*closed {
                closed.wait(Some(LOOK[usize::from(!is_lively)]));
            }
        }
    }

    /// Peers may free what they have registered when the kernels have ended, which they were told to.
    fn let_go(&self) {
        let begin = Instant::now();
        while !self.engine.is_idle().unwrap_or(true) && begin.elapsed() < PATIENCE {
            nap(begin);
        }
        self.engine.let_go();
    }

    fn deregister(&self, address: usize, len: usize) -> Result<()> {
        let begin = Instant::now();
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        while !self.engine.deregister(address, len, &self.alarm.health().lost())? {
            let waited = begin.elapsed();
            // A communicator that has ended lets go of all soon after it, or never.
            if self.alarm.error().is_some() && waited >= 2 * PATIENCE {
                return Ok(());
            }
            if waited >= limit {
                let phase =
                    format!("the end of a registration of {len} bytes at {address:#x} of rank {}", self.rank);
                let remedy =
                    "see that this rank's calls end, and that its peers' processes run; keep the memory";
                return Err(
                    ErrorKind::Timeout { phase, waited, absent: Vec::new(), remedy: remedy.into() }.into()
                );
            }
            nap(begin);
        }
        Ok(())
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
        let since = self.engine.inside_since()?;
        let waited = Duration::from_nanos(monotonic_ns().saturating_sub(since));
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        (waited >= limit).then(|| self.late(waited))
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
        // The kernels say for whom they waited when they are ended.
        self.engine.alarm();
        std::thread::sleep(Duration::from_millis(50));
        let verdict = self.alarm.inquire(&Reason::Timeout { by: self.rank, waited });
        verdict.unwrap_or_else(|| {
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
