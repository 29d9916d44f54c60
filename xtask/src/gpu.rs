//! The program that a machine with a GPU is given, where there need be neither Rust nor a network.

use crate::shell::{capture, command, root};
use serde_json::Value;
use std::fs;

/// Where `gpu/check.sh` looks for it.
const PLACE: &str = "gpu/bin/ccl-gpu-check";

/// What may travel with the sources; it is some megabytes.
const BYTES: u64 = 16 << 20;

/// Builds it, puts it in its place, and says how it is used.
pub(crate) fn place() -> Result<(), String> {
    let mut cargo = command("cargo build --locked --release --package ccl-gpu-check");
    // Its code and nothing else. Of shared objects it needs those of the C library, and libgcc_s; the driver it opens.
    cargo.args(["--config", "profile.release.strip=true", "--config", "profile.release.debug=false"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let messages = capture(&mut cargo)?;
    let program = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = program.filter_map(|message| message["executable"].as_str().map(String::from)).next_back();
    let program = program.ok_or("cargo names no program that it has built")?;
    let to = root().join(PLACE);
    let fail = |e| format!("{}: {e}", to.display());
    fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(fail)?;
    // A copy keeps the rights; a program that runs keeps its file.
    let _ = fs::remove_file(&to);
    let bytes = fs::copy(&program, &to).map_err(fail)?;
    if bytes > BYTES {
        return Err(format!("{PLACE}: {bytes} bytes, more than {BYTES}"));
    }
    println!("{PLACE}: {:.1} MB. On the machine with the GPU: gpu/check.sh", bytes as f64 / 1e6);
    Ok(())
}
