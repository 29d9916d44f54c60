//! Calls that kernels make.

use super::*;
use crate::flight::KernelState;

/// Kernels in the call with this number, or past the one before it.
fn kernels(rank: Rank, number: u64, name: Option<&str>) -> (Rank, Option<RankState>) {
    let of = |name: &str, number| CallState { algorithm: "packets on devices".into(), ..call(name, number) };
    let kernels = KernelState {
        calls: number + u64::from(name.is_some()),
        running: name.map(|name| CallState { started_ns: Some(NOW - SECOND), ..of(name, number) }),
        last: name.is_none().then(|| of("all_reduce", number - 1)),
        ..KernelState::default()
    };
    (rank, Some(RankState { kernels: Some(kernels), ..state(rank, 3) }))
}

#[test]
fn kernels_in_different_calls_and_ranks_without_a_kernel_are_named() {
    let all = |other: Option<&str>| {
        vec![kernels(0, 7, Some("all_reduce")), kernels(1, 7, Some("all_reduce")), kernels(2, 7, other)]
    };
    let verdict = judge(3, &TIMEOUT, &all(Some("broadcast")));
    assert_eq!(
        (verdict.blame, &verdict.culprits[..], verdict.sequence),
        (Blame::Disagreement, &[2][..], Some(7))
    );
    assert!(verdict.text.starts_with("rank 2 asked for broadcast #7"), "{}", verdict.text);
    let verdict = judge(3, &TIMEOUT, &all(None));
    assert_eq!((verdict.blame, &verdict.culprits[..], verdict.sequence), (Blame::Absent, &[2][..], Some(7)));
    assert!(verdict.text.starts_with("rank 2 never entered all_reduce #7"), "{}", verdict.text);
}

#[test]
fn a_call_on_host_memory_that_others_make_by_kernels_is_told() {
    let mut states =
        vec![kernels(0, 7, Some("all_reduce")), kernels(1, 7, None), kernels(2, 7, Some("all_reduce"))];
    if let Some(state) = &mut states[1].1 {
        (state.calls, state.running) = (92, vec![call("all_reduce", 91)]);
    }
    let verdict = judge(3, &TIMEOUT, &states);
    assert_eq!(
        (verdict.blame, &verdict.culprits[..], verdict.sequence),
        (Blame::Disagreement, &[1][..], Some(91))
    );
    let begin =
        "rank 1 waits in all_reduce #91 (4096 x float, sum, ring) on host memory, kernels of ranks 0, 2 in";
    assert!(verdict.text.starts_with(begin), "{}", verdict.text);
    // Kernels of a rank run beside its calls on the host.
    if let Some(state) = &mut states[0].1 {
        (state.calls, state.running) = (92, vec![call("all_reduce", 91)]);
    }
    assert_ne!(judge(3, &TIMEOUT, &states).blame, Blame::Disagreement);
}

/// A rank whose kernels make these transfers, and have made those.
fn moving(rank: Rank, transfers: Vec<CallState>, ended: Vec<CallState>) -> (Rank, Option<RankState>) {
    let kernels = KernelState { transfers, ended, ..KernelState::default() };
    (rank, Some(RankState { kernels: Some(kernels), ..state(rank, 8) }))
}

#[test]
fn transfers_of_kernels_that_differ_are_named_where_a_piece_did_not_fit() {
    // Each rank counts its own; a short send is over before its receive begins.
    let states = [
        moving(1, vec![], vec![transfer("send", 9, 0, 7), transfer("send", 9, 2, 4)]),
        moving(2, vec![transfer("receive", 3, 1, 5)], vec![]),
    ];
    check_for(
        &Reason::Mismatch { by: 2, peer: 1 },
        &states,
        Blame::Disagreement,
        &[],
        Some(9),
        "rank 1 sends 4 x float to rank 2, which receives 5 x float by kernels: they differ in the count; both ends of a \
         transfer must give the same count and type",
    );
    // Numbers that are equal mean nothing.
    let equal = [
        moving(1, vec![transfer("send", 3, 2, 4)], vec![]),
        moving(2, vec![transfer("receive", 3, 1, 5)], vec![]),
    ];
    assert_ne!(judge(8, &TIMEOUT, &equal).blame, Blame::Disagreement);
}

#[test]
fn who_is_absent_from_a_transfer_of_kernels_is_named_of_a_group_the_one_that_is_waited_for() {
    let (mut waits, done) = (
        moving(0, vec![transfer("send", 3, 1, 5), transfer("receive", 3, 2, 5)], vec![]),
        moving(1, vec![], vec![transfer("receive", 8, 0, 5)]),
    );
    if let Some(kernels) = waits.1.as_mut().and_then(|state| state.kernels.as_mut()) {
        kernels.awaited = vec![2];
    }
    let verdict = judge(8, &TIMEOUT, &[waits.clone(), done, moving(2, vec![], vec![])]);
    assert_eq!((verdict.blame, &verdict.culprits[..]), (Blame::Absent, &[2][..]));
    assert!(verdict.text.starts_with("rank 2 is not in the send to rank 0"), "{}", verdict.text);
    // It is in it, on host memory.
    let mut on_host = moving(2, vec![], vec![]);
    if let Some(state) = &mut on_host.1 {
        state.running = vec![transfer("send", 0, 0, 5)];
    }
    let verdict = judge(8, &TIMEOUT, &[waits, on_host]);
    assert_eq!((verdict.blame, &verdict.culprits[..]), (Blame::Disagreement, &[2][..]));
    let begin = "rank 2 waits in send #0 (5 x float, peer 0) on host memory, kernels of rank 0 in receive #3";
    assert!(verdict.text.starts_with(begin), "{}", verdict.text);
}

#[test]
fn a_block_of_which_only_two_ranks_know_differs_between_kernels() {
    let states = [kernels(0, 7, Some("all_to_all")), kernels(1, 7, Some("all_to_all"))];
    let verdict = judge(3, &Reason::Mismatch { by: 1, peer: 0 }, &states);
    assert_eq!(verdict.blame, Blame::Disagreement);
    let words = "rank 1 in all_to_all #7 (4096 x float, packets on devices) got a piece of another call from rank 0 in";
    assert!(verdict.text.starts_with(words), "{}", verdict.text);
    assert!(verdict.text.contains("different lengths to the block between them"), "{}", verdict.text);
}
