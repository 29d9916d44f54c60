//! The communicator: ranks that make the same calls in the same order.
//!
//! It puts the parts in order. A call is looked up among those prepared before; the first
//! time, the [cost function](crate::cost) chooses an algorithm, its program is written, verified, its links
//! are connected and the [schedule](crate::engine::Schedule) is bound. Then the engine steps until it is done,
//! and in between the communicator waits: it spins, yields, and then sleeps in the transport,
//! looking at the peers' health and at the deadline each time it wakes.
//!
//! A call ends right or with an error. After an error in the middle of a call the ranks no longer agree
//! where they are, so the communicator is *broken*: every later call returns
//! [`ErrorKind::Broken`] with the first cause.

mod abort;
mod cores;
mod crew;
mod fingerprint;
mod neighbours;
mod operation;
mod patience;
mod plans;
mod prepare;
mod queues;
mod record;
mod routes;
mod side;
mod table;
mod together;
mod transfers;
mod waiting;

use crate::bootstrap::{Bootstrap, Health};
use crate::clock::monotonic_ns;
use crate::config::Config;
use crate::control::{Agreement, EndKind};
use crate::cost::Model;
use crate::engine::Blocks;
use crate::error::{Error, ErrorKind, Result};
use crate::flight::{Identity, KernelState, Memory, Recorder};
use crate::kernels::{Buffers, Level, Piece};
use crate::plan::{Collective, Placement, Rank};
use crate::transport::{Counters, LinkKey, Transport, UserMemory};
use crate::{DataType, ReduceOp};
pub use abort::AbortHandle;
use crew::Crew;
use neighbours::Seat;
use operation::is_long;
pub use operation::{Operation, PIECE_BYTES, Transfer, What};
use patience::Room;
use plans::Plans;
pub use prepare::Explanation;
pub use record::Record;
pub use routes::Route;
use routes::{Introduction, Routes};
pub use side::SideLinks;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
pub use table::RouteTable;
pub use together::{Member, run_together};
use transfers::Transfers;

/// The arguments of a collective that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What to compute.
    pub collective: Collective,
    /// Elements of one block: see [`Collective`] for how many blocks each buffer has.
    pub count: usize,
    /// What they are.
    pub dtype: DataType,
    /// How they are combined; not looked at by collectives that do not reduce.
    pub op: ReduceOp,
    /// The root of a rooted collective, 0 for the others.
    pub root: Rank,
}

/// Opens a rank's transports: once, and once more for each further thread that long calls are shared out to.
pub trait Opener {
    /// Those of its host.
    fn local(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>>;

    /// Those between hosts, best first. Only asked where there are several.
    fn network(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>>;

    /// Whether this rank's process may have device buffers.
    fn devices(&self) -> bool {
        false
    }

    /// The device on which this rank's calls will be, in words that only other openers read; empty: none.
    fn place(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// One rank's membership of a group of ranks.
pub struct Communicator {
    rank: Rank,
    ranks: u32,
    /// How they lie on hosts.
    placement: Placement,
    /// Whether some of them may have device buffers.
    has_devices: bool,
    config: Config,
    /// `None` for a communicator of one rank, which nobody has to be brought together for.
    bootstrap: Option<Bootstrap>,
    health: Arc<Health>,
    /// What its calls' fingerprints begin with: pieces of another communicator are never taken for its own.
    identity: u64,
    routes: Routes,
    /// More of them, for the threads that share long calls.
    crew: Crew,
    model: Model,
    /// What every link has; the verifier proves that they suffice.
    credits: u32,
    level: Level,
    /// On what cores its calls wait, and those that are made in the background.
    room: Room,
    background_room: Room,
    seat: Seat,
    plans: Plans,
    transfers: Transfers,
    /// The override that a caller set; the configuration's comes after it.
    algorithm: Option<&'static str>,
    /// What the calls that are made now may wait, if it is not what the configuration says.
    limit: Option<Duration>,
    /// Whether the last look at the peers' health and the deadline has seen why a call may wait in vain.
    is_troubled: bool,
    /// Calls made so far.
    sequence: u64,
    /// Collectives that were prepared and have no number yet: those of the group that is being prepared.
    unnumbered: u64,
    recorder: Arc<Recorder>,
    /// Calls that kernels make, which have no place in the record: they run by themselves.
    kernels: Arc<OnceLock<KernelObserver>>,
    broken: Option<Error>,
}

/// What a communicator makes its calls with.
struct Equipment {
    routes: Routes,
    crew: Crew,
    model: Model,
    level: Level,
}

impl Equipment {
    /// Opens what carries pieces between the ranks, and finds out what calls cost over it.
    fn open(config: &Config, bootstrap: &mut Bootstrap, opener: &dyn Opener) -> Result<Equipment> {
        let mut routes = Routes::open(config, bootstrap, opener)?;
        let assumptions = routes.assumptions()?;
        // Rank 0's host stands for all: a choice that hosts made for themselves would not be one.
        let (local, cores) = routes.crowd(0);
        let model = Model { net: routes.net(bootstrap)?, ..assumptions.model(cores, local) };
        let crew = Crew::assemble(config, &routes, bootstrap, opener)?;
        Ok(Equipment { routes, crew, model, level: prepare::level(config)? })
    }
}

/// What this rank's kernels do at this moment.
pub type KernelObserver = Box<dyn Fn() -> KernelState + Send + Sync>;

impl Communicator {
    /// A communicator of one rank: every collective is a copy. It can be aborted by this handle. Its flight record lies in
    /// `memory`. No transport is opened.
    pub fn alone(
        config: Config,
        opener: &dyn Opener,
        abort: &AbortHandle,
        memory: Memory,
    ) -> Result<Communicator> {
        let introduction = Introduction::of_one_alone(opener.place());
        let equipment = Equipment {
            crew: Crew::alone(&config, &introduction),
            routes: Routes::new(0, Vec::new(), vec![introduction]),
            // It has nothing to choose.
            model: Model::shared_memory(1, 1),
            level: prepare::level(&config)?,
        };
        Ok(Communicator::over((0, 1), None, Arc::clone(abort.health()), equipment, config, memory))
    }

    /// Joins the ranks that `bootstrap` has brought together, over the transports that `opener` opens.
    pub fn new(
        mut bootstrap: Bootstrap,
        opener: &dyn Opener,
        config: Config,
        memory: Memory,
    ) -> Result<Communicator> {
        let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
        let health = Arc::clone(bootstrap.health());
        let equipment = Equipment::open(&config, &mut bootstrap, opener);
        // The others have joined: they must not wait for a rank that will not come.
        let equipment = equipment.inspect_err(|error| health.give_up(&error.to_string()))?;
        Ok(Communicator::over((rank, ranks), Some(bootstrap), health, equipment, config, memory))
    }

    fn over(
        (rank, ranks): (Rank, u32),
        bootstrap: Option<Bootstrap>,
        health: Arc<Health>,
        Equipment { routes, crew, mut model, level }: Equipment,
        config: Config,
        memory: Memory,
    ) -> Communicator {
        let (local, cores) = routes.crowd(rank);
        let placement = routes.placement();
        let threads = crew.threads();
        let (slot_bytes, credits) = routes.limits().unwrap_or((model.slot_bytes, 1));
        model.slot_bytes = slot_bytes;
        tracing::info!(rank, ranks, hosts = placement.hosts, local, cores, threads, "communicator ready");
        // A communicator of one rank meets nobody who would have to know its name.
        let identity = bootstrap.as_ref().map_or_else(monotonic_ns, Bootstrap::identity);
        let host = bootstrap.as_ref().and_then(|b| b.peers().into_iter().nth(rank as usize)).map(|p| p.host);
        let host = host.unwrap_or_else(|| "localhost".to_string());
        let who = Identity { communicator: identity, rank, ranks, host, pid: std::process::id() };
        let recorder = Arc::new(Recorder::new(memory, &who, config.flight_calls));
        let kernels = Arc::new(OnceLock::new());
        let observed = record::Observed::new(&recorder, &kernels);
        health.observe(Box::new(move || observed.state()));
        Communicator {
            rank,
            ranks,
            placement,
            has_devices: routes.have_devices(),
            identity,
            bootstrap,
            health,
            routes,
            crew,
            model,
            credits,
            level,
            room: Room::of(local * threads, cores),
            background_room: Room::in_background(local * threads, cores),
            seat: Seat::of(local, cores),
            plans: Plans::default(),
            transfers: Transfers::default(),
            algorithm: None,
            limit: None,
            is_troubled: false,
            sequence: 0,
            unnumbered: 0,
            recorder,
            kernels,
            broken: None,
            config,
        }
    }

    /// This rank's number.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether some rank's process may have device buffers. All ranks say the same.
    #[inline]
    pub fn has_devices(&self) -> bool {
        self.has_devices
    }

    /// What each rank's [`Opener::place`] has said, by rank.
    pub fn device_places(&self) -> Vec<Vec<u8>> {
        self.routes.places()
    }

    /// Has peers that ask what this rank does hear of its kernels, too. Set once.
    pub fn observe_kernels(&self, observer: KernelObserver) {
        let _ = self.kernels.set(observer);
        self.health.set_kernels();
    }

    /// The algorithm that the caller or the configuration wants for a collective, if so.
    pub fn wanted_algorithm(&self, collective: Collective) -> Result<Option<&'static str>> {
        self.only(collective)
    }

    /// How the ranks lie on hosts, as far as the communicator makes use of it.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// How many calls were made.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes how long a call may wait for its peers without anything moving.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = timeout;
    }

    /// Why no more calls are taken, if so: the error of a call of this communicator, or else [`ErrorKind::Broken`].
    pub fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Ends this communicator's calls from another thread.
    pub fn abort_handle(&self) -> AbortHandle {
        Arc::clone(&self.health).into()
    }

    /// The ranks that are lost, in order.
    pub fn lost(&self) -> Vec<Rank> {
        self.health.lost()
    }

    /// Ends the communicator for all ranks, for this reason: their calls, those that run and later ones, end with
    /// [`ErrorKind::Ended`]. What is left to do is to [agree](Communicator::agree), shrink, and drop it.
    pub fn revoke(&mut self, reason: &str) {
        self.health.end(EndKind::Revoked, reason);
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        self.break_with(ErrorKind::Broken(format!("this rank has revoked it{why}")).into());
    }

    /// Declares ranks lost. They are told, and the communicator ends for all.
    pub fn exclude(&mut self, ranks: &[Rank]) {
        if let Some(bootstrap) = &self.bootstrap {
            bootstrap.exclude(ranks);
        }
    }

    /// Agrees with all ranks that are left: all get the and of all flags, the blob of the lowest rank that gave
    /// one (at most 256 bytes), and the ranks that are gone. Also when ranks die meanwhile, and after the communicator
    /// broke or was revoked. All ranks that are left must call it, at the same place among their agreements. Waits for
    /// `RDMACCL_INIT_TIMEOUT` at most, or twice `RDMACCL_FREEZE_TIMEOUT` where that is longer.
    pub fn agree(&mut self, flags: u64, blob: &[u8]) -> Result<Agreement> {
        match &self.bootstrap {
            Some(bootstrap) => bootstrap.agree(flags, blob, Instant::now() + self.config.agreement_timeout()),
            None => Ok(Agreement { flags, blob: blob.to_vec(), gone: Vec::new() }),
        }
    }

    /// Which transport carries each peer, and why, in the order of the ranks. Makes no connection.
    pub fn routes(&mut self) -> Vec<Route> {
        let (rank, ranks) = (self.rank, self.ranks);
        (0..ranks).filter(|peer| *peer != rank).map(|peer| self.routes.route(peer)).collect()
    }

    /// Bytes of memory that the links of this rank take.
    pub fn memory(&self) -> u64 {
        self.routes.memory() + self.crew.routes().map(Routes::memory).sum::<u64>()
    }

    /// Everybody's words, by rank: all ranks must call it at the same place among their calls. Over the control plane,
    /// for what is too rare to need speed. At most 4096 bytes each.
    pub fn share(&mut self, words: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.usable()?;
        match &mut self.bootstrap {
            Some(bootstrap) => bootstrap.all_gather(words),
            None => Ok(vec![words.to_vec()]),
        }
    }

    /// Host name and process of each rank.
    pub fn places(&self) -> Vec<(String, u32)> {
        match &self.bootstrap {
            Some(bootstrap) => bootstrap.peers().into_iter().map(|p| (p.host, p.pid)).collect(),
            None => vec![("localhost".to_string(), std::process::id())],
        }
    }

    /// What each open link has done. Where long calls are shared out to threads, each has links of its own, of the same
    /// names.
    pub fn counters(&self) -> Vec<(LinkKey, Counters)> {
        let shared = self.crew.routes().flat_map(Routes::counters);
        self.routes.counters().into_iter().chain(shared).collect()
    }

    /// Makes ready for calls on this memory: shows it to the peers that are connected, if they can see it, and lets
    /// the network read and write it. Whether calls on it gain anything; if not, they go through slots.
    pub fn register(&mut self, memory: &UserMemory) -> Result<bool> {
        let own = self.routes.register(memory)?;
        self.crew.routes_mut().try_fold(own, |gained, routes| Ok(routes.register(memory)? | gained))
    }

    /// Undoes [`register`](Communicator::register), once for each time. Without it the memory stays registered until the
    /// communicator is closed.
    pub fn deregister(&mut self, memory: Piece) -> Result<()> {
        self.routes.deregister(memory)?;
        self.crew.routes_mut().try_for_each(|routes| routes.deregister(memory))
    }

    /// Makes a call and returns when this rank's part of it is done.
    ///
    /// The buffers must have the lengths that [`Call::count`] and [`Collective`] say; a buffer that this
    /// rank does not need may be empty.
    pub fn run(&mut self, call: &Call, buffers: Buffers<'_>) -> Result<()> {
        if self.has_devices && is_long(call) {
            return self.run_all(&[Operation::collective(*call, buffers)]);
        }
        self.usable()?;
        let index = self.index_of(call, buffers.is_in_place())?;
        let prepared = &self.plans.prepared[index];
        prepared.task.layout().check(&buffers)?;
        if prepared.shared.is_some() {
            return self.run_shared(index, &buffers);
        }
        let (schedule, tag) = (prepared.schedule, prepared.tag(self.sequence));
        let entry = record::begin(&self.recorder, &prepared.about, self.sequence);
        let own = &mut self.plans.schedules[schedule];
        let begun =
            own.dash(&prepared.task, (tag, self.sequence), self.room.looks(), &mut self.routes, &buffers);
        self.complete(schedule, begun, entry, &buffers)?;
        self.sequence += 1;
        Ok(())
    }

    /// Makes a call whose blocks differ in length; the call's count is not looked at.
    pub fn run_uneven(&mut self, call: &Call, blocks: &Blocks, buffers: Buffers<'_>) -> Result<()> {
        self.run_all(&[Operation::uneven(*call, blocks.clone(), buffers)])
    }

    /// [`run`](Communicator::run) for a prepared call that is shared out to threads.
    #[inline(never)]
    fn run_shared(&mut self, index: usize, buffers: &Buffers<'_>) -> Result<()> {
        let prepared = self.plans.prepared[index].clone();
        self.begin(&prepared, self.sequence, buffers)?;
        let entry = record::begin(&self.recorder, &prepared.about, self.sequence);
        self.finish_shared(prepared.schedule, entry, buffers).map_err(|error| self.breaks(error))?;
        self.recorder.end(entry, monotonic_ns);
        self.sequence += 1;
        Ok(())
    }

    /// Whether calls are taken at all.
    #[inline]
    fn usable(&mut self) -> Result<()> {
        if self.broken.is_none() && self.health.is_well() { Ok(()) } else { self.unusable() }
    }

    /// Why no calls are taken: what happened since the last call in its own words, afterwards that it did.
    #[cold]
    fn unusable(&mut self) -> Result<()> {
        if self.health.is_aborted() {
            return Err(ErrorKind::Aborted.into());
        }
        if let Some(error) = &self.broken {
            return Err(ErrorKind::Broken(error.cause()).into());
        }
        self.health.check().map_err(|error| self.breaks(error))
    }

    /// Where a call is kept, prepared the first time.
    #[inline(always)]
    fn index_of(&mut self, call: &Call, in_place: bool) -> Result<usize> {
        match self.plans.find(call, in_place) {
            Some(index) => Ok(index),
            None => self.prepare(call, in_place),
        }
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        let call = Call {
            collective: Collective::AllReduce,
            count: 1,
            dtype: DataType::U8,
            op: ReduceOp::Max,
            root: 0,
        };
        let mut byte = [0];
        self.run(&call, Buffers::in_place(&mut byte, 0..1, 0..1))
    }
}

/// Leaves in order. A panic is told: its peers must not wait for a rank that will not come.
impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health.end(EndKind::Failed, "its thread panicked");
        }
        if !self.health.is_well() {
            // Nobody waits for what was sent.
            self.routes.withdraw();
        }
    }
}
