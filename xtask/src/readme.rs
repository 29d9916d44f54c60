//! The README's commands, run as they are written.

use crate::shell::{command, root, run};
use crate::tally::Outcome;
use std::process::Command;

pub(crate) fn check() -> Outcome {
    let commands = match commands_of("sh") {
        Ok(commands) => commands,
        Err(why) => return Outcome::Failed(why),
    };
    if commands.is_empty() {
        return Outcome::Failed("README.md shows no command in a ```sh block".into());
    }
    if let Some(mut build) = build_of(&commands)
        && let Err(why) = run(&mut build)
    {
        return Outcome::Failed(why);
    }
    for line in &commands {
        let mut shell = command("sh -e -c");
        if let Err(why) = run(shell.arg(line)) {
            return Outcome::Failed(why);
        }
    }
    println!("{} commands of the README run", commands.len());
    Outcome::tests(commands.len() as u64, Vec::new())
}

/// Builds the programs that the README's commands run, if there are such.
pub(crate) fn build() -> Option<Command> {
    build_of(&commands_of("sh").ok()?)
}

/// All at once, where the commands would build one after the other: optimising one takes a core for most of a minute.
fn build_of(commands: &[String]) -> Option<Command> {
    let programs = programs(commands);
    if programs.is_empty() {
        return None;
    }
    let mut build = command("cargo build --release --locked");
    build.args(programs);
    Some(build)
}

/// The programs that `cargo run --release` is told to run, as options of cargo.
fn programs(commands: &[String]) -> Vec<&str> {
    let mut programs = Vec::new();
    for words in commands.iter().filter_map(|line| line.strip_prefix("cargo run --release --bin ")) {
        let name = words.split_whitespace().next().unwrap_or_default();
        if !programs.contains(&name) {
            programs.extend(["--bin", name]);
        }
    }
    programs
}

/// The commands of the README's blocks with this word behind the fence: `sh` blocks are run by this check, `shell` ones,
/// which need PyTorch, by another.
pub(crate) fn commands_of(fence: &str) -> Result<Vec<String>, String> {
    let text =
        std::fs::read_to_string(root().join("README.md")).map_err(|why| format!("README.md: {why}"))?;
    Ok(commands(&text, fence))
}

/// The lines of the blocks, continued lines joined. Left out: getting the repository, and `xtask test`, which
/// is what runs this.
fn commands(text: &str, fence: &str) -> Vec<String> {
    let mut inside = false;
    let mut found: Vec<String> = Vec::new();
    let mut continued = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside && line.trim_start_matches('`').trim() == fence;
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default().trim();
        if !inside || line.is_empty() || line.starts_with('#') {
            continue;
        }
        let part = line.trim_end_matches('\\').trim();
        match found.last_mut() {
            Some(last) if continued => *last = format!("{last} {part}"),
            _ => found.push(part.to_string()),
        }
        continued = line.ends_with('\\');
    }
    found.retain(|line| {
        !line.starts_with("git clone") && !line.starts_with("cd ") && !line.contains("xtask test")
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_built_once() {
        let commands = [
            "cargo run --release --bin a -- -b 8",
            "sh x",
            "cargo run --release --bin b",
            "cargo run --release --bin a",
        ];
        assert_eq!(programs(&commands.map(String::from)), ["--bin", "a", "--bin", "b"]);
    }

    #[test]
    fn only_blocks_of_the_fence_are_commands() {
        let text = "a\n```sh\ngit clone x\ncargo run  # comment\n\ncargo xtask test\nb \\\n  c\n```\n```rust\nlet x;\n```\n```text\ny\n```\n```shell\nz\n```\n";
        assert_eq!(commands(text, "sh"), ["cargo run", "b c"]);
        assert_eq!(commands(text, "shell"), ["z"]);
    }
}
