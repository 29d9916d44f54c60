//! Plan files.

use crate::algorithms::{self, Hierarchical, transfer};
use crate::cluster::{Cluster, Faults, Settings};
use crate::kernels::Level;
use crate::plan::{Collective, Placement, Plan, Rank, Spec};
use crate::verify::{Limits, min_credits, verify, verify_shortcuts};
use crate::{DataType, ReduceOp};

/// A text is refused, or holds a plan that was proved: then it has the same proof when it is written and read again,
/// and, where it is small, it computes what its collective says, on the engine.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let limits = Limits::default();
    let (plan, proof) = match Plan::from_json(text, &limits) {
        Ok(read) => read,
        Err(error) => {
            assert!(error.to_string().len() < 4096, "an error of {} bytes", error.to_string().len());
            return;
        }
    };
    let again = Plan::from_json(&plan.to_json(), &limits).expect("what was accepted is accepted again");
    assert_eq!(again, (plan.clone(), proof.clone()));
    let moves: usize = plan.programs.iter().flat_map(|p| &p.lanes).map(|lane| lane.moves.len()).sum();
    if plan.spec.ranks > 16 || plan.spec.parts > 64 || moves > 500 {
        return;
    }
    let (same, _) = verify_shortcuts(&plan, &limits).expect("the same proof");
    assert_eq!(same, proof);
    let needed = min_credits(&plan, &limits).expect("no deadlock with the default");
    assert!(needed <= limits.credits && verify(&plan, &Limits { credits: needed, ..limits }).is_ok());
    for (count, tile_bytes, in_place, shortcuts) in
        [(1, 64, false, false), (37, 16, false, true), (37, 64, true, false), (5, 8, true, true)]
    {
        if !in_place || proof.in_place {
            run(&plan, count, tile_bytes, needed, in_place, shortcuts);
        }
    }
}

fn run(plan: &Plan, count: usize, tile_bytes: usize, credits: u32, in_place: bool, shortcuts: bool) {
    let Spec { collective, ranks, root, .. } = plan.spec;
    let settings = Settings {
        count,
        dtype: DataType::I32,
        op: ReduceOp::Sum,
        tile_bytes,
        credits,
        in_place,
        level: Level::best(),
        seed: count as u64,
        faults: Faults::default(),
        shortcuts,
    };
    let inputs: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| {
            let blocks = collective.input_blocks(ranks, rank, root);
            (0..blocks).flat_map(|block| bytes(count, |i| value(rank, block, i))).collect()
        })
        .collect();
    let outcome = Cluster::new(plan, &settings, &inputs).expect("a plan that was proved").run();
    assert!(outcome.finished(), "a plan that was proved has stopped: {:?}", outcome.ranks);
    for (rank, got) in (0..).zip(outcome.ranks) {
        assert_eq!(got.output, expected(&plan.spec, rank, count), "rank {rank}, in place: {in_place}");
    }
}

/// An element of a send buffer: no two are alike where that would hide something.
fn value(rank: Rank, block: u32, element: usize) -> i32 {
    1_000_003_i32.wrapping_mul(rank as i32 + 1).wrapping_add(4099 * block as i32 + element as i32)
}

fn bytes(count: usize, element: impl Fn(usize) -> i32) -> Vec<u8> {
    (0..count).flat_map(|i| element(i).to_le_bytes()).collect()
}

/// A receive buffer by the definition of the collective.
fn expected(spec: &Spec, rank: Rank, count: usize) -> Vec<u8> {
    let Spec { collective, ranks, root, .. } = *spec;
    let copy = |from: Rank, block: u32| bytes(count, |i| value(from, block, i));
    let sum =
        |block: u32| bytes(count, |i| (0..ranks).fold(0, |s, from| s.wrapping_add(value(from, block, i))));
    let of_all = |block: u32| (0..ranks).flat_map(|from| copy(from, block)).collect();
    match collective {
        _ if collective.output_blocks(ranks, rank, root) == 0 => Vec::new(),
        Collective::AllReduce | Collective::Reduce => sum(0),
        Collective::ReduceScatter => sum(rank),
        Collective::Broadcast | Collective::SendRecv => copy(root, 0),
        Collective::Scatter => copy(root, rank),
        Collective::AllGather | Collective::Gather => of_all(0),
        Collective::AllToAll => of_all(rank),
    }
}

/// Every algorithm and collective for few ranks.
pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |plan: Option<Plan>| {
        if let Some(plan) = plan {
            let name = format!("{}-{}-{}", plan.algorithm, plan.spec.collective, plan.spec.ranks);
            seeds.push((name, plan.to_json().into_bytes()));
        }
    };
    for algorithm in algorithms::all() {
        for collective in Collective::ALL {
            for (ranks, root) in [(1, 0), (2, 0), (4, u32::from(collective.rooted()))] {
                add(algorithms::plan(*algorithm, collective, ranks, root));
            }
        }
    }
    for collective in Collective::ALL {
        add(Placement::even(4, 2).and_then(|two| algorithms::plan(&Hierarchical, collective, two, 0)));
    }
    add(algorithms::plan(&transfer::Transfer, Collective::SendRecv, 2, 0));
    seeds
}
