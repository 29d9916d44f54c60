//! Thousands of control planes: how long a death takes to be known everywhere, and how many messages.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

use ccl_core::cluster::{ControlCluster, ControlSettings, Deed, Life, Random};
use ccl_core::control::Action;
use ccl_core::plan::Rank;
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Ranks on the longest way from the top of the tree to its bottom and back.
fn ways(ranks: u32) -> u32 {
    let depth = (1..).find(|depth| (4u64.pow(depth + 1) - 1) / 3 >= ranks.into()).unwrap_or_default();
    2 * depth
}

/// Survivors' last word of the deaths of `dying` at once, in delays of the network, and the messages that it took.
fn spread(ranks: u32, dying: &BTreeSet<Rank>) -> (u32, u64) {
    let settings = ControlSettings { least_delay: MS, ..ControlSettings::new(ranks, 1) };
    let mut cluster = ControlCluster::new(&settings);
    cluster.run_until(10 * MS);
    let before = cluster.traffic().messages;
    let start = cluster.now();
    for &rank in dying {
        cluster.at(start, rank, Deed::Kill);
    }
    cluster.run_until(start + 700 * MS);
    let mut last = start;
    for rank in (0..ranks).filter(|rank| cluster.life(*rank) == Life::Running) {
        let lost = cluster.news(rank).iter().map(|(_, action)| match action {
            Action::Lost(loss) => loss.rank,
            other => panic!("rank {rank} of {ranks} was told {other:?}"),
        });
        assert_eq!(&lost.collect::<BTreeSet<Rank>>(), dying, "rank {rank} of {ranks}");
        assert_eq!(cluster.news(rank).len(), dying.len(), "rank {rank} of {ranks}");
        last = last.max(cluster.news(rank).last().expect("the losses").0);
    }
    ((last - start).as_millis() as u32, cluster.traffic().messages - before)
}

#[test]
fn the_time_to_learn_grows_as_the_logarithm_of_the_ranks() {
    for ranks in [2, 5, 16, 21, 64, 85, 300, 1024, 1365, 4000, 4096] {
        let n = u64::from(ranks);
        // A leaf: one step to notice, then along the tree.
        let (time, messages) = spread(ranks, &BTreeSet::from([ranks - 1]));
        assert!(time <= 1 + ways(ranks), "{ranks} ranks: {time}");
        assert!(messages <= n, "{ranks} ranks: {messages} messages");
        if ranks < 16 {
            continue;
        }
        // The head: its children notice at once, and connect to the first of them. That takes a dial there and back.
        let (time, messages) = spread(ranks, &BTreeSet::from([0]));
        assert!(time <= 4 + ways(ranks), "{ranks} ranks: {time}");
        assert!(messages <= 2 * n, "{ranks} ranks: {messages} messages");
        // A whole branch at once, down to its last inner rank.
        let branch = BTreeSet::from([0, 1, 5]).into_iter().filter(|r| r * 4 + 1 < ranks).collect();
        let (time, _) = spread(ranks, &branch);
        assert!(time <= 12 + ways(ranks), "{ranks} ranks: {time}");
    }
}

#[test]
fn thousands_survive_many_deaths_at_once() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let ranks = 1000 + random.up_to(3000) as u32;
        let dying: BTreeSet<Rank> = (0..20).map(|_| random.up_to((ranks / 5).into()) as Rank - 1).collect();
        let (time, messages) = spread(ranks, &dying);
        assert!(time <= 600, "{ranks} ranks: {time}");
        let most = 3 * u64::from(ranks) * dying.len() as u64;
        assert!(messages <= most, "{ranks} ranks: {messages} messages for {} deaths", dying.len());
    }
}

#[test]
#[cfg(not(debug_assertions))]
fn what_it_takes_at_4096() {
    for (name, dying) in [
        ("a leaf", vec![4095]),
        ("an inner rank", vec![5]),
        ("the head", vec![0]),
        ("0, 1 and 5", vec![0, 1, 5]),
    ] {
        let (time, messages) = spread(4096, &dying.into_iter().collect());
        println!("{name} of 4096 dies: all know after {time} delays and {messages} messages");
    }
}
