//! Per kind of fault: how many trials, what came of them, and how long it took.

use crate::fault::Kind;
use crate::judge::{Class, Judgement};
use crate::trial::Trial;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Table {
    rows: BTreeMap<Kind, Row>,
}

#[derive(Default)]
struct Row {
    trials: u64,
    good: u64,
    delays: Vec<Duration>,
    hangs: u64,
    wrong: u64,
    leaks: u64,
    shrink_ms: u64,
    destroy_ms: u64,
}

impl Table {
    pub(super) fn add(&mut self, trial: &Trial, judgement: &Judgement) {
        let row = self.rows.entry(trial.kind).or_default();
        let has = |class| u64::from(judgement.complaints.iter().any(|complaint| complaint.class == class));
        row.trials += 1;
        row.good += u64::from(judgement.complaints.is_empty());
        row.hangs += has(Class::Hang);
        row.wrong += has(Class::Wrong);
        row.leaks += has(Class::Leak);
        row.shrink_ms = row.shrink_ms.max(judgement.shrink_ms);
        row.destroy_ms = row.destroy_ms.max(judgement.destroy_ms);
        row.delays.extend_from_slice(&judgement.delays);
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|(kind, row)| {
            let ms = |part| row.quantile(part).map(|delay| delay.as_secs_f64() * 1e3);
            serde_json::json!({
                "kind": kind.name(),
                "trials": row.trials,
                "right": row.good,
                "errors": row.delays.len(),
                "ms_p50": ms(0.5),
                "ms_p99": ms(0.99),
                "ms_max": ms(1.0),
                "shrink_ms_max": row.shrink_ms,
                "destroy_ms_max": row.destroy_ms,
            })
        });
        rows.collect()
    }
}

impl Row {
    fn quantile(&self, part: f64) -> Option<Duration> {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        let last = delays.len().checked_sub(1)?;
        Some(delays[(last as f64 * part).ceil() as usize])
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| fault | trials | right | hangs | wrong | leaks | errors | p50 ms | p99 ms | max ms | shrink | destroy |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for (kind, row) in &self.rows {
            let ms = |part| {
                row.quantile(part).map_or_else(String::new, |d| format!("{:.1}", d.as_secs_f64() * 1e3))
            };
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                kind.name(),
                row.trials,
                row.good,
                row.hangs,
                row.wrong,
                row.leaks,
                row.delays.len(),
                ms(0.5),
                ms(0.99),
                ms(1.0),
                row.shrink_ms,
                row.destroy_ms
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_measured() {
        let delays = (1..=101).rev().map(Duration::from_millis).collect();
        let row = Row { delays, ..Row::default() };
        let ms = |part| row.quantile(part).unwrap().as_millis();
        assert_eq!((ms(0.5), ms(0.99), ms(1.0)), (51, 100, 101));
        assert_eq!(Row::default().quantile(0.5), None);
    }
}
