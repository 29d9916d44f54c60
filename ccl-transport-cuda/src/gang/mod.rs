//! Several ranks of one device in one launch.
//!
//! A [`Gang`] has everything that a call of the kernels needs, for all of its ranks, in the memory of one device: buffers, links with
//! their slots, flags, credits and counts, teams, and in host memory the alarm and the reports. It plays them all in one cooperative
//! launch, which runs at once or is refused: so ranks that wait for each other cannot wait for one that has no room. The same ranks can
//! be launched one by one, each on a stream of its own, be recorded in a graph, and be in processes of their own ([`Gang::alone`]).
//!
//! It is how kernels are tested and measured on a machine with one device; calls are made by the [engine](crate::engine).

mod apart;
mod assemble;
mod blame;
mod error;
mod streams;

pub use crate::kernels::Kernels;
pub use blame::Blame;
pub(crate) use blame::peer_of;
pub use error::GangError;
pub use streams::Streams;

use crate::driver::{Attribute, Device};
use crate::program::{self, Launch, Program, Report, Rule};
use crate::sharing::Mapped;
use crate::sys::{DeviceMemory, Function, Graph, Stream, Words};
use assemble::{Assembly, Places};
use ccl_core::Result;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use crate::sys::Residency;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// The programs of all ranks, by the interpreter.
    Plan(&'a [Program]),
    /// A kernel that is no plan.
    Team {
        /// Which.
        kernel: TeamKernel,
        /// Of how many ranks.
        ranks: u32,
        /// Elements of a buffer; or turns, of those that measure.
        count: u64,
        /// Bytes of a buffer.
        bytes: usize,
    },
}

/// Kernels of ranks that reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamKernel {
    /// All-reduce that pushes parts into everybody's output.
    TwoShot,
    /// All-reduce that gives each rank all inputs.
    OneShot,
    /// The same with flags in the data.
    Packets,
    /// All-reduce that gives each rank its part of all inputs, and all ranks its result, through staging memory.
    Staged,
    /// All ranks meet.
    Meet,
    /// A flag goes from rank 0 to rank 1 and back.
    Ping,
    /// Each rank adds its send buffer to its receive buffer, floats, as a program would that knows no ranks.
    Add,
}

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks of a rank. Of plans it is what the programs need.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether the receive buffers are the send buffers.
    pub in_place: bool,
    /// Bytes by which buffers miss a line.
    pub misaligned: usize,
    /// After how long waits end; zero for never.
    pub limit: Duration,
    /// What a call's ranks agree on.
    pub tag: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        let limit = Duration::from_secs(20);
        Shape { blocks: 2, threads: 128, in_place: false, misaligned: 0, limit, tag: 0x5eed }
    }
}

/// Ranks of one device, ready to be launched.
pub struct Gang {
    function: Function,
    /// What divides the sums behind the call, for means of integers.
    finish: Option<Function>,
    grid: Grid,
    memory: DeviceMemory,
    /// Others' memory, of a rank that is alone.
    mapped: Vec<Mapped>,
    /// What the memory holds at first, where it is not zero.
    image: Vec<(usize, Vec<u64>)>,
    places: Places,
    assembly: Assembly,
    rule: Rule,
    shape: Shape,
    /// The ranks that are launched here.
    present: Range<usize>,
    /// The alarm, and then a report for each block.
    words: Words,
    graph: Option<Graph>,
    stream: Arc<Stream>,
    /// One for each rank.
    own: Vec<Arc<Stream>>,
}

/// Blocks of a rank, and threads of a block.
#[derive(Clone, Copy)]
struct Grid {
    blocks: u32,
    threads: u32,
}

impl Gang {
    /// Makes one. Refuses what would not be on the device all at once.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        streams: &Streams,
        work: Work<'_>,
        rule: &Rule,
        shape: &Shape,
    ) -> Result<Gang, GangError> {
        let mut gang = Gang::make(device, (kernels, streams), work, rule, shape, None)?;
        let bases = vec![gang.memory.address() as u64; gang.ranks()];
        gang.assemble(&bases)?;
        Ok(gang)
    }

    /// Without what its memory holds; of all ranks, or of one.
    fn make(
        device: &Device,
        (kernels, streams): (&Kernels, &Streams),
        work: Work<'_>,
        rule: &Rule,
        shape: &Shape,
        alone: Option<usize>,
    ) -> Result<Gang, GangError> {
        let (function, finish) = kernels_of(kernels, work, rule)?;
        let assembly = Assembly::new(work, shape)?;
        let ranks = assembly.ranks();
        let present = alone.map_or(0..ranks, |rank| rank..rank + 1);
        assert!(present.end <= ranks, "no such rank");
        let grid = Grid { blocks: assembly.blocks(), threads: shape.threads };
        let processors = device.attribute(Attribute::Multiprocessors)?.unwrap_or(0).unsigned_abs();
        let fits = processors * function.blocks_at_once(grid.threads)?;
        let blocks = present.len() as u32 * grid.blocks;
        if blocks > fits {
            let (kernel, threads) = (function.name().into(), grid.threads);
            return Err(GangError::TooLarge { kernel, blocks, threads, fits });
        }
        let primary = kernels.primary();
        let places = assembly.places();
        let mut own = streams.first(1 + ranks)?;
        let stream = own.remove(0);
        Ok(Gang {
            function,
            finish,
            grid,
            memory: DeviceMemory::alloc(primary, places.bytes())?,
            mapped: Vec::new(),
            image: Vec::new(),
            places,
            words: Words::new(primary, 1 + ranks * grid.blocks as usize * Report::WORDS)?,
            assembly,
            rule: *rule,
            shape: *shape,
            present,
            graph: None,
            stream,
            own,
        })
    }

    /// Fills the memory, where each rank's is at an address of its own.
    fn assemble(&mut self, bases: &[u64]) -> Result<(), GangError> {
        self.image = self.assembly.image(&mut self.places, bases, &self.words, &self.rule, &self.shape)?;
        Ok(self.reset()?)
    }

    /// Makes all memory what it was at first: after a call that failed nothing else can be done with its links. Nothing may run.
    pub fn reset(&mut self) -> Result<()> {
        self.words.clear();
        self.stream.fill(&mut self.memory, 0)?;
        self.stream.synchronize()?;
        for (at, words) in &self.image {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.memory.write(*at, &bytes)?;
        }
        Ok(())
    }

    /// How many.
    pub fn ranks(&self) -> usize {
        self.assembly.ranks()
    }

    /// Blocks of a rank.
    pub fn blocks(&self) -> u32 {
        self.grid.blocks
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The stream of its launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets a rank's send buffer, and makes its receive buffer one that was never written. Nothing may run.
    pub fn write(&mut self, rank: usize, input: &[u8]) -> Result<()> {
        let (from, into) = self.places.buffers(rank);
        if from.start != into.start {
            self.memory.write(into.start, &vec![Gang::UNWRITTEN; into.len()])?;
        }
        self.write_input(rank, input)
    }

    /// Sets a rank's send buffer. Nothing may run.
    pub fn write_input(&mut self, rank: usize, input: &[u8]) -> Result<()> {
        let (from, _) = self.places.buffers(rank);
        assert_eq!(from.len(), input.len(), "an input of another length");
        self.memory.write(from.start, input)
    }

    /// What receive buffers are full of before a call.
    pub const UNWRITTEN: u8 = 0xc5;

    /// A rank's receive buffer. Nothing may run.
    pub fn read(&self, rank: usize) -> Result<Vec<u8>> {
        self.read_part(rank, 0..self.places.buffers(rank).1.len())
    }

    /// A part of it.
    pub fn read_part(&self, rank: usize, part: Range<usize>) -> Result<Vec<u8>> {
        let (_, into) = self.places.buffers(rank);
        assert!(part.end <= into.len(), "a part past the end");
        let mut bytes = vec![0; part.len()];
        self.memory.read(into.start + part.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Gives all ranks the send buffer of rank 0, where they are of one length.
    pub fn spread(&self) -> Result<()> {
        let (from, _) = self.places.buffers(0);
        for rank in 1..self.ranks() {
            self.copy_range(from.clone(), self.places.buffers(rank).0)?;
        }
        self.stream.synchronize()
    }

    /// Copies a rank's send buffer to its receive buffer by the device's own means: what calls are measured against.
    pub fn copy(&self, rank: usize) -> Result<()> {
        let (from, into) = self.places.buffers(rank);
        self.copy_range(from, into)
    }

    fn copy_range(&self, from: Range<usize>, into: Range<usize>) -> Result<()> {
        let buffers = DeviceMemory::buffers((&self.memory, from), (&self.memory, into), false);
        self.stream.copy(buffers.input(), buffers.output())
    }

    /// Launches the call for all ranks that are here, behind the last.
    pub fn launch(&self) -> Result<()> {
        self.launch_ranks(self.present.clone(), Residency::Together)
    }

    /// The same without the first ranks, which never come. The others wait for them.
    pub fn launch_without(&self, first: usize) -> Result<()> {
        self.launch_ranks(first..self.present.end, Residency::Together)
    }

    fn launch_ranks(&self, ranks: Range<usize>, residency: Residency) -> Result<()> {
        let Grid { blocks, threads } = self.grid;
        let base = self.memory.address() as u64;
        let grid = (ranks.len() as u32 * blocks, threads);
        let calls = Launch::Gang(base + self.places.call(ranks.start), blocks).words();
        self.function.launch(&self.stream, calls, grid, residency)?;
        if let Some(finish) = &self.finish {
            let calls = Launch::Gang(base + self.places.finish(ranks.start), blocks).words();
            finish.launch(&self.stream, calls, grid, Residency::Any)?;
        }
        Ok(())
    }

    /// One rank, to be launched on its own stream by whatever thread. The kernels must have run before: the first launch of
    /// one may wait for all that runs, and so for a rank that waits for this one.
    pub fn member(&self, rank: usize) -> RankLaunch<'_> {
        RankLaunch {
            function: &self.function,
            stream: &self.own[rank],
            grid: self.grid,
            words: self.own_words(rank),
        }
    }

    fn own_words(&self, rank: usize) -> [u64; Launch::WORDS] {
        Launch::Own(self.places.call_words(rank), self.grid.blocks).words()
    }

    /// Records `times` calls, one behind the other, as a graph. Where the driver records no cooperative launches they are plain ones,
    /// which run at once as long as nothing else is on the device: it says which.
    pub fn record(&mut self, times: usize) -> Result<Residency> {
        let record = |residency| {
            Graph::record(&self.stream, || {
                (0..times).try_for_each(|_| self.launch_ranks(self.present.clone(), residency))
            })
        };
        let (graph, residency) = match record(Residency::Together) {
            Ok(graph) => (graph, Residency::Together),
            Err(_) => (record(Residency::Any)?, Residency::Any),
        };
        self.graph = Some(graph);
        Ok(residency)
    }

    /// Launches what was recorded.
    pub fn replay(&self) -> Result<()> {
        self.graph.as_ref().expect("recorded before").launch(&self.stream)
    }

    /// Whether nothing runs.
    pub fn is_done(&self) -> Result<bool> {
        let all = std::iter::once(&self.stream).chain(&self.own);
        all.map(|stream| stream.is_done()).try_fold(true, |done, one| Ok(done & one?))
    }

    /// Waits until nothing runs. The kernels' own limit bounds it.
    pub fn wait(&self) -> Result<()> {
        std::iter::once(&self.stream).chain(&self.own).try_for_each(|stream| stream.synchronize())
    }

    /// Ends all waits.
    pub fn alarm(&self) {
        self.words.store(0, 1);
    }

    /// Which blocks have given up, and whom they waited for.
    pub fn failures(&self) -> Vec<Blame> {
        let blocks = self.grid.blocks as usize;
        let all = (0..self.ranks() * blocks).filter_map(|index| {
            let words = std::array::from_fn(|word| self.words.load(1 + index * Report::WORDS + word));
            Report::read(words).map(|report| self.assembly.blame(index / blocks, index % blocks, report))
        });
        all.collect()
    }
}

/// The kernel of some work, and what is launched behind it.
fn kernels_of(
    kernels: &Kernels,
    work: Work<'_>,
    rule: &Rule,
) -> Result<(Function, Option<Function>), GangError> {
    let family = rule.family();
    let (module, kernel) = match work {
        Work::Plan(_) => (program::Module::interpreter(family), "rdmaccl_interpret"),
        Work::Team { kernel, .. } => match kernel {
            TeamKernel::TwoShot => (program::Module::all_reduce(family), "rdmaccl_two_shot"),
            TeamKernel::OneShot => (program::Module::all_reduce(family), "rdmaccl_one_shot"),
            TeamKernel::Packets => (program::Module::all_reduce(family), "rdmaccl_packets"),
            TeamKernel::Staged => (program::Module::all_reduce(family), "rdmaccl_staged"),
            TeamKernel::Meet => (program::Module::named("measure"), "rdmaccl_meet"),
            TeamKernel::Ping => (program::Module::named("measure"), "rdmaccl_ping"),
            TeamKernel::Add => (program::Module::named("measure"), "rdmaccl_add"),
        },
    };
    let Some(module) = module else {
        return Err(GangError::NoKernel { kernel: kernel.into(), family: family.name() });
    };
    let finish = match rule.finish() {
        None => None,
        Some(_) => {
            let module = program::Module::named("finish").expect("it is among the modules");
            Some(kernels.function(module, "rdmaccl_finish")?)
        }
    };
    Ok((kernels.function(module, kernel)?, finish))
}

impl Drop for Gang {
    fn drop(&mut self) {
        // The memory is not freed under a kernel.
        self.alarm();
        let _ = self.wait();
    }
}

/// A rank of a gang.
#[derive(Clone, Copy)]
pub struct RankLaunch<'g> {
    function: &'g Function,
    stream: &'g Stream,
    grid: Grid,
    words: [u64; Launch::WORDS],
}

impl RankLaunch<'_> {
    /// Launches its part of a call. Means of integers end as sums: what divides them is launched for gangs only.
    pub fn launch(&self) -> Result<()> {
        let grid = (self.grid.blocks, self.grid.threads);
        self.function.launch(self.stream, self.words, grid, Residency::Any)
    }

    /// Waits until it has ended.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize()
    }
}
