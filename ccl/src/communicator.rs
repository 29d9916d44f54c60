//! The communicator with typed calls.

use crate::device::{self, DeviceEngine};
use crate::{
    AbortHandle, Agreement, Buffers, Builder, Call, Collective, Counters, Element, Explanation, LinkKey,
    Piece, Rank, Record, ReduceOp, Route, UniqueId, UserMemory,
};
use ccl_core::bootstrap::launch;
use ccl_core::communicator::{Communicator as Core, Opener, SideLinks};
use ccl_core::config::Config;
use ccl_core::flight::RankState;
use ccl_core::plan::Placement;
use ccl_core::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One rank's membership of a group that makes the same calls in the same order.
///
/// All ranks must make the same calls with the same counts, types, operators and roots; a rank that does
/// not makes the others' calls end with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch). A call returns
/// when this rank's buffers may be used again and its result is there. Counts are in elements.
///
/// Dropping it leaves the group in order. A communicator that is broken by an error in the middle of a
/// call, or dropped by a panic, is dead in the eyes of its peers, and their calls end with an error.
///
/// Every collective has an `_in_place` form where NCCL has one, on the same layout: one buffer is both.
pub struct Communicator {
    core: Core,
    /// What makes its calls on device memory by kernels, where it can.
    engine: Option<Arc<DeviceEngine>>,
    /// What is left of the engine when it is closed. The core goes before, and tells the peers that this rank leaves.
    _links: Option<SideLinks>,
}

impl Communicator {
    /// Begins to make a communicator.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Joins the job that started this process: rank, size and meeting point come from
    /// `RDMACCL_RANK`/`SIZE`/`ID`, torchrun, Slurm, Open MPI or PMI ([`launch`] has the table).
    /// Without any of them: an error that says what to set.
    pub fn from_env() -> Result<Communicator> {
        let config = Config::from_env()?;
        let launch = launch::detect(|name| std::env::var(name).ok())?.ok_or_else(|| {
            Error::invalid(
                "a process that no launcher started",
                "start it with torchrun, srun or mpirun, or set RDMACCL_RANK, RDMACCL_SIZE and RDMACCL_ID or \
                 RDMACCL_ROOT",
            )
        })?;
        let builder = Communicator::builder().rank(launch.rank).size(launch.size).config(config);
        builder.unique_id(launch.unique_id()?).build()
    }

    /// `size` ranks for as many threads of this process, by rank. Those of a thread with a CUDA context are on its device.
    pub fn local(size: u32) -> Result<Vec<Communicator>> {
        let config = Config::from_env()?;
        device::look(&config)?;
        let device = device::current();
        Communicator::local_on(size, |_| device)
    }

    /// [`local`](Communicator::local) with the CUDA device of each rank, if it is on one.
    pub fn local_on(size: u32, device: impl Fn(Rank) -> Option<u32>) -> Result<Vec<Communicator>> {
        let config = Config::from_env()?;
        if size == 1 {
            return Ok(vec![Communicator::builder().config(config).build()?]);
        }
        let id = UniqueId::create(&config)?;
        std::thread::scope(|scope| {
            let joining = |rank| {
                let (id, config) = (id, config.clone());
                let builder = Communicator::builder().rank(rank).size(size).unique_id(id).config(config);
                let builder = device(rank).into_iter().fold(builder, Builder::device);
                scope.spawn(move || builder.build())
            };
            let threads: Vec<_> = (0..size).map(joining).collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(communicator) => communicator,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect()
        })
    }

    pub(crate) fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    pub(crate) fn new(core: Core) -> Communicator {
        Communicator { core, engine: None, _links: None }
    }

    /// Gives it what makes its calls on this device, and an algorithm.
    pub(crate) fn equip(
        &mut self,
        device: Option<u32>,
        opener: &dyn Opener,
        algorithm: Option<&str>,
    ) -> Result<()> {
        self.engine = DeviceEngine::found(&mut self.core, device, opener)?.map(Arc::new);
        self.set_algorithm(algorithm)
    }

    /// What makes its calls on device memory by kernels, if something does.
    pub fn device_engine(&self) -> Option<&Arc<DeviceEngine>> {
        self.engine.as_ref()
    }

    /// A builder for what is made of this communicator.
    pub(crate) fn on_same_device(&self, builder: Builder) -> Builder {
        match &self.engine {
            Some(engine) => builder.device(engine.device()),
            None => builder,
        }
    }

    fn tell_engine(&self) -> Result<()> {
        let Some(engine) = &self.engine else { return Ok(()) };
        engine.set_algorithms(|collective| self.core.wanted_algorithm(collective))
    }

    /// This rank's number.
    pub fn rank(&self) -> Rank {
        self.core.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.core.ranks()
    }

    /// Every rank's `op` of all ranks' `send`, in `recv` of the same length.
    pub fn all_reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.call::<T>(Collective::AllReduce, send.len(), op, 0);
        self.out_of_place(call, send, recv)
    }

    /// [`all_reduce`](Communicator::all_reduce) of `buffer` into itself.
    pub fn all_reduce_in_place<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = buffer.len();
        self.in_place(self.call::<T>(Collective::AllReduce, count, op, 0), buffer)
    }

    /// `op` of all ranks' `send`, in `recv` of rank `root`; the others' `recv` is not looked at.
    pub fn reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        let call = self.call::<T>(Collective::Reduce, send.len(), op, root);
        self.out_of_place(call, send, recv)
    }

    /// Rank `root`'s `buffer` in every rank's `buffer`.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<()> {
        let count = buffer.len();
        self.in_place(self.call::<T>(Collective::Broadcast, count, ReduceOp::Sum, root), buffer)
    }

    /// All ranks' `send`, one after another by rank, in every rank's `recv` of n times the length.
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let call = self.call::<T>(Collective::AllGather, send.len(), ReduceOp::Sum, 0);
        self.out_of_place(call, send, recv)
    }

    /// [`all_gather`](Communicator::all_gather) where each rank's part lies in `buffer` at its place.
    pub fn all_gather_in_place<T: Element>(&mut self, buffer: &mut [T]) -> Result<()> {
        let count = self.block(buffer.len())?;
        self.in_place(self.call::<T>(Collective::AllGather, count, ReduceOp::Sum, 0), buffer)
    }

    /// `op` of all ranks' block i of `send`, on rank i in `recv`, whose length is the block's: `send` has
    /// n times as many elements.
    pub fn reduce_scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.call::<T>(Collective::ReduceScatter, recv.len(), op, 0);
        self.out_of_place(call, send, recv)
    }

    /// [`reduce_scatter`](Communicator::reduce_scatter) whose result lies in `buffer` at this rank's block.
    pub fn reduce_scatter_in_place<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = self.block(buffer.len())?;
        self.in_place(self.call::<T>(Collective::ReduceScatter, count, op, 0), buffer)
    }

    /// Block j of rank i's `send` becomes block i of rank j's `recv`; both have n blocks.
    pub fn all_to_all<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let count = self.block(send.len())?;
        let call = self.call::<T>(Collective::AllToAll, count, ReduceOp::Sum, 0);
        self.out_of_place(call, send, recv)
    }

    /// [`all_to_all`](Communicator::all_to_all) of `buffer` into itself.
    pub fn all_to_all_in_place<T: Element>(&mut self, buffer: &mut [T]) -> Result<()> {
        let count = self.block(buffer.len())?;
        self.in_place(self.call::<T>(Collective::AllToAll, count, ReduceOp::Sum, 0), buffer)
    }

    /// All ranks' `send`, one after another by rank, in `recv` of rank `root`, n times as long; the
    /// others' `recv` is not looked at.
    pub fn gather<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        let call = self.call::<T>(Collective::Gather, send.len(), ReduceOp::Sum, root);
        self.out_of_place(call, send, recv)
    }

    /// Block i of rank `root`'s `send` in rank i's `recv`; the others' `send` is not looked at.
    pub fn scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        let call = self.call::<T>(Collective::Scatter, recv.len(), ReduceOp::Sum, root);
        self.out_of_place(call, send, recv)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        self.core.barrier()
    }

    /// What all the calls above come to: a call on buffers of bytes, for callers whose types are known at
    /// run time only. [`Call`] and [`Collective`] say how long the buffers must be.
    pub fn run(&mut self, call: &Call, buffers: Buffers<'_>) -> Result<()> {
        self.core.run(call, buffers)
    }

    /// How the ranks lie on hosts, which plans make use of: in equal numbers, host after host. Where they do not, each rank
    /// counts as a host of its own.
    pub fn placement(&self) -> Placement {
        self.core.placement()
    }

    /// How a call would be done, and how long the cost function thinks it takes.
    pub fn explain(&mut self, call: &Call, in_place: bool) -> Result<Explanation> {
        self.core.explain(call, in_place)
    }

    /// Uses this algorithm for every collective that it can do; `None` lets the cost function choose. All
    /// ranks must set the same between the same two calls.
    pub fn set_algorithm(&mut self, name: Option<&str>) -> Result<()> {
        self.core.set_algorithm(name)?;
        self.tell_engine()
    }

    /// Cuts every chunk into pieces of at most so many bytes (of a slot, if that is shorter); `None` lets the cost
    /// function choose. All ranks must set the same between the same two calls.
    pub fn set_tile_bytes(&mut self, tile_bytes: Option<usize>) {
        self.core.set_tile_bytes(tile_bytes);
    }

    /// Changes how long a call may wait for its peers without anything moving.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.core.set_timeout(timeout);
        self.engine.iter().for_each(|engine| engine.set_timeout(timeout));
    }

    /// What each open link has done.
    pub fn counters(&self) -> Vec<(LinkKey, Counters)> {
        self.core.counters()
    }

    /// Who it is, how it reaches its peers and why, and what memory it takes. Makes no connection.
    pub fn describe(&mut self) -> Description {
        let places = self.core.places();
        Description {
            rank: self.rank(),
            size: self.size(),
            host: places.get(self.rank() as usize).map_or_else(String::new, |(host, _)| host.clone()),
            routes: self.core.routes(),
            memory_bytes: self.core.memory(),
            calls: self.core.sequence(),
        }
    }

    /// Makes ready for calls on this memory. Peers of the same host are told of [shared memory](crate::SharedMemory), which the
    /// first call on it would do otherwise; over RDMA the network then reads and writes memory of any other kind where it lies, as it
    /// does shared memory by itself, in place of memory of the library's own. Results do not depend on it.
    ///
    /// Memory of the communicator's device may be registered where [kernels](Communicator::device_engine) make its calls and all ranks are on
    /// one host: long all-reduces whose buffers all ranks have registered are then made where they lie.
    pub fn register(&mut self, memory: &UserMemory) -> Result<()> {
        let (address, len) = (memory.piece.as_ptr().addr(), memory.piece.len());
        match (device::number_of(address)?, &self.engine) {
            (None, _) => self.core.register(memory).map(drop),
            (Some(device), Some(engine)) if device == engine.device() => engine.register(address, len),
            (Some(device), engine) => {
                let what =
                    format!("registering {len} bytes at {address:#x}, which are memory of device {device}");
                let remedy = match engine {
                    Some(_) => "register memory of the device that the communicator is on",
                    None => {
                        "leave it out: calls of this communicator go through pinned memory of the library's own"
                    }
                };
                Err(Error::unsupported(what, remedy))
            }
        }
    }

    /// Undoes [`register`](Communicator::register), once for each time. Without it the memory stays registered, and if it
    /// is [shared memory](crate::SharedMemory) it stays allocated, until the communicator is dropped.
    ///
    /// With memory of a device it waits for this rank's calls, and until no peer has the memory.
    pub fn deregister(&mut self, memory: Piece) -> Result<()> {
        let (address, len) = (memory.as_ptr().addr(), memory.len());
        match &self.engine {
            Some(engine) if engine.has_registered(address, len) => engine.deregister(address, len),
            _ => self.core.deregister(memory),
        }
    }

    /// Ends this communicator's calls, from another thread; see [`AbortHandle`].
    pub fn abort_handle(&self) -> AbortHandle {
        self.core.abort_handle()
    }

    /// The ranks that are lost, in order: dead, frozen, or excluded by [`shrink`](Communicator::shrink).
    pub fn lost(&self) -> Vec<Rank> {
        self.core.lost()
    }

    /// Ends the communicator for all ranks, for this reason: their calls, those that run and later ones, end with
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended). What is left to do is to agree, to shrink and to drop it.
    pub fn revoke(&mut self, reason: &str) {
        self.core.revoke(reason);
    }

    /// Agrees with all ranks that are not gone: all of them get the same, the and of all flags and who is gone. Also
    /// when ranks die meanwhile, and after the communicator broke or was revoked. All ranks that are left must call it, at the
    /// same place among their agreements and shrinks. Waits for `RDMACCL_INIT_TIMEOUT` at most, or twice
    /// `RDMACCL_FREEZE_TIMEOUT` where that is longer; the error names those for whom it waited, as far as this rank knows.
    pub fn agree(&mut self, flags: u64) -> Result<Agreement> {
        self.core.agree(flags, &[])
    }

    /// Host name and process of each rank.
    pub fn places(&self) -> Vec<(String, u32)> {
        self.core.places()
    }

    /// What this rank does and did last, from its flight record.
    pub fn state(&self) -> RankState {
        self.core.state()
    }

    /// What this rank does and has done, as JSON: what `rdmaccl flight` reads.
    pub fn dump(&self) -> String {
        self.core.dump()
    }

    /// Its flight record, for other threads: reading it waits for no call.
    pub fn record(&self) -> Record {
        self.core.record()
    }

    /// Why no more calls are taken, if so: the first error in the middle of a call of this communicator; or else
    /// [`ErrorKind::Broken`](crate::ErrorKind::Broken), if one of its [group](crate::run_together) failed on another,
    /// or this rank has revoked it.
    pub fn broken(&self) -> Option<&Error> {
        self.core.broken()
    }

    fn call<T: Element>(&self, collective: Collective, count: usize, op: ReduceOp, root: Rank) -> Call {
        Call { collective, count, dtype: T::TYPE, op, root }
    }

    fn out_of_place<T: Element>(&mut self, call: Call, send: &[T], recv: &mut [T]) -> Result<()> {
        self.run(&call, Buffers::new(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(recv)))
    }

    fn in_place<T: Element>(&mut self, call: Call, buffer: &mut [T]) -> Result<()> {
        let (input, output) = in_place_ranges(&call, self.rank(), self.size());
        self.run(&call, Buffers::in_place(bytemuck::cast_slice_mut(buffer), input, output))
    }

    /// Elements of one of n blocks.
    fn block(&self, len: usize) -> Result<usize> {
        let size = self.size() as usize;
        if !len.is_multiple_of(size) {
            return Err(Error::invalid(
                format!("a buffer of {len} elements for {size} ranks"),
                "its length must be a multiple of the number of ranks",
            ));
        }
        Ok(len / size)
    }
}

/// What there is to know about a communicator.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Description {
    /// This rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: u32,
    /// The name of this rank's host.
    pub host: String,
    /// How each peer is reached, by rank.
    pub routes: Vec<Route>,
    /// Bytes of memory that the links of this rank take.
    pub memory_bytes: u64,
    /// Collectives made so far.
    pub calls: u64,
}

/// Where the send and the receive buffer of an in-place call lie in its one buffer, in bytes.
fn in_place_ranges(call: &Call, rank: Rank, size: u32) -> (Range<usize>, Range<usize>) {
    let block = call.count * call.dtype.size();
    let all = |blocks: u32| 0..blocks as usize * block;
    let own = rank as usize * block..(rank as usize + 1) * block;
    let input = call.collective.input_blocks(size, rank, call.root);
    let output = call.collective.output_blocks(size, rank, call.root);
    match call.collective {
        Collective::AllGather => (own, all(output)),
        Collective::ReduceScatter => (all(input), own),
        // One buffer for both; a rank that has only one of the two is given that.
        _ => (all(input), all(output)),
    }
}

/// Its kernels are over before its control plane goes, which ends them if they cannot be.
impl Drop for Communicator {
    fn drop(&mut self) {
        self._links = self.engine.as_ref().and_then(|engine| engine.close());
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}
