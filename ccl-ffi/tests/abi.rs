//! Compiles `abi.c` against the checked-in header and the built library, as C99 and as C++17, and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo has put the library: beside the test's own folder.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    test.ancestors().nth(2).expect("target/profile/deps/test").to_path_buf()
}

fn compile_and_run(compiler: &str, standard: &str, language: &str) {
    let ffi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = library_folder();
    // A test does not build the cdylib of its own crate; with the same profile this is quick or nothing.
    let release = folder.ends_with("release");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "ccl-ffi", "--target-dir"])
        .arg(folder.parent().expect("target"));
    if release {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    let program = folder.join(format!("abi-{compiler}"));
    let compiled = Command::new(compiler)
        .args([standard, "-x", language, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(["-Wno-c++20-extensions", "-o"])
        .arg(&program)
        .arg(ffi.join("tests/abi.c"))
        .arg("-I")
        .arg(ffi.join("../include"))
        .arg("-L")
        .arg(&folder)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .args(["-Wl,--disable-new-dtags", "-lrdmaccl"])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // The library is found by its SONAME.
    let soname = folder.join("librdmaccl.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink("librdmaccl.so", &soname).expect("a link to the library");
    }
    let ran = Command::new(&program).output().expect("the program starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_c_program_runs_every_collective_and_gets_codes_for_misuse() {
    compile_and_run("cc", "-std=c99", "c");
}
