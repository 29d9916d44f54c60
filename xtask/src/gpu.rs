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
    let mut cargo = command("cargo build --locked --release --package ccl-gpu-check --package ccl-library");
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

/// The Python package as its wheel has it; and what PyTorch's modules for tests need beside it.
pub(crate) fn place_package() -> Result<(), String> {
    tools::need("python3")?;
    let (bin, python) = (root().join(FOLDER), root().join("python"));
    let folder = bin.join(PACKAGE);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let list = fs::read_to_string(python.join("tests/requirements.txt")).map_err(|e| e.to_string())?;
    let wanted = list.lines().find(|line| line.starts_with("expecttest=="));
    let mut pip = command("python3 -m pip install --quiet --no-deps --target");
    pip.arg(&folder).arg(wanted.ok_or("python/tests/requirements.txt has no expecttest")?).arg(&python);
    run(pip.env("RDMACCL_LIBRARY", bin.join("librdmaccl.so")))?;
    println!("{FOLDER}/{PACKAGE}: on the machine with the GPU: gpu/check.sh torch");
    Ok(())
}

fn bring(from: &Path, name: &str) -> Result<(), String> {
    let to = root().join(FOLDER).join(name);
    let fail = |e| format!("{}: {e}", to.display());
    fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(fail)?;
    // A copy keeps the rights; a program that runs keeps its file.
    let _ = fs::remove_file(&to);
    let bytes = fs::copy(from, &to).map_err(fail)?;
    if bytes > BYTES {
        return Err(format!("{FOLDER}/{name}: {bytes} bytes, more than {BYTES}"));
    }
    println!("{FOLDER}/{name}: {:.1} MB", bytes as f64 / 1e6);
    Ok(())
}
