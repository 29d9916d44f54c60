//! Whether what the verifier lets travel by reference arrives as it was sent: an interpreter that shares nothing with
//! it lets every such message be read as late as its receiver comes to it.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

#[path = "plans/mod.rs"]
mod plans;
#[path = "plans/reference.rs"]
mod reference;

use ccl_core::algorithms::{self, Hierarchical};
use ccl_core::plan::{
    Collective, Lane, Link, Links, Move, Placement, Plan, Program, Referent, Sink, Source, Spec,
};
use ccl_core::verify::mutate::{Class, mutants};
use ccl_core::verify::{Limits, MayRefer, References, verify_references};

const TILES: usize = 2;

fn every_plan(sizes: &[u32]) -> Vec<Plan> {
    let mut all = Vec::new();
    for &n in sizes {
        all.extend([plans::ring(n), plans::one_shot(n), plans::tree(n)]);
        for &algorithm in algorithms::all() {
            for collective in Collective::ALL {
                let root = if collective.rooted() { n - 1 } else { 0 };
                all.extend(algorithms::plan(algorithm, collective, n, root));
            }
        }
        // The others do on several hosts what they do on one.
        for placement in (2..n).filter_map(|hosts| Placement::even(n, hosts)) {
            for collective in Collective::ALL {
                let root = if collective.rooted() { n - 1 } else { 0 };
                all.extend(algorithms::plan(&Hierarchical, collective, placement, root));
            }
        }
    }
    all
}

/// What the proof says of a move.
fn may(references: &References, plan: &Plan, rank: usize, lane: usize, step: usize) -> MayRefer {
    let before: usize = plan.programs[rank].lanes[..lane].iter().map(|lane| lane.moves.len()).sum();
    references.of(rank as u32)[before + step]
}

fn in_mode(may: MayRefer, in_place: bool) -> bool {
    if in_place { may.in_place } else { may.apart }
}

/// Everything that is allowed at once changes no result, whatever the order. Returns how many moves that is.
fn holds(plan: &Plan, seeds: u64) -> usize {
    let limits = Limits::default();
    let (proof, references) = verify_references(plan, &limits).unwrap();
    for in_place in [false, true] {
        if in_place && !proof.in_place {
            assert!((0..plan.spec.ranks).all(|rank| references.of(rank).iter().all(|may| !may.in_place)));
            continue;
        }
        let wanted = reference::run(plan, limits.credits, TILES, 0, in_place);
        let allowed = |rank, lane, step| in_mode(may(&references, plan, rank, lane, step), in_place);
        for seed in 0..seeds {
            let got = reference::run_referring(plan, limits.credits, TILES, seed, in_place, &allowed);
            let what = format!("{} by {} on {}", plan.spec.collective, plan.algorithm, plan.spec.ranks);
            assert!(
                got == wanted,
                "{what}, in place: {in_place}, seed {seed}: {got:?} in place of {wanted:?}"
            );
        }
    }
    (0..plan.spec.ranks).flat_map(|rank| references.of(rank)).filter(|may| may.apart).count()
}

#[test]
fn what_is_allowed_arrives() {
    let allowed: usize = every_plan(&[2, 3, 4, 5, 6, 8]).iter().map(|plan| holds(plan, 20)).sum();
    println!("{allowed} moves may refer");
    assert!(allowed > 1000);
}

/// Plans with a mistake that are still proved: orders of moves that no algorithm has.
#[test]
fn it_holds_for_mutants() {
    let limits = Limits::default();
    let mut proved = 0;
    for plan in every_plan(&[3, 4]) {
        for class in Class::ALL {
            for mutant in mutants(&plan, &limits, class) {
                if verify_references(&mutant.plan, &mutant.limits).is_ok() {
                    holds(&mutant.plan, 3);
                    proved += 1;
                }
            }
        }
    }
    assert!(proved > 500, "{proved}");
}

/// The rule is not stricter than it must be, and the interpreter would see it broken: each move that may not refer
/// lets a wrong value arrive in some order if it does, with few exceptions at most.
#[test]
fn what_is_denied_would_go_wrong() {
    let limits = Limits::default();
    let (mut denied, mut shown) = (0, 0);
    for plan in every_plan(&[3, 4, 5]) {
        let (proof, references) = verify_references(&plan, &limits).unwrap();
        for in_place in [false, true] {
            if in_place && !proof.in_place {
                continue;
            }
            let wanted = reference::run(&plan, limits.credits, TILES, 0, in_place);
            for (rank, program) in plan.programs.iter().enumerate() {
                for (lane, code) in program.lanes.iter().enumerate() {
                    for (step, mv) in code.moves.iter().enumerate() {
                        let may = may(&references, &plan, rank, lane, step);
                        if mv.referent().is_none() || in_mode(may, in_place) {
                            continue;
                        }
                        denied += 1;
                        let only = |r, l, s| (r, l, s) == (rank, lane, step);
                        let goes_wrong = |seed| {
                            let credits = limits.credits;
                            reference::run_referring(&plan, credits, TILES, seed, in_place, &only) != wanted
                        };
                        shown += usize::from((0..200).any(goes_wrong));
                    }
                }
            }
        }
    }
    println!("{shown} of {denied} denied moves were seen to go wrong");
    assert!(denied > 50 && shown * 10 >= denied * 9, "{shown} of {denied}");
}

/// The cases by hand: what a move refers to, and the three ways in which a later write can stand to it.
#[test]
fn a_later_write_must_be_ordered() {
    let to = |peer| Sink::Links(Links { peers: vec![peer], channel: 0 });
    let from = |peer| Source::Link(Link { peer, channel: 0 });
    let mv = |from: &[Source], into: &[Sink]| Move { from: from.to_vec(), into: into.to_vec() };
    assert_eq!(mv(&[Source::Input(0)], &[Sink::Output(0), to(1)]).referent(), Some(Referent::Source));
    assert_eq!(
        mv(&[from(1), Source::Input(0)], &[to(1), Sink::Output(0)]).referent(),
        Some(Referent::Sink(1))
    );
    assert_eq!(mv(&[from(1)], &[to(1)]).referent(), None);
    assert_eq!(mv(&[Source::Input(0)], &[Sink::Output(0)]).referent(), None);

    // A one-step all-reduce of two ranks. In place the input is overwritten without waiting for its reader.
    let spec = Spec::new(Collective::AllReduce, 2, 0, 1);
    let sum = |peer| if peer == 0 { [from(0), Source::Input(0)] } else { [Source::Input(0), from(1)] };
    let plan = |moves: &dyn Fn(u32) -> Vec<Move>| {
        let program = |peer| Program { lanes: vec![Lane { scratch: 1, moves: moves(peer) }] };
        Plan { spec, algorithm: "by hand".into(), programs: vec![program(1), program(0)] }
    };
    let allowed = |plan: &Plan| {
        let (proof, references) = verify_references(plan, &Limits::default()).unwrap();
        assert!(proof.in_place);
        holds(plan, 50);
        (references.of(0)[0].apart, references.of(0)[0].in_place)
    };
    let eager = plan(&|peer| vec![mv(&[Source::Input(0)], &[to(peer)]), mv(&sum(peer), &[Sink::Output(0)])]);
    assert_eq!(allowed(&eager), (true, false));
    // The same, where each waits for the other's word that it has read.
    let polite = plan(&|peer| {
        vec![
            mv(&[Source::Input(0)], &[to(peer)]),
            mv(&sum(peer), &[Sink::Scratch(0), to(peer)]),
            mv(&[from(peer)], &[Sink::Output(0)]),
        ]
    });
    assert_eq!(allowed(&polite), (true, true));
}
