//! The checked-in header and the built library, as a C program sees them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn ffi(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn must(what: &str, output: std::io::Result<Output>) {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder of a library built from this source, with the link that its SONAME asks for.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let target = test.ancestors().nth(3).expect("target/profile/deps/test");
    // Cargo does not build a package's cdylib for its own tests. A folder of its own, because the lock of the
    // outer build may be held.
    let target = target.join("abi");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "ccl-ffi", "--target-dir"]).arg(&target);
    must("cargo build", build.output());
    let folder = target.join("debug");
    let soname = folder.join("librdmaccl.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink("librdmaccl.so", &soname).expect("a link to the library");
    }
    folder
}

/// Compiles `abi.c` as C99 and runs it: four processes, every collective, every misuse.
#[test]
fn a_c_program_runs_every_collective_and_gets_codes_for_misuse() {
    let folder = library();
    let program = folder.join("abi");
    let mut compile = Command::new("cc");
    compile.args(["-std=c99", "-D_GNU_SOURCE"]).args(WARNINGS).arg(ffi("tests/abi.c"));
    compile.arg("-I").arg(ffi("../include")).arg("-o").arg(&program).arg("-L").arg(&folder);
    compile.arg("-lrdmaccl").arg(format!("-Wl,-rpath,{}", folder.display()));
    must("cc", compile.output());
    must("the C program", Command::new(&program).output());
}

#[test]
fn the_header_is_clean_c99_and_cpp17() {
    for (language, standard) in [("c", "-std=c99"), ("c++", "-std=c++17")] {
        let mut compile = Command::new(if language == "c" { "cc" } else { "c++" });
        compile.args(["-fsyntax-only", "-x", language, standard]).args(WARNINGS);
        must(standard, compile.arg(ffi("../include/ccl.h")).output());
    }
}

/// Nothing but the C ABI's own names can clash with a program's.
#[test]
fn only_ccl_symbols_are_exported() {
    let library = library().join("librdmaccl.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm");
    let names = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<_> = names.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.contains(&"cclAllReduce"), "{names:?}");
    let foreign: Vec<_> = names.iter().filter(|name| !name.starts_with("ccl")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
