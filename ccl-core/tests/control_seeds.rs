//! Thousands of seeds: the control planes of all ranks over a network with delays, deaths, stops and leaves.

use ccl_core::cluster::{ControlCluster, ControlSettings, Deed, Life, Random};
use ccl_core::control::{Action, Agreement, Command, End, EndKind};
use ccl_core::plan::Rank;
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn draw_ranks(random: &mut Random) -> u32 {
    match random.up_to(10) {
        1..=5 => random.up_to(12) as u32,
        _ => random.up_to(64) as u32,
    }
}

/// Some of the ranks, fewer than all.
fn draw_some(random: &mut Random, ranks: u32) -> BTreeSet<Rank> {
    let most = match random.up_to(3) {
        1 => 1,
        2 => ranks.div_ceil(4),
        _ => ranks - 1,
    };
    let some = random.up_to(most.into()).min(u64::from(ranks) - 1);
    let mut set = BTreeSet::new();
    while (set.len() as u64) < some {
        // Inner ranks of the tree as often as its leaves.
        let below = if random.bits().is_multiple_of(2) { ranks } else { ranks.div_ceil(5) };
        set.insert(random.up_to(below.into()) as Rank - 1);
        set.insert(random.up_to(ranks.into()) as Rank - 1);
        while set.len() as u64 > some {
            set.pop_last();
        }
    }
    set
}

fn draw_time(random: &mut Random, most: Duration) -> Duration {
    Duration::from_nanos(random.up_to(most.as_nanos() as u64 + 1) - 1)
}

/// A death at some moment, or in the middle of what it says.
fn draw_death(random: &mut Random) -> Deed {
    match random.up_to(2) {
        1 => Deed::Kill,
        _ => Deed::KillAfter(random.up_to(8) - 1),
    }
}

fn lost(cluster: &ControlCluster, rank: Rank) -> Vec<Rank> {
    let lost = cluster.news(rank).iter().filter_map(|(_, action)| match action {
        Action::Lost(loss) => Some(loss.rank),
        _ => None,
    });
    let mut all: Vec<Rank> = lost.collect();
    all.sort_unstable();
    all
}

fn alive(cluster: &ControlCluster, ranks: u32) -> impl Iterator<Item = Rank> {
    (0..ranks).filter(|rank| cluster.life(*rank) == Life::Running)
}

#[test]
fn every_survivor_learns_every_death_and_no_other() {
    let mut deaths = 0;
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
        let together = random.bits().is_multiple_of(2);
        for rank in draw_some(&mut random, ranks) {
            let time = if together { 5 * MS } else { draw_time(&mut random, 1000 * MS) };
            cluster.at(time, rank, draw_death(&mut random));
        }
        // A leaf says one thing a second, so the last one dies after 9 s.
        cluster.run_until(12_000 * MS);
        let dead: Vec<Rank> = (0..ranks).filter(|r| cluster.life(*r) == Life::Dead).collect();
        deaths += dead.len();
        for rank in alive(&cluster, ranks) {
            assert_eq!(lost(&cluster, rank), dead, "seed {seed}: rank {rank} of {ranks}");
            assert_eq!(cluster.news(rank).len(), dead.len(), "seed {seed}: {:?}", cluster.news(rank));
        }
    }
    assert!(deaths > 10_000, "too tame: {deaths} deaths");
}
