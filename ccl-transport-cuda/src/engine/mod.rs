//! Calls on device memory that kernels make.
//!
//! An [`Engine`] is one rank's part of a communicator all of whose ranks reach each other's device memory. It is made in two
//! steps, between which ranks tell each other what [`Founding::words`] are: first each one allocates its arena, then it opens
//! those of the others. From then on a call is one launch on the caller's stream, and nothing of it waits for the host:
//! what is the same each time was worked out and written to the device before, and how many calls there were is counted by the kernels.
//! So a call can be captured in a graph and replayed.
//!
//! Calls of one communicator are ordered by an event, on whatever streams they are. Those in a graph are not: a stream that captures cannot
//! wait for what is not captured.
//!
//! The host sees by a word of each rank in which call its kernels are, and by reports which blocks have given up. Whoever makes an
//! engine looks at both now and then, and ends all waits by [`Engine::alarm`].

mod arena;
mod choice;
mod parting;
mod place;
mod prepared;
mod store;
mod watch;

pub use parting::Parting;
pub use place::Place;
pub use watch::Trouble;

use crate::driver::{Attribute, Kind};
use crate::kernels::Kernels;
use crate::program::{self, Call as Told, Launch, Mark, Member, Team};
use crate::sharing::{Handle, Mapped, Process};
use crate::sys::{DeviceMemory, Event, Primary, Residency, Stream};
use arena::Arena;
use ccl_core::communicator::Call;
use ccl_core::config::Config;
use ccl_core::flight::KernelState;
use ccl_core::plan::{Collective, Placement, Rank};
use ccl_core::simd::Buffers;
use ccl_core::{Error, Result};
use prepared::{Placed, Prepared, Terms};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use watch::Watch;

pub use crate::program::MAX_TEAM as MOST_RANKS;

/// Blocks of a rank at most, where the user has not said how many.
const BLOCKS: u32 = 32;
/// Calls that are kept ready; with more, they are prepared anew.
const MOST_READY: usize = 4096;

/// The algorithm that the user wants for each collective, in the order of [`Collective::ALL`].
pub type Wanted = [Option<&'static str>; Collective::ALL.len()];

/// A rank that has its own memory, and not yet that of the others.
pub struct Founding {
    rank: Rank,
    primary: Arc<Primary>,
    kernels: Arc<Kernels>,
    config: Config,
    ranks: usize,
    blocks: u32,
    memory: DeviceMemory,
    arena: Arena,
}

impl Founding {
    /// For `rank`, on a device. `places` has the devices of all ranks. Zeroes the memory and, where ranks share the device,
    /// loads all kernels, so that none of this waits for a call later.
    pub fn new(primary: &Arc<Primary>, rank: Rank, places: &[Place], config: &Config) -> Result<Founding> {
        let device = primary.driver().device(primary.ordinal())?;
        let processors = device.attribute(Attribute::Multiprocessors)?.unwrap_or(1).unsigned_abs();
        // Of the device where most ranks are: all launch alike, and a block of any kernel is sure to fit on a multiprocessor.
        let crowd = |place: &Place| places.iter().filter(|other| *other == place).count() as u32;
        let most = places.iter().map(crowd).max().unwrap_or(1);
        let blocks = config.device_blocks.unwrap_or(BLOCKS).min(processors / most.max(1));
        if blocks == 0 {
            let what = format!("{most} ranks on a device of {processors} multiprocessors");
            return Err(Error::unsupported(what, "let fewer ranks share a device"));
        }
        let arena = Arena::new(places.len(), blocks);
        let mut memory = DeviceMemory::alloc(primary, arena.bytes)?;
        let stream = Stream::new(primary)?;
        stream.clear(&mut memory, 0..arena.zeroed)?;
        stream.synchronize()?;
        let kernels = Kernels::of_device(primary);
        // A device or a driver that does not take one of them takes none.
        let least = program::Module::named("finish").expect("it is among the modules");
        kernels.function(least, "rdmaccl_finish")?;
        if places.get(rank as usize).is_some_and(|own| crowd(own) > 1) {
            kernels.load()?;
        }
        Ok(Founding {
            rank,
            primary: Arc::clone(primary),
            kernels,
            config: config.clone(),
            ranks: places.len(),
            blocks,
            memory,
            arena,
        })
    }

    /// What the other ranks must know.
    pub fn words(&self) -> Result<Vec<u8>> {
        let mut words = self.blocks.to_le_bytes().to_vec();
        words.extend(self.memory.export()?.to_bytes());
        Ok(words)
    }

    /// The engine, with the words of all ranks.
    pub fn meet(self, words: &[Vec<u8>], wanted: Wanted) -> Result<Engine> {
        let Founding { rank, primary, kernels, config, ranks, blocks, memory, arena } = self;
        let mut peers = Vec::new();
        let (mut bases, mut has_strangers) = (Vec::new(), false);
        for (peer, theirs) in (0..).zip(words) {
            let (count, handle) = theirs.split_at_checked(4).ok_or_else(|| malformed(peer))?;
            if count != blocks.to_le_bytes() {
                let what = format!("rank {peer} is on a device where another number of blocks fits");
                return Err(Error::unsupported(
                    what,
                    "set RDMACCL_DEVICE_BLOCKS to what fits on all devices",
                ));
            }
            if peer == rank {
                bases.push(memory.address() as u64);
                continue;
            }
            let handle = Handle::from_bytes(handle)?;
            has_strangers |= handle.process != Process::this()?;
            let mapped = Mapped::open(&primary, &handle)?;
            if mapped.len() != arena.bytes {
                return Err(malformed(peer));
            }
            bases.push(mapped.address() as u64);
            peers.push((peer, mapped));
        }
        if bases.len() != ranks {
            return Err(Error::invalid(format!("words of {} ranks", bases.len()), "give those of all ranks"));
        }
        let watch = Arc::new(Watch::new(&primary, blocks)?);
        let store = Store::new(&primary)?;
        let members = bases.iter().map(|base| Member {
            flags: base + arena.flags(),
            stage: base + arena.stage(),
            packets: base + arena.packets(),
            ..Member::default()
        });
        let own = bases[rank as usize];
        let team = Team {
            rank,
            room: arena::ONE_SHOT_ROOM as u64,
            packet_room: arena::PACKET_ROOM as u64,
            epochs: own + arena.epochs(),
            members: members.collect(),
        };
        let team = team.words().map_err(|error| Error::unsupported(error.to_string(), "use fewer ranks"))?;
        store.write(&team, own + arena.team as u64)?;
        store.write(&[watch.mark_address(), 0], own + arena.log as u64)?;
        let terms = Terms {
            rank,
            placement: Placement::one_host(ranks as u32),
            blocks,
            threads: config.device_threads,
            tile_bytes: config.tile_bytes,
            arena,
        };
        let over = Event::new(&primary)?;
        let state = State {
            ready: HashMap::new(),
            captured: HashMap::new(),
            outdated: Vec::new(),
            wanted,
            parts: Some(Parts {
                over,
                store,
                peers,
                has_strangers,
                watch: Arc::clone(&watch),
                _memory: memory,
                _kernels: Arc::clone(&kernels),
            }),
            broken: None,
        };
        Ok(Engine { primary, kernels, terms, bases, watch, state: Mutex::new(state) })
    }
}

fn malformed(peer: Rank) -> Error {
    let what = format!("what rank {peer} says of its device memory");
    Error::invalid(what, "use the same version of the library on all ranks")
}

/// One rank's calls by kernels.
pub struct Engine {
    primary: Arc<Primary>,
    kernels: Arc<Kernels>,
    terms: Terms,
    /// Every rank's arena, as this rank's device reaches it.
    bases: Vec<u64>,
    watch: Arc<Watch>,
    state: Mutex<State>,
}

struct State {
    ready: HashMap<Call, Arc<Placed>>,
    /// Those that are captured now.
    captured: HashMap<Call, Arc<Placed>>,
    /// Those that graphs may still have from before other algorithms were wanted: what a replay reads stays.
    outdated: Vec<Arc<Placed>>,
    wanted: Wanted,
    /// Until it is closed.
    parts: Option<Parts>,
    /// Why it takes no more calls, if so.
    broken: Option<Error>,
}

/// What kernels use.
struct Parts {
    /// Behind the call that was launched last.
    over: Event,
    store: Store,
    peers: Vec<(Rank, Mapped)>,
    /// Whether some of them are other processes.
    has_strangers: bool,
    watch: Arc<Watch>,
    _memory: DeviceMemory,
    _kernels: Arc<Kernels>,
}

/// A call that can be launched.
pub struct Ready {
    placed: Arc<Placed>,
    input: u64,
    output: u64,
    count: u64,
}

impl Engine {
    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.primary.ordinal()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses other algorithms from now on. All ranks must do so between the same two calls.
    pub fn set_wanted(&self, wanted: Wanted) {
        let mut state = self.state();
        state.wanted = wanted;
        state.ready.clear();
        let captured = std::mem::take(&mut state.captured);
        state.outdated.extend(captured.into_values());
    }

    /// Prepares a call on memory that the device reaches, for a stream. What may be refused is refused here, and of several calls all
    /// are made ready before the first is launched: what the driver does for one might wait for the kernel of another.
    pub fn ready(&self, stream: usize, call: &Call, buffers: &Buffers<'_>) -> Result<Ready> {
        let caller = Stream::borrowed(&self.primary, stream)?;
        let is_captured = caller.is_capturing()?;
        let mut state = self.state();
        let placed = self.placed(&mut state, call, is_captured)?;
        placed.call.check(buffers)?;
        let (input, output) = (buffers.input(), buffers.output());
        Ok(Ready {
            placed,
            input: self.address(input.as_ptr().addr(), input.len())?,
            output: self.address(output.as_mut_ptr().addr(), output.len())?,
            count: call.count as u64,
        })
    }

    /// Where the device finds a buffer.
    fn address(&self, at: usize, len: usize) -> Result<u64> {
        if len > 0 && self.primary.driver().kind(at)? == Kind::Pinned {
            return self.primary.driver().seen(&self.primary, at);
        }
        Ok(at as u64)
    }

    fn placed(&self, state: &mut State, call: &Call, is_captured: bool) -> Result<Arc<Placed>> {
        let known = if is_captured { &state.captured } else { &state.ready };
        if let Some(placed) = known.get(call) {
            return Ok(Arc::clone(placed));
        }
        let wanted = Collective::ALL.iter().position(|known| *known == call.collective);
        let prepared = Prepared::new(call, wanted.and_then(|at| state.wanted[at]), &self.terms)?;
        let (module, kernel) = prepared.kernel();
        let function = self.kernels.function(module, kernel)?;
        let finish = match prepared.rule.finish() {
            None => None,
            Some(_) => {
                let module = program::Module::named("finish").expect("it is among the modules");
                Some(self.kernels.function(module, "rdmaccl_finish")?)
            }
        };
        let State { ready, captured, parts, .. } = state;
        let Some(parts) = parts else { return Err(closed()) };
        let (mut program, mut wires, mut chunk) = (0, 0, None);
        if let Some(own) = &prepared.program {
            let (code, ends) = (own.words().len(), own.ends().len());
            let all = code + 4 * ends;
            if parts.store.is_full(all) || ready.len() >= MOST_READY {
                ready.clear();
            }
            let (at, kept) = parts.store.put(all, &parts.over, |_| {
                let wire = |end| self.terms.arena.wire(self.terms.rank, end, &self.bases).words();
                own.words().iter().copied().chain(own.ends().iter().flat_map(wire)).collect()
            })?;
            (program, wires, chunk) = (at, at + 8 * code as u64, Some(kept));
        }
        self.watch.learn(&prepared);
        let placed = Arc::new(Placed { call: prepared, function, finish, program, wires, _chunk: chunk });
        let known = if is_captured { captured } else { ready };
        known.insert(*call, Arc::clone(&placed));
        Ok(placed)
    }

    /// Launches calls on a stream, in order, behind those that were launched before. The memory of their buffers stays until the stream has
    /// passed them.
    pub fn launch(&self, stream: usize, calls: Vec<Ready>) -> Result<()> {
        let caller = Stream::borrowed(&self.primary, stream)?;
        let is_captured = caller.is_capturing()?;
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let Some(parts) = &state.parts else { return Err(closed()) };
        let launched = self.put(parts, &caller, is_captured, &calls);
        if let Err(error) = &launched {
            // Perhaps some of the calls are on the stream, and this rank's peers wait for the others.
            state.broken = Some(error.clone());
            self.watch.alarm();
        }
        launched
    }

    fn put(&self, parts: &Parts, caller: &Stream, is_captured: bool, calls: &[Ready]) -> Result<()> {
        if !is_captured {
            caller.wait(&parts.over)?;
        }
        for ready in calls {
            let Ready { placed, input, output, count } = ready;
            let own = self.bases[self.terms.rank as usize];
            let told = Told {
                program: placed.program,
                wires: placed.wires,
                input: *input,
                output: *output,
                scratch: 0,
                team: own + self.terms.arena.team as u64,
                alarm: self.watch.alarm_address(),
                reports: self.watch.reports_address(),
                // The host ends what takes too long: it knows what its peers do.
                limit: 0,
                count: *count,
                tag: placed.call.tag.into(),
                log: own + self.terms.arena.log as u64,
                rule: placed.call.rule,
            };
            let grid = (placed.call.blocks, self.terms.threads);
            let words = Launch::Own(told.words(), placed.call.blocks).words();
            placed.function.launch(caller, words, grid, Residency::Any)?;
            let finish = told.finish_words(placed.call.output_bytes() as u64);
            if let (Some(function), Some(words)) = (&placed.finish, finish) {
                let words = Launch::Own(words, placed.call.blocks).words();
                function.launch(caller, words, grid, Residency::Any)?;
            }
        }
        if !is_captured {
            parts.over.record(caller)?;
        }
        Ok(())
    }

    /// Ends all waits of its kernels, those that run and later ones.
    pub fn alarm(&self) {
        self.watch.alarm();
    }

    /// Takes no more calls, for this reason.
    pub fn fail(&self, error: Error) {
        self.watch.alarm();
        self.state().broken.get_or_insert(error);
    }

    /// Where its kernels are, and since when in nanoseconds, as far as somebody has looked.
    pub fn mark(&self) -> (Mark, u64) {
        self.watch.mark()
    }

    /// What its kernels do, for its peers.
    pub fn observer(&self) -> impl Fn() -> KernelState + Send + Sync + use<> {
        let watch = Arc::clone(&self.watch);
        move || watch.state()
    }

    /// A block that has given up, if there is one.
    pub fn trouble(&self) -> Option<Trouble> {
        self.watch.trouble()
    }

    /// Whether all calls that were launched are over, and no graph's call runs.
    pub fn is_idle(&self) -> Result<bool> {
        let over = match &self.state().parts {
            Some(parts) => parts.over.is_done()?,
            None => true,
        };
        Ok(over && self.watch.is_quiet())
    }

    /// Takes no more calls. What is left has to be taken leave of; the second time nothing is.
    pub fn close(&self) -> Option<Parting> {
        let mut state = self.state();
        (state.ready, state.captured, state.outdated) = Default::default();
        let parts = state.parts.take()?;
        Some(Parting::new(self, parts))
    }
}

fn closed() -> Error {
    Error::unsupported("a call on a communicator that is being destroyed", "make a new one")
}
