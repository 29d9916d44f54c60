//! Every collective of even blocks, for three ranks.

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
