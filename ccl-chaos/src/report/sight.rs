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
    let mut text = without_numbers(&without_calls(&failure.text), trial);
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

/// `all_reduce #91 (4096 x float, sum, ring)` becomes `CALL`.
fn without_calls(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(" #") {
        let (before, from) = rest.split_at(at);
        let digits = from[2..].find(|c: char| !c.is_ascii_digit()).map_or(from.len(), |end| end + 2);
        let after = &from[digits..];
        let end = if after.starts_with(" (") { after.find(')').map_or(0, |end| end + 1) } else { 0 };
        result.push_str(&before[..before.rfind(' ').map_or(0, |space| space + 1)]);
        result.push_str("CALL");
        rest = &after[end..];
    }
    result + rest
}

/// Culprits become `R`, lists with other ranks in them `N`, and so do other numbers.
fn without_numbers(text: &str, trial: &Trial) -> String {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | ' ');
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        result.push_str(before);
        let end = from.find(|c| !is_part(c)).unwrap_or(from.len());
        let number = from[..end].trim_end_matches([' ', ',', '.', '-']);
        let is_culprit = number.parse().is_ok_and(|rank| trial.is_culprit(rank));
        result.push(if is_culprit && before.ends_with("rank ") { 'R' } else { 'N' });
        rest = &from[number.len()..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_trial_to_trial_is_left_out() {
        let trial = Trial { culprits: vec![2], ..Trial::draw(1, 1, Some(Kind::Absent)) };
        let text = "rank 2 never entered all_reduce #91 (4096 x float, sum, ring): its last was gather #90, finished \
                    31.5 s ago; ranks 0-1, 3 wait in it; rank 1 too";
        assert_eq!(
            without_numbers(&without_calls(text), &trial),
            "rank R never entered CALL: its last was CALL, finished N s ago; ranks N wait in it; rank N too"
        );
    }
}
