//! Thousands of seeds: the control planes of all ranks over a network with delays, deaths, stops and leaves.

// It says what it has counted.
#![allow(clippy::print_stdout)]

use ccl_core::cluster::{ControlCluster, ControlSettings, Deed, Life, Random};
use ccl_core::control::{Action, Agreement, Command, End, EndKind};
use ccl_core::plan::Rank;
use std::collections::{BTreeMap, BTreeSet};
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
    assert!(deaths > 5000, "too tame: {deaths} deaths");
}

/// Lets time pass, and hands over what each rank is told.
fn watch(
    cluster: &mut ControlCluster,
    ranks: u32,
    end: Duration,
    mut told: impl FnMut(&mut ControlCluster, Rank, Action),
) {
    let mut seen = vec![0; ranks as usize];
    while cluster.run_until_news(end) {
        for rank in cluster.told() {
            let (_, action) = cluster.news(rank)[seen[rank as usize]].clone();
            seen[rank as usize] += 1;
            told(cluster, rank, action);
        }
    }
}

#[test]
fn survivors_agree_whoever_dies_meanwhile() {
    let (mut deaths, mut with_heads) = (0, 0);
    for seed in 0..2000 {
        const ROUNDS: usize = 3;
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
        let gives: Vec<(u64, Vec<u8>)> = (0..ranks)
            .map(|rank| {
                (
                    random.bits() | random.bits() | random.bits(),
                    if random.bits().is_multiple_of(4) { vec![rank as u8, 1] } else { vec![] },
                )
            })
            .collect();
        let agree = |rank: Rank| {
            let (flags, blob) = gives[rank as usize].clone();
            Deed::Command(Command::Agree { flags, blob })
        };
        let dying = draw_some(&mut random, ranks);
        let mut started = BTreeMap::new();
        for rank in 0..ranks {
            let time = draw_time(&mut random, 10 * MS);
            started.insert(rank, time);
            cluster.at(time, rank, agree(rank));
        }
        let mut died = BTreeMap::new();
        for &rank in &dying {
            let time = draw_time(&mut random, 20 * MS);
            let death = draw_death(&mut random);
            if death == Deed::Kill {
                died.insert(rank, time);
            }
            cluster.at(time, rank, death);
        }
        let mut agreed: Vec<Vec<Agreement>> = vec![Vec::new(); ranks as usize];
        watch(&mut cluster, ranks, 1500 * MS, |cluster, rank, action| {
            if let Action::Agreed(agreement) = action {
                agreed[rank as usize].push(agreement);
                if agreed[rank as usize].len() < ROUNDS {
                    cluster.deed(rank, agree(rank));
                }
            }
        });
        deaths += dying.len();
        with_heads += usize::from(dying.contains(&0));
        let survivors: Vec<Rank> = alive(&cluster, ranks).collect();
        let first = &agreed[survivors[0] as usize];
        assert_eq!(first.len(), ROUNDS, "seed {seed}: rank {} of {ranks} waits", survivors[0]);
        for &rank in &survivors {
            assert_eq!(&agreed[rank as usize], first, "seed {seed}: rank {rank}");
        }
        for agreement in first {
            assert!(
                agreement.gone.is_sorted() && agreement.gone.iter().all(|r| dying.contains(r)),
                "seed {seed}"
            );
            let voters = || (0..ranks).filter(|r| !agreement.gone.contains(r));
            assert_eq!(agreement.flags, voters().fold(u64::MAX, |all, r| all & gives[r as usize].0));
            let blob = voters().map(|r| &gives[r as usize].1).find(|blob| !blob.is_empty());
            assert_eq!(&agreement.blob, blob.unwrap_or(&Vec::new()), "seed {seed}");
        }
        for (rank, time) in died {
            if time < started[&rank] {
                assert!(first[0].gone.contains(&rank), "seed {seed}: rank {rank} has not voted");
            }
        }
    }
    assert!(deaths > 5000 && with_heads > 500, "too tame: {deaths} deaths, {with_heads} of rank 0");
}

#[test]
fn everybody_gathers_everything_or_learns_who_is_gone() {
    let (mut whole, mut ended, mut failed) = (0, 0, 0);
    for seed in 0..2000 {
        const ROUNDS: usize = 3;
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
        let long = if random.up_to(20) == 1 { 20_000 } else { 30 };
        let bytes = move |rank: Rank, round: usize| {
            let len = long * (1 + rank as usize % 3);
            vec![(rank as usize * 7 + round) as u8; len]
        };
        let gather = move |rank, round, now| {
            Deed::Command(Command::Gather { bytes: bytes(rank, round), deadline: now + 600 * MS })
        };
        // In one of the rounds some ranks die, leave, or do not come at all.
        let (how, when) = (random.up_to(4), random.up_to(ROUNDS as u64) as usize - 1);
        let missing = if how == 4 { BTreeSet::new() } else { draw_some(&mut random, ranks) };
        let last = |rank: &Rank| if missing.contains(rank) { when } else { ROUNDS };
        for rank in (0..ranks).filter(|r| how == 1 || last(r) > 0) {
            let time = draw_time(&mut random, 5 * MS);
            cluster.at(time, rank, gather(rank, 0, time));
        }
        for &rank in missing.iter().filter(|_| how == 1) {
            let time = draw_time(&mut random, 20 * MS);
            cluster.at(time, rank, draw_death(&mut random));
        }
        for &rank in missing.iter().filter(|_| how == 2 && when == 0) {
            let time = draw_time(&mut random, 5 * MS);
            cluster.at(time, rank, Deed::Command(Command::Leave));
        }
        let mut gathered = vec![Vec::new(); ranks as usize];
        watch(&mut cluster, ranks, 3000 * MS, |cluster, rank, action| {
            if let Action::Gathered(result) = action {
                let go_on = result.is_ok();
                gathered[rank as usize].push(result);
                let round = gathered[rank as usize].len();
                if go_on && round < ROUNDS && (how == 1 || round < last(&rank)) {
                    cluster.deed(rank, gather(rank, round, cluster.now()));
                } else if how == 2 && round == last(&rank) {
                    cluster.deed(rank, Deed::Command(Command::Leave));
                }
            }
        });
        for rank in alive(&cluster, ranks) {
            let results = &gathered[rank as usize];
            for (round, result) in results.iter().enumerate() {
                match result {
                    Ok(all) => {
                        whole += 1;
                        assert!((0..).zip(all).all(|(r, b)| *b == bytes(r, round)), "seed {seed}");
                        assert_eq!(all.len(), ranks as usize);
                    }
                    Err(fail) => {
                        failed += 1;
                        let absent: BTreeSet<Rank> = fail.absent.iter().copied().collect();
                        assert!(how == 2 || how == 3, "seed {seed}: rank {rank}: {fail:?}");
                        assert_eq!(round, when, "seed {seed}: rank {rank}: {fail:?}");
                        assert_eq!(fail.left, how == 2, "seed {seed}: rank {rank}: {fail:?}");
                        // Those that have heard of the failure leave too, and others may see that first.
                        let right = match how {
                            2 => !absent.is_disjoint(&missing),
                            _ => absent.is_subset(&missing),
                        };
                        assert!(right, "seed {seed}: rank {rank}: {fail:?} {missing:?}");
                        // The head of those that came knows all.
                        if how == 3 && !missing.contains(&0) {
                            assert_eq!(absent, missing, "seed {seed}: rank {rank}");
                        }
                    }
                }
            }
            let stopped = results.last().is_some_and(|last| last.is_err());
            if results.len() < last(&rank).min(ROUNDS) && !stopped {
                ended += 1;
                assert!(
                    !lost(&cluster, rank).is_empty(),
                    "seed {seed}: rank {rank} of {ranks} waits, {how} {missing:?}"
                );
            }
        }
    }
    assert!(whole > 50_000 && ended > 5000 && failed > 5000, "too tame: {whole} {ended} {failed}");
}

#[test]
fn leaving_in_order_is_never_a_loss() {
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
        let within = *random.pick(&[MS / 10, 2 * MS, 100 * MS, 1000 * MS]);
        let some = match random.up_to(3) {
            1 => (0..ranks).collect(),
            _ => draw_some(&mut random, ranks),
        };
        for &rank in &some {
            let time = draw_time(&mut random, within);
            cluster.at(time, rank, Deed::Command(Command::Leave));
        }
        cluster.run_until(4000 * MS);
        for rank in 0..ranks {
            assert!(
                lost(&cluster, rank).is_empty(),
                "seed {seed}: rank {rank} of {ranks}, {some:?} {:?}",
                cluster.news(rank)
            );
            if !some.contains(&rank) {
                let left: Vec<bool> = (0..ranks).map(|r| cluster.node(rank).is_gone(r)).collect();
                let expected: Vec<bool> = (0..ranks).map(|r| some.contains(&r)).collect();
                assert_eq!(left, expected, "seed {seed}: rank {rank}");
            }
        }
    }
}

#[test]
fn ends_reach_all() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let mut cluster = ControlCluster::new(&ControlSettings::new(ranks, random.bits()));
        let dying =
            if random.bits().is_multiple_of(2) { draw_some(&mut random, ranks) } else { BTreeSet::new() };
        for rank in &dying {
            cluster.at(draw_time(&mut random, 10 * MS), *rank, draw_death(&mut random));
        }
        let enders: Vec<Rank> =
            (0..ranks).filter(|r| !dying.contains(r) && (r % 5 == 0 || r + 1 == ranks)).collect();
        for &by in &enders {
            let end = End { by, kind: EndKind::Aborted, text: format!("because of {by}") };
            cluster.at(draw_time(&mut random, 10 * MS), by, Deed::Command(Command::End(end)));
        }
        cluster.run_until(1000 * MS);
        for rank in alive(&cluster, ranks).filter(|_| !enders.is_empty()) {
            let ends: Vec<_> =
                cluster.news(rank).iter().filter(|(_, a)| matches!(a, Action::Ended(_))).collect();
            let [(_, Action::Ended(end))] = ends[..] else { panic!("seed {seed}: rank {rank}: {ends:?}") };
            assert!(enders.contains(&end.by) && end.text == format!("because of {}", end.by));
            assert_eq!(cluster.node(rank).ended(), Some(end));
        }
    }
}

#[test]
fn the_frozen_are_lost_and_learn_of_it_and_naps_do_no_harm() {
    // In the last one all but one of 62 are stopped, and wake as a communicator of their own.
    for seed in (0..1000).chain([18_314]) {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let freeze = Some(400 * MS);
        let settings = ControlSettings { freeze, ..ControlSettings::new(ranks, random.bits()) };
        let mut cluster = ControlCluster::new(&settings);
        let asleep = draw_some(&mut random, ranks);
        let naps = random.bits().is_multiple_of(2);
        for &rank in &asleep {
            let time = draw_time(&mut random, 300 * MS);
            cluster.at(time, rank, Deed::Freeze);
            let length = if naps { draw_time(&mut random, 250 * MS) } else { 5000 * MS };
            cluster.at(time + length, rank, Deed::Thaw);
        }
        cluster.run_until(15_000 * MS);
        for rank in 0..ranks {
            let news = cluster.news(rank);
            if naps {
                assert_eq!(news, [], "seed {seed}: rank {rank} of {ranks}, {asleep:?}");
            } else if !asleep.contains(&rank) {
                assert_eq!(
                    lost(&cluster, rank),
                    asleep.iter().copied().collect::<Vec<_>>(),
                    "seed {seed}: rank {rank}"
                );
            } else {
                let excluded = |action: &Action| matches!(action, Action::Excluded { .. });
                assert_eq!(
                    news.iter().filter(|(_, a)| excluded(a)).count(),
                    1,
                    "seed {seed}: rank {rank}: {news:?}"
                );
                assert!(lost(&cluster, rank).iter().all(|r| asleep.contains(r)), "seed {seed}: rank {rank}");
            }
        }
    }
}

#[test]
fn an_inquest_names_exactly_the_silent() {
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let settings = ControlSettings { freeze: None, ..ControlSettings::new(ranks, random.bits()) };
        let mut cluster = ControlCluster::new(&settings);
        let mut frozen = draw_some(&mut random, ranks);
        frozen.remove(&0);
        for &rank in &frozen {
            cluster.at(draw_time(&mut random, MS), rank, Deed::Freeze);
        }
        let awake: Vec<Rank> = (0..ranks).filter(|r| !frozen.contains(r)).collect();
        let mut askers = BTreeSet::new();
        for _ in 0..random.up_to(3) {
            let by = *random.pick(&awake);
            askers.insert(by);
            let reason = format!("asked by {by}").into_bytes();
            cluster.at(
                2 * MS + draw_time(&mut random, 3 * MS),
                by,
                Deed::Command(Command::Inquire { reason }),
            );
        }
        cluster.run_until(5000 * MS);
        for &rank in &awake {
            let judged = cluster.news(rank).iter().filter_map(|(time, action)| match action {
                Action::Judge { by, reason, states } => Some((*time, *by, reason, states)),
                _ => None,
            });
            let judged: Vec<_> = judged.collect();
            assert_eq!(
                judged.len(),
                usize::from(rank == 0),
                "seed {seed}: rank {rank} of {ranks} {frozen:?} {askers:?}"
            );
            for (time, by, reason, states) in judged {
                assert!(askers.contains(&by) && *reason == format!("asked by {by}").into_bytes());
                let heard: Vec<Rank> = states.iter().map(|(rank, _)| *rank).collect();
                assert_eq!(heard, awake, "seed {seed}");
                assert!(states.iter().all(|(rank, state)| *state == rank.to_be_bytes()));
                assert!(!frozen.is_empty() || time < 100 * MS, "seed {seed}: {time:?}");
            }
            let ended = cluster.node(rank).ended().map(|end| &end.text[..]);
            assert_eq!(ended, Some("judged by rank 0"), "seed {seed}: rank {rank} of {ranks} {frozen:?}");
        }
    }
}
