//! Every algorithm, collective, number of ranks and root: the verifier proves them all.
//!
//! Complete for n = 1 … 64 (all roots up to 16 ranks, four of them beyond), then samples up to 1024.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

use ccl_core::algorithms::{self, Algorithm};
use ccl_core::plan::{Collective, Rank};
use ccl_core::verify::{Limits, verify};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One plan to prove.
struct Case {
    algorithm: &'static dyn Algorithm,
    collective: Collective,
    ranks: u32,
    root: Rank,
}

fn roots(collective: Collective, ranks: u32) -> Vec<Rank> {
    if !collective.rooted() {
        return vec![0];
    }
    if ranks <= 16 {
        return (0..ranks).collect();
    }
    vec![0, 1, ranks / 2, ranks - 1]
}

fn cases(sizes: impl Iterator<Item = u32>) -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in sizes {
        for &algorithm in algorithms::all() {
            for collective in Collective::ALL {
                if algorithm.parts(collective, ranks).is_some() {
                    for root in roots(collective, ranks) {
                        cases.push(Case { algorithm, collective, ranks, root });
                    }
                }
            }
        }
    }
    cases
}

/// Proves them on two threads, prints how many per algorithm, and returns what was rejected.
fn prove(what: &str, cases: &[Case]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let rejected = Mutex::new(Vec::new());
    let counts = Mutex::new(BTreeMap::<&str, (u64, u64)>::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // The big ones first, so that the threads end together.
                while let Some(case) = cases.iter().rev().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let Case { algorithm, collective, ranks, root } = *case;
                    let plan = algorithms::plan(algorithm, collective, ranks, root).unwrap();
                    match verify(&plan, &Limits::default()) {
                        Ok(proof) => {
                            let mut counts = counts.lock().unwrap();
                            let count = counts.entry(algorithm.name()).or_default();
                            count.0 += 1;
                            count.1 += proof.moves;
                        }
                        Err(fault) => rejected.lock().unwrap().push(format!(
                            "{} {collective} n={ranks} root={root}: {fault}",
                            algorithm.name()
                        )),
                    }
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    for (name, (plans, moves)) in &counts {
        println!("{what}: {name}: {plans} plans, {moves} moves");
    }
    let proved: u64 = counts.values().map(|count| count.0).sum();
    println!("{what}: {proved} of {} plans proved", cases.len());
    rejected.into_inner().unwrap()
}

fn assert_none(rejected: Vec<String>) {
    let shown: Vec<_> = rejected.iter().take(20).map(String::as_str).collect();
    assert!(rejected.is_empty(), "{} plans rejected:\n{}", rejected.len(), shown.join("\n"));
}

#[test]
fn all_up_to_64_ranks() {
    assert_none(prove("n = 1..=64", &cases(1..=64)));
}

#[test]
fn samples_up_to_1024_ranks() {
    let sizes = [65, 96, 127, 128, 129, 255, 256, 512, 1000, 1024];
    let mut large = cases(sizes.into_iter());
    // Roots differ by a renumbering of the ranks, which the complete run covers.
    large.retain(|case| case.root == 0 || case.root == case.ranks - 1 && case.ranks <= 256);
    assert_none(prove("samples", &large));
}
