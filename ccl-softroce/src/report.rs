//! What came out, for people and as JSON.

use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// What came out of one scenario.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) proves: &'static str,
    pub(crate) took: Duration,
    pub(crate) result: Result<(), String>,
    /// What was measured, by name with its unit.
    pub(crate) values: Map<String, Value>,
}

impl Outcome {
    /// As a line.
    fn json(&self) -> String {
        let Outcome { name, proves, took, result, values } = self;
        let line = json!({
            "name": name,
            "kernel": rustix::system::uname().release().to_string_lossy(),
            "proves": proves,
            "seconds": took.as_millis() as f64 / 1000.0,
            "error": result.as_ref().err(),
            "values": values,
        });
        format!("{line}\n")
    }
}

/// All outcomes so far.
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
    /// Gets a line for each as it comes: what has ended is known whatever becomes of the rest.
    file: Option<File>,
}

impl Report {
    /// Of nothing so far; lines are appended to the file, if there is one.
    pub(crate) fn new(file: Option<&Path>) -> Result<Report, String> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map_err(|e| format!("{}: {e}", path.display()))
        };
        Ok(Report { outcomes: Vec::new(), file: file.map(open).transpose()? })
    }

    /// Keeps it, and says it at once.
    pub(crate) fn add(&mut self, outcome: Outcome) -> Result<(), String> {
        if let Some(file) = &mut self.file {
            file.write_all(outcome.json().as_bytes()).map_err(|e| format!("cannot write the report: {e}"))?;
        }
        let Outcome { name, proves, took, result, values } = &outcome;
        let seconds = took.as_secs_f64();
        match result {
            Ok(()) => println!("ok      {seconds:5.1} s  {name}: {proves}"),
            Err(why) => println!("FAILED  {seconds:5.1} s  {name}: {proves}\n{why}"),
        }
        for (value, number) in values {
            println!("        {value}: {number}");
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Prints the sum; whether all was right.
    pub(crate) fn close(&self) -> bool {
        let failed: Vec<_> = self.outcomes.iter().filter(|o| o.result.is_err()).map(|o| o.name).collect();
        let seconds: f64 = self.outcomes.iter().map(|o| o.took.as_secs_f64()).sum();
        println!(
            "{} scenarios, {} failed, {seconds:.1} s {}",
            self.outcomes.len(),
            failed.len(),
            failed.join(" ")
        );
        failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(result: Result<(), String>) -> Outcome {
        let values = [("mib_per_second".to_string(), json!(1.5))].into_iter().collect();
        Outcome { name: "one", proves: "that", took: Duration::from_millis(1500), result, values }
    }

    #[test]
    fn a_failure_is_in_the_sum_and_in_the_file() {
        let file = std::env::temp_dir().join(format!("rdmaccl-report-{}", std::process::id()));
        let written = || -> Vec<Value> {
            let text = std::fs::read_to_string(&file).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let mut report = Report::new(Some(&file)).unwrap();
        report.add(outcome(Ok(()))).unwrap();
        assert!(report.close());
        assert_eq!(written().len(), 1);
        drop(report);
        // A second one goes on where the first has stopped.
        let mut report = Report::new(Some(&file)).unwrap();
        report.add(outcome(Err("why".into()))).unwrap();
        assert!(!report.close());
        let written = written();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(written[0]["error"], Value::Null);
        assert_eq!(written[1]["error"], "why");
        assert_eq!(written[1]["values"]["mib_per_second"], 1.5);
    }
}
