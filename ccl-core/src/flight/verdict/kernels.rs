//! Calls that kernels make on devices.

use super::scene::{At, Scene};
use super::{Blame, Reason, Verdict, disagreement, words};
use crate::flight::{CallState, RankState};
use crate::plan::Rank;

/// What the ranks' kernels do, as if there were no other calls. Ranks without kernels are left out, as if nobody had asked them.
pub(super) fn states(states: &[(Rank, Option<RankState>)]) -> Vec<(Rank, Option<RankState>)> {
    let of = |state: &RankState| {
        let kernels = state.kernels.clone()?;
        // Those of a group are over together; for whom the last of them waits is known where the kernels were ended.
        let awaited = |call: &CallState| {
            kernels.awaited.is_empty() || call.peer.is_some_and(|peer| kernels.awaited.contains(&peer))
        };
        let transfers = kernels.transfers.iter().filter(|call| awaited(call)).cloned();
        Some(RankState {
            calls: kernels.calls,
            running: kernels.running.into_iter().chain(transfers).collect(),
            last: kernels.last,
            earlier: Vec::new(),
            transfers: kernels.ended,
            waits: Vec::new(),
            progress: None,
            kernels: None,
            ..state.clone()
        })
    };
    let known = states.iter().filter_map(|(rank, state)| Some((*rank, Some(of(state.as_ref()?)?))));
    known.collect()
}

/// The two ends of a transfer, of which one got a piece that was not meant for it. Kernels do not count transfers link by link, so it is
/// the ones that run, or have ended last, that are compared.
pub(super) fn transfers(kernels: &Scene<'_>, reason: &Reason) -> Option<Verdict> {
    let Reason::Mismatch { by, peer } = *reason else { return None };
    let receives = kernels.transfers(by).filter(|(other, call)| *other == peer && call.name == "receive");
    let sends = kernels.known_transfers(peer).filter(|(other, call)| *other == by && call.name == "send");
    let mut pairs = sends.map(|(_, call)| call).zip(receives.map(|(_, call)| call));
    let (sends, receives) = pairs.find(|(sends, receives)| sends.fingerprint != receives.fingerprint)?;
    Some(disagreement::two_ends((peer, sends), (by, receives), " by kernels"))
}

/// A transfer that one rank makes on host memory and the other on a device.
pub(super) fn transfer_apart(scene: &Scene<'_>, kernels: &Scene<'_>) -> Option<Verdict> {
    let open =
        scene.states.keys().flat_map(|rank| scene.transfers(*rank).map(|(peer, call)| (*rank, peer, call)));
    let (rank, peer, call, on_device) = open.into_iter().find_map(|(rank, peer, call)| {
        let mut ends = kernels.transfers(peer).filter(|(other, end)| *other == rank && end.name != call.name);
        Some((rank, peer, call, ends.next()?.1))
    })?;
    let text = format!(
        "rank {rank} waits in {call} on host memory, kernels of rank {peer} in {on_device} on device memory: {SAME_KIND}"
    );
    Some(Verdict { blame: Blame::Disagreement, culprits: vec![rank], sequence: Some(call.sequence), text })
}

const SAME_KIND: &str = "all ranks of a call must give buffers of the same kind, where kernels make it \
                         (RDMACCL_DEVICE_ENGINE=off makes every call on the host)";

/// Ranks that wait in a call on host memory, while kernels of others wait in one that these have not begun.
pub(super) fn apart(scene: &Scene<'_>, kernels: &Scene<'_>) -> Option<Verdict> {
    let on_device = kernels.places().filter_map(|(rank, at)| match at {
        At::In(call) => Some((rank, call)),
        At::Before(_) => None,
    });
    let (first, on_devices) = on_device.min_by_key(|(rank, call)| (call.sequence, *rank))?;
    let there: Vec<Rank> = kernels
        .places()
        .filter(|(_, at)| matches!(at, At::In(call) if call.sequence == on_devices.sequence))
        .map(|(rank, _)| rank)
        .collect();
    let not_there = |rank: &Rank| {
        let state = kernels.states.get(rank).copied();
        state.is_none_or(|state| matches!(Scene::at(state), At::Before(next) if next <= on_devices.sequence))
    };
    let on_host: Vec<_> = scene
        .places()
        .filter_map(|(rank, at)| match at {
            At::In(call) if not_there(&rank) => Some((rank, call)),
            _ => None,
        })
        .collect();
    let (_, call) = on_host.iter().min_by_key(|(rank, call)| (call.sequence, *rank))?;
    // Whoever is in both has issued the one and waits in the other.
    let inside = |rank: Rank| scene.states.get(&rank).map(|state| Scene::at(state));
    if matches!(inside(first), Some(At::In(own)) if own.sequence == call.sequence) {
        return None;
    }
    let culprits: Vec<Rank> =
        on_host.iter().filter(|(_, own)| own.sequence == call.sequence).map(|(rank, _)| *rank).collect();
    let text = format!(
        "{} {} in {call} on host memory, kernels of {} in {on_devices} on device memory: {SAME_KIND}",
        words::ranks(&culprits),
        words::verb(&culprits, "waits", "wait"),
        words::ranks(&there),
    );
    let culprits = if culprits.len() < there.len() { culprits } else { Vec::new() };
    Some(Verdict { blame: Blame::Disagreement, culprits, sequence: Some(call.sequence), text })
}
