//! The kernels of ccl-transport-cuda as a shared object for threads of the CPU.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of an ELF file's header.
pub(crate) const HEADER: usize = 64;

/// What the fake takes for a module's machine code for a kind of device (`sm_90`), instead of its PTX: an ELF file with nothing in it, and text.
/// How often it has taken one it counts as `machine code`.
pub fn machine_code(kind: &str, ptx: &str) -> Vec<u8> {
    let mut code = b"\x7fELF\x02\x01".to_vec();
    code.resize(HEADER, 0);
    code.extend(format!("{kind}\n{}\n\0", ptx.lines().next().unwrap_or_default()).bytes());
    code
}

/// Compiles the kernels, with a planted bug or without; the object's file, for the script's `kernels FILE`. Test programs that run at the same time
/// may share the folder: each puts the same in the other's place, and none removes it. Needs g++; panics, as a test does, where that fails.
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
    std::fs::rename(&part, &object).expect("a folder for objects");
    object
}
