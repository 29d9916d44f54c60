//! What cannot be: every function with every argument that is wrong, alone, on a stream and in a group. Each is refused
//! with its code and with words that say what is wrong; and after each, the communicator works as before.

mod arguments;
mod bench;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod objects;

use bench::Bench;
use common::*;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};

/// Functions of the header.
fn declared() -> BTreeSet<&'static str> {
    let lines = include_str!("../../../include/ccl.h").lines();
    let begins = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let before = begins.filter_map(|line| Some(line.split_once('(')?.0));
    before.filter_map(|text| text.rsplit([' ', '*']).next()).filter(|name| name.starts_with("ccl")).collect()
}

#[test]
fn every_function_refuses_what_cannot_be() {
    let bench = Bench::new();
    calls::even_collectives(&bench);
    calls::uneven_collectives(&bench);
    calls::transfers(&bench);
    arguments::variables(&bench);
    arguments::numbers(&bench);
    objects::memory(&bench);
    objects::handles(&bench);
    objects::states(&bench);
    calls::nothing(&bench);
    calls::odd_addresses(&bench);
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
