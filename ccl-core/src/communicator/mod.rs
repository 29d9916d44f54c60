//! The communicator: ranks that make the same calls in the same order.
//!
//! It puts the parts in order. A call is looked up among those [prepared](plans) before; the first
//! time, the [cost function](crate::cost) chooses an algorithm, its program is written, verified, its links
//! are connected and the [schedule](crate::engine::Schedule) is bound. Then the engine steps until it is done,
//! and in between the communicator [waits](patience): it spins, yields, and then sleeps in the transport,
//! looking at the peers' health and at the deadline each time it wakes.
//!
//! A call ends right or with an error. After an error in the middle of a call the ranks no longer agree
//! where they are, so the communicator is *broken*: every later call returns
//! [`ErrorKind::Broken`](crate::ErrorKind::Broken) with the first cause.

mod fingerprint;
mod patience;
mod plans;
mod routes;

use crate::algorithms::{self, Algorithm};
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Verify};
use crate::cost::{self, Choice, Model};
use crate::engine::{self, Layout, Progress, Schedule, WaitOn};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Collective, Rank, Spec};
use crate::simd::{Buffers, Reducer};
use crate::transport::{Counters, LinkKey, Transport};
use crate::verify;
use crate::{DataType, ReduceOp};
use patience::{Patience, Wait};
use plans::{PlanKey, Plans, Prepared};
use routes::{Introduction, Routes};
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

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

/// How a call would be done, and why it would take how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Bytes of one piece.
    pub tile_bytes: usize,
    /// Pieces per chunk.
    pub tiles: usize,
    /// What the cost function expects, in nanoseconds.
    pub predicted_ns: f64,
}

/// One rank's membership of a group of ranks.
pub struct Communicator {
    rank: Rank,
    ranks: u32,
    config: Config,
    bootstrap: Bootstrap,
    routes: Routes,
    model: Model,
    oversubscribed: bool,
    plans: Plans,
    /// The override that a caller set; the configuration's comes after it.
    algorithm: Option<&'static str>,
    /// Calls made so far.
    sequence: u64,
    broken: Option<String>,
}

/// Largest communicator for which built-in plans are verified again at run time; the tests prove them all
/// up to this size. A loaded plan is always verified.
const VERIFY_UP_TO: u32 = 64;

impl Communicator {
    /// Joins the ranks that `bootstrap` has brought together, over the given transports, best first.
    pub fn new(
        mut bootstrap: Bootstrap,
        transports: Vec<Box<dyn Transport>>,
        config: Config,
    ) -> Result<Communicator> {
        let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
        let introduction = Introduction {
            transports: transports.iter().map(|t| (t.name().to_string(), t.address())).collect(),
            settings: shared_settings(&config, &transports),
        };
        let introductions = exchange_introductions(&mut bootstrap, &introduction)?;
        for (peer, theirs) in introductions.iter().enumerate() {
            if theirs.settings != introduction.settings {
                return Err(Error::invalid(
                    format!(
                        "rank {peer} runs with settings {{{}}}, rank {rank} with {{{}}}",
                        theirs.settings, introduction.settings
                    ),
                    "give every rank the same RDMACCL_ variables and the same version of the library",
                ));
            }
        }
        let routes = Routes::new(rank, transports, introductions);
        let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
        let local = routes.reached_by("shm");
        let mut model = Model::shared_memory(cores, ranks);
        model.slot_bytes = routes.slot_bytes();
        tracing::info!(rank, ranks, local, cores, "communicator ready");
        Ok(Communicator {
            rank,
            ranks,
            bootstrap,
            routes,
            model,
            oversubscribed: local > cores,
            plans: Plans::default(),
            algorithm: None,
            sequence: 0,
            broken: None,
            config,
        })
    }

    /// This rank's number.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// How many calls were made.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Why no more calls are taken, if so.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The transport that carries each peer needed so far.
    pub fn routes(&self) -> Vec<(Rank, &'static str)> {
        self.routes.chosen().collect()
    }

    /// What each open link has done.
    pub fn counters(&self) -> Vec<(LinkKey, Counters)> {
        self.routes.transports().iter().flat_map(|t| t.counters()).collect()
    }

    /// Uses this algorithm for every collective that it can do; `None` lets the cost function choose. All
    /// ranks must set the same.
    pub fn set_algorithm(&mut self, name: Option<&str>) -> Result<()> {
        self.algorithm = match name {
            None => None,
            Some(name) => Some(known_algorithm(name)?.name()),
        };
        self.plans.forget_calls();
        Ok(())
    }

    /// How a call would be done. Makes no connection.
    pub fn explain(&self, call: &Call, in_place: bool) -> Result<Explanation> {
        self.check_call(call)?;
        let choice = self.choose(call, in_place)?;
        let layout = self.layout(call, &choice)?;
        Ok(Explanation {
            algorithm: choice.algorithm.name(),
            tile_bytes: choice.tile_bytes,
            tiles: layout.tiles(),
            predicted_ns: choice.predicted_ns,
        })
    }

    /// Makes a call and returns when this rank's part of it is done.
    ///
    /// The buffers must have the lengths that [`Call::count`] and [`Collective`] say; a buffer that this
    /// rank does not need may be empty.
    pub fn run(&mut self, call: &Call, buffers: Buffers<'_>) -> Result<()> {
        let index = match self.plans.find(call, buffers.is_in_place()) {
            Some(index) => index,
            None => self.prepare(call, buffers.is_in_place())?,
        };
        let prepared = &self.plans.prepared[index];
        prepared.layout.check(&buffers)?;
        if let Some(cause) = &self.broken {
            return Err(ErrorKind::Broken(cause.clone()).into());
        }
        let tag = fingerprint::tag(prepared.fingerprint, self.sequence);
        let started = engine::Call { layout: &prepared.layout, reducer: &prepared.reducer, tag };
        let schedule = &mut self.plans.schedules[prepared.schedule];
        schedule.start(&started);
        let mut patience = Patience::new(self.oversubscribed);
        loop {
            match schedule.step(&started, &mut self.routes, &buffers) {
                Ok(Progress::Done) => break,
                Ok(Progress::Moved) => patience.reset(),
                Ok(Progress::Blocked) => match patience.next() {
                    Wait::Spin => std::hint::spin_loop(),
                    Wait::Yield => std::thread::yield_now(),
                    Wait::Park(limit) => {
                        if let Err(error) = self.park(index, call, &patience, limit) {
                            return Err(self.breaks(error));
                        }
                        continue_borrow(&mut ());
                    }
                },
                Err(error) => {
                    let error = self.explain_step(error, call);
                    return Err(self.breaks(error));
                }
            }
        }
        self.sequence += 1;
        Ok(())
    }
}
