//! Programs and headers that a check needs beside cargo: found, installed where that is allowed, or named as missing.

use crate::shell::{command, read, run};
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
    if present(program) { Ok(()) } else { install(&[(program, package)]) }
}

/// Makes sure that programs, or files with a path, are there; what is missing is installed at one go. Unlike
/// [`need_from`] it starts none of them, so it serves for programs that do not know `--version`.
pub(crate) fn need_all(wanted: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<_> = wanted.iter().copied().filter(|(program, _)| find(program).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs packages that are no programs, and of which the caller knows that they are missing.
pub(crate) fn need_packages(what: &str, packages: &[&str]) -> Result<(), String> {
    let missing: Vec<_> = packages.iter().map(|package| (what, *package)).collect();
    install(&missing)
}

/// Where a program is, or a file with a path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where Debian has system programs, which are not in every user's path.
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(program)).find(|file| file.exists())
}

/// Installs the packages of missing programs, on Debian as root; elsewhere the error says what to install.
fn install(missing: &[(&str, &str)]) -> Result<(), String> {
    let list = |column: fn(&(&str, &str)) -> String| {
        let mut names: Vec<_> = missing.iter().map(column).collect();
        names.dedup();
        names
    };
    let (programs, packages) = (list(|m| m.0.into()).join(", "), list(|m| m.1.into()).join(" "));
    let are = if missing.len() == 1 { "is" } else { "are" };
    let root = read(&mut command("id -u")).is_ok_and(|id| id.trim() == "0");
    if !root || !present("apt-get") {
        return Err(format!(
            "{programs} {are} missing: install what has it (Debian: apt-get install {packages})"
        ));
    }
    println!("{programs} {are} missing: installing {packages}");
    let install = format!("apt-get install -y --no-install-recommends {packages}");
    let mut installed = run(command(&install).env("DEBIAN_FRONTEND", "noninteractive"));
    if installed.is_err() {
        installed = run(&mut command("apt-get update"))
            .and_then(|()| run(command(&install).env("DEBIAN_FRONTEND", "noninteractive")));
    }
    installed.map_err(|e| format!("{programs} {are} missing and cannot be installed: {e}"))
}
