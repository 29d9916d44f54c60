//! The C functions as C sees them, and what the tests share.
//!
//! They are declared safe: every pointer that the tests give is good, or one that the function must refuse.

#![allow(dead_code, missing_docs, non_snake_case, unreachable_pub)] // each test program uses some of it; the names are C's

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

pub type Comm = usize;
pub type Stream = usize;

pub const SUCCESS: c_int = 0;
pub const SYSTEM_ERROR: c_int = 2;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
pub const IN_PROGRESS: c_int = 7;

pub const INT32: c_int = 2;
pub const UINT64: c_int = 5;
pub const FLOAT16: c_int = 6;
pub const FLOAT32: c_int = 7;
pub const FLOAT64: c_int = 8;
pub const SUM: c_int = 0;
pub const MAX: c_int = 2;

/// `cclCommProperties_t` to be filled in.
pub const PROPERTIES: Properties = Properties {
    size: size_of::<Properties>(),
    rank: -1,
    ranks: -1,
    host_ranks: -1,
    unreachable_peers: -1,
    memory_bytes: u64::MAX,
    calls: u64::MAX,
    transports: [-1; 64],
};

/// Long enough for every peer that comes at all.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id {
    pub bytes: [u8; 128],
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
    pub network: *const c_char,
}

/// `CCL_CONFIG_INITIALIZER`.
pub const CONFIG: Config = Config {
    size: size_of::<Config>(),
    magic: ccl_ffi::CCL_CONFIG_MAGIC,
    version: 100,
    blocking: c_int::MIN,
    timeout_ms: c_int::MIN,
    init_timeout_ms: c_int::MIN,
    split_share: c_int::MIN,
    name: std::ptr::null(),
    algorithm: std::ptr::null(),
    network: std::ptr::null(),
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
    pub safe fn cclHostStreamAddCallback(
        stream: Stream,
        callback: Option<extern "C" fn(c_int, *mut c_void)>,
        data: *mut c_void,
    ) -> c_int;
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
    pub safe fn cclCommSetTimeout(comm: Comm, timeout_ms: c_int) -> c_int;
    pub safe fn cclCommRevoke(comm: Comm, flags: c_int) -> c_int;
    pub safe fn cclCommAgree(comm: Comm, flags: *mut u64) -> c_int;
    pub safe fn cclCommShrink(
        comm: Comm,
        exclude: *const c_int,
        count: c_int,
        child: *mut Comm,
        config: *const Config,
        flags: c_int,
    ) -> c_int;
    pub safe fn cclCommDump(comm: Comm, text: *mut c_char, size: *mut usize) -> c_int;
    pub safe fn cclGetVersion(version: *mut c_int) -> c_int;
    pub safe fn cclGetErrorString(result: c_int) -> *const c_char;
    pub safe fn cclMemAlloc(at: *mut *mut c_void, size: usize) -> c_int;
    pub safe fn cclMemFree(at: *mut c_void) -> c_int;
    pub safe fn cclCommRegister(comm: Comm, at: *mut c_void, size: usize, handle: *mut usize) -> c_int;
    pub safe fn cclCommDeregister(comm: Comm, handle: usize) -> c_int;
    pub safe fn cclReduce(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclReduceScatter(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclAlltoAll(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclGather(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int;
    pub safe fn cclScatter(
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: c_int,
        root: c_int,
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
    pub safe fn cclProbe(comm: Comm, peer: c_int, arrived: *mut c_int) -> c_int;
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

/// Two ranks that wait for each other for a few seconds only: where a call should be refused at once, and is not.
pub fn impatient() -> [Comm; 2] {
    let (id, mut comms) = (id(), [0; 2]);
    let config = Config { timeout_ms: 5000, ..CONFIG };
    ok(cclGroupStart());
    for (rank, comm) in (0..).zip(&mut comms) {
        ok(cclCommInitRankConfig(comm, 2, id, rank, &config));
    }
    ok(cclGroupEnd());
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

/// What `cclCommDump` says.
pub fn dump(comm: Comm) -> serde_json::Value {
    let mut size = 0;
    ok(cclCommDump(comm, null_mut(), &mut size));
    let mut text = vec![0u8; size + 10_000];
    size = text.len();
    ok(cclCommDump(comm, text.as_mut_ptr().cast(), &mut size));
    assert_eq!(text[size - 1], 0);
    serde_json::from_slice(&text[..size - 1]).unwrap()
}

/// The name of the call that a rank is in.
pub fn running(comm: Comm) -> Option<String> {
    dump(comm)["state"]["running"][0]["name"].as_str().map(str::to_string)
}

/// Waits until something is so: what other threads or ranks will do by themselves.
#[track_caller]
pub fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
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
        let ranks = comms.iter().copied().enumerate();
        let threads: Vec<_> = ranks.map(|(rank, comm)| scope.spawn(move || work(rank, comm))).collect();
        // ThreadSanitizer sees this, and not what a scope waits for by itself.
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// A function that takes a communicator, with everything else as it should be for a rank of two.
pub type OnComm = (&'static str, fn(Comm, Stream) -> c_int);

/// All of them.
pub const ON_COMM: [OnComm; 36] = [
    ("cclAllReduce", |c, s| with_room(|a, b| cclAllReduce(a, b, 4, FLOAT32, SUM, c, s))),
    ("cclReduce", |c, s| with_room(|a, b| cclReduce(a, b, 4, FLOAT32, SUM, 0, c, s))),
    ("cclBroadcast", |c, s| with_room(|a, b| cclBroadcast(a, b, 4, FLOAT32, 0, c, s))),
    ("cclAllGather", |c, s| with_room(|a, b| cclAllGather(a, b, 4, FLOAT32, c, s))),
    ("cclReduceScatter", |c, s| with_room(|a, b| cclReduceScatter(a, b, 4, FLOAT32, SUM, c, s))),
    ("cclAlltoAll", |c, s| with_room(|a, b| cclAlltoAll(a, b, 4, FLOAT32, c, s))),
    ("cclGather", |c, s| with_room(|a, b| cclGather(a, b, 4, FLOAT32, 0, c, s))),
    ("cclScatter", |c, s| with_room(|a, b| cclScatter(a, b, 4, FLOAT32, 0, c, s))),
    ("cclBarrier", |c, s| cclBarrier(c, s)),
    ("cclAllGatherV", |c, s| with_room(|a, b| cclAllGatherV(a, 4, b, FOURS.as_ptr(), null(), FLOAT32, c, s))),
    ("cclReduceScatterV", |c, s| {
        with_room(|a, b| cclReduceScatterV(a, b, FOURS.as_ptr(), FLOAT32, SUM, c, s))
    }),
    ("cclAlltoAllv", |c, s| {
        with_room(|a, b| cclAlltoAllv(a, FOURS.as_ptr(), null(), b, FOURS.as_ptr(), null(), FLOAT32, c, s))
    }),
    ("cclGatherV", |c, s| with_room(|a, b| cclGatherV(a, 4, b, FOURS.as_ptr(), null(), FLOAT32, 0, c, s))),
    ("cclScatterV", |c, s| with_room(|a, b| cclScatterV(a, FOURS.as_ptr(), null(), b, 4, FLOAT32, 0, c, s))),
    ("cclSend", |c, s| with_room(|a, _| cclSend(a, 4, FLOAT32, 1, c, s))),
    ("cclRecv", |c, s| with_room(|_, b| cclRecv(b, 4, FLOAT32, 1, c, s))),
    ("cclProbe", |c, _| cclProbe(c, 1, &mut 0)),
    ("cclCommCount", |c, _| cclCommCount(c, &mut 0)),
    ("cclCommUserRank", |c, _| cclCommUserRank(c, &mut 0)),
    ("cclCommDevice", |c, _| cclCommDevice(c, &mut 0)),
    ("cclCommGetAsyncError", |c, _| cclCommGetAsyncError(c, &mut 0)),
    ("cclCommGetProperties", |c, _| cclCommGetProperties(c, &mut PROPERTIES.clone())),
    ("cclCommDescribe", |c, _| text_code(cclCommDescribe(c))),
    ("cclCommRegister", |c, _| with_room(|_, b| cclCommRegister(c, b, 16, &mut 0))),
    ("cclCommDeregister", |c, _| cclCommDeregister(c, 1)),
    ("cclRedOpCreatePreMulSum", |c, _| {
        cclRedOpCreatePreMulSum(&mut 0, [1f32].as_ptr().cast(), FLOAT32, 1, c)
    }),
    ("cclRedOpDestroy", |c, _| cclRedOpDestroy(8, c)),
    ("cclCommSplit", |c, _| cclCommSplit(c, 0, 0, &mut 0, null())),
    ("cclCommSetTimeout", |c, _| cclCommSetTimeout(c, 60_000)),
    ("cclCommDump", |c, _| cclCommDump(c, null_mut(), &mut 0)),
    ("cclCommAgree", |c, _| cclCommAgree(c, &mut 0)),
    ("cclCommShrink", |c, _| cclCommShrink(c, null(), 0, &mut 0, null(), 0)),
    ("cclCommRevoke", |c, _| cclCommRevoke(c, 0)),
    ("cclCommFinalize", |c, _| cclCommFinalize(c)),
    ("cclCommDestroy", |c, _| cclCommDestroy(c)),
    ("cclCommAbort", |c, _| cclCommAbort(c)),
];

const FOURS: [usize; 2] = [4; 2];

/// Two buffers that stay, for calls that are over when they return or never begin.
fn with_room(call: impl FnOnce(*const c_void, *mut c_void) -> c_int) -> c_int {
    let (from, mut into) = ([0f32; 8], [0f32; 8]);
    call(from.as_ptr().cast(), into.as_mut_ptr().cast())
}

/// What a function that returns a text has to say by NULL.
fn text_code(text: *const c_char) -> c_int {
    match (text.is_null(), last_error(0).contains("invalid argument")) {
        (false, _) => SUCCESS,
        (true, true) => INVALID_ARGUMENT,
        (true, false) => INVALID_USAGE,
    }
}
