use super::*;
use crate::plan::{Link, Sink, Source};
use crate::verify::{Limits, min_credits, verify};
use std::collections::{HashMap, VecDeque};

/// The longest row of messages of a plan that wait for each other, however many credits there are.
fn longest_row(plan: &Plan) -> u32 {
    longest(plan, |_, _| true)
}

/// The most messages in such a row that `counts` finds to count, by their sender and receiver.
fn longest(plan: &Plan, counts: impl Fn(Rank, Rank) -> bool) -> u32 {
    let mut links: HashMap<(Rank, Rank, u16), VecDeque<u32>> = HashMap::new();
    let mut lanes = Vec::new();
    for (rank, program) in (0..).zip(&plan.programs) {
        lanes.extend(program.lanes.iter().map(|lane| (rank, &lane.moves[..], 0)));
    }
    let mut longest = 0;
    loop {
        let mut moved = false;
        for (rank, moves, depth) in &mut lanes {
            let arrived = |s: &Source| match s {
                Source::Link(Link { peer, channel }) => {
                    links.get(&(*peer, *rank, *channel)).is_some_and(|queue| !queue.is_empty())
                }
                _ => true,
            };
            let Some((next, rest)) = moves.split_first().filter(|(m, _)| m.from.iter().all(arrived)) else {
                continue;
            };
            for source in &next.from {
                if let Source::Link(Link { peer, channel }) = source {
                    let queue = links.get_mut(&(*peer, *rank, *channel)).unwrap();
                    *depth = queue.pop_front().unwrap().max(*depth);
                }
            }
            for sink in &next.into {
                if let Sink::Links(to) = sink {
                    for peer in &to.peers {
                        let depth = *depth + u32::from(counts(*rank, *peer));
                        links.entry((*rank, *peer, to.channel)).or_default().push_back(depth);
                    }
                }
            }
            longest = longest.max(*depth);
            (*moves, moved) = (rest, true);
        }
        if !moved {
            assert!(lanes.iter().all(|(_, moves, _)| moves.is_empty()), "{} is stuck", plan.algorithm);
            return longest;
        }
    }
}

/// Everything that is offered for these numbers of ranks, on one host and on several, with a root in the middle.
fn plans(sizes: impl IntoIterator<Item = u32>) -> Vec<(&'static dyn Algorithm, Plan)> {
    let mut plans = Vec::new();
    for ranks in sizes {
        for &algorithm in all() {
            let fits = Collective::ALL.into_iter();
            let root = |c: Collective| if c.rooted() { ranks / 3 } else { 0 };
            plans.extend(
                fits.filter_map(|c| plan(algorithm, c, ranks, root(c))).map(|plan| (algorithm, plan)),
            );
        }
        // The others know nothing of hosts.
        for placement in (2..ranks).filter_map(|hosts| Placement::even(ranks, hosts)) {
            let root = |c: Collective| if c.rooted() { ranks / 3 } else { 0 };
            plans.extend(Collective::ALL.into_iter().filter_map(|c| {
                plan(&Hierarchical, c, placement, root(c)).map(|plan| (&Hierarchical as &dyn Algorithm, plan))
            }));
        }
    }
    plans
}

#[test]
fn every_collective_has_algorithms_and_names_differ() {
    for collective in Collective::ALL {
        for ranks in [1, 2, 3, 1000] {
            assert!(
                all().iter().any(|a| a.parts(collective, ranks.into()).is_some()),
                "{collective} n={ranks}"
            );
        }
    }
    for algorithm in all() {
        let found = by_name(algorithm.name()).expect("its own name");
        assert!(std::ptr::addr_eq(found, *algorithm), "two algorithms are called {}", algorithm.name());
    }
    assert!(by_name("rings").is_none());
}

#[test]
fn half_of_the_default_credits_is_enough_and_all_work_in_place_with_equal_bits() {
    for (algorithm, plan) in plans(1..=32) {
        let what = format!("{} {} n={}", plan.algorithm, plan.spec.collective, plan.spec.ranks);
        let credits =
            min_credits(&plan, &Limits::default()).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        assert!(credits <= 4, "{what} needs {credits} credits");
        let proof = verify(&plan, &Limits::default()).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        assert_eq!(
            proof.in_place,
            algorithm.in_place_safe(plan.spec.collective, plan.spec.placement()),
            "{what}"
        );
        assert!(proof.order.same_on_every_rank, "{what}");
    }
}

#[test]
fn direct_reductions_have_the_bits_of_a_serial_loop() {
    for (_, plan) in plans(2..=16) {
        if matches!(plan.algorithm.as_str(), "oneshot" | "twoshot") {
            let proof = verify(&plan, &Limits::default()).unwrap();
            assert!(proof.order.rank_order, "{} {}", plan.algorithm, plan.spec.collective);
        }
    }
}

#[test]
fn declared_depth_is_near_that_of_the_plan() {
    for (algorithm, plan) in plans((1..=40).chain([63, 64, 65, 100])) {
        let row = longest_row(&plan);
        let declared = algorithm.depth(plan.spec.collective, plan.spec.placement());
        let what = format!("{} {} n={}", plan.algorithm, plan.spec.collective, plan.spec.ranks);
        assert!(declared.abs_diff(row) <= 2 + row / 3, "{what}: declared {declared}, found {row}");
        assert_eq!(declared == 0, row == 0, "{what}");
    }
}

#[test]
fn declared_crossings_are_near_those_of_the_plan() {
    for (ranks, hosts) in
        [(4, 2), (6, 2), (8, 2), (8, 4), (12, 3), (16, 4), (32, 4), (32, 8), (8, 8), (64, 8)]
    {
        let placement = Placement::even(ranks, hosts).unwrap();
        for &algorithm in all() {
            for collective in Collective::ALL {
                let Some(plan) = plan(algorithm, collective, placement, 0) else { continue };
                let row = longest(&plan, |from, to| placement.are_apart(from, to));
                let declared = algorithm.crossings(collective, placement);
                let what = format!("{} {collective} n={ranks} on {hosts} hosts", plan.algorithm);
                assert!(declared.abs_diff(row) <= 2 + row / 3, "{what}: declared {declared}, found {row}");
                assert!(
                    1 <= declared && declared <= algorithm.depth(collective, placement),
                    "{what}: {declared}"
                );
            }
        }
    }
}

#[test]
fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
    for ranks in 2..200 {
        let spec = Spec::new(Collective::Broadcast, ranks, 0, 2);
        let inner = |rank: Rank| {
            let sends = |m: &crate::plan::Move| m.into.iter().any(|s| matches!(s, Sink::Links(_)));
            Tree.program(&spec, rank).lanes.iter().filter(|lane| lane.moves.iter().any(sends)).count()
        };
        assert!((1..ranks).all(|rank| inner(rank) <= 1), "n={ranks}");
    }
}

#[test]
fn programs_laid_side_by_side_are_plans_for_more_parts() {
    for (_, plan) in plans([1, 2, 5, 8]) {
        for copies in [1, 2, 3] {
            let wide = widen_plan(&plan, copies);
            let what =
                format!("{} {} n={} x {copies}", plan.algorithm, plan.spec.collective, plan.spec.ranks);
            assert_eq!(wide.spec.parts, plan.spec.parts * u32::from(copies), "{what}");
            let proof = verify(&wide, &Limits::default()).unwrap_or_else(|fault| panic!("{what}: {fault}"));
            let narrow = verify(&plan, &Limits::default()).unwrap();
            assert_eq!(proof.messages, narrow.messages * u64::from(copies), "{what}");
            assert!(proof.in_place, "{what}");
        }
    }
}

#[test]
fn a_program_is_short_for_a_thousand_ranks() {
    for &algorithm in all() {
        for collective in Collective::ALL {
            let Some(parts) = algorithm.parts(collective, 1000.into()) else { continue };
            let spec = Spec::new(collective, 1000, 0, parts);
            for rank in [0, 1, 999] {
                let moves: usize = algorithm.program(&spec, rank).lanes.iter().map(|l| l.moves.len()).sum();
                let most = if algorithm.name() == "bruck" { 8000 } else { 2200 };
                assert!(moves <= most, "{} {collective}: {moves} moves", algorithm.name());
            }
        }
    }
}
