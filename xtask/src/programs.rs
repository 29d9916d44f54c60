//! Test programs, built by cargo and run here: cargo would run one after the other, and many of them mostly wait for time to pass.

use crate::cores::by_all;
use crate::shell::capture;
use crate::tally::{Outcome, count_tests, tail};
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program with tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// Its source, from the package's folder on.
    name: String,
    file: PathBuf,
    /// The package's, where cargo would run it too.
    folder: PathBuf,
}

/// The build alone of a `cargo test`.
pub(crate) fn build(mut cargo: Command) -> Command {
    cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    cargo
}

/// Builds what a `cargo test` names, with its settings, and runs all of it by these arguments.
pub(crate) fn test(cargo: Command, arguments: &[&str]) -> Outcome {
    let mut cargo = build(cargo);
    let said = match capture(&mut cargo) {
        Ok(said) => said,
        Err(why) => return Outcome::Failed(why),
    };
    let settings: Vec<_> = cargo.get_envs().collect();
    let ended = by_all(&programs(&said), |program| {
        let mut command = Command::new(&program.file);
        command.args(arguments).current_dir(&program.folder);
        for (name, value) in &settings {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        run(&program.name, command)
    });
    sum(&ended)
}

/// What cargo says that it has built, by `--message-format json-render-diagnostics`; lines that are no JSON are others'.
pub(crate) fn messages(said: &str) -> impl Iterator<Item = Value> + '_ {
    said.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Those among cargo's messages.
fn programs(said: &str) -> Vec<Program> {
    messages(said).filter_map(|message| program(&message)).collect()
}

fn program(message: &Value) -> Option<Program> {
    let file = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let package = folder.file_name()?.to_string_lossy();
    let name = format!("{package}/{}", source.strip_prefix(folder).unwrap_or(source).display());
    Some(Program { name, file: file.into(), folder: folder.into() })
}

/// What a program has said, and how it ended where it did not succeed.
struct Ended {
    name: String,
    end: Result<(), String>,
    output: String,
}

/// Shows what it says when it has ended, and in one piece: others run meanwhile. Who hangs has begun and not ended.
fn run(name: &str, command: Command) -> Ended {
    println!("-- {name} begins");
    let start = Instant::now();
    let (end, output) =
        heard(command).unwrap_or_else(|why| (Err(format!("it cannot be run: {why}")), String::new()));
    println!("-- {name} ended, {:.1} s:\n{output}", start.elapsed().as_secs_f64());
    Ended { name: name.into(), end, output }
}

/// Both of its outputs, in the order in which they were written.
fn heard(mut command: Command) -> std::io::Result<(Result<(), String>, String)> {
    let (mut ear, mouth) = std::io::pipe()?;
    let mut child = command.stdin(Stdio::null()).stdout(mouth.try_clone()?).stderr(mouth).spawn()?;
    // It holds the writing ends too: the end would never be read.
    drop(command);
    let mut output = Vec::new();
    ear.read_to_end(&mut output)?;
    let status = child.wait()?;
    let end = if status.success() { Ok(()) } else { Err(status.to_string()) };
    Ok((end, String::from_utf8_lossy(&output).into_owned()))
}

fn sum(ended: &[Ended]) -> Outcome {
    let (mut all, mut wrong) = ((0, 0), Vec::new());
    for Ended { name, end, output } in ended {
        let Outcome::Tests { passed, failed, skipped } = count_tests(output) else { continue };
        all = (all.0 + passed, all.1 + skipped);
        // Each test has passed where a report of ThreadSanitizer ends a program so.
        if let Err(why) = end
            && failed.is_empty()
        {
            wrong.push(format!("{name} died: {why}{}", tail(output)));
        }
        wrong.extend(failed);
    }
    match (all, wrong) {
        ((0, _), wrong) if wrong.is_empty() => Outcome::Failed("no test ran".into()),
        ((passed, skipped), failed) => Outcome::Tests { passed, failed, skipped },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let said = r#"{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","profile":{"test":true},"target":{"src_path":"/r/a/tests/b.rs"},"executable":"/t/b-1"}
            {"manifest_path":"/r/a/Cargo.toml","profile":{"test":false},"target":{"src_path":"/r/a/src/main.rs"},"executable":"/t/a"}
            {"manifest_path":"/r/a/Cargo.toml","profile":{"test":true},"target":{"src_path":"/r/a/src/lib.rs"},"executable":null}
            not json"#;
        let expected = Program { name: "a/tests/b.rs".into(), file: "/t/b-1".into(), folder: "/r/a".into() };
        assert_eq!(programs(said), [expected]);
    }

    #[test]
    fn outputs_come_together_and_in_order() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        assert_eq!(heard(shell).unwrap(), (Err("exit status: 3".into()), "one\ntwo\nthree\n".into()));
        let gone = run("gone", Command::new("/there/is/nothing"));
        assert!(gone.end.unwrap_err().contains("cannot be run"));
    }

    fn ended(end: Result<(), &str>, output: &str) -> Ended {
        Ended { name: "a".into(), end: end.map_err(String::from), output: output.into() }
    }

    #[test]
    fn who_died_is_named_with_its_last_words() {
        let well = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured";
        let both = [ended(Ok(()), well), ended(Err("signal: 9"), &format!("{well}\nWARNING: a race\n"))];
        let failed = vec![format!("a died: signal: 9\n  {well}\n  WARNING: a race")];
        assert_eq!(sum(&both), Outcome::Tests { passed: 4, failed, skipped: 2 });
        let died =
            Outcome::Tests { passed: 0, failed: vec!["a died: exit status: 1\n  crash".into()], skipped: 0 };
        assert_eq!(sum(&[ended(Err("exit status: 1"), "crash\n")]), died);
        assert_eq!(sum(&[]), Outcome::Failed("no test ran".into()));
        assert_eq!(sum(&[ended(Ok(()), "")]), Outcome::Failed("no test ran".into()));
    }
}
