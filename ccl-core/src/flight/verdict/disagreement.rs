//! Ranks that were not in the same call.

use super::scene::{At, Scene};
use super::{Blame, Reason, Verdict, words};
use crate::flight::CallState;
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const REMEDY: &str = "all ranks must make the same calls in the same order with the same arguments";
/// Sides that are written out.
const MOST_SIDES: usize = 4;

/// Ranks that were in the same call.
struct Side<'a> {
    call: &'a CallState,
    ranks: Vec<Rank>,
}

/// Ranks whose collectives of one number are not the same: the lowest such number.
pub(super) fn collectives(scene: &Scene<'_>) -> Option<Verdict> {
    let mut numbers: BTreeMap<u64, BTreeMap<u64, Side<'_>>> = BTreeMap::new();
    for (rank, state) in &scene.states {
        let mut calls: Vec<&CallState> = state
            .running
            .iter()
            .chain(&state.last)
            .chain(&state.earlier)
            .filter(|call| call.peer.is_none())
            .collect();
        calls.dedup_by_key(|call| call.sequence);
        for call in calls {
            let sides = numbers.entry(call.sequence).or_default();
            let side = sides.entry(call.fingerprint).or_insert_with(|| Side { call, ranks: Vec::new() });
            if side.ranks.last() != Some(rank) {
                side.ranks.push(*rank);
            }
        }
    }
    let (number, sides) = numbers.into_iter().find(|(_, sides)| sides.len() > 1)?;
    let mut sides: Vec<Side<'_>> = sides.into_values().collect();
    // The largest first; of equal ones that with the lowest rank.
    sides.sort_by_key(|side| (std::cmp::Reverse(side.ranks.len()), side.ranks.first().copied()));
    let (most, others) = sides.split_first()?;
    let is_tie = others.first().is_some_and(|other| other.ranks.len() == most.ranks.len());
    let mut culprits: Vec<Rank> = others.iter().flat_map(|side| &side.ranks).copied().collect();
    culprits.sort_unstable();

    let mut text = String::new();
    for side in others.iter().take(MOST_SIDES) {
        let _ = write!(text, "{} asked for {}, ", words::ranks(&side.ranks), side.call);
    }
    if let Some(left @ 1..) = others.len().checked_sub(MOST_SIDES) {
        let _ = write!(text, "{left} other groups of ranks for something else again, ");
    }
    let _ = write!(text, "{} for {}", words::ranks(&most.ranks), most.call);
    if let Some(other) = others.first() {
        let _ = write!(text, ": they differ in {}", words::differences(other.call, most.call));
        if other.call.name != most.call.name {
            text.push_str("; perhaps their calls are in another order");
        }
    }
    let _ = write!(text, "; {REMEDY}");
    let culprits = if is_tie { Vec::new() } else { culprits };
    Some(Verdict { blame: Blame::Disagreement, culprits, sequence: Some(number), text })
}

/// The two ends of a transfer that differ: that of the lowest ranks.
pub(super) fn transfers(scene: &Scene<'_>) -> Option<Verdict> {
    let ends = |name: &'static str| {
        let ranks = scene.states.keys().copied();
        ranks
            .flat_map(move |rank| scene.known_transfers(rank).map(move |(peer, call)| (rank, peer, call)))
            .filter(move |(.., call)| call.name == name)
    };
    let receives: BTreeMap<(Rank, Rank, u64), &CallState> =
        ends("receive").map(|(rank, peer, call)| ((peer, rank, call.sequence), call)).collect();
    let mut differ = ends("send").filter_map(|(rank, peer, sends)| {
        let receives = receives.get(&(rank, peer, sends.sequence))?;
        (receives.fingerprint != sends.fingerprint).then_some((rank, peer, sends, *receives))
    });
    let (from, to, sends, receives) = differ.next()?;
    let number = format!(" (transfer #{} between them)", sends.sequence);
    Some(two_ends((from, sends), (to, receives), &number))
}

/// What is said of the two ends of a transfer that differ, and which of theirs it is.
pub(super) fn two_ends(
    (from, sends): (Rank, &CallState),
    (to, receives): (Rank, &CallState),
    which: &str,
) -> Verdict {
    let text = format!(
        "rank {from} sends {} x {} to rank {to}, which receives {} x {}{which}: they differ in {}; both ends of a \
         transfer must give the same count and type",
        sends.count,
        sends.dtype,
        receives.count,
        receives.dtype,
        words::differences(
            &CallState { name: String::new(), ..sends.clone() },
            &CallState { name: String::new(), ..receives.clone() }
        ),
    );
    Verdict { blame: Blame::Disagreement, culprits: Vec::new(), sequence: Some(sends.sequence), text }
}

/// A rank that got a piece of another call, where the states do not show which: the ranks have moved on, or only the two
/// that share a block know its length.
pub(super) fn messages(scene: &Scene<'_>, reason: &Reason) -> Option<Verdict> {
    let Reason::Mismatch { by, peer } = *reason else { return None };
    if by >= scene.ranks || peer >= scene.ranks {
        return None;
    }
    let place = |rank: Rank| scene.states.get(&rank).map(|state| Scene::at(state));
    let between = |rank: Rank, other: Rank| scene.transfers(rank).find(|(peer, _)| *peer == other);
    let said = |rank: Rank, other: Rank| match between(rank, other)
        .map_or(place(rank), |(_, call)| Some(At::In(call)))
    {
        None if scene.silent.contains(&rank) => format!("rank {rank}, which does not answer"),
        None => format!("rank {rank}, of which no more is known"),
        Some(At::In(call)) => format!("rank {rank} in {call}"),
        Some(At::Before(0)) => format!("rank {rank}, which has made no call yet"),
        Some(At::Before(number)) => format!("rank {rank}, which is past call #{}", number - 1),
    };
    let (here, there) = (place(by), place(peer));
    let both_in = match (here, there) {
        (Some(At::In(here)), Some(At::In(there))) => Some((here, there)),
        _ => None,
    };
    let why = match both_in {
        Some((here, there)) if here.sequence != there.sequence => {
            "one of them has made more calls than the other"
        }
        Some(_) => "they give different lengths to the block between them, or one has skipped a call",
        None => "one of them has made another call than the other, or more",
    };
    Some(Verdict {
        blame: Blame::Disagreement,
        culprits: Vec::new(),
        sequence: here.map(|at| at.number()),
        text: format!(
            "{} got a piece of another call from {}: {why}; {REMEDY}",
            said(by, peer),
            said(peer, by)
        ),
    })
}
