//! What came out, for people and as JSON.

use serde_json::{Map, Value, json};
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

/// All outcomes so far.
#[derive(Default)]
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
}

impl Report {
    /// Keeps it, and says it at once.
    pub(crate) fn add(&mut self, outcome: Outcome) {
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
    }

    /// The whole of it.
    pub(crate) fn json(&self) -> String {
        let scenarios: Vec<_> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let Outcome { name, proves, took, result, values } = outcome;
                json!({
                    "name": name,
                    "proves": proves,
                    "seconds": took.as_millis() as f64 / 1000.0,
                    "error": result.as_ref().err(),
                    "values": values,
                })
            })
            .collect();
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        format!("{:#}\n", json!({ "kernel": kernel, "scenarios": scenarios }))
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
        let mut report = Report::default();
        report.add(outcome(Ok(())));
        assert!(report.close());
        report.add(outcome(Err("why".into())));
        assert!(!report.close());
        let written: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(written["scenarios"][0]["error"], Value::Null);
        assert_eq!(written["scenarios"][1]["error"], "why");
        assert_eq!(written["scenarios"][1]["values"]["mib_per_second"], 1.5);
    }
}
