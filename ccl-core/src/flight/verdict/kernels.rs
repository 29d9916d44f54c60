//! Calls that kernels make on devices.

use super::scene::{At, Scene};
use super::{Blame, Verdict, words};
use crate::flight::RankState;
use crate::plan::Rank;

/// What the ranks' kernels do, as if there were no other calls. Ranks without kernels are left out, as if nobody had asked them.
pub(super) fn states(states: &[(Rank, Option<RankState>)]) -> Vec<(Rank, Option<RankState>)> {
    let of = |state: &RankState| {
        let kernels = state.kernels.clone()?;
        Some(RankState {
            calls: kernels.calls,
            running: kernels.running.into_iter().collect(),
            last: kernels.last,
            earlier: Vec::new(),
            transfers: Vec::new(),
            waits: Vec::new(),
            progress: None,
            kernels: None,
            ..state.clone()
        })
    };
    let known = states.iter().filter_map(|(rank, state)| Some((*rank, Some(of(state.as_ref()?)?))));
    known.collect()
}

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
        "{} {} in {call} on host memory, kernels of {} in {on_devices} on device memory: all ranks of a call must give \
         buffers of the same kind, where kernels make it (RDMACCL_DEVICE_ENGINE=off makes every call on the host)",
        words::ranks(&culprits),
        words::verb(&culprits, "waits", "wait"),
        words::ranks(&there),
    );
    let culprits = if culprits.len() < there.len() { culprits } else { Vec::new() };
    Some(Verdict { blame: Blame::Disagreement, culprits, sequence: Some(call.sequence), text })
}
