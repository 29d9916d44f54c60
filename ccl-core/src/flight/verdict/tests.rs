//! Scenes and what is said of them.

mod kernels;

use super::*;
use crate::flight::{CallState, WaitFor, WaitState};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1000 * SECOND;

fn call(name: &str, sequence: u64) -> CallState {
    CallState {
        sequence,
        name: name.into(),
        count: 4096,
        dtype: "float".into(),
        op: (name == "all_reduce").then(|| "sum".into()),
        algorithm: "ring".into(),
        fingerprint: name.bytes().map(u64::from).sum(),
        ..CallState::default()
    }
}

fn state(rank: Rank, ranks: u32) -> RankState {
    RankState { rank, ranks, now_ns: NOW, ..RankState::default() }
}

/// In all_reduce #91 for 31 s, waiting for a piece from `peer`.
fn inside(rank: Rank, ranks: u32, peer: Rank) -> RankState {
    RankState {
        calls: 92,
        running: vec![call("all_reduce", 91)],
        last: Some(call("all_gather", 90)),
        waits: vec![piece(peer, 17)],
        ..state(rank, ranks)
    }
}

fn piece(peer: Rank, tile: u64) -> WaitState {
    let since_ns = NOW - 31 * SECOND;
    WaitState { lane: 1, mv: 3, tile, on: WaitFor::Piece, peers: vec![peer], channel: 0, since_ns }
}

fn outside(rank: Rank, ranks: u32, ended_ns: Option<u64>) -> RankState {
    let last = CallState { ended_ns, ..call("all_gather", 90) };
    RankState { calls: 91, last: Some(last), ..state(rank, ranks) }
}

/// Each rank of a ring waits for the one before it, but where `other` says what it does.
fn ring(ranks: u32, other: impl Fn(Rank) -> Option<Option<RankState>>) -> Vec<(Rank, Option<RankState>)> {
    let one = |rank| other(rank).unwrap_or_else(|| Some(inside(rank, ranks, (rank + ranks - 1) % ranks)));
    (0..ranks).map(|rank| (rank, one(rank))).collect()
}

const TIMEOUT: Reason = Reason::Timeout { by: 0, waited: Duration::from_secs(31) };

#[track_caller]
fn check(
    states: &[(Rank, Option<RankState>)],
    blame: Blame,
    culprits: &[Rank],
    sequence: Option<u64>,
    text: &str,
) {
    check_for(&TIMEOUT, states, blame, culprits, sequence, text);
}

#[track_caller]
fn check_for(
    reason: &Reason,
    states: &[(Rank, Option<RankState>)],
    blame: Blame,
    culprits: &[Rank],
    sequence: Option<u64>,
    text: &str,
) {
    let verdict = judge(8, reason, states);
    assert_eq!(verdict.text, text);
    assert_eq!((verdict.blame, verdict.culprits.as_slice(), verdict.sequence), (blame, culprits, sequence));
    let mut reversed = states.to_vec();
    reversed.reverse();
    assert_eq!(judge(8, reason, &reversed), verdict);
}

#[test]
fn one_rank_is_absent() {
    let ended = Some(NOW - 31 * SECOND);
    check(
        &ring(8, |rank| (rank == 5).then(|| Some(outside(5, 8, ended)))),
        Blame::Absent,
        &[5],
        Some(91),
        "rank 5 never entered all_reduce #91 (4096 x float, sum, ring): its last was all_gather #90, finished 31 s ago; \
         ranks 0-4, 6-7 wait in it for 31 s; look at what that process does there",
    );
}

#[test]
fn several_are_absent_for_several_reasons() {
    let states = ring(8, |rank| match rank {
        1 => Some(Some(state(1, 8))),
        2 | 3 => Some(Some(outside(rank, 8, Some(NOW - u64::from(rank) * SECOND)))),
        5 => Some(Some(RankState { broken: Some("a test".into()), last: None, ..outside(5, 8, None) })),
        _ => None,
    });
    check(
        &states,
        Blame::Absent,
        &[1, 2, 3, 5],
        Some(91),
        "ranks 1-3, 5 never entered all_reduce #91 (4096 x float, sum, ring): it has made no call yet (rank 1), their last was \
         all_gather #90, finished 2.0 s ago (ranks 2-3), it takes no more calls: a test (rank 5); ranks 0, 4, 6-7 wait in \
         it for 31 s; look at what those processes do there",
    );
}

#[test]
fn one_rank_is_silent() {
    let states = ring(8, |rank| (rank == 3).then_some(None));
    check(
        &states,
        Blame::Silent,
        &[3],
        Some(91),
        "rank 3 does not answer: stopped, or without a core to run on; ranks 0-2, 4-7 wait in all_reduce #91 \
         (4096 x float, sum, ring) for 31 s; look at that process",
    );
    let placed = judge_at(8, &TIMEOUT, &states, &|rank| Some(format!("pid {} on node{rank}", 4708 + rank)));
    assert!(placed.text.starts_with("rank 3 (pid 4711 on node3) does not answer: "), "{}", placed.text);
}

#[test]
fn who_is_silent_may_be_why_another_is_absent() {
    let states = ring(8, |rank| match rank {
        3 | 4 => Some(None),
        5 => Some(Some(outside(5, 8, None))),
        _ => None,
    });
    check(
        &states,
        Blame::Silent,
        &[3, 4],
        Some(91),
        "ranks 3-4 do not answer: stopped, or without a core to run on; ranks 0-2, 6-7 wait in all_reduce #91 \
         (4096 x float, sum, ring) for 31 s; rank 5 never entered #91; look at those processes",
    );
}

#[test]
fn one_rank_makes_another_call() {
    let other = |rank| {
        (rank == 5).then(|| Some(RankState { running: vec![call("all_gather", 91)], ..inside(5, 8, 4) }))
    };
    let text = "rank 5 asked for all_gather #91 (4096 x float, ring), ranks 0-4, 6-7 for all_reduce #91 (4096 x float, sum, \
                ring): they differ in the collective and the operator; perhaps their calls are in another order; all ranks \
                must make the same calls in the same order with the same arguments";
    check(&ring(8, other), Blame::Disagreement, &[5], Some(91), text);
    // A disagreement explains more than ranks that are silent or absent.
    let mut worse = ring(8, other);
    worse[2].1 = None;
    worse[3].1 = Some(outside(3, 8, None));
    let verdict = judge(8, &TIMEOUT, &worse);
    assert_eq!((verdict.blame, verdict.culprits), (Blame::Disagreement, vec![5]));
    // Whoever has finished another call under that number, or failed in it, disagrees no less.
    for broken in [None, Some("rank 0 is in another call".to_string())] {
        let done = |rank| {
            (rank == 5).then(|| {
                let last = Some(CallState { failed: broken.is_some(), ..call("all_gather", 91) });
                Some(RankState {
                    running: vec![],
                    last,
                    waits: vec![],
                    broken: broken.clone(),
                    ..inside(5, 8, 4)
                })
            })
        };
        check(&ring(8, done), Blame::Disagreement, &[5], Some(91), text);
    }
}

#[test]
fn every_argument_that_differs_is_named() {
    let differing = |change: fn(&mut CallState)| {
        let states = ring(8, |rank| {
            (rank < 2).then(|| {
                let mut state = inside(rank, 8, 7);
                change(&mut state.running[0]);
                state.running[0].fingerprint = 1;
                Some(state)
            })
        });
        let verdict = judge(8, &TIMEOUT, &states);
        assert_eq!((verdict.blame, verdict.culprits), (Blame::Disagreement, vec![0, 1]));
        let (_, differ) = verdict.text.split_once("they differ in ").expect("differences");
        differ.split(';').next().unwrap_or_default().to_string()
    };
    assert_eq!(differing(|call| call.count = 1), "the count");
    assert_eq!(differing(|call| call.dtype = "double".into()), "the type");
    assert_eq!(differing(|call| call.op = Some("max".into())), "the operator");
    assert_eq!(differing(|call| call.root = Some(2)), "the root");
    assert_eq!(differing(|call| call.algorithm = "tree".into()), "the algorithm");
    assert_eq!(differing(|_| ()), "the lengths of blocks, or RDMACCL_TILE_BYTES");
    let three = differing(|call| (call.count, call.dtype, call.root) = (1, "half".into(), Some(1)));
    assert_eq!(three, "the count, the type and the root");
}

#[test]
fn where_no_side_is_the_larger_nobody_is_to_blame() {
    let states = ring(8, |rank| {
        (rank % 2 == 1)
            .then(|| Some(RankState { running: vec![call("broadcast", 91)], ..inside(rank, 8, 4) }))
    });
    let verdict = judge(8, &TIMEOUT, &states);
    assert_eq!((verdict.blame, verdict.culprits), (Blame::Disagreement, vec![]));
    assert!(verdict.text.starts_with("ranks 1, 3, 5, 7 asked for broadcast #91"), "{}", verdict.text);
}

fn transfer(name: &str, sequence: u64, peer: Rank, count: u64) -> CallState {
    let fingerprint = count;
    CallState {
        sequence,
        name: name.into(),
        peer: Some(peer),
        count,
        dtype: "float".into(),
        fingerprint,
        ..CallState::default()
    }
}

fn transferring(rank: Rank, calls: Vec<CallState>) -> (Rank, Option<RankState>) {
    (rank, Some(RankState { running: calls, ..state(rank, 8) }))
}

#[test]
fn the_ends_of_a_transfer_differ() {
    check(
        &[
            transferring(2, vec![transfer("receive", 3, 1, 5), transfer("send", 0, 7, 5)]),
            transferring(1, vec![transfer("send", 3, 2, 4)]),
        ],
        Blame::Disagreement,
        &[],
        Some(3),
        "rank 1 sends 4 x float to rank 2, which receives 5 x float (transfer #3 between them): they differ in the count; \
         both ends of a transfer must give the same count and type",
    );
}

#[test]
fn a_send_that_is_over_may_have_been_another_one() {
    let sent = CallState { dtype: "half".into(), fingerprint: 99, ..transfer("send", 3, 2, 5) };
    check_for(
        &Reason::Mismatch { by: 2, peer: 1 },
        &[
            transferring(2, vec![transfer("receive", 3, 1, 5)]),
            (1, Some(RankState { transfers: vec![sent], ..state(1, 8) })),
        ],
        Blame::Disagreement,
        &[],
        Some(3),
        "rank 1 sends 5 x half to rank 2, which receives 5 x float (transfer #3 between them): they differ in the type; \
         both ends of a transfer must give the same count and type",
    );
}

#[test]
fn nobody_is_at_the_other_end_of_a_transfer() {
    check(
        &[transferring(1, vec![transfer("receive", 0, 2, 4)]), (2, Some(outside(2, 8, Some(NOW - SECOND))))],
        Blame::Absent,
        &[2],
        Some(0),
        "rank 2 is not in the send to rank 1 (its last was all_gather #90, finished 1.0 s ago); rank 1 waits in receive #0 \
         (4 x float, peer 2); each send needs a receive of the same count and type",
    );
}

#[test]
fn transfers_wait_in_a_circle() {
    check(
        &[
            transferring(1, vec![transfer("receive", 0, 2, 4)]),
            transferring(2, vec![transfer("receive", 0, 1, 4)]),
        ],
        Blame::Stuck,
        &[],
        None,
        "ranks 1-2 wait in transfers; they wait for each other in a circle: rank 1 for rank 2",
    );
}

#[test]
fn a_link_is_stuck_where_both_its_ends_wait_for_it() {
    let states = ring(8, |rank| {
        (rank == 3).then(|| {
            let credit = WaitState { on: WaitFor::Credit, tile: 40, ..piece(4, 17) };
            Some(RankState { waits: vec![credit], ..inside(3, 8, 2) })
        })
    });
    check(
        &states,
        Blame::Stuck,
        &[3, 4],
        Some(91),
        "all are in all_reduce #91 (4096 x float, sum, ring); rank 3's link to rank 4 has not moved for 31 s: rank 4 waits \
         for a piece from rank 3 on channel 0, lane 1, move 3, tile 17, and rank 3 waits for it to take one; look at the \
         transport between them",
    );
}

#[test]
fn the_waits_end_at_a_rank_that_waits_for_nobody() {
    let states = ring(8, |rank| (rank == 6).then(|| Some(RankState { waits: vec![], ..inside(6, 8, 5) })));
    check(
        &states,
        Blame::Stuck,
        &[6],
        Some(91),
        "all are in all_reduce #91 (4096 x float, sum, ring); rank 6 waits for nobody: computing, or without a core, and \
         rank 7 waits for a piece from rank 6 on channel 0, lane 1, move 3, tile 17 for 31 s; look at what that process does",
    );
    let done = |rank| {
        (rank == 6).then(|| {
            let last = Some(call("all_reduce", 91));
            Some(RankState { running: vec![], waits: vec![], last, ..inside(6, 8, 5) })
        })
    };
    let verdict = judge(8, &TIMEOUT, &ring(8, done));
    assert_eq!((verdict.blame, verdict.culprits), (Blame::Stuck, vec![6]));
    assert!(verdict.text.contains("; rank 6 has finished it, and rank 7 waits"), "{}", verdict.text);
}

#[test]
fn a_circle_has_no_culprit_and_names_who_is_furthest_behind() {
    let states =
        ring(8, |rank| (rank == 2).then(|| Some(RankState { waits: vec![piece(1, 3)], ..inside(2, 8, 1) })));
    check(
        &states,
        Blame::Stuck,
        &[],
        Some(91),
        "all are in all_reduce #91 (4096 x float, sum, ring); they wait for each other in a circle: furthest behind, rank 2 \
         waits for a piece from rank 1 on channel 0, lane 1, move 3, tile 3 for 31 s",
    );
}

#[test]
fn a_piece_of_another_call_is_a_disagreement_also_where_the_states_do_not_show_it() {
    let reason = Reason::Mismatch { by: 2, peer: 1 };
    check_for(
        &reason,
        &ring(8, |_| None),
        Blame::Disagreement,
        &[],
        Some(91),
        "rank 2 in all_reduce #91 (4096 x float, sum, ring) got a piece of another call from rank 1 in all_reduce #91 \
         (4096 x float, sum, ring): they give different lengths to the block between them, or one has skipped a call; all \
         ranks must make the same calls in the same order with the same arguments",
    );
    check_for(
        &reason,
        &[(2, Some(inside(2, 8, 1))), (1, None)],
        Blame::Disagreement,
        &[],
        Some(91),
        "rank 2 in all_reduce #91 (4096 x float, sum, ring) got a piece of another call from rank 1, which does not answer: \
         one of them has made another call than the other, or more; all ranks must make the same calls in the same order \
         with the same arguments",
    );
    let verdict = judge(8, &reason, &[transferring(2, vec![transfer("receive", 3, 1, 5)])]);
    let begin = "rank 2 in receive #3 (5 x float, peer 1) got a piece of another call from rank 1, of which no more is known: ";
    assert!(verdict.text.starts_with(begin), "{}", verdict.text);
}

#[test]
fn where_nothing_runs_nothing_is_wrong() {
    let states: Vec<_> = (0..8).map(|rank| (rank, Some(outside(rank, 8, None)))).collect();
    check_for(&Reason::Asked, &states, Blame::Unclear, &[], None, "no rank is in a call");
    check(&states, Blame::Unclear, &[], None, "no rank is in a call; rank 0 asked after 31 s");
    check_for(&Reason::Asked, &[], Blame::Unclear, &[], None, "no rank is in a call");
}

#[test]
fn of_ranks_that_were_not_asked_nothing_is_said() {
    let two: Vec<_> = ring(8, |_| None).into_iter().take(2).collect();
    let verdict = judge(8, &Reason::Asked, &two);
    assert_eq!((verdict.blame, verdict.culprits), (Blame::Stuck, vec![]));
    assert!(verdict.text.starts_with("ranks 0-1 are in all_reduce #91"), "{}", verdict.text);
}

#[test]
fn texts_stay_readable_for_thousands_of_ranks() {
    let ranks = 4096;
    let absent =
        ring(ranks, |rank| (rank % 2 == 0).then(|| Some(outside(rank, ranks, Some(u64::from(rank))))));
    let split = ring(ranks, |rank| {
        let mut state = inside(rank, ranks, 0);
        state.running[0].count = rank.into();
        state.running[0].fingerprint = rank.into();
        Some(Some(state))
    });
    let silent = ring(ranks, |rank| (rank % 3 == 0).then_some(None));
    for (states, blame) in [(absent, Blame::Absent), (split, Blame::Disagreement), (silent, Blame::Silent)] {
        let verdict = judge(ranks, &TIMEOUT, &states);
        assert_eq!(verdict.blame, blame);
        assert!(verdict.text.len() < 1000, "{}", verdict.text);
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn a_call() -> impl Strategy<Value = CallState> {
        let names = prop::sample::select(vec!["all_reduce", "broadcast", "send", "receive"]);
        (names, 0_u64..4, 0_u32..6, 0_u64..3, any::<Option<u64>>()).prop_map(
            |(name, sequence, peer, count, stamp)| {
                let is_transfer = ["send", "receive"].contains(&name);
                let call =
                    if is_transfer { transfer(name, sequence, peer, count) } else { call(name, sequence) };
                CallState { started_ns: stamp, ended_ns: stamp, ..call }
            },
        )
    }

    fn a_wait() -> impl Strategy<Value = WaitState> {
        let on = prop::sample::select(vec![WaitFor::Piece, WaitFor::Credit]);
        (on, prop::collection::vec(0_u32..7, 0..3), 0_u64..3, any::<u64>())
            .prop_map(|(on, peers, tile, since_ns)| WaitState { on, peers, since_ns, ..piece(0, tile) })
    }

    fn a_state() -> impl Strategy<Value = RankState> {
        let calls = (prop::collection::vec(a_call(), 0..3), prop::option::of(a_call()));
        let rest = (
            prop::collection::vec(a_wait(), 0..3),
            0_u64..5,
            any::<u64>(),
            prop::option::of(Just("why".to_string())),
        );
        (calls, rest).prop_map(|((running, last), (waits, calls, now_ns, broken))| RankState {
            running,
            last,
            waits,
            calls,
            now_ns,
            broken,
            ..RankState::default()
        })
    }

    fn a_reason() -> impl Strategy<Value = Reason> {
        prop_oneof![
            Just(Reason::Asked),
            (0_u32..7).prop_map(|by| Reason::Timeout { by, waited: Duration::from_secs(1) }),
            (0_u32..7, 0_u32..7).prop_map(|(by, peer)| Reason::Mismatch { by, peer }),
        ]
    }

    proptest! {
        #[test]
        fn a_verdict_names_known_ranks_and_does_not_depend_on_the_order(
            ranks in 1_u32..7,
            reason in a_reason(),
            states in prop::collection::vec((0_u32..7, prop::option::of(a_state())), 0..9),
            turn in 0_usize..9,
        ) {
            let verdict = judge(ranks, &reason, &states);
            prop_assert!(verdict.culprits.iter().all(|rank| *rank < ranks), "{verdict:?}");
            prop_assert!(verdict.culprits.is_sorted_by(|a, b| a < b), "{verdict:?}");
            prop_assert!(!verdict.text.is_empty() && !verdict.text.contains("no rank wait"));
            let mut turned = states.clone();
            turned.rotate_left(turn % states.len().max(1));
            prop_assert_eq!(&judge(ranks, &reason, &turned), &verdict);
            turned.reverse();
            prop_assert_eq!(&judge(ranks, &reason, &turned), &verdict);
        }

        #[test]
        fn a_reason_comes_back(reason in a_reason()) {
            prop_assert_eq!(Reason::from_bytes(&reason.to_bytes()), Some(reason));
        }
    }
}
