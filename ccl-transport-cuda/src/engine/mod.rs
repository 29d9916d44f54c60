//! Calls on device memory that kernels make.
//!
//! An [`Engine`] is one rank's part of a communicator, all of whose ranks on a host reach each other's device memory; what goes to other
//! hosts passes a [`Gate`]. It is made in two steps, between which ranks tell each other what [`Founding::words`] are: first each one
//! allocates its arena, then it opens those of the others on its host. From then on a call is one launch on the caller's stream, and nothing of it
//! waits for the host but what passes the gate: what is the same each time was worked out and written to the device before, and how many calls
//! there were is counted by the kernels. So a call can be captured in a graph and replayed.
//!
//! Calls of one communicator are ordered by an event, on whatever streams they are. Those in a graph are not: a stream that captures cannot
//! wait for what is not captured.
//!
//! The host sees by words of each rank in which call its kernels are, and by reports which blocks have given up. Whoever makes an
//! engine looks at both now and then, and ends all waits by [`Engine::alarm`].

mod alone;
mod arena;
mod calls;
mod choice;
mod founding;
mod gate;
mod hosts;
mod links;
mod multicast;
mod parting;
mod place;
mod prepared;
mod registered;
mod saying;
mod slots;
mod store;
mod transfers;
mod watch;

pub use calls::Ready;
pub use founding::Founding;
pub use gate::{Draft, Ends, Gate};
pub use parting::Parting;
pub use place::Place;
pub use saying::{heard, told};
pub use slots::{Shown, Slots};
pub use watch::Trouble;

use crate::kernels::Kernels;
use crate::sharing::{Handle, Mapped};
use crate::sys::{DeviceMemory, Event, Primary};
use ccl_core::communicator::Call;
use ccl_core::engine::Blocks;
use ccl_core::flight::KernelState;
use ccl_core::plan::{Collective, Rank};
use ccl_core::{Error, Result};
use hosts::Hosts;
use multicast::Multicast;
use prepared::{Placed, Terms};
use registered::Registrations;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use transfers::Leg;
use watch::Watch;

/// Ranks of a host at most.
pub use crate::program::MAX_TEAM as MOST_RANKS;
/// Ranks at most, where they are on several hosts: a plan in which each has a link with every other still fits into a kernel.
pub const MOST_RANKS_OF_ALL_HOSTS: usize = 64;

/// The algorithm that the user wants for each collective, in the order of [`Collective::ALL`].
pub type Wanted = [Option<&'static str>; Collective::ALL.len()];

/// Tells all ranks some words, and hears those of all: a round in which all ranks take part.
pub type Share<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>>;

/// One rank's calls by kernels.
pub struct Engine {
    primary: Arc<Primary>,
    kernels: Arc<Kernels>,
    terms: Terms,
    hosts: Hosts,
    /// The arena of every rank of this host, as this rank's device reaches it.
    bases: Vec<u64>,
    /// Wires to and from ranks on other hosts.
    gate: Option<Arc<Gate>>,
    watch: Arc<Watch>,
    /// On one host.
    registered: Option<Arc<Registrations>>,
    /// What has come of multicast, in words.
    multicast: Arc<str>,
    state: Mutex<State>,
}

struct State {
    ready: HashMap<Task, Arc<Placed>>,
    /// Those that are captured now.
    captured: HashMap<Task, Arc<Placed>>,
    /// Those that graphs may still have from before other algorithms were wanted: what a replay reads stays.
    outdated: Vec<Arc<Placed>>,
    wanted: Wanted,
    /// Until it is closed.
    parts: Option<Parts>,
    /// The stream of the last calls.
    last: Option<u64>,
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
    registered: Option<Arc<Registrations>>,
    _gate: Option<Arc<Gate>>,
    _multicast: Multicast,
    /// With what peers open it by.
    _memory: (DeviceMemory, Handle),
    _kernels: Arc<Kernels>,
}

/// What a launch makes.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Task {
    Even(Call),
    /// Its count is not looked at.
    Uneven(Call, Blocks),
    /// All sends and receives of a group.
    Transfers(Vec<Leg>),
}

impl Engine {
    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.primary.ordinal()
    }

    /// Its wires to other hosts, if there are any: somebody must carry what leaves and what comes.
    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
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

    /// Registers memory of the device: calls on it that all ranks make on registered buffers may use it where it lies.
    pub fn register(&self, address: usize, len: usize) -> Result<()> {
        match &self.registered {
            Some(registered) => registered.add(address, len),
            None => Err(Error::unsupported(
                "registering memory of a device where ranks are on several hosts",
                "leave it out: what goes between hosts goes through pinned memory",
            )),
        }
    }

    /// A step of undoing it, which waits for nothing: true when this rank's calls are over and no peer has the memory but those that
    /// are `gone`.
    pub fn deregister(&self, address: usize, len: usize, gone: &[Rank]) -> Result<bool> {
        let Some(registered) = &self.registered else { return Ok(true) };
        registered.withdraw(address, len);
        // What a kernel has offered is used until the call is over, here and at all peers.
        if !self.is_idle()? {
            return Ok(false);
        }
        registered.is_left(address, len, gone)
    }

    /// What is registered: addresses and lengths.
    pub fn registrations(&self) -> Vec<(usize, usize)> {
        self.registered.as_ref().map_or_else(Vec::new, |registered| registered.all())
    }

    /// Opens what peers have registered and kernels have asked for, and closes what they have not any more. To be called now and then.
    pub fn attend(&self) -> Result<()> {
        self.registered.as_ref().map_or(Ok(()), |registered| registered.attend())
    }

    /// Closes what peers have registered, for good. No kernel of this rank runs, and none is launched.
    pub fn let_go(&self) {
        self.registered.iter().for_each(|registered| registered.let_go());
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

    /// Since when its kernels are in a call, if they are: in nanoseconds of the host's clock, as far as somebody has looked.
    pub fn inside_since(&self) -> Option<u64> {
        self.watch.inside_since()
    }

    /// What its kernels do, for its peers.
    pub fn observer(&self) -> impl Fn() -> KernelState + Send + Sync + use<> {
        let (watch, registered, multicast) =
            (Arc::clone(&self.watch), self.registered.clone(), Arc::clone(&self.multicast));
        move || {
            let mapped = registered.as_ref().map_or(0, |registered| registered.made());
            KernelState { mapped, multicast: multicast.to_string(), ..watch.state() }
        }
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
