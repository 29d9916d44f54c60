//! The kernels of ccl-transport-cuda as a shared object for threads of the CPU.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the kernels, with a planted bug or without, into a folder that is the test program's own; the object's file, for the script's
/// `kernels FILE`. Needs g++; panics, as a test does, where that fails.
pub fn compile_kernels(folder: &Path, bug: Option<&str>) -> PathBuf {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ccl-transport-cuda/kernels/emulate/object.cpp");
    let object = folder.join(format!("kernels-{}.so", bug.unwrap_or("clean")));
    // Another process may have the one from before.
    let part = object.with_extension(std::process::id().to_string());
    let mut compile = Command::new("g++");
    compile.args("-std=c++14 -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas".split(' '));
    // As on a device: a multiplication and an addition are two roundings.
    compile.args(["-ffp-contract=off", "-fPIC", "-shared", "-pthread"]);
    compile.args(bug.map(|bug| format!("-D{bug}=1")));
    let output = compile.arg(source).arg("-o").arg(&part).output().expect("g++ is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&part, &object).expect("a folder of our own");
    object
}
