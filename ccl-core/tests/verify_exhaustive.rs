//! Every algorithm, collective, number of ranks and root: the verifier proves them all.
//!
//! Complete for n = 1 … 64 (all roots up to 16 ranks, four of them beyond), then samples up to 1024. What knows of hosts also
//! for all numbers of hosts that divide up to 64 ranks, with all roots.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

use ccl_core::algorithms::{self, Algorithm, Hierarchical};
use ccl_core::plan::{Collective, Placement, Rank};
use ccl_core::verify::{Limits, verify};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One plan to prove.
struct Case {
    algorithm: &'static dyn Algorithm,
    collective: Collective,
    placement: Placement,
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
                let placement = Placement::one_host(ranks);
                if algorithm.parts(collective, placement).is_some() {
                    for root in roots(collective, ranks) {
                        cases.push(Case { algorithm, collective, placement, root });
                    }
                }
            }
        }
    }
    cases
}

/// Those whose plans differ from those on one host, with all roots.
fn cases_on_hosts(sizes: impl Iterator<Item = u32>) -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in sizes {
        for placement in (2..ranks).filter_map(|hosts| Placement::even(ranks, hosts)) {
            for collective in Collective::ALL {
                if Hierarchical.parts(collective, placement).is_some() {
                    let roots = if collective.rooted() { ranks } else { 1 };
                    cases.extend((0..roots).map(|root| Case {
                        algorithm: &Hierarchical,
                        collective,
                        placement,
                        root,
                    }));
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
                    let Case { algorithm, collective, placement, root } = *case;
                    let plan = algorithms::plan(algorithm, collective, placement, root).unwrap();
                    match verify(&plan, &Limits::default()) {
                        Ok(proof) => {
                            let mut counts = counts.lock().unwrap();
                            let count = counts.entry(algorithm.name()).or_default();
                            count.0 += 1;
                            count.1 += proof.moves;
                        }
                        Err(fault) => rejected.lock().unwrap().push(format!(
                            "{} {collective} {placement:?} root={root}: {fault}",
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

/// The largest sample. Builds with debug assertions, which take several times as long, leave those beyond to `cargo xtask
/// proofs`, a check of its own.
const LARGEST: u32 = if cfg!(debug_assertions) { 256 } else { 1024 };

fn assert_none(rejected: Vec<String>) {
    let shown: Vec<_> = rejected.iter().take(20).map(String::as_str).collect();
    assert!(rejected.is_empty(), "{} plans rejected:\n{}", rejected.len(), shown.join("\n"));
}

#[test]
fn all_up_to_64_ranks() {
    assert_none(prove("n = 1..=64", &cases(1..=64)));
}

#[test]
fn all_numbers_of_hosts_up_to_64_ranks() {
    let cases = cases_on_hosts(4..=64);
    assert!(cases.len() > 5000, "{}", cases.len());
    assert_none(prove("hosts x locals <= 64", &cases));
}

#[test]
fn samples_on_hosts_up_to_1024_ranks() {
    let mut large = cases_on_hosts([96, 1024].into_iter().filter(|ranks| *ranks <= LARGEST));
    large.retain(|case| case.root == case.placement.ranks / 2 || !case.collective.rooted());
    large.retain(|case| [3, 8, 128].contains(&case.placement.hosts));
    assert_none(prove("samples on hosts", &large));
}

#[test]
fn samples_up_to_1024_ranks() {
    let sizes = [65, 96, 127, 128, 129, 255, 256, 512, 1000, 1024];
    let mut large = cases(sizes.into_iter().filter(|ranks| *ranks <= LARGEST));
    // Roots differ by a renumbering of the ranks, which the complete run covers.
    large.retain(|case| {
        case.root == 0 || case.root == case.placement.ranks - 1 && case.placement.ranks <= 256
    });
    assert_none(prove("samples", &large));
}
