//! A thousand seeds, and a fifth of them unoptimised: every algorithm, collective, type and operator on the engine, over a network with
//! delays, stalls and deaths, compared with the definition of the collective.

mod cases;

use cases::{Case, draw_plan, same};
use ccl_core::cluster::{Cluster, Faults, Random, Settings, State};
use ccl_core::error::ErrorKind;
use ccl_core::verify::{Limits, min_credits};
use ccl_core::{DataType, ReduceOp};

/// `cargo xtask proofs` has all of them.
const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 1000 };

fn draw(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let plan = draw_plan(&mut random);
    // From the fewest that the verifier found enough: that these are enough here too is part of the test.
    let needed = min_credits(&plan, &Limits::default()).expect("a plan without deadlock");
    let counts = [0, 1, 2, 3, 7, 8, 15, 64, 100, 257, 1000];
    Case::of(plan.into(), needed, &counts, &[8, 16, 64, 100, 256, 4096], &mut random)
}

#[test]
fn results_are_right_and_timing_does_not_show() {
    for seed in 0..SEEDS {
        let mut case = draw(seed);
        let calm = case.run();
        // The same call over another network: other delays, and ranks that stall.
        case.settings.seed = !seed;
        case.settings.faults = Faults { delay: 50, stall_one_in: 5, stall: 20_000, ..Faults::default() };
        let rough = case.run();
        for outcome in [&calm, &rough] {
            let states: Vec<_> = outcome.ranks.iter().map(|r| &r.state).collect();
            assert!(outcome.finished(), "seed {seed}: {states:?} {}", case.describe());
        }
        for (rank, (calm, rough)) in (0..).zip(calm.ranks.iter().zip(&rough.ranks)) {
            let expected = case.expected(rank);
            assert!(
                same(case.settings.dtype, &calm.output, &expected),
                "seed {seed}, rank {rank}: {:02x?} instead of {expected:02x?} {}",
                calm.output,
                case.describe()
            );
            assert_eq!(calm.output, rough.output, "seed {seed}, rank {rank}: {}", case.describe());
        }
    }
}

#[test]
fn inexact_results_do_not_depend_on_timing_either() {
    for seed in 0..SEEDS / 5 {
        let mut random = Random::new(seed);
        let mut case = draw(seed);
        let floats = [DataType::F16, DataType::BF16, DataType::F32, DataType::F64];
        case.settings.dtype = *random.pick(&floats);
        case.settings.op = *random.pick(&[ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg]);
        // Any bit pattern is a value of the type; their sums round, and NaN and infinities are among them.
        let bytes = |values: &Vec<i64>, random: &mut Random| {
            let len = values.len() * case.settings.dtype.size();
            (0..len).map(|_| random.bits() as u8).collect::<Vec<_>>()
        };
        let inputs: Vec<_> = case.values.iter().map(|v| bytes(v, &mut random)).collect();
        let run = |settings: &Settings| {
            let outcome = Cluster::new(&case.plan, settings, &inputs).expect("a valid case").run();
            assert!(outcome.finished(), "seed {seed}: {}", case.describe());
            outcome.ranks.into_iter().map(|r| r.output).collect::<Vec<_>>()
        };
        let first = run(&case.settings);
        let mut other = case.settings.clone();
        other.seed = !seed;
        other.faults = Faults { stall_one_in: 3, stall: 5000, ..Faults::default() };
        assert_eq!(first, run(&other), "seed {seed}: {}", case.describe());
    }
}

#[test]
fn the_dead_are_named_and_nobody_finishes_with_a_wrong_result() {
    let (mut blocked, mut finished) = (0, 0);
    for seed in 0..SEEDS {
        let mut case = draw(seed);
        let mut random = Random::new(!seed);
        let dead = random.up_to(case.plan.spec.ranks as u64) as u32 - 1;
        case.settings.faults.deaths = vec![(dead, random.up_to(6) - 1)];
        let outcome = case.run();
        let mut waiting = false;
        for (rank, end) in (0..).zip(&outcome.ranks) {
            match &end.state {
                State::Finished => {
                    finished += 1;
                    let right = same(case.settings.dtype, &end.output, &case.expected(rank));
                    assert!(right, "seed {seed}, rank {rank}: {}", case.describe());
                }
                State::Blocked(_) => waiting = true,
                State::Dead => assert_eq!(rank, dead),
                State::Running | State::Failed(_) => panic!("seed {seed}, rank {rank}: {:?}", end.state),
            }
        }
        if waiting {
            blocked += 1;
            assert_eq!(outcome.culprit(), Some(dead), "seed {seed}: {}", case.describe());
        }
    }
    assert!(
        blocked > SEEDS / 5 && finished > SEEDS / 5,
        "too tame: {blocked} runs blocked, {finished} ranks finished"
    );
}

#[test]
fn a_rank_in_another_call_is_an_error_that_names_it() {
    let mut met = 0;
    for seed in 0..SEEDS / 3 {
        let mut case = draw(seed);
        let stray = Random::new(!seed).up_to(case.plan.spec.ranks as u64) as u32 - 1;
        case.settings.faults.stray = Some(stray);
        for (rank, end) in (0..).zip(&case.run().ranks) {
            let State::Failed(error) = &end.state else { continue };
            met += 1;
            let ErrorKind::Mismatch { peer, here, ours, theirs, .. } = error.kind() else {
                panic!("seed {seed}, rank {rank}: {error}");
            };
            assert!(*peer == stray || rank == stray, "seed {seed}: rank {rank} blames {peer}");
            assert_eq!(*here, case.plan.spec.collective);
            assert_ne!(ours, theirs);
        }
    }
    assert!(met > SEEDS / 5, "too tame: {met} errors");
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 2, 3] {
        let case = draw(seed);
        let (a, b) = (case.run(), case.run());
        assert_eq!(a.time, b.time);
        assert!(a.ranks.iter().zip(&b.ranks).all(|(a, b)| a.steps == b.steps && a.output == b.output));
    }
}
