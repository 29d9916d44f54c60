//! Running other programs, and where the repository lies.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The target folder of the checks that build in the common way.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A program with its arguments, to be run in the repository's root.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).current_dir(root()).stdin(Stdio::null());
    // Set by the `cargo run` that started this program; another toolchain must not inherit them.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

/// Runs it with its output on the terminal.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let line = show(command);
    println!("$ {line}");
    let status = command.status().map_err(|e| format!("cannot run {line}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// What a program printed, and whether it succeeded.
pub(crate) struct Printed {
    pub(crate) success: bool,
    pub(crate) output: String,
    /// On standard error.
    pub(crate) errors: String,
}

/// Runs it and returns what it printed, while passing it on.
pub(crate) fn tee(command: &mut Command) -> Result<Printed, String> {
    let line = show(command);
    println!("$ {line}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot run {line}: {e}"))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || pass_on(errors, |line| eprintln!("{line}")));
    let output = pass_on(output, |line| println!("{line}"));
    let errors =
        errors.join().map_err(|_| format!("{line}: what it says on standard error cannot be passed on"))?;
    let status = child.wait().map_err(|e| format!("{line}: {e}"))?;
    Ok(Printed { success: status.success(), output, errors })
}

/// What comes, while each line is shown.
fn pass_on(from: Option<impl Read>, show: impl Fn(&str)) -> String {
    let mut all = String::new();
    let lines = from.map(|from| BufReader::new(from).split(b'\n').map_while(Result::ok));
    for line in lines.into_iter().flatten() {
        let line = String::from_utf8_lossy(&line);
        show(&line);
        all.push_str(&line);
        all.push('\n');
    }
    all
}

/// Runs it silently and returns its output; an error holds what it wrote to standard error.
pub(crate) fn read(command: &mut Command) -> Result<String, String> {
    let line = show(command);
    let output = command.output().map_err(|e| format!("cannot run {line}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs it and returns its output; what it says on standard error goes to the terminal.
pub(crate) fn capture(command: &mut Command) -> Result<String, String> {
    let line = show(command);
    println!("$ {line}");
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run {line}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program with its arguments.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
