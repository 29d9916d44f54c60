//! Everything else that a function is given: variables to write to, and numbers.

use crate::bench::{Bench, crooked};
use crate::common::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

/// Pointers to variables and structs: NULL, and where no variable of the type can lie.
pub(crate) fn variables(bench: &Bench) {
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

pub(crate) fn numbers(bench: &Bench) {
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
