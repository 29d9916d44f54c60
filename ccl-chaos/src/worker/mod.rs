//! A rank of a trial, as a process. It draws the trial for itself, makes its calls, does its deed if it is a culprit, and
//! tells the runner what happened.

mod deed;
mod job;
mod remains;

use crate::event::{Event, Failure, Stage, now};
use crate::fault::{Deed, Moment};
use crate::random::mix;
use crate::step::{Draw, Step};
use crate::trial::{Aftermath, Trial};
use ccl::{Communicator, Config, Error, Rank, UniqueId};
use deed::{Armed, commit};
use job::Job;
use remains::Remains;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// How long the root service's thread may outlive a join that came to nothing.
const SETTLING: Duration = Duration::from_secs(1);

/// Tells the runner, in one write.
fn say(event: &Event) {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    // A runner that is gone ends this process by the signal that it asked for.
    let _ = std::io::stdout().lock().write_all(&line);
}

/// Waits for the runner's word.
fn hear() -> Option<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    Some(line.trim().to_string())
}

/// Plays rank `rank` of the trial; `runner` is the process that it ends with.
pub(crate) fn run(trial: &Trial, rank: Rank, runner: i32) -> ExitCode {
    let tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tied || getppid().map(Pid::as_raw_pid) != Some(runner) {
        return ExitCode::FAILURE;
    }
    // What a process keeps for good after its first communicator is there before anything is compared.
    drop(Communicator::builder().build());
    let before = Remains::now();
    let worker = Worker { trial, rank };
    // Its communicator unwinds with it.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| worker.play()));
    for what in before.beyond(trial.init + SETTLING) {
        say(&Event::Left { what });
    }
    say(&Event::End);
    ExitCode::SUCCESS
}

struct Worker<'t> {
    trial: &'t Trial,
    rank: Rank,
}

/// A communicator, and which ranks of the trial its ranks are.
struct Place {
    comm: Communicator,
    world: Vec<Rank>,
}

impl Worker<'_> {
    fn play(&self) {
        let Some(mut place) = self.join() else { return };
        let mut armed = Armed::not();
        let failed = self.script(&mut place, &mut armed).is_err();
        armed.wait();
        if !failed {
            say(&Event::Done);
        }
        if failed && self.survives() {
            match self.trial.aftermath[self.rank as usize] {
                Aftermath::Destroy => {}
                Aftermath::Exit => exit(),
                Aftermath::Shrink => place = self.go_on(place),
            }
        }
        if self.does(Moment::Destroying) {
            armed = self.arm(None);
        }
        destroy(place.comm);
        armed.wait();
    }

    /// Shrinks until there is a communicator that lasts for the rest of the script. Returns the last one.
    fn go_on(&self, mut place: Place) -> Place {
        let mut armed = if self.does(Moment::Shrinking) { self.arm(None) } else { Armed::not() };
        for _ in 0..self.trial.ranks {
            let began = now();
            let comm = match place.comm.shrink(&[]) {
                Ok(comm) => comm,
                Err(error) => {
                    say(&Event::Failed(Failure::of(&error, Stage::Shrink, began, &place.world)));
                    break;
                }
            };
            let pids: Vec<u32> = place.comm.places().into_iter().map(|(_, pid)| pid).collect();
            let of_trial = |pid: u32| {
                let old = pids.iter().position(|other| *other == pid);
                old.map_or(Rank::MAX, |old| place.world[old])
            };
            let world: Vec<Rank> = comm.places().into_iter().map(|(_, pid)| of_trial(pid)).collect();
            let at = now();
            say(&Event::Shrunk { at, took_ms: (at - began) / 1_000_000, world: world.clone() });
            // The old one goes before the new one is used.
            place = Place { comm, world };
            if self.after(&mut place, &mut armed).is_ok() {
                say(&Event::Done);
                break;
            }
        }
        armed.wait();
        place
    }

    fn after(&self, place: &mut Place, armed: &mut Armed) -> Result<(), ()> {
        for (number, step) in self.trial.after.iter().enumerate() {
            if number + 1 == self.trial.after.len() {
                armed.wait();
            }
            self.step(place, step, Stage::After, false)?;
        }
        Ok(())
    }

    fn join(&self) -> Option<Place> {
        let trial = self.trial;
        let world: Vec<Rank> = (0..trial.ranks).collect();
        let began = now();
        let failed = |error: &Error| say(&Event::Failed(Failure::of(error, Stage::Join, began, &world)));
        let id = match self.rank {
            0 => {
                let id = Config::from_env().and_then(|config| UniqueId::create(&config));
                let id = id.inspect_err(failed).ok()?;
                say(&Event::Id { id: id.to_string() });
                id
            }
            _ => hear()?.parse().inspect_err(failed).ok()?,
        };
        if self.does(Moment::Joining) && trial.kind.deed() == Deed::Stay {
            say(&Event::Fault { at: now() });
            say(&Event::Waiting);
            hear();
            return None;
        }
        let mut builder = Communicator::builder().rank(self.rank).size(trial.ranks).unique_id(id);
        let abort = builder.abort_handle();
        let mut armed = if self.does(Moment::Joining) { self.arm(Some(abort)) } else { Armed::not() };
        let began = now();
        let built = builder.build();
        match built {
            Ok(comm) => {
                say(&Event::Joined { at: now() });
                armed.wait();
                Some(Place { comm, world })
            }
            Err(error) => {
                say(&Event::Failed(Failure::of(&error, Stage::Join, began, &world)));
                armed.wait();
                None
            }
        }
    }

    /// All steps; what goes wrong is said where it does.
    fn script(&self, place: &mut Place, armed: &mut Armed) -> Result<(), ()> {
        let trial = self.trial;
        let mut script = trial.script.clone();
        if self.is_culprit() && trial.kind.deed() == Deed::Swap {
            script.swap(trial.step, trial.step + 1);
        }
        for (number, step) in script.iter().enumerate() {
            let mut bent = false;
            let mut step = step.clone();
            if number == trial.step {
                match trial.moment {
                    Moment::Idle => self.wait_idle(),
                    Moment::Before if self.is_culprit() => {
                        bent = matches!(trial.kind.deed(), Deed::Bend(_) | Deed::Swap);
                        if let Deed::Bend(bend) = trial.kind.deed() {
                            step = step.bent(bend);
                        }
                        self.misbehave(place)?;
                    }
                    _ if self.does(Moment::During) => {
                        *armed = self.arm(Some(place.comm.abort_handle()));
                    }
                    _ => {}
                }
            }
            if number + 1 == script.len() {
                armed.wait();
            }
            self.step(place, &step, Stage::Step(number), bent)?;
        }
        Ok(())
    }

    /// A culprit's deed before a step. An error: it makes no more calls.
    fn misbehave(&self, place: &mut Place) -> Result<(), ()> {
        let deed = self.trial.kind.deed();
        match deed {
            Deed::Stay => {
                say(&Event::Fault { at: now() });
                say(&Event::Waiting);
                hear();
            }
            Deed::Sleep => thread::sleep(self.trial.pause),
            Deed::Bend(_) | Deed::Swap => say(&Event::Fault { at: now() }),
            Deed::Leave => {
                say(&Event::Fault { at: now() });
                return Err(());
            }
            Deed::Revoke => {
                thread::sleep(self.delay());
                say(&Event::Fault { at: now() });
                place.comm.revoke("by order");
            }
            _ => {
                thread::sleep(self.delay());
                commit(deed, Some(&place.comm.abort_handle()));
            }
        }
        Ok(())
    }

    /// Until the runner says that the fault has happened, or shall happen here.
    fn wait_idle(&self) {
        say(&Event::Waiting);
        hear();
        if self.is_culprit() {
            commit(self.trial.kind.deed(), None);
        }
    }

    /// Makes a step and checks it. `unchecked`: its results mean nothing, since the others make another call.
    fn step(&self, place: &mut Place, step: &Step, stage: Stage, unchecked: bool) -> Result<(), ()> {
        let stage = match (step, stage) {
            (Step::Split(_), Stage::Step(number)) => Stage::Split(Some(number)),
            (Step::Split(_), Stage::After) => Stage::Split(None),
            _ => stage,
        };
        let began = now();
        match step {
            Step::Barrier => place.done(began, stage, |comm| comm.barrier()),
            Step::Calls(draws) => place.calls(draws, stage, unchecked),
            Step::Split(draw) => {
                let (ranks, own) = (place.comm.size(), place.comm.rank());
                let color = |rank: Rank| (mix(draw.seed, rank.into()) % 3).checked_sub(1).map(|c| c as u32);
                let mut part = None;
                place.done(began, stage, |comm| {
                    part = comm.split(color(own), 0)?;
                    Ok(())
                })?;
                let members = (0..ranks).filter(|rank| color(*rank) == color(own));
                let world = members.map(|rank| place.world[rank as usize]).collect();
                match part {
                    Some(comm) => Place { comm, world }.calls(std::slice::from_ref(draw), stage, false),
                    None => Ok(()),
                }
            }
        }
    }

    fn is_culprit(&self) -> bool {
        self.trial.is_culprit(self.rank)
    }

    fn does(&self, moment: Moment) -> bool {
        self.trial.moment_of(self.rank) == Some(moment)
    }

    /// Whether it goes on after an error as the others do.
    fn survives(&self) -> bool {
        let goes_on =
            matches!(self.trial.kind.deed(), Deed::Bend(_) | Deed::Swap | Deed::Stay | Deed::Revoke);
        !self.is_culprit() || goes_on || self.does(Moment::Shrinking)
    }

    fn arm(&self, abort: Option<ccl::AbortHandle>) -> Armed {
        Armed::with(self.trial.kind.deed(), self.delay(), abort)
    }

    fn delay(&self) -> Duration {
        let own = self.trial.culprits.iter().position(|culprit| *culprit == self.rank);
        own.map_or(Duration::ZERO, |index| self.trial.delays[index])
    }
}

impl Place {
    /// Makes calls, several as a group, and checks their results.
    fn calls(&mut self, draws: &[Draw], stage: Stage, unchecked: bool) -> Result<(), ()> {
        let (ranks, rank) = (self.comm.size(), self.comm.rank());
        let mut jobs: Vec<Job> = draws.iter().map(|draw| Job::new(draw, ranks, rank)).collect();
        let fits = |name: &&str| draws.iter().all(|draw| draw.may_use(name, ranks));
        let algorithm = draws[0].algorithm.filter(fits);
        let began = now();
        self.done(began, stage, |comm| {
            comm.set_algorithm(algorithm)?;
            if let [job] = &mut jobs[..] {
                return job.run(comm);
            }
            let operations: Vec<_> = jobs.iter_mut().flat_map(Job::operations).collect();
            let mut batch = comm.batch();
            operations.into_iter().for_each(|operation| batch.push(operation));
            batch.run()
        })?;
        let wrong = jobs.iter().find_map(|job| job.check().err()).filter(|_| !unchecked);
        if let Some(what) = wrong {
            say(&Event::Wrong { what: format!("{stage:?}: {what}") });
            return Err(());
        }
        Ok(())
    }

    fn done(
        &mut self,
        began: u64,
        stage: Stage,
        call: impl FnOnce(&mut Communicator) -> ccl::Result<()>,
    ) -> Result<(), ()> {
        call(&mut self.comm).map_err(|error| {
            say(&Event::Failed(Failure::of(&error, stage, began, &self.world)));
        })
    }
}

fn exit() {
    say(&Event::Exiting { at: now() });
    #[allow(clippy::exit)] // as programs do that give up
    std::process::exit(0);
}

fn destroy(comm: Communicator) {
    let start = Instant::now();
    drop(comm);
    say(&Event::Destroyed { took_ms: start.elapsed().as_millis() as u64 });
}
