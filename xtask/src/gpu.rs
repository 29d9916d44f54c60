//! The program that a machine with a GPU is given, where there need be neither Rust nor a network; with the library that it calls.

use crate::shell::{capture, command, root, run};
use crate::tools;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Where `gpu/check.sh` looks for them.
const FOLDER: &str = "gpu/bin";

/// What each may have, to travel with the sources; it is some megabytes.
const BYTES: u64 = 16 << 20;

/// Builds them, puts them in their place, and says how they are used.
pub(crate) fn place() -> Result<(), String> {
    let mut cargo = command("cargo build --locked --release --package ccl-gpu-check --package ccl-ffi");
    // Their code and nothing else. Of shared objects they need those of the C library, and libgcc_s; the driver they open.
    cargo.args(["--config", "profile.release.strip=true", "--config", "profile.release.debug=false"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let messages = capture(&mut cargo)?;
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = built.flat_map(|message| match message["filenames"].as_array() {
        Some(files) => files.iter().filter_map(|file| file.as_str().map(PathBuf::from)).collect(),
        None => Vec::new(),
    });
    let files: Vec<PathBuf> = files.collect();
    for name in ["ccl-gpu-check", "librdmaccl.so"] {
        let file = files.iter().find(|file| file.ends_with(name));
        bring(file.ok_or_else(|| format!("cargo names no {name} that it has built"))?, name)?;
    }
    println!("on the machine with the GPU: gpu/check.sh");
    Ok(())
}

/// Where the step `torch` looks for the package.
const PACKAGE: &str = "python";

/// The Python package as a wheel has it, but without a backend for any torch; and what PyTorch's modules for tests need beside it.
pub(crate) fn place_package() -> Result<(), String> {
    let folder = root().join(FOLDER).join(PACKAGE);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let (from, package) = (root().join("python"), folder.join("rdmaccl"));
    let parts = [
        (from.join("rdmaccl"), package.clone()),
        (from.join("rdmaccl/torch"), package.join("torch")),
        (from.join("csrc"), package.join("torch/csrc")),
    ];
    parts.iter().try_for_each(|(from, into)| copy_files(from, into))?;
    let library = root().join(FOLDER).join("librdmaccl.so");
    copy(&library, &package.join("lib/librdmaccl.so.0"))?;
    copy(&root().join("include/ccl.h"), &package.join("include/ccl.h"))?;
    tools::need("python3")?;
    let list = fs::read_to_string(from.join("tests/requirements.txt")).map_err(|e| e.to_string())?;
    let wanted = list.lines().find(|line| line.starts_with("expecttest=="));
    let mut pip = command("python3 -m pip install --quiet --no-deps --target");
    run(pip.arg(&folder).arg(wanted.ok_or("python/tests/requirements.txt has no expecttest")?))?;
    println!("{FOLDER}/{PACKAGE}: on the machine with the GPU: gpu/check.sh torch");
    Ok(())
}

/// The files of a folder, and none of its folders'.
fn copy_files(from: &Path, into: &Path) -> Result<(), String> {
    let entries = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    files.into_iter().try_for_each(|file| copy(&file, &into.join(file.file_name().unwrap_or_default())))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let made = fs::create_dir_all(to.parent().unwrap_or(to)).and_then(|()| fs::copy(from, to));
    made.map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

fn bring(from: &Path, name: &str) -> Result<(), String> {
    let to = root().join(FOLDER).join(name);
    // A copy keeps the rights; a program that runs keeps its file.
    let _ = fs::remove_file(&to);
    copy(from, &to)?;
    let bytes = fs::metadata(&to).map_err(|e| format!("{}: {e}", to.display()))?.len();
    if bytes > BYTES {
        return Err(format!("{FOLDER}/{name}: {bytes} bytes, more than {BYTES}"));
    }
    println!("{FOLDER}/{name}: {:.1} MB", bytes as f64 / 1e6);
    Ok(())
}
