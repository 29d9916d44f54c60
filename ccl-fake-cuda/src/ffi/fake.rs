//! What tests take: the library as a file, its steering wheel, and what a program does with CUDA.

use super::sharing::IpcHandle;
use super::virtual_memory::{About, Access, Location};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: a process has one world.
static TURN: Mutex<()> = Mutex::new(());

macro_rules! symbols {
    ($($field:ident = $name:literal fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Symbols {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Symbols {
            /// # Safety
            /// An open fake.
            unsafe fn of(library: *mut c_void) -> Symbols {
                let find = |name: &CStr| {
                    // SAFETY: as the caller vouches.
                    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!symbol.is_null(), "{name:?} is missing");
                    symbol
                };
                // SAFETY: symbols of our own, with these signatures.
                Symbols { $($field: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(find($name)) },)* }
            }
        }
    };
}

symbols! {
    script = c"fake_cuda_script" fn(*const c_char, c_int, *mut c_char, size_t) -> c_int;
    live = c"fake_cuda_live" fn() -> u64;
    count = c"fake_cuda_count" fn(*const c_char) -> u64;
    read = c"fake_cuda_read" fn(u64, *mut u8, size_t) -> c_int;
    write = c"fake_cuda_write" fn(u64, *const u8, size_t) -> c_int;
    init = c"cuInit" fn(c_uint) -> c_int;
    retain = c"cuDevicePrimaryCtxRetain" fn(*mut *mut c_void, c_int) -> c_int;
    release = c"cuDevicePrimaryCtxRelease_v2" fn(c_int) -> c_int;
    push = c"cuCtxPushCurrent_v2" fn(*mut c_void) -> c_int;
    pop = c"cuCtxPopCurrent_v2" fn(*mut *mut c_void) -> c_int;
    alloc = c"cuMemAlloc_v2" fn(*mut u64, size_t) -> c_int;
    alloc_managed = c"cuMemAllocManaged" fn(*mut u64, size_t, c_uint) -> c_int;
    alloc_host = c"cuMemHostAlloc" fn(*mut *mut c_void, size_t, c_uint) -> c_int;
    free = c"cuMemFree_v2" fn(u64) -> c_int;
    free_host = c"cuMemFreeHost" fn(*mut c_void) -> c_int;
    create = c"cuMemCreate" fn(*mut u64, size_t, *const About, u64) -> c_int;
    release_memory = c"cuMemRelease" fn(u64) -> c_int;
    reserve = c"cuMemAddressReserve" fn(*mut u64, size_t, size_t, u64, u64) -> c_int;
    map = c"cuMemMap" fn(u64, size_t, size_t, u64, u64) -> c_int;
    allow = c"cuMemSetAccess" fn(u64, size_t, *const Access, size_t) -> c_int;
    unmap = c"cuMemUnmap" fn(u64, size_t) -> c_int;
    free_range = c"cuMemAddressFree" fn(u64, size_t) -> c_int;
    export = c"cuIpcGetMemHandle" fn(*mut IpcHandle, u64) -> c_int;
    import = c"cuIpcOpenMemHandle_v2" fn(*mut u64, IpcHandle, c_uint) -> c_int;
    close = c"cuIpcCloseMemHandle" fn(u64) -> c_int;
    stream = c"cuStreamCreate" fn(*mut *mut c_void, c_uint) -> c_int;
    destroy = c"cuStreamDestroy_v2" fn(*mut c_void) -> c_int;
    query = c"cuStreamQuery" fn(*mut c_void) -> c_int;
    synchronize = c"cuStreamSynchronize" fn(*mut c_void) -> c_int;
    wait_value = c"cuStreamWaitValue32_v2" fn(*mut c_void, u64, u32, c_uint) -> c_int;
    begin_capture = c"cuStreamBeginCapture_v2" fn(*mut c_void, c_int) -> c_int;
    end_capture = c"cuStreamEndCapture" fn(*mut c_void, *mut *mut c_void) -> c_int;
    destroy_graph = c"cuGraphDestroy" fn(*mut c_void) -> c_int;
    instantiate = c"cuGraphInstantiateWithFlags" fn(*mut *mut c_void, *mut c_void, u64) -> c_int;
    launch_graph = c"cuGraphLaunch" fn(*mut c_void, *mut c_void) -> c_int;
    destroy_ready = c"cuGraphExecDestroy" fn(*mut c_void) -> c_int;
}

/// The fake library with a world of this test's own. Tests of one process wait for each other; at the end everything must
/// have been destroyed.
pub struct Fake {
    symbols: Symbols,
    _turn: MutexGuard<'static, ()>,
}

/// Kinds of memory that a program allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// On a device.
    Device,
    /// On the host, for devices.
    Pinned,
    /// Wherever it is touched.
    Managed,
}

impl Fake {
    /// The library's file, which cargo builds beside the tests of whoever depends on this crate. Name it by `RDMACCL_CUDA`.
    pub fn library() -> PathBuf {
        let program = std::env::current_exe().expect("a program knows its file");
        let mut folders = program.ancestors().skip(1);
        // deps/, or its neighbours examples/ and the profile's own folder.
        let found = folders.by_ref().take(3).find_map(|folder| {
            let places = [folder.join("libccl_fake_cuda.so"), folder.join("deps/libccl_fake_cuda.so")];
            places.into_iter().find(|file| file.exists())
        });
        found.unwrap_or_else(|| panic!("no libccl_fake_cuda.so beside {}", program.display()))
    }

    /// Begins a world by a script; panics, as a test does, at a mistake in it.
    pub fn start(script: &str) -> Fake {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let file = CString::new(Fake::library().into_os_string().into_encoded_bytes())
            .expect("no null byte in a path");
        // SAFETY: a string; the library's only constructors are Rust's.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{} cannot be opened", file.to_string_lossy());
        // SAFETY: the fake, just opened.
        let fake = Fake { symbols: unsafe { Symbols::of(library) }, _turn: turn };
        fake.tell(script, true);
        fake
    }

    /// Runs more commands.
    pub fn run(&self, script: &str) {
        self.tell(script, false);
    }

    /// What was made and not destroyed.
    pub fn live(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.symbols.live)() }
    }

    /// How often a function was called, by its name without `_v2`.
    pub fn count(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("no null byte in a name");
        // SAFETY: a string.
        unsafe { (self.symbols.count)(name.as_ptr()) }
    }

    /// Initialises the driver, as a program does before anything else.
    pub fn init(&self) {
        // SAFETY: takes a number.
        ok("cuInit", unsafe { (self.symbols.init)(0) });
    }

    /// Does something with a device's primary context as the thread's current one.
    fn on<R>(&self, device: u32, act: impl FnOnce() -> R) -> R {
        self.init();
        let mut context = null_mut();
        // SAFETY: room for handles.
        unsafe {
            ok("retaining", (self.symbols.retain)(&mut context, device as c_int));
            ok("pushing", (self.symbols.push)(context));
        }
        let result = act();
        // SAFETY: as above.
        unsafe {
            ok("popping", (self.symbols.pop)(&mut context));
            ok("releasing", (self.symbols.release)(device as c_int));
        }
        result
    }

    /// Keeps a device's primary context, as the runtime library does. Undone by [`drop_context`](Fake::drop_context).
    pub fn keep_context(&self, device: u32) {
        self.init();
        // SAFETY: room for a handle.
        ok("retaining", unsafe { (self.symbols.retain)(&mut null_mut(), device as c_int) });
    }

    /// Undoes [`keep_context`](Fake::keep_context).
    pub fn drop_context(&self, device: u32) {
        // SAFETY: takes a number.
        ok("releasing", unsafe { (self.symbols.release)(device as c_int) });
    }

    /// Makes a device's primary context this thread's current one, as `cudaSetDevice` does, until
    /// [`leave_device`](Fake::leave_device). Somebody must keep the context meanwhile.
    pub fn set_device(&self, device: u32) {
        self.init();
        let mut context = null_mut();
        // SAFETY: room for a handle.
        unsafe {
            ok("retaining", (self.symbols.retain)(&mut context, device as c_int));
            ok("pushing", (self.symbols.push)(context));
            ok("releasing", (self.symbols.release)(device as c_int));
        }
    }

    /// Undoes [`set_device`](Fake::set_device).
    pub fn leave_device(&self) {
        // SAFETY: room for a handle.
        ok("popping", unsafe { (self.symbols.pop)(&mut null_mut()) });
    }

    /// Allocates memory; its address.
    pub fn alloc(&self, memory: Memory, device: u32, len: usize) -> usize {
        let (mut at, mut host) = (0, null_mut());
        // SAFETY: room for addresses.
        self.on(device, || unsafe {
            match memory {
                Memory::Device => ok("cuMemAlloc", (self.symbols.alloc)(&mut at, len)),
                Memory::Managed => ok("cuMemAllocManaged", (self.symbols.alloc_managed)(&mut at, len, 1)),
                Memory::Pinned => ok("cuMemHostAlloc", (self.symbols.alloc_host)(&mut host, len, 3)),
            }
        });
        if memory == Memory::Pinned { host.expose_provenance() } else { at as usize }
    }

    /// Frees it.
    pub fn free(&self, memory: Memory, at: usize) {
        // SAFETY: addresses are looked up, not followed.
        ok("freeing", unsafe {
            match memory {
                Memory::Pinned => (self.symbols.free_host)(without_provenance_mut(at)),
                _ => (self.symbols.free)(at as u64),
            }
        });
    }

    /// Frees device memory; the driver's code.
    pub fn try_free(&self, at: usize) -> i32 {
        // SAFETY: addresses are looked up, not followed.
        unsafe { (self.symbols.free)(at as u64) }
    }

    /// Allocates memory by `cuMemCreate`, in whole pieces of 64 KiB, which other processes may have or not, and maps it; its address.
    pub fn alloc_virtual(&self, device: u32, len: usize, is_exportable: bool) -> usize {
        let location = Location { kind: 1, id: device as c_int };
        let about =
            About { kind: 1, handle_types: is_exportable.into(), location, windows: 0, flags: [0; 8] };
        let (access, mut handle, mut at) = (Access { location, flags: 3 }, 0, 0);
        // SAFETY: room for a handle and an address; what is given is looked up.
        self.on(device, || unsafe {
            ok("cuMemCreate", (self.symbols.create)(&mut handle, len, &about, 0));
            ok("cuMemAddressReserve", (self.symbols.reserve)(&mut at, len, 0, 0, 0));
            ok("cuMemMap", (self.symbols.map)(at, len, 0, handle, 0));
            ok("cuMemSetAccess", (self.symbols.allow)(at, len, &access, 1));
            ok("cuMemRelease", (self.symbols.release_memory)(handle));
        });
        at as usize
    }

    /// Undoes [`alloc_virtual`](Fake::alloc_virtual).
    pub fn free_virtual(&self, at: usize, len: usize) {
        // SAFETY: addresses are looked up.
        unsafe {
            ok("cuMemUnmap", (self.symbols.unmap)(at as u64, len));
            ok("cuMemAddressFree", (self.symbols.free_range)(at as u64, len));
        }
    }

    /// The handle by which other processes open device memory, or the driver's code.
    pub fn export(&self, device: u32, at: usize) -> Result<[u8; 64], i32> {
        let mut handle = IpcHandle { bytes: [0; 64] };
        // SAFETY: room for a handle; addresses are looked up, not followed.
        let code = self.on(device, || unsafe { (self.symbols.export)(&mut handle, at as u64) });
        if code == 0 { Ok(handle.bytes) } else { Err(code) }
    }

    /// Opens another process's memory for a device; its address, or the driver's code.
    pub fn import(&self, device: u32, handle: [u8; 64]) -> Result<usize, i32> {
        let (mut at, handle) = (0, IpcHandle { bytes: handle });
        // SAFETY: room for an address.
        let code = self.on(device, || unsafe { (self.symbols.import)(&mut at, handle, 1) });
        if code == 0 { Ok(at as usize) } else { Err(code) }
    }

    /// Closes it; the driver's code.
    pub fn close(&self, device: u32, at: usize) -> i32 {
        // SAFETY: addresses are looked up, not followed.
        self.on(device, || unsafe { (self.symbols.close)(at as u64) })
    }

    /// Makes a stream; its handle.
    pub fn stream(&self, device: u32) -> usize {
        let mut stream = null_mut();
        // SAFETY: room for a handle.
        self.on(device, || ok("cuStreamCreate", unsafe { (self.symbols.stream)(&mut stream, 1) }));
        stream.addr()
    }

    /// Destroys it.
    pub fn destroy(&self, stream: usize) {
        // SAFETY: handles are looked up, not followed.
        ok("cuStreamDestroy", unsafe { (self.symbols.destroy)(without_provenance_mut(stream)) });
    }

    /// Waits for a stream; the driver's code.
    pub fn synchronize(&self, device: u32, stream: usize) -> i32 {
        // SAFETY: handles are looked up, not followed.
        self.on(device, || unsafe { (self.symbols.synchronize)(without_provenance_mut(stream)) })
    }

    /// Whether all work of a stream is done.
    pub fn is_done(&self, device: u32, stream: usize) -> bool {
        // SAFETY: handles are looked up, not followed.
        self.on(device, || unsafe { (self.symbols.query)(without_provenance_mut(stream)) }) == 0
    }

    /// Has a stream wait until the number at an address, in pinned or device memory, is this one or more.
    pub fn wait_value(&self, device: u32, stream: usize, at: usize, value: u32) {
        // SAFETY: handles and addresses are looked up, not followed.
        let code = self.on(device, || unsafe {
            (self.symbols.wait_value)(without_provenance_mut(stream), at as u64, value, 0)
        });
        ok("cuStreamWaitValue32", code);
    }

    /// Begins the capture of a graph.
    pub fn begin_capture(&self, stream: usize) {
        // SAFETY: handles are looked up, not followed.
        ok("capture", unsafe { (self.symbols.begin_capture)(without_provenance_mut(stream), 0) });
    }

    /// Ends it; the graph, ready to be launched, which [`destroy_graph`](Fake::destroy_graph) takes back.
    pub fn end_capture(&self, stream: usize) -> usize {
        let (mut graph, mut made) = (null_mut(), null_mut());
        // SAFETY: handles are looked up, not followed; there is room for new ones.
        unsafe {
            ok("ending", (self.symbols.end_capture)(without_provenance_mut(stream), &mut graph));
            ok("instantiating", (self.symbols.instantiate)(&mut made, graph, 0));
            ok("destroying", (self.symbols.destroy_graph)(graph));
        }
        made.addr()
    }

    /// Launches a graph on a stream.
    pub fn launch_graph(&self, device: u32, graph: usize, stream: usize) {
        let (graph, stream) = (without_provenance_mut(graph), without_provenance_mut(stream));
        // SAFETY: handles are looked up, not followed.
        ok("launching", self.on(device, || unsafe { (self.symbols.launch_graph)(graph, stream) }));
    }

    /// Destroys it.
    pub fn destroy_graph(&self, graph: usize) {
        // SAFETY: handles are looked up, not followed.
        ok("destroying", unsafe { (self.symbols.destroy_ready)(without_provenance_mut(graph)) });
    }

    /// Begins the capture of a graph, or ends it and drops the graph.
    pub fn capture(&self, stream: usize, begins: bool) {
        let stream = without_provenance_mut(stream);
        // SAFETY: handles are looked up, not followed; there is room for a graph's.
        ok("capture", unsafe {
            if begins {
                (self.symbols.begin_capture)(stream, 0)
            } else {
                let mut graph = null_mut();
                ok("ending", (self.symbols.end_capture)(stream, &mut graph));
                (self.symbols.destroy_graph)(graph)
            }
        });
    }

    /// What device memory holds, whatever is going on.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: so much room.
        ok("reading", unsafe { (self.symbols.read)(at as u64, bytes.as_mut_ptr(), len) });
        bytes
    }

    /// Writes to device memory, whatever is going on.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: so many bytes.
        ok("writing", unsafe { (self.symbols.write)(at as u64, bytes.as_ptr(), bytes.len()) });
    }

    fn tell(&self, script: &str, fresh: bool) {
        let script = CString::new(script).expect("no null byte in a script");
        let mut why = [0u8; 512];
        // SAFETY: a string, and room for an answer.
        let failed = unsafe {
            (self.symbols.script)(script.as_ptr(), fresh.into(), why.as_mut_ptr().cast(), why.len())
        };
        let why = CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy();
        assert!(failed == 0, "{why}");
    }
}

fn ok(what: &str, code: c_int) {
    assert!(code == 0, "{what}: error {code}");
}

impl Drop for Fake {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.live(), 0, "objects were left alive");
        }
    }
}
