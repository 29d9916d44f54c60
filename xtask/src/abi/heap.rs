//! The heap that programs preload: what it exports, a program that uses all of it, and the examples with it.

use super::Report;
use super::examples::{Linked, compile, start};
use crate::install::HEAP;
use crate::shell::{command, read, root};
use std::collections::BTreeSet;
use std::path::Path;

/// What programs find in it in place of the C library's, and what the library finds.
const EXPORTED: [&str; 11] = [
    "aligned_alloc",
    "calloc",
    "free",
    "malloc",
    "malloc_usable_size",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "rdmaccl_heap_attach_1",
    "realloc",
    "valloc",
];

pub(super) fn check(prefix: &Path, folder: &Path, report: &mut Report) {
    report.add(
        "the heap exports malloc(3), and what the library looks for",
        exports(&prefix.join("lib").join(HEAP)),
    );
    let program = compile(prefix, folder, &root().join("tests/heap/heap.c"), Linked::Shared);
    report.add("a program with the heap preloaded", program.and_then(|program| preloaded(prefix, &program)));
}

/// Runs a program with the heap.
pub(super) fn preloaded(prefix: &Path, program: &Path) -> Result<(), String> {
    start(prefix, program, &format!("env LD_PRELOAD={}", prefix.join("lib").join(HEAP).display()))
}

fn exports(library: &Path) -> Result<(), String> {
    let listed = read(command("nm -D --defined-only").arg(library))?;
    let exported: BTreeSet<_> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    match exported == BTreeSet::from(EXPORTED) {
        true => Ok(()),
        false => Err(format!("it exports {exported:?}")),
    }
}
