//! Whether the verifier sees mistakes: plans with one mistake each, of every class, counted.
//!
//! A mutant of which the proof says the same as of the original is only accepted as harmless where its
//! class allows that, and where an interpreter that shares nothing with the verifier computes the same
//! terms from it in random orders, over several tiles, in place too if the proof says so.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

#[path = "plans/every.rs"]
mod every;
#[path = "plans/mod.rs"]
mod plans;
#[path = "plans/reference.rs"]
mod reference;

use ccl_core::plan::Plan;
use ccl_core::verify::mutate::{Class, Verdict, judge, mutants};
use ccl_core::verify::{Fault, Limits, min_credits, verify};
use every::every_plan;
use std::collections::BTreeMap;

const SEEDS: u64 = 10;
const TILES: usize = 3;

/// Whether the interpreter ends in `wanted` whatever the order.
fn computes(plan: &Plan, credits: u32, in_place: bool, wanted: &reference::Outcome) -> bool {
    (0..SEEDS).all(|seed| reference::run(plan, credits, TILES, seed, in_place) == *wanted)
}

/// What was combined in each chunk, whatever the order.
fn contributions(outcome: &reference::Outcome) -> Vec<Vec<String>> {
    let chunks = outcome.as_ref().expect("it runs").iter().flatten().flatten();
    let sorted = |term: &String| {
        let mut leaves: Vec<_> =
            term.split(['(', '+', ')']).filter(|s| !s.is_empty()).map(String::from).collect();
        leaves.sort_unstable();
        leaves
    };
    chunks.map(sorted).collect()
}

#[derive(Default)]
struct Score {
    made: u64,
    rejected: u64,
    changed: u64,
    harmless: u64,
}

#[test]
fn every_mistake_is_seen() {
    let limits = Limits::default();
    let mut scores = BTreeMap::<Class, Score>::new();
    let mut survived = Vec::new();
    for plan in every_plan(&[3, 4, 5, 6]) {
        let proof = verify(&plan, &limits).unwrap();
        let wanted = reference::run(&plan, limits.credits, TILES, 0, false);
        for class in Class::ALL {
            let score = scores.entry(class).or_default();
            for mutant in mutants(&plan, &limits, class) {
                score.made += 1;
                match judge(&proof, &mutant) {
                    Verdict::Rejected(_) => score.rejected += 1,
                    // Another order of reduction, or no longer in place; still the right contributions.
                    Verdict::Changed(proof) => {
                        let other = reference::run(&mutant.plan, limits.credits, TILES, 0, false);
                        assert_eq!(contributions(&other), contributions(&wanted), "{}", class.name());
                        assert!(computes(&mutant.plan, limits.credits, false, &other));
                        assert!(!proof.in_place || computes(&mutant.plan, limits.credits, true, &other));
                        score.changed += 1;
                    }
                    Verdict::Same
                        if class.may_be_harmless()
                            && computes(&mutant.plan, limits.credits, false, &wanted)
                            && (!proof.in_place || computes(&mutant.plan, limits.credits, true, &wanted)) =>
                    {
                        score.harmless += 1;
                    }
                    Verdict::Same => survived.push(format!(
                        "{} at {:?} of {} by {} on {} ranks",
                        class.name(),
                        mutant.at,
                        plan.spec.collective,
                        plan.algorithm,
                        plan.spec.ranks
                    )),
                }
            }
        }
    }
    println!(
        "{:26} {:>7} {:>9} {:>8} {:>9} {:>7}",
        "mistake", "made", "rejected", "changed", "harmless", "seen"
    );
    let (mut real, mut seen) = (0, 0);
    for (class, score) in &scores {
        let Score { made, rejected, changed, harmless } = score;
        let caught = rejected + changed;
        println!("{:26} {made:>7} {rejected:>9} {changed:>8} {harmless:>9} {caught:>7}", class.name());
        assert!(*made > 0 && caught > 0, "{} was never tried", class.name());
        real += made - harmless;
        seen += caught;
    }
    println!("mutation score: {seen} of {real}");
    assert!(survived.is_empty(), "{} survived:\n{}", survived.len(), survived.join("\n"));
    assert_eq!(seen, real);
}

#[test]
fn proofs_hold_in_the_interpreter() {
    for plan in every_plan(&[2, 3, 6, 7]) {
        let limits = Limits::default();
        let (proof, least) = (verify(&plan, &limits).unwrap(), min_credits(&plan, &limits).unwrap());
        let what = format!("{} by {}, {}", plan.spec.collective, plan.algorithm, plan.spec.ranks);
        let wanted = reference::run(&plan, least, TILES, 0, false);
        assert!(wanted.is_ok(), "{what}: {wanted:?}");
        assert!(computes(&plan, least, false, &wanted), "{what}: with {least} credits");
        assert!(!proof.in_place || computes(&plan, least, true, &wanted), "{what}: in place");
        if least > 1 {
            let stuck = reference::run(&plan, least - 1, TILES, 0, false);
            assert_eq!(stuck, Err("stuck".into()), "{what}: with {} credits", least - 1);
            let fault = verify(&plan, &Limits { credits: least - 1, ..limits }).unwrap_err();
            assert!(matches!(fault, Fault::Deadlock { .. }), "{what}: {fault}");
        }
    }
}
