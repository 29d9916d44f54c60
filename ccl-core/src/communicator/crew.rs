//! Threads per rank: one core often cannot fill a host's memory or a network card, so a long call is shared out.
//!
//! Every thread runs a [`Share`] of the call's tiles. What it needs for that is a *strand*: transports of its own, so links
//! of its own, and schedules that are bound to them. Tiles do not depend on each other, so strands never wait for each
//! other, and the result has the same bits whatever their number.
//!
//! Ranks work together and wait alone: threads live for a burst of work only. When nothing has moved for a while they end,
//! the caller waits for all shares by itself, as for any call, and shares the work out anew when something moves again. So
//! there are no idle threads, and there is one place that watches, records and judges waits.

use super::patience::{Patience, Room, Wait};
use super::plans::{self, Prepared};
use super::routes::{Introduction, Routes};
use super::{Communicator, Opener};
use crate::bootstrap::{Bootstrap, Health};
use crate::config::{Config, Threads};
use crate::cost::Choice;
use crate::engine::{Layout, Progress, Schedule, Share, Task};
use crate::error::{ErrorKind, Result};
use crate::flight::Entry;
use crate::kernels::{Buffers, Reducer};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Threads that a rank uses unless it is told to use more: what it takes to fill a socket's memory bandwidth is about that.
const MOST_UNASKED: u32 = 4;

/// Calls that are expected to take less are not shared out: to start and to join a thread takes about 0.1 ms.
const WORTH_SHARING_NS: f64 = 1e6;

/// Of several links that are slept on in turn, none may be deaf for longer.
const NAP: Duration = Duration::from_micros(200);

/// The rank's strands but the first, which is the communicator itself.
#[derive(Default)]
pub(super) struct Crew {
    strands: Vec<Strand>,
}

/// What a thread needs to run shares of calls.
struct Strand {
    routes: Routes,
    /// Those of shared calls, by the number of the communicator's own schedule for the same plan.
    schedules: HashMap<usize, Schedule>,
}

/// A share that is being run.
struct Worker<'c, 'b> {
    schedule: &'c mut Schedule,
    routes: &'c mut Routes,
    buffers: Buffers<'b>,
    health: &'c Health,
    room: Room,
}

impl Crew {
    /// As many strands as the configuration and the hosts' cores make of it, the same number on every rank.
    pub(super) fn assemble(
        config: &Config,
        routes: &Routes,
        bootstrap: &mut Bootstrap,
        opener: &dyn Opener,
    ) -> Result<Crew> {
        let more = 1..threads(config, routes.cores_per_rank());
        let strands = more.map(|_| {
            Ok(Strand { routes: Routes::open(config, bootstrap, opener)?, schedules: HashMap::new() })
        });
        Ok(Crew { strands: strands.collect::<Result<_>>()? })
    }

    /// That of a rank that is alone.
    pub(super) fn alone(config: &Config, own: &Introduction) -> Crew {
        let routes = || Routes::new(0, Vec::new(), vec![own.clone()]);
        let more = 1..threads(config, routes().cores_per_rank());
        Crew { strands: more.map(|_| Strand { routes: routes(), schedules: HashMap::new() }).collect() }
    }

    /// Threads that a call may be shared out to.
    pub(super) fn threads(&self) -> u32 {
        self.strands.len() as u32 + 1
    }

    /// The routes of all strands but the first.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Routes> {
        self.strands.iter().map(|strand| &strand.routes)
    }

    /// The same, to change them.
    pub(super) fn routes_mut(&mut self) -> impl Iterator<Item = &mut Routes> {
        self.strands.iter_mut().map(|strand| &mut strand.routes)
    }

    /// Their schedules for the plan of this one.
    pub(super) fn schedules(&self, of: usize) -> impl Iterator<Item = &Schedule> {
        self.strands.iter().filter_map(move |strand| strand.schedules.get(&of))
    }

    /// Whether every strand has a schedule for this plan.
    pub(super) fn knows(&self, schedule: usize) -> bool {
        self.strands.iter().all(|strand| strand.schedules.contains_key(&schedule))
    }

    /// Gives the strand of this number its schedule for a plan.
    pub(super) fn learn(&mut self, strand: usize, schedule: usize, bound: Schedule) {
        self.strands[strand].schedules.insert(schedule, bound);
    }

    /// What they run of calls with this layout.
    pub(super) fn tasks(
        &self,
        schedule: usize,
        layout: &Layout,
        reducer: Reducer,
        caching: plans::Caching,
    ) -> Result<Arc<[Arc<Task>]>> {
        let bound = self.schedules(schedule);
        bound.map(|bound| plans::task(bound, layout.clone(), reducer, caching)).collect()
    }

    /// The running shares but the communicator's own.
    fn running(&mut self, schedule: usize) -> impl Iterator<Item = (&mut Schedule, &mut Routes)> {
        self.strands.iter_mut().filter_map(move |strand| {
            let schedule = strand.schedules.get_mut(&schedule).filter(|schedule| schedule.is_running())?;
            Some((schedule, &mut strand.routes))
        })
    }
}

fn threads(config: &Config, cores_per_rank: u32) -> u32 {
    match config.threads {
        Threads::Auto => cores_per_rank.min(MOST_UNASKED),
        Threads::Exactly(threads) => threads,
    }
}

impl Worker<'_, '_> {
    /// Runs the share until it is done, or until nothing has moved for a while.
    fn work(self) -> Result<()> {
        let mut patience = Patience::new(self.room);
        loop {
            match self.schedule.step(self.routes, &self.buffers)? {
                Progress::Done => return Ok(()),
                Progress::Moved if self.health.is_aborted() => return Err(ErrorKind::Aborted.into()),
                Progress::Moved => {
                    patience.reset();
                }
                Progress::Blocked => {
                    // What was published may be what the peers wait for.
                    self.routes.flush()?;
                    match patience.next(|| false) {
                        Wait::Spin => {}
                        Wait::Yield => thread::yield_now(),
                        Wait::Park(_) => return Ok(()),
                    }
                }
            }
        }
    }
}

impl Communicator {
    /// How many threads a call is shared out to; every rank finds the same.
    pub(super) fn shares_of(&self, choice: &Choice, layout: &Layout, in_place: bool) -> u32 {
        let threads = self.crew.threads();
        let is_long = choice.predicted_ns >= WORTH_SHARING_NS && layout.tiles() >= threads as usize;
        let is_nothing = self.ranks == 1 && in_place;
        if is_long && !is_nothing { threads } else { 1 }
    }

    /// Begins a call: all its shares, or, if it has but one, what can be done of it at once. Unless that was all of it, it is to be
    /// stepped.
    #[inline]
    pub(super) fn begin(
        &mut self,
        prepared: &Prepared,
        number: u64,
        buffers: &Buffers<'_>,
    ) -> Result<Progress> {
        match &prepared.shared {
            Some(shared) => self.start_shares(prepared, shared, number).map(|()| Progress::Moved),
            None => {
                let own = &mut self.plans.schedules[prepared.schedule];
                own.dash(&prepared.task, (prepared.tag(number), number), 0, &mut self.routes, buffers)
            }
        }
    }

    /// Starts all shares of a call.
    #[inline(never)]
    fn start_shares(&mut self, prepared: &Prepared, shared: &[Arc<Task>], number: u64) -> Result<()> {
        let Prepared { schedule, task, .. } = prepared;
        let (own, tag) = (&mut self.plans.schedules[*schedule], prepared.tag(number));
        let of = shared.len() as u32 + 1;
        own.start_share(task, tag, number, Share { index: 0, of })?;
        let strands = self.crew.strands.iter_mut().filter_map(|strand| strand.schedules.get_mut(schedule));
        strands.zip(shared).zip(1..).try_for_each(|((strand, task), index)| {
            strand.start_share(task, tag, number, Share { index, of })
        })
    }

    /// Steps all shares of a call that are not done. Out of line: the blocking call of one share has a step of its own.
    #[inline(never)]
    pub(super) fn step(&mut self, schedule: usize, buffers: &Buffers<'_>) -> Result<Progress> {
        let own = &mut self.plans.schedules[schedule];
        if !own.is_share() {
            return own.step(&mut self.routes, buffers);
        }
        let own = own.is_running().then_some((own, &mut self.routes));
        let (mut moved, mut open) = (false, false);
        for (share, routes) in own.into_iter().chain(self.crew.running(schedule)) {
            let progress = share.step(routes, buffers)?;
            moved |= progress != Progress::Blocked;
            open |= progress != Progress::Done;
        }
        if open {
            return Ok(if moved { Progress::Moved } else { Progress::Blocked });
        }
        self.plans.schedules[schedule].conclude(buffers);
        Ok(Progress::Done)
    }

    /// Runs the shares of a call, each in a thread of its own, until all are done.
    #[inline(never)]
    pub(super) fn finish_shared(
        &mut self,
        schedule: usize,
        entry: Entry,
        buffers: &Buffers<'_>,
    ) -> Result<()> {
        loop {
            self.work_together(schedule, *buffers)?;
            let mut patience = Patience::new(self.room);
            loop {
                match self.step(schedule, buffers)? {
                    Progress::Done => return self.hand_on(schedule),
                    Progress::Moved => break,
                    Progress::Blocked => {
                        let wait = patience.next(|| false);
                        self.pause(wait, schedule, entry, &patience)?;
                    }
                }
            }
            self.recorder.moved();
        }
    }

    /// Runs what is left of all shares until nothing moves any more.
    fn work_together(&mut self, schedule: usize, buffers: Buffers<'_>) -> Result<()> {
        let (health, room) = (&*self.health, self.room);
        let worker = |(schedule, routes)| Worker { schedule, routes, buffers, health, room };
        let own = &mut self.plans.schedules[schedule];
        let own = own.is_running().then(|| worker((own, &mut self.routes)));
        thread::scope(|scope| {
            let helpers = self.crew.running(schedule).map(worker).map(|worker| {
                let thread = thread::Builder::new().name("rdmaccl-share".into());
                thread.spawn_scoped(scope, move || worker.work())
            });
            let helpers: Vec<_> = helpers.collect();
            let mut result = own.map_or(Ok(()), Worker::work);
            // All are joined before an error is returned; by hand, since ThreadSanitizer sees that.
            for helper in helpers {
                let joined = match helper.map(|helper| helper.join()) {
                    Ok(Ok(joined)) => joined,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    Err(error) => {
                        tracing::debug!(%error, "no thread for a share: the caller runs it too");
                        Ok(())
                    }
                };
                result = result.and(joined);
            }
            result
        })
    }

    /// Sleeps in the transports of a call's shares.
    pub(super) fn park(&mut self, schedule: usize, limit: Duration) -> Result<()> {
        let own = &self.plans.schedules[schedule];
        let (is_shared, is_running) = (own.is_share(), own.is_running());
        let limit = if is_shared { limit.min(NAP) } else { limit };
        match self.crew.running(schedule).next() {
            Some((share, routes)) if !is_running => routes.park(limit, share.awaited()),
            _ => self.routes.park(limit, own.awaited()),
        }
    }
}
