//! Memory, communicators and streams that are not there, are not one's own, or are in another state.

use crate::bench::Bench;
use crate::common::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) fn memory(bench: &Bench) {
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

pub(crate) fn handles(bench: &Bench) {
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
pub(crate) fn states(bench: &Bench) {
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
