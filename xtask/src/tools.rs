//! Programs and headers that a check needs beside cargo: found, installed where that is allowed, or named as missing.

use crate::shell::{command, read, run, target};
use std::path::PathBuf;

/// Whether the program can be started.
pub(crate) fn present(program: &str) -> bool {
    command(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Makes sure that a program is there; on Debian as root its package, of the same name, is installed.
pub(crate) fn need(program: &str) -> Result<(), String> {
    need_from(program, program)
}

/// [`need`] of a program whose package has another name.
pub(crate) fn need_from(program: &str, package: &str) -> Result<(), String> {
    if present(program) { Ok(()) } else { install(program, package) }
}

/// Makes sure that a C header is there, of a package of Debian.
pub(crate) fn need_header(header: &str, package: &str) -> Result<(), String> {
    if PathBuf::from("/usr/include").join(header).exists() { Ok(()) } else { install(header, package) }
}

fn install(what: &str, package: &str) -> Result<(), String> {
    let root = read(&mut command("id -u")).is_ok_and(|id| id.trim() == "0");
    if !root || !present("apt-get") {
        return Err(format!("{what} is missing: install it (Debian: apt-get install {package})"));
    }
    println!("{what} is missing: installing {package}");
    let install = format!("apt-get install -y --no-install-recommends {package}");
    let mut installed = run(command(&install).env("DEBIAN_FRONTEND", "noninteractive"));
    if installed.is_err() {
        installed = run(&mut command("apt-get update"))
            .and_then(|()| run(command(&install).env("DEBIAN_FRONTEND", "noninteractive")));
    }
    installed.map_err(|e| format!("{what} is missing and cannot be installed: {e}"))
}

/// A subcommand of cargo: found, or built from crates.io into the target folder. Returns the program.
pub(crate) fn need_crate(program: &str) -> Result<PathBuf, String> {
    if present(program) {
        return Ok(program.into());
    }
    let folder = target().join("tools");
    let built = folder.join("bin").join(program);
    if !built.exists() {
        println!("{program} is missing: building it into {}", folder.display());
        let mut install = command(&format!("cargo install --quiet --locked {program} --root"));
        run(install.arg(&folder).env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(built)
}
