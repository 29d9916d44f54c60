//! All ranks of a plan in one thread and in virtual time.
//!
//! The same [engine](crate::engine) that runs on real links runs here over a network that is drawn from a
//! seed: every message and every credit takes its own time, ranks stall, ranks die. What arrives on one link
//! stays in order, across links anything goes, and credits are as scarce as they are configured. One seed
//! always gives one run, so a failure that a test finds can be looked at again.
//!
//! ```text
//! let mut cluster = Cluster::new(&plan, &settings, &inputs)?;
//! let outcome = cluster.run();
//! outcome.ranks[3].state      // finished, blocked on …, dead, or failed with …
//! outcome.culprit()           // who is to blame for those that are blocked
//! ```

mod control;
mod network;
mod outcome;
mod random;

pub use control::{ControlCluster, ControlSettings, Deed, Life, Traffic};
pub use outcome::{Outcome, RankOutcome, State, Waiting};
pub use random::Random;

use crate::engine::{Layout, Overlay, Progress, ReferFrom, Schedule, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{Buffers, Level, Reducer};
use crate::plan::{Plan, Rank};
use crate::verify::{self, Limits, Shortcuts};
use crate::{DataType, ReduceOp};
use network::Network;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The call, the links, and what goes wrong.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Elements of one block.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// How they are combined.
    pub op: ReduceOp,
    /// Bytes of the longest piece, and so of a slot.
    pub tile_bytes: usize,
    /// Slots of a link.
    pub credits: u32,
    /// Whether the buffers of every rank that has both are one.
    pub in_place: bool,
    /// The kernels.
    pub level: Level,
    /// All randomness comes from here.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// Whether every piece that may travel without a slot does.
    pub shortcuts: bool,
}

/// What goes wrong. The default is a network that is merely uneven.
#[derive(Clone, Debug)]
pub struct Faults {
    /// A message, a credit and a step each take from 1 to this many nanoseconds of virtual time.
    pub delay: u64,
    /// One step in this many is followed by a stall; 0 for never.
    pub stall_one_in: u64,
    /// A stall lasts up to this many nanoseconds.
    pub stall: u64,
    /// Ranks that stop for ever, each after so many steps.
    pub deaths: Vec<(Rank, u64)>,
    /// A rank that is in another call: its messages carry another tag.
    pub stray: Option<Rank>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { delay: 1000, stall_one_in: 0, stall: 0, deaths: Vec::new(), stray: None }
    }
}

/// A plan on all of its ranks.
#[derive(Debug)]
pub struct Cluster {
    ranks: Vec<Member>,
    network: Network,
    random: Random,
    faults: Faults,
}

/// One rank.
#[derive(Debug)]
struct Member {
    schedule: Schedule,
    memory: Memory,
    state: State,
    steps: u64,
    /// No step before this time.
    busy_until: u64,
}

/// A rank's buffers.
#[derive(Debug)]
enum Memory {
    Apart { input: Vec<u8>, output: Vec<u8> },
    InPlace { buffer: Vec<u8>, overlay: Overlay },
}

impl Cluster {
    /// Puts `inputs`, one send buffer per rank, in place and starts the call on every rank.
    pub fn new(plan: &Plan, settings: &Settings, inputs: &[Vec<u8>]) -> Result<Cluster> {
        let spec = &plan.spec;
        if plan.programs.len() != spec.ranks as usize || inputs.len() != spec.ranks as usize {
            return Err(Error::invalid(
                format!("{} programs and {} inputs", plan.programs.len(), inputs.len()),
                format!("one for each of the {} ranks", spec.ranks),
            ));
        }
        let reducer = Reducer::at(settings.level, settings.dtype, settings.op, spec.ranks)?;
        let mut network = Network::new(settings.credits, settings.tile_bytes, settings.faults.delay);
        let shortcuts = match settings.shortcuts {
            false => None,
            true => Some(proved(plan, settings.credits)?),
        };
        let mut ranks = Vec::new();
        for (rank, (program, input)) in (0..).zip(plan.programs.iter().zip(inputs)) {
            let layout = Layout::new(spec, rank, settings.count, settings.dtype, settings.tile_bytes)?;
            if input.len() != layout.input_bytes() {
                return Err(Error::invalid(
                    format!("an input of {} bytes at rank {rank}", input.len()),
                    format!("{} bytes", layout.input_bytes()),
                ));
            }
            let mut schedule = Schedule::bind(spec, rank, program, &mut network.ends_of(rank))?;
            let tag = 0x5eed ^ (settings.faults.stray == Some(rank)) as u64;
            if let Some(shortcuts) = &shortcuts {
                let from = ReferFrom::ALWAYS;
                schedule.allow_references(program, shortcuts.refers(rank), from)?;
                schedule.allow_offers(program, shortcuts.offers(rank), 0)?;
                schedule.allow_shares(program);
            }
            let memory = Memory::new(input, &layout, settings.in_place);
            let task = Arc::new(schedule.task(layout, reducer)?);
            // Both ways through the tiles.
            schedule.start(&task, tag, settings.seed % 2)?;
            ranks.push(Member { schedule, memory, state: State::Running, steps: 0, busy_until: 0 });
        }
        Ok(Cluster { ranks, network, random: Random::new(settings.seed), faults: settings.faults.clone() })
    }

    /// Runs until nothing can happen any more.
    pub fn run(mut self) -> Outcome {
        let mut events = BinaryHeap::new();
        for rank in 0..self.ranks.len() as Rank {
            events.push(Reverse((self.random.up_to(self.faults.delay), rank)));
        }
        let mut now = 0;
        while let Some(Reverse((time, rank))) = events.pop() {
            now = time;
            let busy_until = self.ranks[rank as usize].busy_until;
            if busy_until > now {
                events.push(Reverse((busy_until, rank)));
                continue;
            }
            if let Some(next) = self.step(rank, now) {
                events.push(Reverse((next, rank)));
            }
            events.extend(self.network.events().map(Reverse));
        }
        Outcome { time: now, ranks: self.ranks.into_iter().map(Member::outcome).collect() }
    }

    /// Lets a rank step once; when it wants to go on by itself, if it does.
    fn step(&mut self, rank: Rank, now: u64) -> Option<u64> {
        let member = &mut self.ranks[rank as usize];
        if !matches!(member.state, State::Running | State::Blocked(_)) {
            return None;
        }
        if self.faults.deaths.iter().any(|(dead, after)| *dead == rank && member.steps >= *after) {
            member.state = State::Dead;
            return None;
        }
        member.steps += 1;
        member.busy_until = now + self.random.up_to(self.faults.delay);
        if self.faults.stall_one_in != 0 && self.random.up_to(self.faults.stall_one_in) == 1 {
            member.busy_until += self.random.up_to(self.faults.stall);
        }
        let buffers = member.memory.buffers();
        let mut fabric = self.network.fabric(rank, now, &mut self.random);
        member.state = match member.schedule.step(&mut fabric, &buffers) {
            Ok(Progress::Done) => State::Finished,
            Ok(Progress::Moved) => State::Running,
            Ok(Progress::Blocked) => State::Blocked(waits(&member.schedule)),
            Err(error) => State::Failed(error),
        };
        matches!(member.state, State::Running).then_some(member.busy_until)
    }
}

/// What of the plan may travel without a slot.
fn proved(plan: &Plan, credits: u32) -> Result<Shortcuts> {
    let limits = Limits { credits, ..Limits::default() };
    let proved = verify::verify_shortcuts(plan, &limits);
    proved.map(|(_, shortcuts)| shortcuts).map_err(|fault| ErrorKind::PlanRejected(fault.to_string()).into())
}

fn waits(schedule: &Schedule) -> Vec<Waiting> {
    let waiting = |wait: Wait<'_>| Waiting {
        lane: wait.lane,
        mv: wait.mv,
        tile: wait.tile,
        peers: wait.on.peers().to_vec(),
    };
    schedule.waits().map(waiting).collect()
}

impl Member {
    fn outcome(self) -> RankOutcome {
        let output = match self.memory {
            Memory::Apart { output, .. } => output,
            Memory::InPlace { buffer, overlay } => buffer[overlay.output].to_vec(),
        };
        RankOutcome { state: self.state, output, steps: self.steps }
    }
}

impl Memory {
    /// What the call does not write is recognisable afterwards.
    const UNWRITTEN: u8 = 0xc5;

    fn new(input: &[u8], layout: &Layout, in_place: bool) -> Memory {
        match layout.overlay().filter(|_| in_place) {
            Some(overlay) => {
                let mut buffer = vec![Memory::UNWRITTEN; overlay.bytes];
                buffer[overlay.input.clone()].copy_from_slice(input);
                Memory::InPlace { buffer, overlay }
            }
            None => Memory::Apart {
                input: input.to_vec(),
                output: vec![Memory::UNWRITTEN; layout.output_bytes()],
            },
        }
    }

    fn buffers(&mut self) -> Buffers<'_> {
        match self {
            Memory::Apart { input, output } => Buffers::new(input, output),
            Memory::InPlace { buffer, overlay } => {
                Buffers::in_place(buffer, overlay.input.clone(), overlay.output.clone())
            }
        }
    }
}
