//! Making a communicator.

use crate::transports::{self, Transports};
use crate::{AbortHandle, Communicator, device, flight, spawn_quiet};
use ccl_core::bootstrap::{Joining, Testimony, UniqueId};
use ccl_core::communicator::Communicator as Core;
use ccl_core::config::{Config, Network};
use ccl_core::flight::Memory;
use ccl_core::{Error, Rank, Result};
use ccl_transport_shm::PreloadedHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Collects what a communicator needs; see [`Communicator::builder`].
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    rank: Option<Rank>,
    size: Option<u32>,
    id: Option<UniqueId>,
    timeout: Option<Duration>,
    init_timeout: Option<Duration>,
    algorithm: Option<String>,
    network: Option<Network>,
    config: Option<Config>,
    abort: Option<AbortHandle>,
    device: Option<u32>,
}

impl Builder {
    /// This process's or thread's number, 0 … size - 1. Needed unless the size is 1.
    pub fn rank(mut self, rank: Rank) -> Builder {
        self.rank = Some(rank);
        self
    }

    /// How many ranks there are; 1 if it is not said.
    pub fn size(mut self, size: u32) -> Builder {
        self.size = Some(size);
        self
    }

    /// The id that one rank has created and all others were given. Needed unless the size is 1.
    pub fn unique_id(mut self, id: UniqueId) -> Builder {
        self.id = Some(id);
        self
    }

    /// How long a call may wait for a peer without anything moving; else `RDMACCL_TIMEOUT`.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = Some(timeout);
        self
    }

    /// How long to wait for all ranks to join; else `RDMACCL_INIT_TIMEOUT`.
    pub fn init_timeout(mut self, timeout: Duration) -> Builder {
        self.init_timeout = Some(timeout);
        self
    }

    /// The algorithm for every collective that it can do; else `RDMACCL_ALGO`, else the cost function's
    /// choice. All ranks must say the same.
    pub fn algorithm(mut self, name: impl Into<String>) -> Builder {
        self.algorithm = Some(name.into());
        self
    }

    /// What carries pieces between hosts; else `RDMACCL_NET`.
    pub fn network(mut self, network: Network) -> Builder {
        self.network = Some(network);
        self
    }

    /// A configuration that was parsed already, in place of the environment's.
    pub fn config(mut self, config: Config) -> Builder {
        self.config = Some(config);
        self
    }

    /// The CUDA device, by its number, of the buffers in device memory; else that of the thread's current primary context when it builds,
    /// if there is one. Where all ranks have one, and those of a host reach each other's memory, kernels make their calls.
    pub fn device(mut self, device: u32) -> Builder {
        self.device = Some(device);
        self
    }

    /// The same, of the calling thread, for a builder that another thread will use.
    pub fn current_device(mut self) -> Builder {
        // An error is one of `build`.
        self.config.iter().for_each(|config| drop(device::look(config)));
        self.device = self.device.or_else(device::current);
        self
    }

    /// A handle that aborts the communicator, and before that the joining.
    pub fn abort_handle(&mut self) -> AbortHandle {
        self.abort.get_or_insert_default().clone()
    }

    /// Aborting by this handle aborts the joining and the communicator.
    pub(crate) fn aborted_by(mut self, abort: AbortHandle) -> Builder {
        self.abort = Some(abort);
        self
    }

    /// Joins the other ranks; returns when all have joined, or with the list of those absent.
    pub fn build(mut self) -> Result<Communicator> {
        let abort = self.abort_handle();
        let mut config = match self.config {
            Some(config) => config,
            None => Config::from_env()?,
        };
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.init_timeout = self.init_timeout.unwrap_or(config.init_timeout);
        config.net = self.network.unwrap_or(config.net);
        device::look(&config)?;
        if let Some(heap) = PreloadedHeap::find() {
            heap.attach(config.heap_min);
        }
        let size = self.size.unwrap_or(1);
        let memory = flight::memory(config.flight_calls);
        let on = self.device.or_else(device::current);
        let opened = config.clone();
        let opener = Transports { config: &opened, device: on };
        let core = match (size, self.rank, &self.id) {
            (1, None | Some(0), _) => Core::alone(config, &opener, &abort, memory)?,
            (_, None, _) => return Err(Error::invalid("a builder without a rank", "call .rank(…)")),
            (_, _, None) => {
                return Err(Error::invalid("a builder without an id", "call .unique_id(…), the same on all"));
            }
            (_, Some(rank), Some(id)) => join((id, rank, size), config, &opener, &abort, memory)?,
        };
        let mut communicator = Communicator::new(core);
        let equipped = communicator.equip(on, &opener, self.algorithm.as_deref());
        equipped.inspect_err(|error| abort.health().give_up(&error.to_string()))?;
        Ok(communicator)
    }
}

fn join(
    (id, rank, ranks): (&UniqueId, Rank, u32),
    config: Config,
    opener: &Transports<'_>,
    abort: &AbortHandle,
    memory: Memory,
) -> Result<Core> {
    let deadline = Instant::now() + config.init_timeout;
    let health = Arc::clone(abort.health());
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| spawn_quiet(name, body);
    let witness = |pid: u32, communicator: u64, rank: Rank| {
        let page = flight::Page::of_process(pid).ok().flatten()?;
        page.state(communicator, rank)?;
        Some(Box::new(move || page.state(communicator, rank)) as Testimony)
    };
    let bootstrap = Joining { id, rank, ranks, config: &config, deadline, health, spawn, witness }.join()?;
    let mut core = Core::new(bootstrap, opener, config.clone(), memory)?;
    transports::tell(&mut core);
    Ok(core)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::ErrorKind;

    /// What rank 0 learns when rank 1's joining fails at the end.
    fn learnt(wrong: impl FnOnce(Builder) -> Builder + Send) -> String {
        let id = UniqueId::create(&Config::default()).unwrap();
        let builder = |rank| Communicator::builder().rank(rank).size(2).unique_id(id);
        std::thread::scope(|scope| {
            scope.spawn(|| wrong(builder(1)).build().expect_err("it cannot be built"));
            let error = builder(0).build().and_then(|mut comm| comm.barrier()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Ended { peer: 1, how: "broken", .. }), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn whoever_fails_after_it_has_joined_says_why() {
        let text = learnt(|builder| builder.algorithm("bubble"));
        assert!(text.contains("bubble"), "{text}");
        let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        let config = Config::from_vars([("RDMACCL_SIMD".to_string(), other.to_string())]).unwrap();
        let text = learnt(|builder| builder.config(config));
        assert!(text.contains(&format!("RDMACCL_SIMD={other} on this CPU")), "{text}");
    }
}
