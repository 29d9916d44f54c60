//! Faults in real processes: builds `ccl-chaos` and runs it.

use crate::shell::{command, run, target};
use crate::tally::Outcome;
use serde_json::Value;
use std::process::Command;

/// What every run of the tests does, in less than a minute: most of each trial is waiting, so there are twice as many at a time as by default.
const PART: &str = "--seed 1 --faults 500 --jobs 4";

/// `cargo xtask chaos` with options of its own.
pub(crate) fn with(options: &[String]) -> Result<(), String> {
    run(program()?.args(options))
}

pub(crate) fn check() -> Outcome {
    match part() {
        Ok(outcome) => outcome,
        Err(why) => Outcome::Failed(why),
    }
}

fn part() -> Result<Outcome, String> {
    let file = target().join("chaos.json");
    let _ = std::fs::remove_file(&file);
    let ran = run(program()?.args(PART.split(' ')).arg("--json").arg(&file));
    let text = std::fs::read(&file).map_err(|e| ran.err().unwrap_or(format!("{}: {e}", file.display())))?;
    let outcome: Value = serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let (Some(trials), Some(wrong)) = (outcome["trials"].as_u64(), outcome["failed"].as_array()) else {
        return Err(format!("{}: no count of trials", file.display()));
    };
    let failed: Vec<String> = wrong.iter().map(in_words).collect();
    Ok(Outcome::tests(trials - failed.len() as u64, failed))
}

fn in_words(trial: &Value) -> String {
    format!(
        "trial {}, {} of {} ranks: {}; again: {}",
        trial["number"], trial["kind"], trial["ranks"], trial["complaints"], trial["again"]
    )
}

fn program() -> Result<Command, String> {
    run(&mut command("cargo build --profile fast --locked --workspace --bin ccl-chaos"))?;
    Ok(command(&target().join("fast/ccl-chaos").to_string_lossy()))
}
