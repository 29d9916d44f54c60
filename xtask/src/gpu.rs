//! The program that a machine with a GPU is given, where there need be neither Rust nor a network; with the library that it calls.

use crate::shell::{capture, command, root};
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
