//! What the ranks see of each fault: the table of `docs/failures.md`, from the errors of real trials.

use super::most_first;
use crate::event::{Case, Failure};
use crate::fault::{Kind, Outcome};
use crate::runner::Record;
use crate::trial::Trial;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Characters of an error's text.
const LONGEST: usize = 110;
/// Different texts of a cell.
const MOST: usize = 2;

/// What was seen, and how often.
#[derive(Default)]
pub(super) struct Sights(BTreeMap<Kind, Seen>);

#[derive(Default)]
struct Seen {
    others: BTreeMap<String, u64>,
    culprits: BTreeMap<String, u64>,
}

impl Sights {
    pub(super) fn add(&mut self, trial: &Trial, record: &Record) {
        let seen = self.0.entry(trial.kind).or_default();
        for (rank, of_rank) in (0..).zip(&record.ranks) {
            let Some(failure) = of_rank.failures().next() else { continue };
            let is_culprit = trial.is_culprit(rank);
            // What a rank sees that another survivor has left on is another fault.
            if !is_culprit && failure.accused.iter().any(|who| !trial.is_culprit(*who)) {
                continue;
            }
            let side = if is_culprit { &mut seen.culprits } else { &mut seen.others };
            *side.entry(words(failure, trial)).or_default() += 1;
        }
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = String::from("| fault | what the other ranks see | what the rank itself sees |\n");
        text.push_str("| --- | --- | --- |\n");
        for (kind, seen) in &self.0 {
            let cell = |texts: &BTreeMap<String, u64>, none: &str| {
                let texts = most_first(texts).into_iter().take(MOST).map(|(text, _)| text);
                let texts: Vec<_> = texts.collect();
                if texts.is_empty() { none.to_string() } else { texts.join("<br>") }
            };
            let none = if kind.outcome() == Outcome::Right { "right results" } else { "" };
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                kind.names().1,
                cell(&seen.others, if none.is_empty() { "they end in order" } else { none }),
                cell(&seen.culprits, none)
            );
        }
        text
    }
}

/// An error's first words, with letters for what differs from trial to trial.
fn words(failure: &Failure, trial: &Trial) -> String {
    let mut text = String::new();
    let mut rest = failure.text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(from.len());
        let number = from[..end].trim_end_matches('.');
        text.push_str(before);
        let culprit = number.parse().is_ok_and(|rank| trial.is_culprit(rank));
        text.push_str(if culprit && before.ends_with("rank ") { "R" } else { "N" });
        rest = &from[number.len()..];
    }
    text.push_str(rest);
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).collect();
        text.truncate(text.rfind(' ').unwrap_or(text.len()));
        text.push_str(" …");
    }
    let case = match failure.case {
        Case::Absent | Case::Silent | Case::Disagreement | Case::Stuck | Case::Unclear => "verdict: ",
        _ => "",
    };
    format!("{case}`{}`", text.replace('|', "\\|").replace('`', "'"))
}
