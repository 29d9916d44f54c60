//! Groups: calls that are started together and end together, on one communicator or several.

use super::operation::Operation;
use super::patience::{Patience, Room, Wait};
use super::queues::{Queues, head};
use super::{Communicator, record};
use crate::control::EndKind;
use crate::engine::{Progress, Schedule};
use crate::error::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// With several communicators none can be slept on without deafness to the others, so sleeps are short.
const NAP: Duration = Duration::from_micros(200);

/// A communicator's part of a group.
pub struct Member<'c, 'b> {
    communicator: &'c mut Communicator,
    operations: Vec<Operation<'b>>,
    limit: Option<Duration>,
    in_background: bool,
}

impl<'c, 'b> Member<'c, 'b> {
    /// These calls on this communicator.
    pub fn new(communicator: &'c mut Communicator, operations: Vec<Operation<'b>>) -> Member<'c, 'b> {
        let operations = match communicator.has_devices {
            true => pieces(&operations),
            false => operations,
        };
        Member { communicator, operations, limit: None, in_background: false }
    }

    /// They may wait so long for peers without anything moving, whatever the configuration says.
    pub fn timeout(mut self, limit: Duration) -> Member<'c, 'b> {
        self.limit = Some(limit);
        self
    }

    /// They are made beside a thread that computes: where there are not cores for both, waiting leaves that thread its own.
    pub fn in_background(mut self) -> Member<'c, 'b> {
        self.in_background = true;
        self
    }

    /// Prepares everything and starts nothing.
    fn line_up(self) -> Result<Run<'c, 'b>> {
        let room =
            if self.in_background { self.communicator.background_room } else { self.communicator.room };
        self.communicator.limit = self.limit;
        Run::new(self.communicator, room, &self.operations)
    }
}

/// Operations, of which the long ones are cut.
fn pieces<'b>(operations: &[Operation<'b>]) -> Vec<Operation<'b>> {
    operations.iter().cloned().flat_map(Operation::cut).collect()
}

/// Makes all calls of a group, and returns when this process's part of all of them is done.
///
/// On each communicator, collectives run in the order of the list, one at a time; transfers run beside them, those
/// of one peer and direction in order. The communicators may be ranks of one job: they are
/// stepped in turn. An error in the middle breaks all communicators of the group.
pub fn run_together(members: Vec<Member<'_, '_>>) -> Result<()> {
    run(&mut prepare(members)?)
}

/// Makes what is lined up.
fn run(runs: &mut [Run<'_, '_>]) -> Result<()> {
    match drive(runs) {
        Ok(()) => Ok(()),
        Err((failed, error)) => {
            let error = runs[failed].communicator.breaks(error);
            for (_, run) in runs.iter_mut().enumerate().filter(|(index, _)| *index != failed) {
                run.communicator.break_with(ErrorKind::Broken(beside(&error)).into());
            }
            Err(error)
        }
    }
}

/// Why a communicator ends whose own calls have not failed.
fn beside(error: &Error) -> String {
    format!("a call of the same group failed: {error}")
}

/// What is left to do on one communicator.
struct Run<'c, 'b> {
    communicator: &'c mut Communicator,
    /// On what core its calls wait.
    room: Room,
    queues: Queues<'b>,
    /// Whether all is done, and what it published is handed on.
    over: bool,
}

/// The next calls have limits of their own.
impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        self.communicator.limit = None;
    }
}

/// Plans, proves and connects everything. That waits for the peers, and ranks of one job may be members of one
/// group, so each member has a thread for it if there is anything to do. What ends one communicator ends the others, or
/// they would wait for peers that may not come; an argument that is wrong ends none.
fn prepare<'c, 'b>(mut members: Vec<Member<'c, 'b>>) -> Result<Vec<Run<'c, 'b>>> {
    if members.iter_mut().all(|m| m.operations.iter().all(|op| m.communicator.is_prepared(op))) {
        return members.into_iter().map(Member::line_up).collect();
    }
    let healths: Vec<_> = members.iter().map(|m| Arc::clone(&m.communicator.health)).collect();
    let first = OnceLock::new();
    let line_up = |index: usize, member: Member<'c, 'b>| {
        member.line_up().inspect_err(|error| {
            if is_an_end(error) && first.set(error.clone()).is_ok() {
                let cause = beside(error);
                let others = healths.iter().enumerate().filter(|(other, _)| *other != index);
                others.for_each(|(_, health)| health.end(EndKind::Failed, &cause));
            }
        })
    };
    let result = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, member) in members.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name("rdmaccl-prepare".into());
            let line_up = &line_up;
            let spawned = thread.spawn_scoped(scope, move || line_up(index, member)).map_err(|e| {
                Error::system("starting a thread for a group", e, "raise the limit of threads (ulimit -u)")
            });
            threads.push(spawned?);
        }
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(run) => run,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All are joined before the first error is returned.
        joined.collect::<Vec<_>>().into_iter().collect()
    });
    match first.get() {
        Some(error) => Err(error.clone()),
        None => result,
    }
}

/// Whether nothing can be called any more on the communicator that this error is of.
fn is_an_end(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidArgument { .. } | ErrorKind::Unsupported { .. })
}

/// Steps all runs until they are done; an error comes with the index of its run.
fn drive(runs: &mut [Run<'_, '_>]) -> Result<(), (usize, Error)> {
    let mut patience = Patience::new(runs.iter().map(|run| run.room).max().unwrap_or(Room::Own));
    loop {
        let (mut moved, mut open) = (false, 0);
        for (index, run) in runs.iter_mut().enumerate() {
            match run.step().map_err(|error| (index, error))? {
                Progress::Done => {}
                Progress::Moved => (moved, open) = (true, open + 1),
                Progress::Blocked => open += 1,
            }
        }
        if open == 0 {
            return Ok(());
        }
        if moved {
            if patience.reset() {
                runs.iter().for_each(|run| run.communicator.recorder.moved());
            }
            continue;
        }
        match patience.next(|| {
            // Ranks of one thread are always on one core.
            if let [only] = &mut *runs {
                only.communicator.find_room();
            }
            runs.iter_mut().any(Run::awaits_neighbour)
        }) {
            Wait::Spin => {}
            Wait::Yield => {
                runs.iter().for_each(Run::record_wait);
                std::thread::yield_now();
            }
            Wait::Park(limit) => {
                let limit = if open > 1 { limit.min(NAP) } else { limit };
                let mut slept = false;
                for (index, run) in runs.iter_mut().enumerate().filter(|(_, run)| !run.over) {
                    run.watch(patience.waited()).map_err(|error| (index, error))?;
                    if !std::mem::replace(&mut slept, true) {
                        run.park(limit).map_err(|error| (index, error))?;
                    }
                }
            }
        }
    }
}

impl<'c, 'b> Run<'c, 'b> {
    /// Prepares everything and starts nothing.
    fn new(
        communicator: &'c mut Communicator,
        room: Room,
        operations: &[Operation<'b>],
    ) -> Result<Run<'c, 'b>> {
        let mut run = Run { communicator, room, queues: Queues::new(), over: false };
        run.communicator.line_up(operations, &mut run.queues)?;
        Ok(run)
    }

    /// Steps whatever can move. Queues that are empty are dropped.
    fn step(&mut self) -> Result<Progress> {
        let communicator = &mut *self.communicator;
        if communicator.health.is_aborted() {
            return Err(ErrorKind::Aborted.into());
        }
        let mut moved = false;
        let mut index = 0;
        while let Some(queue) = self.queues.get_mut(index) {
            match queue.step(communicator)? {
                Progress::Done => {
                    self.queues.swap_remove(index);
                    moved = true;
                    continue;
                }
                Progress::Moved => moved = true,
                Progress::Blocked => {}
            }
            index += 1;
        }
        // What was published may be what the peers wait for, and nobody would hand it on before the next call.
        let waits = !moved || self.queues.is_empty();
        let flushed = !waits || communicator.flush()?;
        self.over = flushed && self.queues.is_empty();
        Ok(match (self.over, moved) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) => Progress::Blocked,
        })
    }

    /// The clock is looked at for calls that have waited longer than they should.
    #[cold]
    fn record_wait(&self) {
        let entries = self.queues.iter().filter_map(|queue| Some(queue.running?.2));
        entries.for_each(|entry| record::waits(&self.communicator.recorder, entry));
    }

    /// Those of the calls that run.
    fn schedules(&self) -> SmallVec<[usize; 2]> {
        self.queues.iter().filter_map(|queue| Some(queue.running?.0)).collect()
    }

    #[cold]
    fn awaits_neighbour(&mut self) -> bool {
        let schedules = self.schedules();
        self.communicator.awaits_neighbour(&schedules)
    }

    /// Sleeps until one of the ranks that the running calls wait for may have done something.
    #[cold]
    fn park(&mut self, limit: Duration) -> Result<()> {
        let Communicator { plans, routes, .. } = &mut *self.communicator;
        let running = self.queues.iter().filter_map(|q| Some(&plans.schedules[q.running?.0]));
        routes.park(limit, running.flat_map(Schedule::awaited))
    }

    /// Looks at the peers' health and at the deadline.
    #[cold]
    fn watch(&mut self, waited: Duration) -> Result<()> {
        let schedules = self.schedules();
        self.communicator.record_waits(&schedules, waited);
        self.communicator.watch(&schedules, waited)
    }
}

impl Communicator {
    /// Makes calls together; see [`run_together`].
    pub fn run_all(&mut self, operations: &[Operation<'_>]) -> Result<()> {
        self.usable()?;
        let room = self.room;
        if !self.are_known(operations)? {
            let cut = self.has_devices.then(|| pieces(operations));
            return run(slice::from_mut(&mut Run::new(self, room, cut.as_deref().unwrap_or(operations))?));
        }
        let (mut begun, mut queues) = (SmallVec::new(), Queues::new());
        self.begin_known(operations, &mut begun, &mut queues).map_err(|error| self.breaks(error))?;
        match &*begun {
            [] if !self.keeps() => Ok(()),
            // What is left is one call, as if it were made by itself.
            &[(_, (schedule, buffers, entry))] if queues.is_empty() => {
                self.complete(schedule, Ok(Progress::Blocked), entry, &buffers)
            }
            _ => {
                head(&mut queues, begun);
                run(slice::from_mut(&mut Run { communicator: self, room, queues, over: false }))
            }
        }
    }
}
