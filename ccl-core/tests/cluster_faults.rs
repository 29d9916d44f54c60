//! One fault after the other: a random collective with a random algorithm on the engine, a rank that dies, stalls or
//! is in another call, and what every rank comes to; and the same fault at the control planes of as many ranks, whose
//! survivors must all learn of it.
//!
//! A part runs with every test; optimised, 100,000 faults run, and it prints how many of what.

// It says what it has counted.
#![allow(clippy::print_stdout)]

mod cases;

use cases::{Case, draw_plan, same};
use ccl_core::algorithms;
use ccl_core::cluster::{ControlCluster, ControlSettings, Deed, Faults, Outcome, Random, State};
use ccl_core::control::{Action, Command, End, EndKind};
use ccl_core::error::ErrorKind;
use ccl_core::plan::{Collective, Plan, Rank};
use ccl_core::verify::{Limits, min_credits};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One fault in so many is among thousands of ranks.
const LARGE: u64 = 1000;

const MS: Duration = Duration::from_millis(1);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A rank dies after so many steps.
    Death { rank: Rank, steps: u64 },
    /// Ranks stall again and again, and go on.
    Stalls { rank: Rank },
    /// A rank is in another call.
    Stray { rank: Rank },
}

/// How often what was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    faults: u64,
    /// Calls that ended right on all ranks.
    right: u64,
    /// Calls that a death kept from ending; the dead rank was found each time.
    blocked: u64,
    /// Calls of a stray rank that ended with errors, all of which named it.
    disagreed: u64,
    /// Ranks of all control planes.
    ranks: u64,
    /// Faults among thousands of ranks.
    large: u64,
    /// News of deaths and ends that ranks had to learn, and did.
    learnt: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.faults += other.faults;
        self.right += other.right;
        self.blocked += other.blocked;
        self.disagreed += other.disagreed;
        self.ranks += other.ranks;
        self.large += other.large;
        self.learnt += other.learnt;
    }
}

/// Plans and the credits that they need, by algorithm, collective, ranks and root.
type Plans = BTreeMap<(String, &'static str, u32, Rank), (Arc<Plan>, u32)>;

/// Draws the call of a seed.
fn draw_case(seed: u64, plans: &mut Plans) -> Case {
    let mut random = Random::new(seed);
    if seed % LARGE == LARGE / 2 {
        return draw_large(&mut random);
    }
    let plan = draw_plan(&mut random);
    let spec = &plan.spec;
    let name = (plan.algorithm.clone(), spec.collective.name(), spec.ranks, spec.root);
    let (plan, needed) = plans.entry(name).or_insert_with(|| {
        let needed = min_credits(&plan, &Limits::default()).expect("a plan without deadlock");
        (plan.into(), needed)
    });
    let counts = [0, 1, 2, 3, 7, 8, 15, 24, 40];
    Case::of(Arc::clone(plan), *needed, &counts, &[8, 16, 64, 100, 256], &mut random)
}

/// A call among thousands, of a plan in which a rank talks to few.
fn draw_large(random: &mut Random) -> Case {
    let algorithm =
        algorithms::by_name(random.pick::<&str>(&["tree", "binomial", "chain"])).expect("its name");
    let ranks = 1000 + random.up_to(3096) as u32;
    let plan = loop {
        let collective = *random.pick(&[Collective::AllReduce, Collective::Broadcast, Collective::Reduce]);
        if let Some(plan) = algorithms::plan(algorithm, collective, ranks, 0) {
            break plan;
        }
    };
    Case::of(plan.into(), 2, &[1, 4], &[8, 64], random)
}

fn draw_fault(ranks: u32, random: &mut Random) -> Fault {
    let rank = random.up_to(ranks.into()) as Rank - 1;
    match random.up_to(4) {
        1 | 2 => Fault::Death { rank, steps: random.up_to(6) - 1 },
        3 => Fault::Stalls { rank },
        _ => Fault::Stray { rank },
    }
}

/// One fault, at the engine and at the control planes.
fn check(seed: u64, plans: &mut Plans) -> Tally {
    let mut case = draw_case(seed, plans);
    let mut random = Random::new(!seed);
    let ranks = case.plan.spec.ranks;
    let fault = draw_fault(ranks, &mut random);
    let mut tally =
        Tally { faults: 1, ranks: ranks.into(), large: u64::from(ranks >= 1000), ..Tally::default() };
    case.settings.faults = match fault {
        Fault::Death { rank, steps } => Faults { deaths: vec![(rank, steps)], ..Faults::default() },
        Fault::Stalls { .. } => Faults { stall_one_in: 4, stall: 1_000_000, ..Faults::default() },
        Fault::Stray { rank } => Faults { stray: Some(rank), ..Faults::default() },
    };
    let outcome = case.run();
    let what = || format!("seed {seed}, {fault:?}: {}", case.describe());
    for (rank, end) in (0..).zip(&outcome.ranks) {
        if matches!(end.state, State::Finished) {
            let right = same(case.settings.dtype, &end.output, &case.expected(rank));
            assert!(right, "rank {rank} has a wrong result: {}", what());
        }
    }
    tally.right = u64::from(outcome.finished());
    let complainer = match fault {
        Fault::Death { rank, .. } => {
            tally.blocked = u64::from(look_at_death(&outcome, rank, &what));
            None
        }
        Fault::Stalls { .. } => {
            assert!(outcome.finished(), "{}", what());
            None
        }
        Fault::Stray { rank } => look_at_stray(&outcome, rank, &what),
    };
    tally.disagreed = u64::from(complainer.is_some());
    tally.learnt = control(ranks, fault, complainer, &mut random, &what);
    tally
}

/// Whoever cannot finish waits for the dead in the end. Whether anybody does.
fn look_at_death(outcome: &Outcome, dead: Rank, what: &dyn Fn() -> String) -> bool {
    let mut waiting = false;
    for (rank, end) in (0..).zip(&outcome.ranks) {
        match &end.state {
            State::Finished => {}
            State::Blocked(_) => waiting = true,
            State::Dead => assert_eq!(rank, dead, "{}", what()),
            State::Running | State::Failed(_) => panic!("rank {rank} is {:?}: {}", end.state, what()),
        }
    }
    if waiting {
        assert_eq!(outcome.culprit(), Some(dead), "{}", what());
    }
    waiting
}

/// Whoever fails names the stray rank or is it, and nobody waits unless somebody has failed. Who failed first.
fn look_at_stray(outcome: &Outcome, stray: Rank, what: &dyn Fn() -> String) -> Option<Rank> {
    let mut complainer = None;
    for (rank, end) in (0..).zip(&outcome.ranks) {
        match &end.state {
            State::Finished | State::Blocked(_) => {}
            State::Failed(error) => {
                let ErrorKind::Mismatch { peer, ours, theirs, .. } = error.kind() else {
                    panic!("rank {rank}: {error}: {}", what());
                };
                assert!(*peer == stray || rank == stray, "rank {rank} blames {peer}: {}", what());
                assert_ne!(ours, theirs);
                complainer.get_or_insert(rank);
            }
            State::Dead | State::Running => panic!("rank {rank} is {:?}: {}", end.state, what()),
        }
    }
    assert!(complainer.is_some() || outcome.finished(), "a wait without an error: {}", what());
    complainer
}

/// The same fault at the control planes; how much news there was to learn.
fn control(
    ranks: u32,
    fault: Fault,
    complainer: Option<Rank>,
    random: &mut Random,
    what: &dyn Fn() -> String,
) -> u64 {
    let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
    let mut time = || Duration::from_nanos(random.up_to(5_000_000));
    match fault {
        Fault::Death { rank, .. } => {
            cluster.at(time(), rank, Deed::Kill);
            cluster.run_until(700 * MS);
            for survivor in (0..ranks).filter(|r| *r != rank) {
                let [(when, Action::Lost(loss))] = cluster.news(survivor) else {
                    panic!("rank {survivor} was told {:?}: {}", cluster.news(survivor), what());
                };
                assert_eq!(loss.rank, rank, "rank {survivor} was told of another: {}", what());
                assert!(*when < 600 * MS, "rank {survivor} learnt it after {when:?}: {}", what());
            }
            u64::from(ranks) - 1
        }
        Fault::Stalls { rank } => {
            cluster.at(time(), rank, Deed::Freeze);
            cluster.at(4000 * MS, rank, Deed::Thaw);
            cluster.run_until(4100 * MS);
            for rank in 0..ranks {
                assert_eq!(cluster.news(rank), [], "rank {rank}: {}", what());
            }
            0
        }
        Fault::Stray { .. } => {
            let Some(by) = complainer else { return 0 };
            let reason = b"another call".to_vec();
            cluster.at(time(), by, Deed::Command(Command::Inquire { reason }));
            cluster.run_until(200 * MS);
            let verdict = End { by, kind: EndKind::Verdict, text: "judged by rank 0".into() };
            for rank in 0..ranks {
                let news: Vec<_> = cluster.news(rank).iter().map(|(_, action)| action.clone()).collect();
                let (ended, judged) = news.split_last().expect("an end");
                assert_eq!(*ended, Action::Ended(verdict.clone()), "rank {rank}: {}", what());
                match judged {
                    [] => assert_ne!(rank, 0, "{}", what()),
                    [Action::Judge { states, .. }] => assert_eq!(states.len(), ranks as usize, "{}", what()),
                    others => panic!("rank {rank} was told {others:?}: {}", what()),
                }
            }
            ranks.into()
        }
    }
}

/// Faults of seeds, by all cores.
fn campaign(seeds: std::ops::Range<u64>) -> Tally {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |first: u64| {
        let mut plans = Plans::new();
        let mut tally = Tally::default();
        for seed in (seeds.start + first..seeds.end).step_by(threads as usize) {
            tally.add(&check(seed, &mut plans));
        }
        tally
    };
    let mut all = Tally::default();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        for part in parts {
            all.add(&part.join().expect("a campaign without a failure"));
        }
    });
    all
}

#[test]
fn every_fault_has_its_culprit() {
    let tally = campaign(0..3000);
    assert_eq!(tally.faults, 3000);
    assert!(tally.blocked > 500 && tally.disagreed > 500 && tally.right > 900, "too tame: {tally:?}");
    assert!(tally.large > 0 && tally.learnt > 8000, "too tame: {tally:?}");
}

/// A minute, where it is optimised: `cargo xtask proofs`.
#[test]
#[cfg(not(debug_assertions))]
fn a_hundred_thousand_faults_have_their_culprits() {
    let start = std::time::Instant::now();
    let tally = campaign(0..100_000);
    assert_eq!(tally.faults, 100_000);
    println!("{tally:?} in {:.1} s", start.elapsed().as_secs_f64());
}
