//! The devices of a process and everything on them.

use crate::ffi::{Kernel, Kernels, Mapping};
use crate::script::Command;
use crate::sharing::Import;
use crate::virtual_memory::{Virtual, VirtualMemory};
use crate::work::{Event, Queue, Span, Stream, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The driver's numbers.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NOT_INITIALIZED: i32 = 3;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_CONTEXT: i32 = 201;
    pub(crate) const INVALID_IMAGE: i32 = 200;
    pub(crate) const NO_BINARY_FOR_GPU: i32 = 209;
    pub(crate) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub(crate) const INVALID_PTX: i32 = 218;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub(crate) const TOO_LARGE: i32 = 720;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const ILLEGAL_STATE: i32 = 401;
    pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
}

pub(crate) type Outcome<T = ()> = Result<T, i32>;

/// What kind of memory it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device(u32),
    Pinned,
    Managed,
}

pub(crate) struct Region {
    pub(crate) kind: Kind,
    pub(crate) mapping: Arc<Mapping>,
    /// Of another process's memory: whose it is and how often it was opened.
    pub(crate) import: Option<Import>,
    /// Of memory that was made without an address.
    pub(crate) behind: Option<Virtual>,
}

struct Fault {
    function: String,
    code: i32,
    after: u64,
    times: u64,
}

/// One process's driver.
pub(crate) struct World {
    pub(crate) devices: u32,
    pub(crate) version: i32,
    pub(crate) is_initialized: bool,
    /// Of all devices, by number, where a script says them.
    pub(crate) attributes: BTreeMap<i32, i32>,
    /// Of single ones.
    own_attributes: BTreeMap<(u32, i32), i32>,
    missing: BTreeSet<String>,
    faults: Vec<Fault>,
    spoils: Vec<(u64, i32)>,
    delay: (u64, u64),
    /// Queues that streams share; 0: each has its own.
    most_queues: usize,
    queues: BTreeMap<usize, Vec<Arc<Queue>>>,
    allocations_wait: bool,
    broken: Arc<AtomicI32>,
    pub(crate) counts: BTreeMap<String, u64>,
    pub(crate) memory: BTreeMap<u64, Region>,
    pub(crate) virtual_memory: VirtualMemory,
    /// Whether no device reaches another's memory, and who was allowed whose: contexts.
    pub(crate) no_peers: bool,
    pub(crate) peers: BTreeSet<(usize, usize)>,
    streams: BTreeMap<usize, Arc<Stream>>,
    /// Default streams by context and handle.
    defaults: BTreeMap<(usize, usize), Arc<Stream>>,
    /// What was recorded on streams that record.
    capturing: BTreeMap<usize, Vec<Work>>,
    /// Recorded work, and what of it is ready to be launched.
    graphs: BTreeMap<usize, Vec<Work>>,
    ready: BTreeMap<usize, Vec<Work>>,
    pub(crate) kernels: Option<Arc<Kernels>>,
    /// Families of modules, and kernels in them.
    modules: BTreeMap<usize, String>,
    functions: BTreeMap<usize, Kernel>,
    events: BTreeMap<usize, Arc<Event>>,
    /// Contexts and how often each was retained, by device.
    primaries: BTreeMap<u32, (usize, u64)>,
    next_handle: usize,
    made: u64,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            devices: 1,
            version: 13_000,
            is_initialized: false,
            attributes: BTreeMap::new(),
            own_attributes: BTreeMap::new(),
            missing: BTreeSet::new(),
            faults: Vec::new(),
            spoils: Vec::new(),
            delay: (0, 0),
            most_queues: 0,
            queues: BTreeMap::new(),
            allocations_wait: false,
            broken: Arc::default(),
            counts: BTreeMap::new(),
            memory: BTreeMap::new(),
            virtual_memory: VirtualMemory::default(),
            no_peers: false,
            peers: BTreeSet::new(),
            streams: BTreeMap::new(),
            defaults: BTreeMap::new(),
            capturing: BTreeMap::new(),
            graphs: BTreeMap::new(),
            ready: BTreeMap::new(),
            kernels: None,
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            events: BTreeMap::new(),
            primaries: BTreeMap::new(),
            next_handle: 0x1000,
            made: 0,
        }
    }

    /// Does what a script says.
    pub(crate) fn run(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Devices(count) => self.devices = count,
                Command::Version(version) => self.version = version,
                Command::Missing(name) => drop(self.missing.insert(name)),
                Command::Fail { function, code, nth, times } => {
                    self.faults.push(Fault { function, code, after: nth.saturating_sub(1), times });
                }
                Command::Spoil { code, nth } => self.spoils.push((nth, code)),
                Command::Delay { seed, microseconds } => self.delay = (seed, microseconds),
                Command::Queues(count) => self.most_queues = count,
                Command::Attribute { number, value, device: None } => {
                    self.attributes.insert(number, value);
                }
                Command::Attribute { number, value, device: Some(device) } => {
                    self.own_attributes.insert((device, number), value);
                }
                Command::NoPeers => self.no_peers = true,
                Command::AllocationsWait => self.allocations_wait = true,
                Command::Kernels(file) => self.kernels = Some(Kernels::open(&file)),
            }
        }
    }

    /// What a script says of an attribute of a device.
    pub(crate) fn says(&self, device: u32, attribute: i32) -> Option<i32> {
        self.own_attributes.get(&(device, attribute)).or_else(|| self.attributes.get(&attribute)).copied()
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        !self.missing.contains(function)
    }

    /// What was made and not destroyed: memory, streams, events, modules, graphs, retained contexts.
    pub(crate) fn live(&self) -> u64 {
        let retained: u64 = self.primaries.values().map(|(_, count)| count).sum();
        let graphs = self.graphs.len() + self.ready.len() + self.modules.len();
        let memory = self.memory.len() + self.virtual_memory.live();
        (memory + self.streams.len() + self.events.len() + graphs) as u64 + retained
    }

    /// Counts something that is no call.
    pub(crate) fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_string()).or_default() += 1;
    }

    /// Begins a call: counts it, and fails it if a script says so or work went wrong before.
    pub(crate) fn begin(&mut self, function: &str) -> Outcome {
        self.count(function);
        for fault in self.faults.iter_mut().filter(|fault| fault.function == function) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(fault.code);
            }
        }
        // Freeing goes on, as tests ask that nothing is left, and what is no work of a device; every other call says what went wrong.
        let ends = [
            "cuInit",
            "cuDevicePrimaryCtxRetain",
            "cuMemFree",
            "cuIpcCloseMemHandle",
            "cuMemUnmap",
            "cuMulticastUnbind",
            "cuMemAddressFree",
            "cuMemRelease",
            "cuMemFreeHost",
            "cuStreamDestroy",
            "cuEventDestroy",
            "cuModuleUnload",
            "cuGraphDestroy",
            "cuGraphExecDestroy",
            "cuCtxPopCurrent",
            "cuCtxPushCurrent",
            "cuDevicePrimaryCtxRelease",
            "cuPointerGetAttributes",
        ];
        match self.broken.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ if ends.contains(&function) => Ok(()),
            code => Err(code),
        }
    }

    pub(crate) fn need_initialized(&self) -> Outcome {
        if self.is_initialized { Ok(()) } else { Err(code::NOT_INITIALIZED) }
    }

    fn handle(&mut self) -> usize {
        self.next_handle += 0x40;
        self.next_handle
    }

    pub(crate) fn retain(&mut self, device: u32) -> Outcome<usize> {
        if device >= self.devices {
            return Err(code::INVALID_DEVICE);
        }
        let handle = self.handle();
        let (context, count) = self.primaries.entry(device).or_insert((handle, 0));
        *count += 1;
        Ok(*context)
    }

    pub(crate) fn release(&mut self, device: u32) -> Outcome {
        let (_, count) =
            self.primaries.get_mut(&device).filter(|(_, count)| *count > 0).ok_or(code::INVALID_CONTEXT)?;
        *count -= 1;
        Ok(())
    }

    /// Whether somebody retains a device's primary context.
    pub(crate) fn is_retained(&self, device: u32) -> bool {
        self.primaries.get(&device).is_some_and(|(_, count)| *count > 0)
    }

    /// The device of a context that somebody retains.
    pub(crate) fn device_of(&self, context: usize) -> Outcome<u32> {
        let found = self.primaries.iter().find(|(_, (handle, count))| *handle == context && *count > 0);
        found.map(|(device, _)| *device).ok_or(code::INVALID_CONTEXT)
    }

    pub(crate) fn alloc(&mut self, kind: Kind, len: usize) -> Outcome<u64> {
        let is_hidden = matches!(kind, Kind::Device(_)) && self.hides();
        let mapping = Mapping::new(len, is_hidden).ok_or(code::OUT_OF_MEMORY)?;
        Ok(self.insert(kind, mapping, None))
    }

    /// Whether device memory has no rights. Kernels need them.
    pub(crate) fn hides(&self) -> bool {
        self.kernels.is_none()
    }

    pub(crate) fn insert(&mut self, kind: Kind, mapping: Mapping, import: Option<Import>) -> u64 {
        let at = mapping.address() as u64;
        self.memory.insert(at, Region { kind, mapping: Arc::new(mapping), import, behind: None });
        at
    }

    pub(crate) fn free(&mut self, at: u64, is_pinned: bool) -> Outcome {
        let is_own = |region: &&Region| region.import.is_none() && region.behind.is_none();
        let region = self.memory.get(&at).filter(is_own);
        let region = region.filter(|region| (region.kind == Kind::Pinned) == is_pinned);
        // The real driver does not notice it, and what follows is undefined. Here the memory stays, so that whoever looks at what is
        // left alive sees it.
        if region.ok_or(code::INVALID_VALUE)?.mapping.is_open_elsewhere() {
            self.count("freed while open");
            return Err(code::ILLEGAL_STATE);
        }
        self.memory.remove(&at);
        Ok(())
    }

    /// What is at an address.
    pub(crate) fn kind(&self, at: u64) -> Option<Kind> {
        self.find(at, 1).map(|(kind, _)| kind)
    }

    pub(crate) fn is_on_device(&self, at: u64) -> bool {
        matches!(self.kind(at), Some(Kind::Device(_)))
    }

    /// The streams that an allocation of host memory waits for, if a script says that it does.
    pub(crate) fn awaited_by_allocations(&self, context: usize) -> Vec<Arc<Stream>> {
        let all = self.streams.values().chain(self.defaults.values());
        all.filter(|stream| self.allocations_wait && stream.context == context).cloned().collect()
    }

    pub(crate) fn find(&self, at: u64, len: usize) -> Option<(Kind, Span)> {
        let (start, region) = self.memory.range(..=at).next_back()?;
        let region = Some(region).filter(|region| !region.behind.as_ref().is_some_and(Virtual::is_closed))?;
        let offset = usize::try_from(at - start).ok()?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= region.mapping.len());
        fits.then(|| (region.kind, Span { mapping: Arc::clone(&region.mapping), offset }))
    }

    fn queue(&mut self, context: usize) -> Arc<Queue> {
        self.made += 1;
        let delay = (self.delay.0.wrapping_mul(31).wrapping_add(self.made), self.delay.1);
        if self.most_queues == 0 {
            return Queue::start(delay, &self.broken);
        }
        let queues = self.queues.entry(context).or_default();
        if queues.len() < self.most_queues {
            queues.push(Queue::start(delay, &self.broken));
        }
        Arc::clone(&queues[self.made as usize % queues.len()])
    }

    pub(crate) fn make_stream(&mut self, context: usize) -> usize {
        let (handle, queue) = (self.handle(), self.queue(context));
        self.streams.insert(handle, Stream::new(context, queue));
        handle
    }

    /// The stream of a handle, for a thread whose current context is this one.
    pub(crate) fn stream(&mut self, handle: usize, context: usize) -> Outcome<Arc<Stream>> {
        if handle <= 2 {
            self.device_of(context)?;
            if let Some(stream) = self.defaults.get(&(context, handle.max(1))) {
                return Ok(Arc::clone(stream));
            }
            let stream = Stream::new(context, self.queue(context));
            self.defaults.insert((context, handle.max(1)), Arc::clone(&stream));
            return Ok(stream);
        }
        self.named_stream(handle)
    }

    pub(crate) fn named_stream(&self, handle: usize) -> Outcome<Arc<Stream>> {
        self.streams.get(&handle).cloned().ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn destroy_stream(&mut self, handle: usize) -> Outcome {
        self.capturing.remove(&handle);
        self.streams.remove(&handle).map(drop).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn begin_capture(&mut self, handle: usize) -> Outcome {
        self.named_stream(handle)?;
        if self.is_capturing(handle) {
            return Err(code::ILLEGAL_STATE);
        }
        self.capturing.insert(handle, Vec::new());
        Ok(())
    }

    /// The graph of what was recorded.
    pub(crate) fn end_capture(&mut self, handle: usize) -> Outcome<usize> {
        let recorded = self.capturing.remove(&handle).ok_or(code::ILLEGAL_STATE)?;
        let graph = self.handle();
        self.graphs.insert(graph, recorded);
        Ok(graph)
    }

    pub(crate) fn is_capturing(&self, handle: usize) -> bool {
        self.capturing.contains_key(&handle)
    }

    pub(crate) fn instantiate(&mut self, graph: usize) -> Outcome<usize> {
        let recorded = self.graphs.get(&graph).cloned().ok_or(code::INVALID_HANDLE)?;
        let ready = self.handle();
        self.ready.insert(ready, recorded);
        Ok(ready)
    }

    pub(crate) fn destroy_graph(&mut self, graph: usize) -> Outcome {
        let found = self.graphs.remove(&graph).or_else(|| self.ready.remove(&graph));
        found.map(drop).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn launch_graph(&mut self, ready: usize, stream: usize, context: usize) -> Outcome {
        let recorded = self.ready.get(&ready).cloned().ok_or(code::INVALID_HANDLE)?;
        recorded.into_iter().try_for_each(|work| self.submit(stream, context, work))
    }

    /// What machine code for these devices says that it is for.
    pub(crate) fn architecture(&self) -> String {
        let number = |attribute, unless| self.attributes.get(&attribute).copied().unwrap_or(unless);
        format!("sm_{}{}", number(75, 9), number(76, 0))
    }

    pub(crate) fn load_module(&mut self, family: String) -> usize {
        let module = self.handle();
        self.modules.insert(module, family);
        module
    }

    pub(crate) fn unload_module(&mut self, module: usize) -> Outcome {
        self.modules.remove(&module).map(drop).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn find_function(&mut self, module: usize, name: &str) -> Outcome<usize> {
        let family = self.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        let kernels = self.kernels.as_ref().ok_or(code::NOT_SUPPORTED)?;
        let kernel = kernels.find(family, name).ok_or(code::NOT_FOUND)?;
        let function = self.handle();
        self.functions.insert(function, kernel);
        Ok(function)
    }

    pub(crate) fn function(&self, function: usize) -> Outcome<&Kernel> {
        self.functions.get(&function).ok_or(code::INVALID_HANDLE)
    }

    /// Puts work on a stream of the current context.
    pub(crate) fn submit(&mut self, handle: usize, context: usize, work: Work) -> Outcome {
        let stream = self.stream(handle, context)?;
        if stream.context != context {
            return Err(code::INVALID_CONTEXT);
        }
        if let Some(recorded) = self.capturing.get_mut(&handle) {
            // What else may be part of a graph the library has no use for.
            if !matches!(work, Work::Launch(_) | Work::Copy { .. }) {
                return Err(code::CAPTURE_UNSUPPORTED);
            }
            recorded.push(work);
            return Ok(());
        }
        stream.submit(work);
        Ok(())
    }

    pub(crate) fn copy(&mut self, to: u64, from: u64, len: usize) -> Outcome<Work> {
        // Copies of ordinary memory would not be asynchronous: the library has no use for them.
        let (Some((_, to)), Some((_, from))) = (self.find(to, len), self.find(from, len)) else {
            return Err(code::INVALID_VALUE);
        };
        let mut spoiled = None;
        for (left, code) in &mut self.spoils {
            if *left > 0 {
                *left -= 1;
                if *left == 0 {
                    spoiled = Some(*code);
                }
            }
        }
        Ok(Work::Copy { to, from, len, spoiled })
    }

    pub(crate) fn make_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Arc::default());
        handle
    }

    pub(crate) fn event(&self, handle: usize) -> Outcome<Arc<Event>> {
        self.events.get(&handle).cloned().ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn destroy_event(&mut self, handle: usize) -> Outcome {
        self.events.remove(&handle).map(drop).ok_or(code::INVALID_HANDLE)
    }
}
