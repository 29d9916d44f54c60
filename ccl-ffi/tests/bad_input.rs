//! What cannot be: every function with every argument that is wrong, alone, on a stream and in a group. Each is refused
//! with its code and with words that say what is wrong; and after each, the communicator works as before.

mod common;
use common::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

/// Two ranks that this thread drives, and which functions have been tried.
struct Bench {
    comms: [Comm; 2],
    stream: Stream,
    tried: RefCell<BTreeSet<&'static str>>,
}

impl Bench {
    fn new() -> Bench {
        Bench { comms: impatient(), stream: stream(), tried: RefCell::default() }
    }

    fn comm(&self) -> Comm {
        self.comms[0]
    }

    /// A call that is refused when it is made, whatever it is made on.
    #[track_caller]
    fn refuse(&self, function: &'static str, call: impl FnOnce() -> c_int, code: c_int, words: &[&str]) {
        let came = call();
        let text = last_error(0);
        assert_eq!(came, code, "{function}: {text}");
        for words in words {
            assert!(text.contains(words), "{function}: no '{words}' in: {text}");
        }
        self.tried.borrow_mut().insert(function);
        self.works(function);
    }

    /// A call that is refused alone, on a stream, and in a group, whose end then says so again.
    #[track_caller]
    fn refuse_call(
        &self,
        function: &'static str,
        call: impl Fn(Stream) -> c_int,
        code: c_int,
        words: &[&str],
    ) {
        self.refuse(function, || call(0), code, words);
        self.refuse(function, || call(self.stream), code, words);
        for stream in [0, self.stream] {
            ok(cclGroupStart());
            let alone = call(stream);
            assert_eq!((alone, cclGroupEnd()), (code, code), "{function}: {}", last_error(0));
            self.works(function);
        }
    }

    /// The communicator does what it should, and nothing was left behind on it or on the stream.
    #[track_caller]
    fn works(&self, after: &str) {
        let mut values = [[1f32; 3], [2f32; 3]];
        ok(cclGroupStart());
        for (comm, values) in self.comms.iter().zip(&mut values) {
            ok(all_reduce(values, *comm, 0));
        }
        ok(cclGroupEnd());
        assert_eq!(values, [[3.0; 3]; 2], "after {after}");
        ok(cclHostStreamQuery(self.stream));
        self.comms.iter().for_each(|comm| assert_eq!(async_error(*comm), SUCCESS, "after {after}"));
    }
}

/// A collective of even blocks, with all arguments that one can have.
type Even = fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int;

/// By name, with whether it reduces and whether it has a root.
const EVEN: [(&str, Even, bool, bool); 8] = [
    ("cclAllReduce", |s, r, n, t, o, _, c, on| cclAllReduce(s, r, n, t, o, c, on), true, false),
    ("cclReduce", |s, r, n, t, o, root, c, on| cclReduce(s, r, n, t, o, root, c, on), true, true),
    ("cclBroadcast", |s, r, n, t, _, root, c, on| cclBroadcast(s, r, n, t, root, c, on), false, true),
    ("cclAllGather", |s, r, n, t, _, _, c, on| cclAllGather(s, r, n, t, c, on), false, false),
    ("cclReduceScatter", |s, r, n, t, o, _, c, on| cclReduceScatter(s, r, n, t, o, c, on), true, false),
    ("cclAlltoAll", |s, r, n, t, _, _, c, on| cclAlltoAll(s, r, n, t, c, on), false, false),
    ("cclGather", |s, r, n, t, _, root, c, on| cclGather(s, r, n, t, root, c, on), false, true),
    ("cclScatter", |s, r, n, t, _, root, c, on| cclScatter(s, r, n, t, root, c, on), false, true),
];

const BAND: c_int = 5;
/// The first address that no buffer of some bytes can begin at.
const LAST: usize = usize::MAX - 3;

fn even_collectives(bench: &Bench) {
    let comm = bench.comm();
    let (from, mut into, mut both) = ([0f32; 16], [0f32; 16], [0f32; 32]);
    let (send, recv) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
    let both: *mut c_void = both.as_mut_ptr().cast();
    let at = |elements: isize| both.wrapping_byte_offset(4 * elements);
    for (name, call, reduces, rooted) in EVEN {
        let buffers = |s, r, on| call(s, r, 4, FLOAT32, SUM, 0, comm, on);
        bench.refuse_call(
            name,
            |on| buffers(null(), recv, on),
            INVALID_ARGUMENT,
            &["sendbuff is NULL", "rank 0"],
        );
        bench.refuse_call(name, |on| buffers(send, null_mut(), on), INVALID_ARGUMENT, &["recvbuff is NULL"]);
        let high = LAST as *mut c_void;
        bench.refuse_call(
            name,
            |on| buffers(high, recv, on),
            INVALID_ARGUMENT,
            &["sendbuff", "end of memory"],
        );
        bench.refuse_call(
            name,
            |on| buffers(send, high, on),
            INVALID_ARGUMENT,
            &["recvbuff", "end of memory"],
        );
        let overlap = [format!("{both:p}..{:p}", at(4)), format!("{:p}..", at(1))];
        let longer = ["cclReduceScatter", "cclAlltoAll", "cclScatter"].contains(&name);
        let words: &[&str] =
            if longer { &[&overlap[1], "overlap"] } else { &[&overlap[0], &overlap[1], "overlap"] };
        bench.refuse_call(name, |on| buffers(both, at(1), on), INVALID_ARGUMENT, words);
        bench.refuse_call(
            name,
            |on| buffers(at(1), both, on),
            INVALID_ARGUMENT,
            &["overlap", "in-place form"],
        );

        let counts = |n, on| call(send, recv, n, FLOAT32, SUM, 0, comm, on);
        // Negative, as C converts it; more bytes than a number holds; more than memory can have.
        for count in [-1isize as usize, usize::MAX / 4 + 1, isize::MAX as usize / 4 + 1] {
            let words = [&*format!("{count} elements"), "2^63"];
            bench.refuse_call(name, |on| counts(count, on), INVALID_ARGUMENT, &words);
        }
        for dtype in [-1, 14, c_int::MIN, c_int::MAX] {
            let words = [&*format!("data type {dtype}"), "cclDataType_t"];
            let types = |on| call(send, recv, 4, dtype, SUM, 0, comm, on);
            bench.refuse_call(name, types, INVALID_ARGUMENT, &words);
        }
        let operators = |op, on| call(send, recv, 4, FLOAT32, op, 0, comm, on);
        for op in [-1, 8, c_int::MIN, c_int::MAX].into_iter().filter(|_| reduces) {
            let words = [&*format!("operator {op}"), "cclRedOp_t"];
            bench.refuse_call(name, |on| operators(op, on), INVALID_ARGUMENT, &words);
        }
        if reduces {
            let words = ["band", "type float", "integer type"];
            bench.refuse_call(name, |on| operators(BAND, on), INVALID_ARGUMENT, &words);
        }
        for root in [-1, 2, c_int::MIN, c_int::MAX].into_iter().filter(|_| rooted) {
            let words = [&*format!("root {root}"), "give a rank"];
            let roots = |on| call(send, recv, 4, FLOAT32, SUM, root, comm, on);
            bench.refuse_call(name, roots, INVALID_ARGUMENT, &words);
        }
        for stream in [1, comm, usize::MAX, bench.stream + (1 << 14)] {
            bench.refuse(name, || counts(4, stream), INVALID_ARGUMENT, &["no stream", "cclHostStreamCreate"]);
        }
    }
    // In place, but at the other rank's place.
    let gather = |on| cclAllGather(at(4), both, 4, FLOAT32, comm, on);
    bench.refuse_call("cclAllGather", gather, INVALID_ARGUMENT, &["overlap"]);
    let scatter = |on| cclReduceScatter(both, at(4), 4, FLOAT32, SUM, comm, on);
    bench.refuse_call("cclReduceScatter", scatter, INVALID_ARGUMENT, &["overlap"]);
}

/// Where an array of numbers cannot be.
fn crooked<T>(good: &T) -> *const T {
    (&raw const *good).wrapping_byte_add(1)
}

fn uneven_collectives(bench: &Bench) {
    let comm = bench.comm();
    let (from, mut into) = ([0f32; 16], [0f32; 16]);
    let (send, recv) = (from.as_ptr().cast::<c_void>(), into.as_mut_ptr().cast::<c_void>());
    let good = [2usize, 3, 0];
    // A v-collective by what its long side, or both, are given.
    type Uneven<'a> = &'a dyn Fn(*const usize, *const usize, Stream) -> c_int;
    let gather: Uneven<'_> = &|n, at, on| cclAllGatherV(send, 2, recv, n, at, FLOAT32, comm, on);
    let reduce: Uneven<'_> = &|n, _, on| cclReduceScatterV(send, recv, n, FLOAT32, SUM, comm, on);
    let exchange: Uneven<'_> = &|n, at, on| cclAlltoAllv(send, n, at, recv, n, at, FLOAT32, comm, on);
    let to_root: Uneven<'_> = &|n, at, on| cclGatherV(send, 2, recv, n, at, FLOAT32, 0, comm, on);
    let from_root: Uneven<'_> = &|n, at, on| cclScatterV(send, n, at, recv, 2, FLOAT32, 0, comm, on);
    let all = [
        ("cclAllGatherV", gather, "recvbuff"),
        ("cclReduceScatterV", reduce, "sendbuff"),
        ("cclAlltoAllv", exchange, "sendbuff"),
        ("cclGatherV", to_root, "recvbuff"),
        ("cclScatterV", from_root, "sendbuff"),
    ];
    for (name, call, side) in all {
        let null_counts = format!("counts array of {side} is NULL");
        bench.refuse_call(name, |on| call(null(), null(), on), INVALID_ARGUMENT, &[&null_counts]);
        let odd = crooked(&good[0]);
        let words = ["counts array", "multiple of 8"];
        bench.refuse_call(name, |on| call(odd, null(), on), INVALID_ARGUMENT, &words);
        for huge in [usize::MAX, usize::MAX / 4 + 1, isize::MAX as usize / 4 + 1] {
            let counts = [2, huge];
            bench.refuse_call(name, |on| call(counts.as_ptr(), null(), on), INVALID_ARGUMENT, &["2^63"]);
        }
        if name != "cclReduceScatterV" {
            let words = ["displacements array", "multiple of 8"];
            bench.refuse_call(name, |on| call(good.as_ptr(), odd, on), INVALID_ARGUMENT, &words);
            let far = [0, usize::MAX];
            bench.refuse_call(name, |on| call(good.as_ptr(), far.as_ptr(), on), INVALID_ARGUMENT, &["2^63"]);
        }
    }
    let counts = good.as_ptr();
    let null_send = |on| cclAllGatherV(null(), 2, recv, counts, null(), FLOAT32, comm, on);
    bench.refuse_call("cclAllGatherV", null_send, INVALID_ARGUMENT, &["sendbuff is NULL"]);
    let null_recv = |on| cclScatterV(send, counts, null(), null_mut(), 2, FLOAT32, 0, comm, on);
    bench.refuse_call("cclScatterV", null_recv, INVALID_ARGUMENT, &["recvbuff is NULL"]);
    let own = |on| cclGatherV(send, 3, recv, counts, null(), FLOAT32, 0, comm, on);
    bench.refuse_call("cclGatherV", own, INVALID_ARGUMENT, &["sends itself 3", "receives 2"]);
    let same = |on| cclAlltoAllv(recv, counts, null(), recv, counts, good[1..].as_ptr(), FLOAT32, comm, on);
    bench.refuse_call("cclAlltoAllv", same, INVALID_ARGUMENT, &["overlap"]);
    let double = |on| cclAllGatherV(send, 2, recv, counts, [0usize, 1].as_ptr(), FLOAT32, comm, on);
    bench.refuse_call("cclAllGatherV", double, INVALID_ARGUMENT, &["blocks of recvbuff overlap"]);
    let op = |on| cclReduceScatterV(send, recv, counts, FLOAT32, BAND, comm, on);
    bench.refuse_call("cclReduceScatterV", op, INVALID_ARGUMENT, &["band", "type float"]);
    for root in [-1, 2, c_int::MAX] {
        let words = [&*format!("root {root}"), "give a rank"];
        let call = |on| cclGatherV(send, 2, recv, counts, null(), FLOAT32, root, comm, on);
        bench.refuse_call("cclGatherV", call, INVALID_ARGUMENT, &words);
        let call = |on| cclScatterV(send, counts, null(), recv, 2, FLOAT32, root, comm, on);
        bench.refuse_call("cclScatterV", call, INVALID_ARGUMENT, &words);
    }
}

fn transfers(bench: &Bench) {
    let comm = bench.comm();
    let mut room = [0f32; 16];
    let at: *mut c_void = room.as_mut_ptr().cast();
    type Transfer = fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    let both: [(&str, Transfer); 2] = [
        ("cclSend", |at, n, t, peer, c, on| cclSend(at, n, t, peer, c, on)),
        ("cclRecv", |at, n, t, peer, c, on| cclRecv(at, n, t, peer, c, on)),
    ];
    for (name, call) in both {
        let refuse = |arguments: (*mut c_void, usize, c_int, c_int), words: &[&str]| {
            let (at, count, dtype, peer) = arguments;
            let call = |on| call(at, count, dtype, peer, comm, on);
            bench.refuse_call(name, call, INVALID_ARGUMENT, words);
        };
        refuse((null_mut(), 1, FLOAT32, 1), &["is NULL", "rank 1"]);
        refuse((LAST as *mut c_void, 2, FLOAT32, 1), &["end of memory"]);
        refuse((at, usize::MAX, FLOAT32, 1), &["2^63"]);
        refuse((at, isize::MAX as usize / 4 + 1, FLOAT32, 1), &["2^63"]);
        refuse((at, 1, -1, 1), &["data type -1"]);
        for peer in [-1, 2, c_int::MIN, c_int::MAX] {
            refuse((at, 1, FLOAT32, peer), &[&format!("peer {peer}"), "give a rank"]);
        }
    }
    // To itself, with nobody who receives it, and with one who receives something else or partly the same.
    let alone = || cclSend(at, 1, FLOAT32, 0, comm, 0);
    bench.refuse("cclSend", alone, INVALID_ARGUMENT, &["sends itself 1 times and receives 0"]);
    // What the other communicators of its group were to do is as if it had never been called.
    let together = || {
        ok(cclGroupStart());
        ok(cclBarrier(bench.comms[1], 0));
        ok(cclSend(at, 1, FLOAT32, 0, comm, 0));
        cclGroupEnd()
    };
    bench.refuse("cclGroupEnd", together, INVALID_ARGUMENT, &["sends itself 1 times"]);
    let pair = |n, into: *mut c_void| {
        ok(cclGroupStart());
        ok(cclSend(at, 4, FLOAT32, 0, comm, 0));
        ok(cclRecv(into, n, FLOAT32, 0, comm, 0));
        cclGroupEnd()
    };
    bench.refuse("cclRecv", || pair(3, at), INVALID_ARGUMENT, &["sends itself 4", "receives 3"]);
    let shifted = at.wrapping_byte_add(4);
    bench.refuse("cclRecv", || pair(4, shifted), INVALID_ARGUMENT, &["overlap"]);
}

/// Pointers to variables and structs: NULL, and where no variable of the type can lie.
fn variables(bench: &Bench) {
    let (comm, number, handle) = (bench.comm(), 0 as c_int, 0usize);
    let (int, long) = (crooked(&number).cast_mut(), crooked(&handle).cast_mut());
    let (scalar, id) = ([2f32].as_ptr().cast::<c_void>(), id());
    for (int, wrong) in [(null_mut(), "NULL"), (int, "multiple of 4")] {
        let refuse = |name, call: &dyn Fn() -> c_int, variable: &str| {
            bench.refuse(name, call, INVALID_ARGUMENT, &[&format!("{variable} is"), wrong]);
        };
        refuse("cclGetVersion", &|| cclGetVersion(int), "version");
        refuse("cclCommCount", &|| cclCommCount(comm, int), "count");
        refuse("cclCommUserRank", &|| cclCommUserRank(comm, int), "rank");
        refuse("cclCommDevice", &|| cclCommDevice(comm, int), "device");
        refuse("cclCommGetAsyncError", &|| cclCommGetAsyncError(comm, int), "asyncError");
        let make = || cclRedOpCreatePreMulSum(int, scalar, FLOAT32, 1, comm);
        refuse("cclRedOpCreatePreMulSum", &make, "op");
    }
    for (long, wrong) in [(null_mut(), "NULL"), (long, "multiple of 8")] {
        let refuse = |name, call: &dyn Fn() -> c_int, variable: &str| {
            bench.refuse(name, call, INVALID_ARGUMENT, &[&format!("{variable} is"), wrong]);
        };
        refuse("cclCommAgree", &|| cclCommAgree(comm, long.cast()), "flags");
        refuse("cclCommDump", &|| cclCommDump(comm, null_mut(), long), "size");
        let shrink = || cclCommShrink(comm, null(), 0, long, null(), 0);
        refuse("cclCommShrink", &shrink, "newcomm");
        refuse("cclCommInitRank", &|| cclCommInitRank(long, 1, id, 0), "comm");
        refuse("cclCommInitRankConfig", &|| cclCommInitRankConfig(long, 1, id, 0, &CONFIG), "comm");
        refuse("cclCommInitAll", &|| cclCommInitAll(long, 1, null()), "comms");
        refuse("cclCommSplit", &|| cclCommSplit(comm, 0, 0, long, null()), "newcomm");
        refuse("cclHostStreamCreate", &|| cclHostStreamCreate(long), "stream");
        refuse("cclMemAlloc", &|| cclMemAlloc(long.cast(), 8), "ptr");
        let register = || cclCommRegister(comm, (&raw const handle).cast_mut().cast(), 8, long);
        refuse("cclCommRegister", &register, "handle");
        refuse("cclCommGetProperties", &|| cclCommGetProperties(comm, long.cast()), "properties");
    }
    bench.refuse("cclGetUniqueId", || cclGetUniqueId(null_mut()), INVALID_ARGUMENT, &["uniqueId is NULL"]);
    let mut made = 0;
    let odd = crooked(&CONFIG);
    let words = ["config is", "multiple of 8"];
    let init = || cclCommInitRankConfig(&mut made, 1, id, 0, odd);
    bench.refuse("cclCommInitRankConfig", init, INVALID_ARGUMENT, &words);
    let split = || cclCommSplit(comm, 0, 0, &mut made, odd);
    bench.refuse("cclCommSplit", split, INVALID_ARGUMENT, &words);
    let devices = || cclCommInitAll(&mut made, 1, int);
    bench.refuse("cclCommInitAll", devices, INVALID_ARGUMENT, &["devlist is", "multiple of 4"]);
    let scalar = || cclRedOpCreatePreMulSum(&mut 0, null(), FLOAT32, 1, comm);
    bench.refuse("cclRedOpCreatePreMulSum", scalar, INVALID_ARGUMENT, &["scalar is NULL"]);
}

fn numbers(bench: &Bench) {
    let (comm, id, mut made) = (bench.comm(), id(), 0);
    for (ranks, rank) in [(0, 0), (-1, 0), (2, 2), (2, -1), (c_int::MIN, c_int::MIN), (1, c_int::MAX)] {
        let words = [&*format!("rank {rank} of {ranks}"), "from 0 to nranks - 1"];
        let init = || cclCommInitRank(&mut made, ranks, id, rank);
        bench.refuse("cclCommInitRank", init, INVALID_ARGUMENT, &words);
    }
    let many = || cclCommInitRank(&mut made, c_int::MAX, id, 0);
    bench.refuse("cclCommInitRank", many, INVALID_ARGUMENT, &["2147483647", "8192"]);
    for ranks in [0, -1, c_int::MIN] {
        let words = [&*format!("ndev = {ranks}"), "at least one"];
        bench.refuse("cclCommInitAll", || cclCommInitAll(&mut made, ranks, null()), INVALID_ARGUMENT, &words);
    }
    let many = || cclCommInitAll(&mut made, c_int::MAX, null());
    bench.refuse("cclCommInitAll", many, INVALID_ARGUMENT, &["ndev = 2147483647", "at most 4096"]);
    let device = || cclCommInitAll(&mut made, 1, &7);
    bench.refuse("cclCommInitAll", device, INVALID_ARGUMENT, &["devlist[0] = 7", "host memory"]);
    for color in [-2, c_int::MIN] {
        let words = [&*format!("colour {color}"), "CCL_SPLIT_NOCOLOR"];
        let split = || cclCommSplit(comm, color, 0, &mut made, null());
        bench.refuse("cclCommSplit", split, INVALID_ARGUMENT, &words);
    }
    let config = Config { magic: 1, ..CONFIG };
    let split = || cclCommSplit(comm, 0, 0, &mut made, &config);
    bench.refuse("cclCommSplit", split, INVALID_ARGUMENT, &["magic", "CCL_CONFIG_INITIALIZER"]);
    let config = Config { algorithm: c"warp".as_ptr(), ..CONFIG };
    let split = || cclCommSplit(comm, 0, 0, &mut made, &config);
    bench.refuse("cclCommSplit", split, INVALID_ARGUMENT, &["algorithm 'warp'", "ring"]);
    let config = Config { network: c"tcp".as_ptr(), ..CONFIG };
    let split = || cclCommSplit(comm, 0, 0, &mut made, &config);
    bench.refuse("cclCommSplit", split, INVALID_ARGUMENT, &["network", "parent"]);
    assert_eq!(made, 0);

    let operator =
        |dtype, residence| cclRedOpCreatePreMulSum(&mut 0, [2f64].as_ptr().cast(), dtype, residence, comm);
    let name = "cclRedOpCreatePreMulSum";
    bench.refuse(name, || operator(-1, 1), INVALID_ARGUMENT, &["data type -1"]);
    bench.refuse(name, || operator(FLOAT64, 0), INVALID_USAGE, &["device memory", "HostImmediate"]);
    bench.refuse(name, || operator(FLOAT64, 2), INVALID_ARGUMENT, &["residence 2"]);
    for op in [-1, 0, 7, 8, c_int::MAX] {
        let words = [&*format!("operator {op}"), "cclRedOpCreatePreMulSum"];
        bench.refuse("cclRedOpDestroy", || cclRedOpDestroy(op, comm), INVALID_ARGUMENT, &words);
    }
    // An operator of another communicator, and one for another type.
    let mut op = -1;
    ok(cclRedOpCreatePreMulSum(&mut op, [2f32].as_ptr().cast(), FLOAT32, 1, comm));
    let mut room = [0f64; 4];
    let at: *mut c_void = room.as_mut_ptr().cast();
    let other = |on| cclAllReduce(at, at, 4, FLOAT32, op, bench.comms[1], on);
    bench.refuse_call("cclAllReduce", other, INVALID_ARGUMENT, &["operator 8", "this communicator"]);
    let double = |on| cclAllReduce(at, at, 4, FLOAT64, op, comm, on);
    bench.refuse_call("cclAllReduce", double, INVALID_ARGUMENT, &["type double", "type float"]);
    ok(cclRedOpDestroy(op, comm));

    for limit in [0, -1, c_int::MIN] {
        let words = [&*format!("timeoutMs = {limit}"), "from 1"];
        bench.refuse("cclCommSetTimeout", || cclCommSetTimeout(comm, limit), INVALID_ARGUMENT, &words);
    }
    for flags in [-1, 1, c_int::MAX] {
        let words = [&*format!("revokeFlags = {flags}"), "CCL_REVOKE_DEFAULT"];
        bench.refuse("cclCommRevoke", || cclCommRevoke(comm, flags), INVALID_ARGUMENT, &words);
    }
    let mut shrink = |list: *const c_int, count, config: *const Config, flags, words: &[&str]| {
        let call = || cclCommShrink(comm, list, count, &mut made, config, flags);
        bench.refuse("cclCommShrink", call, INVALID_ARGUMENT, words);
    };
    for flags in [-1, 2, c_int::MAX] {
        shrink(null(), 0, null(), flags, &[&format!("shrinkFlags = {flags}"), "CCL_SHRINK_ABORT"]);
    }
    for count in [-1, 2, c_int::MIN, c_int::MAX] {
        shrink(&1, count, null(), 0, &[&format!("excludeRanksCount = {count}"), "all ranks but one"]);
    }
    shrink(null(), 1, null(), 0, &["excludeRanksList is NULL"]);
    shrink(crooked(&1), 1, null(), 0, &["excludeRanksList is", "multiple of 4"]);
    for other in [-1, 0, 2, c_int::MIN, c_int::MAX] {
        shrink(&other, 1, null(), 0, &[&format!("rank {other} excluded"), "other ranks"]);
    }
    shrink(null(), 0, &Config { magic: 0, ..CONFIG }, 0, &["magic"]);
    shrink(null(), 0, crooked(&CONFIG), 0, &["config is", "multiple of 8"]);
    let mut room = [1 as std::ffi::c_char; 8];
    let mut size = 8;
    let dump = || cclCommDump(comm, room.as_mut_ptr(), &mut size);
    bench.refuse("cclCommDump", dump, INVALID_ARGUMENT, &["8 bytes for a dump of", "*size"]);
    assert!(size > 8 && room == [1; 8]);
    let add = || cclHostStreamAddCallback(bench.stream, None, null_mut());
    bench.refuse("cclHostStreamAddCallback", add, INVALID_ARGUMENT, &["callback is NULL"]);
    for limit in [-1, c_int::MIN] {
        let words = [&*format!("timeout_ms = {limit}"), "from 0"];
        bench.refuse(
            "cclHostStreamWait",
            || cclHostStreamWait(bench.stream, limit),
            INVALID_ARGUMENT,
            &words,
        );
    }
}

fn memory(bench: &Bench) {
    let (comm, mut at, mut handle) = (bench.comm(), null_mut(), 0);
    for size in [usize::MAX, isize::MAX as usize] {
        let alloc = || cclMemAlloc(&mut at, size);
        bench.refuse("cclMemAlloc", alloc, INVALID_ARGUMENT, &[&size.to_string()]);
    }
    ok(cclMemAlloc(&mut at, 4096));
    let mut own = [0u8; 16];
    let foreign: *mut c_void = own.as_mut_ptr().cast();
    for wrong in [foreign, at.wrapping_byte_add(1), usize::MAX as *mut c_void] {
        bench.refuse("cclMemFree", || cclMemFree(wrong), INVALID_ARGUMENT, &["not from cclMemAlloc"]);
    }
    let register = |at, size, words: &[&str]| {
        let call = || cclCommRegister(comm, at, size, &mut 0);
        bench.refuse("cclCommRegister", call, INVALID_ARGUMENT, words);
    };
    register(null_mut(), 8, &["8 bytes", "give some memory"]);
    register(at, 0, &["0 bytes"]);
    register(at, usize::MAX, &["2^63"]);
    register(at, 4097, &["partly", "one allocation"]);
    ok(cclCommRegister(comm, at, 4096, &mut handle));
    for wrong in [1, comm, usize::MAX, handle + (1 << 14)] {
        let words = ["no registration", "cclCommRegister"];
        bench.refuse("cclCommDeregister", || cclCommDeregister(comm, wrong), INVALID_ARGUMENT, &words);
    }
    let other = || cclCommDeregister(bench.comms[1], handle);
    bench.refuse("cclCommDeregister", other, INVALID_ARGUMENT, &["another communicator"]);
    ok(cclCommDeregister(comm, handle));
    let twice = || cclCommDeregister(comm, handle);
    bench.refuse("cclCommDeregister", twice, INVALID_ARGUMENT, &["no registration"]);
    ok(cclMemFree(at));
    bench.refuse("cclMemFree", || cclMemFree(at), INVALID_ARGUMENT, &["free already"]);
}

fn handles(bench: &Bench) {
    let freed = init_all::<1>();
    destroy_all(&freed);
    let aborted = init_all::<1>()[0];
    ok(cclCommAbort(aborted));
    let buffer = [0u8; 8];
    let foreign = [1, usize::MAX, buffer.as_ptr() as usize, bench.stream, freed[0], bench.comm() + (1 << 14)];
    for (name, call) in ON_COMM {
        for on in [0, bench.stream] {
            bench.refuse(name, || call(0, on), INVALID_ARGUMENT, &["NULL communicator", "cclCommInitRank"]);
            for wrong in foreign {
                let words = [&*format!("{wrong:#x}"), "no communicator", "not destroyed"];
                bench.refuse(name, || call(wrong, on), INVALID_ARGUMENT, &words);
            }
            if name != "cclCommAbort" {
                bench.refuse(name, || call(aborted, on), INVALID_ARGUMENT, &["no communicator"]);
            }
        }
    }
    ok(cclCommAbort(aborted));

    let freed = stream();
    ok(cclHostStreamDestroy(freed));
    type OnStream = (&'static str, fn(Stream) -> c_int);
    extern "C" fn never(_: c_int, _: *mut c_void) {
        std::process::abort(); // a refused callback was called
    }
    let on_stream: [OnStream; 5] = [
        ("cclHostStreamDestroy", |on| cclHostStreamDestroy(on)),
        ("cclHostStreamQuery", |on| cclHostStreamQuery(on)),
        ("cclHostStreamSynchronize", |on| cclHostStreamSynchronize(on)),
        ("cclHostStreamWait", |on| cclHostStreamWait(on, 0)),
        ("cclHostStreamAddCallback", |on| cclHostStreamAddCallback(on, Some(never), null_mut())),
    ];
    for (name, call) in on_stream {
        bench.refuse(name, || call(0), INVALID_ARGUMENT, &["NULL stream", "cclHostStreamCreate"]);
        for wrong in [1, usize::MAX, bench.comm(), freed, bench.stream + (1 << 14)] {
            bench.refuse(name, || call(wrong), INVALID_ARGUMENT, &["no stream", "not destroyed"]);
        }
    }
}

/// Calls that would be right at another time.
fn states(bench: &Bench) {
    let finalized = init_all::<1>()[0];
    ok(cclCommFinalize(finalized));
    let still = ["cclCommCount", "cclCommUserRank", "cclCommDevice", "cclCommGetAsyncError", "cclCommDump"];
    let ends = ["cclCommDestroy", "cclCommAbort", "cclCommDeregister", "cclRedOpDestroy"];
    for (name, call) in ON_COMM {
        if still.contains(&name) {
            ok(call(finalized, 0));
        } else if !ends.contains(&name) {
            bench.refuse(name, || call(finalized, 0), INVALID_USAGE, &["finalized", "destroy"]);
        }
    }
    ok(cclCommDestroy(finalized));

    let end = || cclGroupEnd();
    bench.refuse("cclGroupEnd", end, INVALID_USAGE, &["without its cclGroupStart", "same thread"]);
    // In a group, a communicator that goes before the end.
    let doomed = init_all::<1>()[0];
    ok(cclGroupStart());
    ok(cclBarrier(doomed, 0));
    ok(cclBarrier(bench.comms[0], 0));
    ok(cclBarrier(bench.comms[1], 0));
    ok(cclCommDestroy(doomed));
    bench.refuse("cclGroupEnd", end, INVALID_ARGUMENT, &["no communicator"]);
    let doomed = stream();
    ok(cclGroupStart());
    ok(cclBarrier(bench.comms[0], doomed));
    ok(cclBarrier(bench.comms[1], doomed));
    ok(cclHostStreamDestroy(doomed)); // the calls keep it
    ok(cclGroupEnd());
    bench.works("a stream that went before its group");
}

/// Counts of 0, with no buffers, are calls like others.
fn nothing(bench: &Bench) {
    let zeros = [0usize; 2];
    for (_, call, ..) in EVEN {
        ok(cclGroupStart());
        bench.comms.iter().for_each(|comm| ok(call(null(), null_mut(), 0, FLOAT32, SUM, 1, *comm, 0)));
        ok(cclGroupEnd());
    }
    ok(cclGroupStart());
    for (rank, comm) in (0..).zip(bench.comms) {
        let (n, peer) = (zeros.as_ptr(), 1 - rank);
        ok(cclAllGatherV(null(), 0, null_mut(), n, n, FLOAT32, comm, 0));
        ok(cclReduceScatterV(null(), null_mut(), n, FLOAT32, SUM, comm, 0));
        ok(cclAlltoAllv(null(), n, null(), null_mut(), n, null(), FLOAT32, comm, 0));
        ok(cclGatherV(null(), 0, null_mut(), n, null(), FLOAT32, 1, comm, 0));
        ok(cclScatterV(null(), n, null(), null_mut(), 0, FLOAT32, 1, comm, 0));
        ok(cclSend(null(), 0, FLOAT32, peer, comm, 0));
        ok(cclRecv(null_mut(), 0, FLOAT32, peer, comm, 0));
    }
    ok(cclGroupEnd());
    bench.works("calls on nothing");
}

/// Elements at addresses that are no multiple of their size are as good as others.
fn odd_addresses(bench: &Bench) {
    for count in [5usize, 100_000] {
        let mut rooms: [Vec<u8>; 2] = std::array::from_fn(|_| vec![0; 16 * count + 8]);
        ok(cclGroupStart());
        for (comm, room) in bench.comms.iter().zip(&mut rooms) {
            let ones: Vec<u8> = (0..count).flat_map(|_| 1f64.to_ne_bytes()).collect();
            room[3..][..8 * count].copy_from_slice(&ones);
            let base = room.as_mut_ptr();
            let (send, recv) = (base.wrapping_add(3).cast(), base.wrapping_add(8 * count + 5).cast());
            ok(cclAllReduce(send, recv, count, FLOAT64, SUM, *comm, 0));
        }
        ok(cclGroupEnd());
        let twos: Vec<u8> = (0..count).flat_map(|_| 2f64.to_ne_bytes()).collect();
        assert!(rooms.iter().all(|room| room[8 * count + 5..][..8 * count] == twos));
    }
}

/// Functions of the header.
fn declared() -> BTreeSet<&'static str> {
    let lines = include_str!("../../include/ccl.h").lines();
    let begins = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let before = begins.filter_map(|line| Some(line.split_once('(')?.0));
    before.filter_map(|text| text.rsplit([' ', '*']).next()).filter(|name| name.starts_with("ccl")).collect()
}

#[test]
fn every_function_refuses_what_cannot_be() {
    let bench = Bench::new();
    even_collectives(&bench);
    uneven_collectives(&bench);
    transfers(&bench);
    variables(&bench);
    numbers(&bench);
    memory(&bench);
    handles(&bench);
    states(&bench);
    nothing(&bench);
    odd_addresses(&bench);
    for number in [-1, 8, c_int::MIN, c_int::MAX] {
        // SAFETY: the function returns a text.
        let text = unsafe { CStr::from_ptr(cclGetErrorString(number)) };
        assert_eq!(text, c"unknown result code");
    }
    for handle in [0, 1, usize::MAX, bench.stream] {
        refused(cclBarrier(handle, 0), INVALID_ARGUMENT, "communicator");
        assert!(last_error(handle).contains("communicator"));
    }
    bench.works("all of it");
    // Those that take what they are given, as was just seen, or that take nothing.
    let harmless = ["cclGetErrorString", "cclGetLastError", "cclGroupStart"];
    let mut untried = declared();
    assert!(untried.len() > 40, "{untried:?}");
    untried.retain(|name| !harmless.contains(name) && !bench.tried.borrow().contains(name));
    assert!(untried.is_empty(), "never given anything wrong: {untried:?}");
    ok(cclHostStreamDestroy(bench.stream));
    destroy_all(&bench.comms);
}
