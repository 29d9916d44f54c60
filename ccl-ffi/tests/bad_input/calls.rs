//! Collectives and transfers: buffers, counts, types, operators, roots and peers.

use crate::bench::{Bench, crooked};
use crate::common::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

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

pub(crate) fn even_collectives(bench: &Bench) {
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

pub(crate) fn uneven_collectives(bench: &Bench) {
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

pub(crate) fn transfers(bench: &Bench) {
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

/// Counts of 0, with no buffers, are calls like others.
pub(crate) fn nothing(bench: &Bench) {
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
pub(crate) fn odd_addresses(bench: &Bench) {
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
