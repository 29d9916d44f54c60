//! Every collective of even blocks, for three ranks.

use super::*;
use crate::common::*;
use std::ffi::{c_int, c_void};

pub const RANKS: usize = 3;

/// A collective of blocks of `count` elements, on buffers of so many blocks.
pub type Collective =
    (&'static str, usize, usize, fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int);

pub const COLLECTIVES: [Collective; 8] = [
    ("all_reduce", 1, 1, |a, b, n, t, c, s| cclAllReduce(a, b, n, t, SUM, c, s)),
    ("reduce", 1, 1, |a, b, n, t, c, s| cclReduce(a, b, n, t, SUM, 1, c, s)),
    ("broadcast", 1, 1, |a, b, n, t, c, s| cclBroadcast(a, b, n, t, 2, c, s)),
    ("all_gather", 1, RANKS, |a, b, n, t, c, s| cclAllGather(a, b, n, t, c, s)),
    ("reduce_scatter", RANKS, 1, |a, b, n, t, c, s| cclReduceScatter(a, b, n, t, SUM, c, s)),
    ("all_to_all", RANKS, RANKS, |a, b, n, t, c, s| cclAlltoAll(a, b, n, t, c, s)),
    ("gather", 1, RANKS, |a, b, n, t, c, s| cclGather(a, b, n, t, 1, c, s)),
    ("scatter", RANKS, 1, |a, b, n, t, c, s| cclScatter(a, b, n, t, 1, c, s)),
];

/// What a rank does to see that calls in place on `comm`'s device give the bits of host memory on `host`.
pub fn in_place(gpus: &Gpus, rank: usize, comm: Comm, host: Comm) {
    let queue = gpus.queue(0);
    let (count, block) = (777, 777 * 4);
    let whole = floats(RANKS * count, rank);
    let (mut a, mut b, mut c) = (whole.clone(), whole.clone(), whole.clone());
    let (x, y, z) = (gpus.buffer(0, &whole), gpus.buffer(0, &whole), gpus.buffer(0, &whole));
    let both =
        |at: *mut c_void, comm, stream| cclAllReduce(at, at, RANKS * count, FLOAT32, SUM, comm, stream);
    ok(both(a.as_mut_ptr().cast(), host, 0));
    ok(both(x.recv(), comm, queue.handle));
    let own = b.as_mut_ptr().wrapping_add(rank * block).cast();
    ok(cclAllGather(own, b.as_mut_ptr().cast(), count, FLOAT32, host, 0));
    ok(cclAllGather(y.offset(rank * block), y.recv(), count, FLOAT32, comm, queue.handle));
    let own = c.as_mut_ptr().wrapping_add(rank * block).cast();
    ok(cclReduceScatter(c.as_ptr().cast(), own, count, FLOAT32, SUM, host, 0));
    ok(cclReduceScatter(z.send(), z.offset(rank * block), count, FLOAT32, SUM, comm, queue.handle));
    queue.finish();
    assert!(x.bytes() == a && y.bytes() == b);
    // What is not this rank's block may hold what it will, on the host.
    let own = rank * block..(rank + 1) * block;
    assert!(z.bytes()[own.clone()] == c[own]);
}
