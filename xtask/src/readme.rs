//! The README's commands, run as they are written.

use crate::shell::{command, root, run};
use crate::tally::Outcome;

pub(crate) fn check() -> Outcome {
    let text = match std::fs::read_to_string(root().join("README.md")) {
        Ok(text) => text,
        Err(why) => return Outcome::Failed(format!("README.md: {why}")),
    };
    let commands = commands(&text);
    if commands.is_empty() {
        return Outcome::Failed("README.md shows no command in a ```sh block".into());
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

/// The lines of `sh` blocks, continued lines joined. Left out: getting the repository, and `xtask test`, which
/// is what runs this.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found: Vec<String> = Vec::new();
    let mut continued = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside && matches!(line.trim_start_matches('`').trim(), "sh" | "bash");
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
    fn only_shell_blocks_are_commands() {
        let text = "a\n```sh\ngit clone x\ncargo run  # comment\n\ncargo xtask test\nb \\\n  c\n```\n```rust\nlet x;\n```\n```text\ny\n```\n";
        assert_eq!(commands(text), ["cargo run", "b c"]);
    }
}
