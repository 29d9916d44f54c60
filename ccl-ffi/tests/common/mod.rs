//! The C functions as C sees them, and what the tests share.
//!
//! They are declared safe: every pointer that the tests give is good, or one that the function must refuse.

#![allow(dead_code, missing_docs, non_snake_case, unreachable_pub)] // each test program uses some of it; the names are C's

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

pub type Comm = usize;
pub type Stream = usize;

pub const SUCCESS: c_int = 0;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
pub const IN_PROGRESS: c_int = 7;

pub const INT32: c_int = 2;
pub const UINT64: c_int = 5;
pub const FLOAT32: c_int = 7;
pub const SUM: c_int = 0;
pub const MAX: c_int = 2;

/// Long enough for every peer that comes at all.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id {
    bytes: [u8; 128],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    pub size: usize,
    pub magic: u32,
    pub version: u32,
    pub blocking: c_int,
    pub timeout_ms: c_int,
    pub init_timeout_ms: c_int,
    pub split_share: c_int,
    pub name: *const c_char,
    pub algorithm: *const c_char,
}

/// `CCL_CONFIG_INITIALIZER`.
pub const CONFIG: Config = Config {
    size: size_of::<Config>(),
    magic: rdmaccl::CCL_CONFIG_MAGIC,
    version: 100,
    blocking: c_int::MIN,
    timeout_ms: c_int::MIN,
    init_timeout_ms: c_int::MIN,
    split_share: c_int::MIN,
    name: std::ptr::null(),
    algorithm: std::ptr::null(),
};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    pub size: usize,
    pub rank: c_int,
    pub ranks: c_int,
    pub host_ranks: c_int,
    pub unreachable_peers: c_int,
    pub memory_bytes: u64,
    pub calls: u64,
    pub transports: [c_char; 64],
}

unsafe extern "C" {
    pub safe fn cclGetUniqueId(id: *mut Id) -> c_int;
    pub safe fn cclCommInitRank(comm: *mut Comm, size: c_int, id: Id, rank: c_int) -> c_int;
    pub safe fn cclCommInitRankConfig(
        comm: *mut Comm,
        size: c_int,
        id: Id,
        rank: c_int,
        config: *const Config,
    ) -> c_int;
    pub safe fn cclCommInitAll(comms: *mut Comm, size: c_int, devices: *const c_int) -> c_int;
    pub safe fn cclCommSplit(
        comm: Comm,
        color: c_int,
        key: c_int,
        child: *mut Comm,
        config: *const Config,
    ) -> c_int;
    pub safe fn cclCommFinalize(comm: Comm) -> c_int;
    pub safe fn cclCommDestroy(comm: Comm) -> c_int;
    pub safe fn cclCommAbort(comm: Comm) -> c_int;
    pub safe fn cclCommGetAsyncError(comm: Comm, error: *mut c_int) -> c_int;
    pub safe fn cclCommCount(comm: Comm, count: *mut c_int) -> c_int;
    pub safe fn cclCommUserRank(comm: Comm, rank: *mut c_int) -> c_int;
    pub safe fn cclCommDevice(comm: Comm, device: *mut c_int) -> c_int;
    pub safe fn cclCommGetProperties(comm: Comm, properties: *mut Properties) -> c_int;
    pub safe fn cclCommDescribe(comm: Comm) -> *const c_char;
    pub safe fn cclGetLastError(comm: Comm) -> *const c_char;
    pub safe fn cclGroupStart() -> c_int;
    pub safe fn cclGroupEnd() -> c_int;
    pub safe fn cclHostStreamCreate(stream: *mut Stream) -> c_int;
    pub safe fn cclHostStreamDestroy(stream: Stream) -> c_int;
    pub safe fn cclHostStreamQuery(stream: Stream) -> c_int;
    pub safe fn cclHostStreamSynchronize(stream: Stream) -> c_int;
    pub safe fn cclHostStreamWait(stream: Stream, timeout_ms: c_int) -> c_int;
    pub safe fn cclRedOpCreatePreMulSum(
        op: *mut c_int,
        scalar: *const c_void,
        dtype: c_int,
        residence: c_int,
        comm: Comm,
    ) -> c_int;
    pub safe fn cclRedOpDestroy(op: c_int, comm: Comm) -> c_int;
    pub safe fn cclBarrier(comm: Comm, stream: Stream) -> c_int;
    pub safe fn cclAllReduce(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclBroadcast(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclAllGather(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclSend(
        send: *const c_void,
        count: usize,
        dtype: c_int,
        peer: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclRecv(
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        peer: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclAllGatherV(
        send: *const c_void,
        count: usize,
        recv: *mut c_void,
        counts: *const usize,
        displacements: *const usize,
        dtype: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclReduceScatterV(
        send: *const c_void,
        recv: *mut c_void,
        counts: *const usize,
        dtype: c_int,
        op: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclAlltoAllv(
        send: *const c_void,
        send_counts: *const usize,
        send_displacements: *const usize,
        recv: *mut c_void,
        recv_counts: *const usize,
        recv_displacements: *const usize,
        dtype: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclGatherV(
        send: *const c_void,
        count: usize,
        recv: *mut c_void,
        counts: *const usize,
        displacements: *const usize,
        dtype: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclScatterV(
        send: *const c_void,
        counts: *const usize,
        displacements: *const usize,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
}

/// What went wrong last.
pub fn last_error(comm: Comm) -> String {
    // SAFETY: the function returns a text.
    unsafe { CStr::from_ptr(cclGetLastError(comm)) }.to_string_lossy().into_owned()
}

#[track_caller]
pub fn ok(code: c_int) {
    assert_eq!(code, SUCCESS, "{}", last_error(0));
}

/// The code, and words of its error.
#[track_caller]
pub fn refused(code: c_int, expected: c_int, words: &str) {
    let text = last_error(0);
    assert_eq!(code, expected, "{text}");
    assert!(text.contains(words), "no '{words}' in: {text}");
}

pub fn id() -> Id {
    let mut id = Id { bytes: [0; 128] };
    ok(cclGetUniqueId(&mut id));
    id
}

/// The ranks of a new communicator.
pub fn init_all<const N: usize>() -> [Comm; N] {
    let mut comms = [0; N];
    ok(cclCommInitAll(comms.as_mut_ptr(), N as c_int, std::ptr::null()));
    comms
}

pub fn destroy_all(comms: &[Comm]) {
    comms.iter().for_each(|comm| ok(cclCommDestroy(*comm)));
}

pub fn stream() -> Stream {
    let mut stream = 0;
    ok(cclHostStreamCreate(&mut stream));
    stream
}

pub fn async_error(comm: Comm) -> c_int {
    let mut error = -1;
    ok(cclCommGetAsyncError(comm, &mut error));
    error
}

/// In place, of single floats.
pub fn all_reduce(buffer: &mut [f32], comm: Comm, stream: Stream) -> c_int {
    let at = buffer.as_mut_ptr().cast();
    cclAllReduce(at, at, buffer.len(), FLOAT32, SUM, comm, stream)
}

/// A rank's work on a thread for each rank.
pub fn on_threads(comms: &[Comm], work: impl Fn(usize, Comm) + Sync) {
    std::thread::scope(|scope| {
        let work = &work;
        for (rank, comm) in comms.iter().copied().enumerate() {
            scope.spawn(move || work(rank, comm));
        }
    });
}
