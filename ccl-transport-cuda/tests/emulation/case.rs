//! What the emulator is given: a call on all ranks, with the output that is right.

use crate::random::Random;
use crate::ways::Ways;
use ccl_core::cluster::{Cluster, Faults, Settings};
use ccl_core::engine::{Blocks, Layout, Progress, Schedule};
use ccl_core::kernels::{Buffers, Level, Reducer};
use ccl_core::plan::{Plan, Spec};
use ccl_core::transport::{Exchange, LinkKey, LocalHub, Transport};
use ccl_core::{Collective, DataType, Rank, ReduceOp};
use ccl_transport_cuda::program::{Direction, Family, Geometry, Program, Rule};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a receive buffer is full of before a call: the emulator's, and the host's.
const UNWRITTEN: u8 = 0xc5;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Interpret = 0,
    TwoShot = 1,
    OneShot = 2,
    Packets = 3,
    Meet = 4,
    Ping = 5,
    Multicast = 9,
    Staged = 10,
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) plan: Plan,
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) in_place: bool,
    /// Each rank's blocks, where they differ in length.
    pub(crate) blocks: Option<Vec<Blocks>>,
    /// What ranks send each other, in place of the plan.
    pub(crate) ways: Option<Ways>,
    pub(crate) tile_bytes: usize,
    pub(crate) geometry: Geometry,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// How often it is launched.
    pub(crate) rounds: usize,
    /// The number of pieces, or calls, before the first.
    pub(crate) start: u32,
    /// Bytes by which buffers miss a line.
    pub(crate) misaligned: usize,
    /// A rank that never comes.
    pub(crate) absent: Option<u32>,
    /// A rank that makes another call.
    pub(crate) stray: Option<u32>,
    /// Bytes of a rank's part of a team's memory, where they are not those that the call needs.
    pub(crate) room: Option<usize>,
    /// Nanoseconds until the host gives up, and until the kernels do.
    pub(crate) abort_after: u64,
    pub(crate) limit: u64,
}

impl Call {
    pub(crate) fn new(what: What, plan: Plan, count: usize, dtype: DataType, op: ReduceOp) -> Call {
        let geometry = Geometry { slot_bytes: 128, credits: 2, shares: 2 };
        let limit = 120_000_000_000;
        let (absent, stray) = (None, None);
        Call {
            what,
            plan,
            count,
            dtype,
            op,
            in_place: false,
            blocks: None,
            ways: None,
            tile_bytes: 128,
            geometry,
            threads: 4,
            rounds: 3,
            start: 0,
            misaligned: 0,
            absent,
            stray,
            room: None,
            abort_after: 0,
            limit,
        }
    }

    /// In words, for failures.
    pub(crate) fn name(&self) -> String {
        let Spec { collective, ranks, root, hosts, .. } = self.plan.spec;
        format!(
            "{:?} {} {collective} of {ranks} on {hosts}, root {root}, {} x {} {}, {:?}, {} threads, start {}{}",
            self.what,
            self.plan.algorithm,
            self.count,
            self.dtype,
            self.op,
            self.geometry,
            self.threads,
            self.start,
            match (self.in_place, &self.blocks, &self.ways) {
                (true, ..) => ", in place".into(),
                (_, Some(blocks), _) => format!(", {blocks:?}"),
                (.., Some(ways)) => format!(", {ways:?}"),
                _ => String::new(),
            }
        )
    }

    /// The call as words for the emulator, on inputs of this seed; what is right is what the host's engine makes of them.
    pub(crate) fn write(&self, seed: u64) -> Vec<u8> {
        let spec = &self.plan.spec;
        let reduces = spec.collective.reduces();
        let mut random = Random(seed);
        // A launch finds in memory what two launches before have left.
        let sets: Vec<(Vec<_>, Vec<_>)> = (0..self.rounds.min(3))
            .map(|_| {
                let ranks = (0..spec.ranks).map(|rank| {
                    let bytes = match &self.ways {
                        Some(ways) => ways.lens(rank as usize).0,
                        None => self.layout(rank).input_bytes(),
                    };
                    let elements = bytes / self.dtype.size();
                    random.elements(self.dtype, reduces.then_some(self.op), elements)
                });
                let inputs: Vec<_> = ranks.collect();
                let outputs = self.host(&inputs);
                (inputs, outputs)
            })
            .collect();
        let rule =
            if reduces { Rule::new(self.dtype, self.op, spec.ranks).expect("fits") } else { Rule::copies() };
        let family = Family::ALL.iter().position(|family| *family == rule.family()).expect("known");
        let programs: Vec<_> = (0..spec.ranks).map(|rank| self.program(rank)).collect();
        let workers = programs.iter().map(Program::workers).max().expect("a rank");
        let blocks = if self.what == What::Interpret { workers } else { self.geometry.shares as usize };
        let (divisor, divides) = rule.finish().unwrap_or((0, 0));
        // For all of a call, and for its packets of whole words.
        let needed = (self.count * self.dtype.size()).next_multiple_of(128).max(128);
        let room = self.room.unwrap_or(needed);
        let mut words = Words::default();
        words.all([self.what as u64, family as u64, blocks as u64, self.threads as u64, self.rounds as u64]);
        words.all([
            self.start.into(),
            self.misaligned as u64,
            self.absent.map_or(0, |rank| u64::from(rank) + 1),
        ]);
        words.all([
            self.abort_after,
            self.limit,
            self.count as u64,
            divisor.into(),
            divides.into(),
            room as u64,
        ]);
        words.all(rule.words());
        words.all([spec.ranks.into(), sets.len() as u64]);
        for (rank, program) in programs.iter().enumerate() {
            words.all([program.words().len() as u64]);
            words.all(program.words().iter().copied());
            words.all([program.ends().len() as u64]);
            for end in program.ends() {
                words.all([(end.direction == Direction::Send).into(), end.peer.into(), end.channel.into()]);
            }
            sets.iter().for_each(|(inputs, _)| words.bytes(&inputs[rank]));
            sets.iter().for_each(|(_, outputs)| words.bytes(&outputs[rank]));
            let tag = 0x5eed ^ u64::from(self.stray == Some(rank as u32));
            words.all([self.in_place.into(), tag, random.bits() % 1000]);
        }
        words.0
    }

    fn program(&self, rank: u32) -> Program {
        let program = match &self.ways {
            None => Program::encode(&self.plan.programs[rank as usize], &self.layout(rank), self.geometry),
            Some(ways) => {
                let of = (rank, ways.ranks as u32);
                Program::queues(of, &ways.queues(rank as usize), self.tile_bytes, self.geometry)
            }
        };
        program.expect("a program")
    }

    fn layout(&self, rank: u32) -> Layout {
        let spec = &self.plan.spec;
        let layout = match &self.blocks {
            None => Layout::new(spec, rank, self.count, self.dtype, self.tile_bytes),
            Some(blocks) => Layout::uneven(spec, rank, &blocks[rank as usize], self.dtype, self.tile_bytes),
        };
        layout.expect("blocks that fit")
    }

    fn host(&self, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        if matches!(self.what, What::Meet | What::Ping) {
            return vec![Vec::new(); inputs.len()];
        }
        if let Some(ways) = &self.ways {
            return ways.right(inputs);
        }
        if self.blocks.is_some() {
            return self.host_uneven(inputs);
        }
        let settings = Settings {
            count: self.count,
            dtype: self.dtype,
            op: self.op,
            tile_bytes: self.tile_bytes,
            credits: self.geometry.credits,
            in_place: self.in_place,
            level: Level::best(),
            seed: 1,
            faults: Faults::default(),
            shortcuts: false,
        };
        let outcome = Cluster::new(&self.plan, &settings, inputs).expect("a cluster").run();
        assert!(outcome.finished(), "{}: the host's engine did not finish", self.name());
        outcome.ranks.into_iter().map(|rank| rank.output).collect()
    }

    /// The same where blocks differ in length: the engine of each rank is stepped in turn.
    fn host_uneven(&self, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let spec = &self.plan.spec;
        let hub = LocalHub::new(spec.ranks, self.geometry.slot_bytes, self.geometry.credits);
        let mut ranks: Vec<_> = (0..spec.ranks)
            .map(|rank| {
                let mut transport = hub.transport(rank);
                let program = &self.plan.programs[rank as usize];
                let links = self.program(rank).ends().to_vec().into_iter().map(|end| {
                    let (from, to) = match end.direction {
                        Direction::Send => (rank, end.peer),
                        Direction::Receive => (end.peer, rank),
                    };
                    LinkKey { from, to, channel: end.channel }
                });
                transport.connect(&links.collect::<Vec<_>>(), &mut Echo).expect("connected");
                let mut schedule = Schedule::bind(spec, rank, program, &mut transport).expect("bound");
                let reducer = Reducer::new(self.dtype, self.op, spec.ranks).expect("fits");
                let layout = self.layout(rank);
                let output = vec![UNWRITTEN; layout.output_bytes()];
                schedule
                    .start(&Arc::new(schedule.task(layout, reducer).expect("a task")), 1, 1)
                    .expect("started");
                (transport, schedule, output)
            })
            .collect();
        // Each round somebody moves.
        for _ in 0..1_000_000 {
            let mut running = false;
            for ((transport, schedule, output), input) in ranks.iter_mut().zip(inputs) {
                if schedule.is_running() {
                    let progress = schedule.step(transport, &Buffers::new(input, output)).expect("no error");
                    running |= progress != Progress::Done;
                }
            }
            if !running {
                return ranks.into_iter().map(|(_, _, output)| output).collect();
            }
        }
        panic!("{}: the host's engine did not finish", self.name());
    }
}

/// What ranks of one hub tell each other to connect: all the same.
struct Echo;

impl Exchange for Echo {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> ccl_core::Result<Vec<Vec<u8>>> {
        Ok(blobs.iter().map(|(_, blob)| blob.clone()).collect())
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(60)
    }
}

/// Whether a plan's call may be in place where both buffers are the same block.
pub(crate) fn may_be_in_place(plan: &Plan) -> bool {
    let algorithm = ccl_core::algorithms::by_name(&plan.algorithm).expect("known");
    plan.spec.collective == Collective::AllReduce
        && algorithm.in_place_safe(plan.spec.collective, plan.spec.placement())
}

#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn all(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.all([bytes.len() as u64]);
        self.0.extend_from_slice(bytes);
    }
}
