//! docs/command.md shows what the command really prints.
//!
//! Each `console` block of the page is run as it stands, in one folder from top to bottom. With `WRITE_MANUAL=1`, as
//! `cargo xtask gen` sets it, the test writes what it got into the page instead of comparing.

use std::path::{Path, PathBuf};
use std::process::Command;

fn manual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command.md")
}

/// What a shell prints for a line, on both of its streams, in an environment without settings.
fn printed(line: &str, folder: &Path) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_rdmaccl")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1; {line}")]).env_clear().env("PATH", path).current_dir(folder);
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
}

/// The page with the output of its commands, and how many there are.
fn rendered(page: &str, folder: &Path) -> (String, usize) {
    let (mut text, mut inside, mut commands) = (String::new(), false, 0);
    for line in page.lines() {
        let fence = line.starts_with("```");
        let command = line.strip_prefix("$ ").filter(|_| inside);
        if !inside || fence || command.is_some() {
            text.push_str(line);
            text.push('\n');
        }
        if let Some(command) = command {
            text.push_str(&printed(command, folder));
            commands += 1;
        }
        inside = if fence { line == "```console" } else { inside };
    }
    (text, commands)
}

#[test]
fn the_manual_shows_what_is_printed() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let page = std::fs::read_to_string(manual()).unwrap();
    let (real, commands) = rendered(&page, &folder);
    assert!(commands >= 8, "{commands} commands");
    if std::env::var_os("WRITE_MANUAL").is_some() {
        std::fs::write(manual(), real).unwrap();
        return;
    }
    for (number, (has, is)) in (1..).zip(page.lines().zip(real.lines())) {
        assert_eq!(has, is, "docs/command.md:{number}; cargo xtask gen writes it");
    }
    assert_eq!(page, real);
}
