//! Every kernel against the host's engine, bit for bit.

use crate::bench::{Bench, check, random};
use crate::case::{Case, least_credits, plan};
use crate::outcome::Outcome;
use crate::pairs;
use crate::random::Random;
use ccl_core::plan::{Placement, Plan};
use ccl_core::{Collective, DataType, ReduceOp, algorithms};
use ccl_transport_cuda::gang::{GangError, Shape, TeamKernel};
use ccl_transport_cuda::program::Geometry;
use serde_json::json;
use std::collections::BTreeMap;

/// What came of a kernel's cases.
#[derive(Default)]
struct Tally {
    cases: usize,
    launches: usize,
    wrong: usize,
    /// Those that the device has no room for.
    too_large: usize,
}

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let mut random = random(17);
    // What is shortest first: should there be no time for all.
    let mut cases = teams(bench, &mut random);
    cases.extend(types(bench));
    cases.extend(plans(bench, &mut random));
    cases.retain(|case| bench.wants(&case.name()));
    let (mut tallies, mut left_out) = (BTreeMap::<_, Tally>::new(), 0);
    for (seed, case) in (1..).zip(&cases) {
        if !bench.has_time() {
            left_out += 1;
            continue;
        }
        let tally = tallies.entry(case.kernel_name()).or_default();
        tally.cases += 1;
        play(bench, case, seed, tally, outcome)?;
    }
    for (kernel, Tally { cases, launches, wrong, too_large }) in &tallies {
        let rest =
            if *too_large > 0 { format!(", {too_large} do not fit on the device") } else { String::new() };
        outcome.say(format!("{kernel}: {cases} cases, {launches} launches, {wrong} wrong{rest}"));
        let all = json!({"cases": cases, "launches": launches, "wrong": wrong, "too_large": too_large});
        outcome.put(kernel, all);
    }
    let pairs = pairs::correct(bench, &mut random, outcome)?;
    if left_out > 0 {
        outcome.say(format!("{left_out} more cases were left out, as there was no time"));
    }
    outcome.put("left_out", json!(left_out));
    if tallies.is_empty() && pairs == 0 {
        outcome.fail("no case has such a name".into());
    }
    Ok(())
}

/// Several launches on the same memory, each with inputs of its own.
fn play(
    bench: &Bench,
    case: &Case,
    seed: u64,
    tally: &mut Tally,
    outcome: &mut Outcome,
) -> Result<(), GangError> {
    let mut gang = match case.gang(bench) {
        Err(GangError::TooLarge { .. }) => {
            tally.too_large += 1;
            return Ok(());
        }
        made => made?,
    };
    for round in 0..bench.scale(4, 2) {
        let inputs = case.inputs(seed * 16 + round)?;
        let right = case.right(&inputs)?;
        tally.launches += 1;
        if let Some(what) = check(&mut gang, &inputs, &right)? {
            tally.wrong += 1;
            outcome.fail(format!("{}: launch {round}: {what}", case.name()));
            break;
        }
    }
    Ok(())
}

/// All plans of all placements.
fn plans(bench: &Bench, random: &mut Random) -> Vec<Case> {
    let flat = (2..=bench.scale(8, 3)).map(|ranks| (ranks, 1));
    let wide = bench.scale(&[(4, 2), (6, 2), (8, 2), (8, 4)][..], &[]);
    let placements: Vec<(u32, u32)> = flat.chain(wide.iter().copied()).collect();
    let mut cases = Vec::new();
    for pass in 0..bench.scale(3, 1) {
        for &(ranks, hosts) in &placements {
            let placement = Placement::even(ranks, hosts).expect("as many on each host");
            for collective in Collective::ALL {
                let root = if collective.rooted() { (pass as u32 + ranks - 1) % ranks } else { 0 };
                let all = algorithms::all().iter();
                let plans = all.filter_map(|a| algorithms::plan(*a, collective, placement, root));
                cases.extend(plans.map(|plan| of_plan(bench, plan, random)));
            }
        }
    }
    cases
}

fn of_plan(bench: &Bench, plan: Plan, random: &mut Random) -> Case {
    let (dtype, op) = loop {
        let (dtype, op) = (random.pick(&DataType::ALL), random.pick(&ReduceOp::ALL));
        if op.check(dtype).is_ok() {
            break (dtype, op);
        }
    };
    let counts = bench.scale(&[0, 1, 3, 17, 133, 1021, 20_011][..], &[0, 1, 17, 133]);
    let slot_bytes = random.pick(bench.scale(&[128, 1024, 16384][..], &[128]));
    let credits = least_credits(&plan, random.pick(&[1, 2, 4]));
    let geometry = Geometry { slot_bytes, credits, shares: random.pick(&[1, 1, 2]) };
    let mut case =
        Case { tile_bytes: slot_bytes, geometry, ..Case::plan(plan, random.pick(counts), dtype, op) };
    let in_place = case.may_be_in_place() && random.below(3) == 0;
    let misaligned = random.pick(&[0, 0, 0, 8]);
    let threads = random.pick(bench.scale(&[32, 64, 128][..], &[2, 3]));
    case.shape = Shape { in_place, misaligned, threads, ..Shape::default() };
    case
}

/// Every type with every operator.
fn types(bench: &Bench) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok()) {
            for ranks in bench.scale(&[3, 8][..], &[2]) {
                let name = if op.code() % 2 == 0 { "oneshot" } else { "ring" };
                let count = bench.scale(5001, 97);
                let mut case = Case::plan(plan(name, *ranks), count, dtype, op);
                case.shape.threads = bench.scale(128, 2);
                cases.push(case);
            }
        }
    }
    cases
}

/// The kernels that are no plans.
fn teams(bench: &Bench, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    let counts = bench.scale(&[1, 37, 300, 4099, 65_537][..], &[1, 37, 300]);
    for ranks in 2..=bench.scale(8, 3) {
        for kernel in [TeamKernel::TwoShot, TeamKernel::OneShot, TeamKernel::Packets, TeamKernel::Staged] {
            for dtype in [DataType::F32, DataType::F16, DataType::BF16] {
                for &count in counts {
                    let op = random.pick(&[ReduceOp::Sum, ReduceOp::Prod]);
                    let mut case = Case::team(kernel, ranks, count, dtype, op);
                    let (in_place, misaligned) = (random.below(2) == 0, random.pick(&[0, 0, 4]));
                    let blocks = random.pick(bench.scale(&[1, 3, 8, 16][..], &[2]));
                    let threads = random.pick(bench.scale(&[32, 128, 512][..], &[3, 4]));
                    case.shape = Shape { in_place, misaligned, blocks, threads, ..Shape::default() };
                    cases.push(case);
                }
            }
        }
    }
    cases
}
