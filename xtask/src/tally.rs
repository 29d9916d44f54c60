//! What came out of the checks, counted.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

/// What came out of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// How many tests passed and were left out; each that failed, in words.
    Tests { passed: u64, failed: Vec<String>, skipped: u64 },
    /// The check as a whole is wrong.
    Failed(String),
    /// The check could not run.
    Skipped(String),
}

impl Outcome {
    pub(crate) fn of(result: Result<(), String>) -> Outcome {
        result.map_or_else(Outcome::Failed, |()| Outcome::tests(1, Vec::new()))
    }

    pub(crate) fn tests(passed: u64, failed: Vec<String>) -> Outcome {
        Outcome::Tests { passed, failed, skipped: 0 }
    }

    /// All of it has run, and passed.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self, Outcome::Tests { failed, skipped: 0, .. } if failed.is_empty())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Tests { passed, failed, skipped } => {
                write!(f, "{passed} passed, {} failed, {skipped} skipped", failed.len())?;
                failed.iter().try_for_each(|why| write!(f, "\n{why}"))
            }
            Outcome::Failed(why) => write!(f, "FAILED: {why}"),
            Outcome::Skipped(why) => write!(f, "SKIPPED: {why}"),
        }
    }
}

/// The sum over all checks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    remarks: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, check: &str, outcome: Outcome, no_skip: bool) {
        let (passed, mut failed, mut skipped) = match &outcome {
            Outcome::Tests { passed, failed, skipped } => (*passed, failed.len() as u64, *skipped),
            Outcome::Failed(_) => (0, 1, 0),
            Outcome::Skipped(_) => (0, 0, 1),
        };
        if failed + skipped > 0 {
            self.remarks.push(format!("{check}: {outcome}"));
        }
        if no_skip {
            failed += std::mem::take(&mut skipped);
        }
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Prints what was not right, and the closing line.
    pub(crate) fn close(&self) -> ExitCode {
        for remark in &self.remarks {
            println!("{remark}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Adds up the `test result:` lines of the test harness; those that failed with what they said.
pub(crate) fn count_tests(output: &str) -> Outcome {
    let (mut passed, mut skipped) = (0, 0);
    for line in output.lines().filter(|line| line.starts_with("test result:")) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(kind)) = (words.next().and_then(|w| w.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match kind {
                "passed" => passed += number,
                "ignored" => skipped += number,
                _ => {}
            }
        }
    }
    Outcome::Tests { passed, failed: failed_tests(output), skipped }
}

/// The harness ends a test program with all that those which failed have said, each under a header, and a list of their names.
fn failed_tests(output: &str) -> Vec<String> {
    let mut said: BTreeMap<&str, String> = BTreeMap::new();
    let (mut names, mut listing, mut speaker) = (Vec::new(), false, None);
    for line in output.lines() {
        let header = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if header.is_some() {
            speaker = header;
        } else if line == "failures:" {
            (listing, speaker) = (true, None);
        } else if let Some(name) = line.strip_prefix("    ").filter(|_| listing) {
            names.push(format!("{name}{}", said.remove(name).unwrap_or_default()));
        } else {
            listing = false;
            if let Some(name) = speaker.filter(|_| !line.is_empty()) {
                said.entry(name).or_default().push_str(&format!("\n  {line}"));
            }
        }
    }
    names
}

/// The last of what a program has said, each line on a line of its own.
pub(crate) fn tail(output: &str) -> String {
    const LINES: usize = 80;
    let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_programs_add_up() {
        let output = "running 2 tests\ntest result: ok. 28 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; \
                      finished in 0.39s\nnoise 7 passed\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nthread 'a' \
                      panicked at x.rs:1:\n    not so\n\nfailures:\n    a\n    b\n\n\
                      test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured";
        let failed = vec!["a\n  thread 'a' panicked at x.rs:1:\n      not so".to_string(), "b".to_string()];
        assert_eq!(count_tests(output), Outcome::Tests { passed: 30, failed, skipped: 1 });
    }

    #[test]
    fn the_last_lines_are_kept() {
        let said: String = (0..100).map(|n| format!("{n}\n\n")).collect();
        assert!(tail(&said).starts_with("\n  20\n  21\n") && tail(&said).ends_with("\n  99"));
        assert_eq!(tail(""), "");
    }

    #[test]
    fn a_skip_is_a_failure_where_skipping_is_forbidden() {
        for (no_skip, failed, skipped) in [(false, 0, 1), (true, 1, 0)] {
            let mut tally = Tally::default();
            tally.add("x", Outcome::Skipped("no valgrind".into()), no_skip);
            assert_eq!((tally.failed, tally.skipped, tally.remarks.len()), (failed, skipped, 1));
        }
    }
}
