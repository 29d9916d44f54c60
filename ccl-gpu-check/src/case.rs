//! A call: what is run, on what, and what is right.

use crate::bench::Bench;
use crate::random::Random;
use ccl_core::cluster::{Cluster, Faults, Settings};
use ccl_core::engine::Layout;
use ccl_core::kernels::Level;
use ccl_core::plan::{Placement, Plan, Spec};
use ccl_core::verify::{Limits, verify};
use ccl_core::{Collective, DataType, ReduceOp, algorithms};
use ccl_transport_cuda::gang::{Gang, GangError, Shape, TeamKernel, Work};
use ccl_transport_cuda::program::{Geometry, Program, Rule};

/// A call of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// A kernel of its own; `None` is the interpreter.
    pub(crate) kernel: Option<TeamKernel>,
    /// What is run, or what gives the same bits.
    pub(crate) plan: Plan,
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) tile_bytes: usize,
    pub(crate) geometry: Geometry,
    pub(crate) shape: Shape,
}

impl Case {
    /// An all-reduce, or a turn of what measures, by a kernel of its own.
    pub(crate) fn team(kernel: TeamKernel, ranks: u32, count: usize, dtype: DataType, op: ReduceOp) -> Case {
        let is_two = matches!(kernel, TeamKernel::TwoShot | TeamKernel::Staged);
        let name = if is_two { "twoshot" } else { "oneshot" };
        Case { kernel: Some(kernel), ..Case::plan(plan(name, ranks), count, dtype, op) }
    }

    /// By the interpreter.
    pub(crate) fn plan(plan: Plan, count: usize, dtype: DataType, op: ReduceOp) -> Case {
        let geometry = Geometry { slot_bytes: 1024, credits: least_credits(&plan, 4), shares: 1 };
        Case { kernel: None, plan, count, dtype, op, tile_bytes: 1024, geometry, shape: Shape::default() }
    }

    /// The kernel, for a tally.
    pub(crate) fn kernel_name(&self) -> &'static str {
        match self.kernel {
            None => "interpreter",
            Some(TeamKernel::TwoShot) => "two-shot",
            Some(TeamKernel::OneShot) => "one-shot",
            Some(TeamKernel::Packets) => "packets",
            Some(TeamKernel::Staged) => "staged",
            Some(TeamKernel::Meet) => "meet",
            Some(TeamKernel::Ping) => "ping",
            Some(TeamKernel::Add) => "add",
        }
    }

    /// In words.
    pub(crate) fn name(&self) -> String {
        let Spec { collective, ranks, root, hosts, .. } = self.plan.spec;
        let Shape { blocks, threads, in_place, misaligned, .. } = self.shape;
        format!(
            "{} {} {collective} of {ranks} on {hosts}, root {root}, {} x {} {}, {blocks} x {threads} threads, {:?}{}{}",
            self.kernel_name(),
            self.plan.algorithm,
            self.count,
            self.dtype,
            self.op,
            self.geometry,
            if in_place { ", in place" } else { "" },
            if misaligned > 0 { ", misaligned" } else { "" },
        )
    }

    /// Each rank's send buffer.
    pub(crate) fn inputs(&self, seed: u64) -> Result<Vec<Vec<u8>>, GangError> {
        let mut random = Random(seed);
        let op = self.plan.spec.collective.reduces().then_some(self.op);
        let ranks = 0..self.plan.spec.ranks;
        ranks
            .map(|rank| {
                let elements = self.layout(rank)?.input_bytes() / self.dtype.size();
                Ok(random.elements(self.dtype, op, elements))
            })
            .collect()
    }

    /// What the host's engine makes of them.
    pub(crate) fn right(&self, inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, GangError> {
        let settings = Settings {
            count: self.count,
            dtype: self.dtype,
            op: self.op,
            tile_bytes: self.tile_bytes,
            credits: self.geometry.credits,
            in_place: self.shape.in_place,
            level: Level::best(),
            seed: 1,
            faults: Faults::default(),
            shortcuts: false,
        };
        let outcome = Cluster::new(&self.plan, &settings, inputs)?.run();
        assert!(outcome.finished(), "{}: the host's engine did not finish", self.name());
        Ok(outcome.ranks.into_iter().map(|rank| rank.output).collect())
    }

    /// Its ranks on the device.
    pub(crate) fn gang(&self, bench: &Bench) -> Result<Gang, GangError> {
        self.make(|work, rule| {
            Gang::new(&bench.device, &bench.kernels, &bench.streams, work, rule, &self.shape)
        })
    }

    /// One of its ranks.
    pub(crate) fn alone(&self, bench: &Bench, rank: usize) -> Result<Gang, GangError> {
        self.make(|work, rule| {
            Gang::alone(&bench.device, &bench.kernels, &bench.streams, work, rule, &self.shape, rank)
        })
    }

    fn make(&self, gang: impl FnOnce(Work<'_>, &Rule) -> Result<Gang, GangError>) -> Result<Gang, GangError> {
        let rule = if self.plan.spec.collective.reduces() {
            Rule::new(self.dtype, self.op, self.plan.spec.ranks)?
        } else {
            Rule::copies()
        };
        let programs: Vec<Program>;
        let work = match self.kernel {
            Some(kernel) => {
                let bytes = self.count * self.dtype.size();
                Work::Team { kernel, ranks: self.plan.spec.ranks, count: self.count as u64, bytes }
            }
            None => {
                let ranks = self.plan.programs.iter().zip(0..);
                programs = ranks
                    .map(|(program, rank)| Ok(Program::encode(program, &self.layout(rank)?, self.geometry)?))
                    .collect::<Result<_, GangError>>()?;
                Work::Plan(&programs)
            }
        };
        gang(work, &rule)
    }

    fn layout(&self, rank: u32) -> Result<Layout, GangError> {
        Ok(Layout::new(&self.plan.spec, rank, self.count, self.dtype, self.tile_bytes)?)
    }

    /// Whether it may be in place where both buffers are the same block.
    pub(crate) fn may_be_in_place(&self) -> bool {
        let spec = &self.plan.spec;
        let algorithm = algorithms::by_name(&self.plan.algorithm);
        spec.collective == Collective::AllReduce
            && algorithm.is_some_and(|a| a.in_place_safe(spec.collective, spec.placement()))
    }
}

/// An all-reduce's plan.
pub(crate) fn plan(name: &str, ranks: u32) -> Plan {
    let algorithm = algorithms::by_name(name).expect("an algorithm of the library");
    let placement = Placement::from(ranks);
    algorithms::plan(algorithm, Collective::AllReduce, placement, 0).expect("it makes all-reduces")
}

/// With how few credits, from so many on, a plan gets through.
pub(crate) fn least_credits(plan: &Plan, from: u32) -> u32 {
    let proved = |credits: &u32| verify(plan, &Limits { credits: *credits, ..Limits::default() }).is_ok();
    let all = [1, 2, 4, 8, 16, 32].into_iter().filter(|credits| *credits >= from);
    all.clone().find(proved).unwrap_or(32)
}
