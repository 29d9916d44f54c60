//! Where the libraries are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// rdmaccl's: beside this program, where `cargo xtask gpu` and cargo put it.
pub(super) fn ours() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let file = folder.join("librdmaccl.so");
    let build = "cargo build --package ccl-library, with this program's profile";
    if file.exists() { Ok(file) } else { Err(format!("there is no {}: {build}", file.display())) }
}

/// Where NCCL may be, in the order in which it is tried: what `GPU_CHECK_NCCL` names and nothing else; or the one that was brought along, what the
/// loader finds, and what has come with PyTorch's packages.
pub(super) fn theirs() -> Vec<String> {
    let named = |variable: &str| {
        let files = std::env::var(variable).ok()?;
        Some(files.split(':').filter(|file| !file.is_empty()).map(String::from).collect::<Vec<_>>())
    };
    named("GPU_CHECK_NCCL").unwrap_or_else(|| {
        let brought = named("GPU_CHECK_NCCL_FIRST").unwrap_or_default();
        [brought, vec!["libnccl.so.2".into()], of_python()].concat()
    })
}

/// The library of the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13, which PyTorch's wheel brings along.
fn of_python() -> Vec<String> {
    let ask = "import sys; print('\\n'.join(path for path in sys.path if path))";
    let mut python = Command::new("python3");
    let asked = python.args(["-c", ask]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(said) = asked else { return Vec::new() };
    let folders = String::from_utf8_lossy(&said.stdout).into_owned();
    let files = folders.lines().map(|folder| Path::new(folder).join("nvidia/nccl/lib/libnccl.so.2"));
    files.filter(|file| file.exists()).map(|file| file.to_string_lossy().into_owned()).collect()
}
