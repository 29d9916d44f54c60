//! What came of a step: JSON for programs, lines for people.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Failures that are told; more are counted.
const TOLD: usize = 12;

/// A step's result, as far as it has come.
pub(crate) struct Outcome {
    step: String,
    file: PathBuf,
    lines: Vec<String>,
    failures: Vec<String>,
    failed: usize,
    data: Map<String, Value>,
}

impl Outcome {
    pub(crate) fn new(step: &str, folder: &Path) -> Outcome {
        let file = folder.join(format!("{step}.json"));
        let fresh = Outcome {
            step: step.into(),
            file,
            lines: Vec::new(),
            failures: Vec::new(),
            failed: 0,
            data: Map::new(),
        };
        fresh.write(false);
        fresh
    }

    /// A line of the table.
    pub(crate) fn say(&mut self, line: String) {
        println!("{}: {line}", self.step);
        self.lines.push(line);
    }

    /// Something that is wrong.
    pub(crate) fn fail(&mut self, why: String) {
        eprintln!("{}: FAILED: {why}", self.step);
        self.failed += 1;
        if self.failures.len() < TOLD {
            self.failures.push(why);
        }
    }

    /// A result. What was found until now is in the file, should the step not come to its end.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.data.insert(name.into(), value);
        self.write(false);
    }

    /// Whether nothing is wrong.
    pub(crate) fn finish(self) -> bool {
        self.write(true) && self.failed == 0
    }

    fn write(&self, is_over: bool) -> bool {
        let ok = is_over && self.failed == 0;
        let all = json!({
            "step": self.step, "ok": ok, "finished": is_over, "lines": self.lines,
            "failed": self.failed, "failures": self.failures, "data": self.data,
        });
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let written =
            std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&self.file, format!("{all:#}\n")));
        if let Err(error) = &written {
            eprintln!("{}: {error}", self.file.display());
        }
        written.is_ok()
    }
}
