//! Ranks that others wait for.

use super::scene::{At, Scene};
use super::{Blame, Reason, Verdict, words};
use crate::flight::{CallState, RankState, WaitFor, WaitState};
use crate::plan::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Groups of absent ranks that are written out.
const MOST_GROUPS: usize = 3;

/// A rank that has left too early.
pub(super) fn left(reason: &Reason, place: &dyn Fn(Rank) -> Option<String>) -> Option<Verdict> {
    let Reason::Left { peer, sequence, .. } = *reason else { return None };
    let place = place(peer).map_or_else(String::new, |place| format!(" ({place})"));
    let text = format!(
        "rank {peer}{place} closed its communicator before call #{sequence} was over, in which others wait for it; all \
         ranks must make the same calls before they leave"
    );
    Some(Verdict { blame: Blame::Absent, culprits: vec![peer], sequence: Some(sequence), text })
}

/// Ranks that do not answer.
pub(super) fn silent(scene: &Scene<'_>, place: &dyn Fn(Rank) -> Option<String>) -> Option<Verdict> {
    let silent = &scene.silent;
    if silent.is_empty() {
        return None;
    }
    let mut text = words::ranks(silent);
    if let [one] = silent[..]
        && let Some(place) = place(one)
    {
        let _ = write!(text, " ({place})");
    }
    let _ = write!(
        text,
        " {} not answer: stopped, or without a core to run on",
        words::verb(silent, "does", "do")
    );
    let call = waited_in(scene);
    if let Some((call, waiting)) = &call {
        let _ = write!(text, "; {}", wait_in(scene, waiting, &call.to_string()));
    }
    let absent: Vec<Rank> = call.iter().flat_map(|(call, _)| not_in(scene, call.sequence)).collect();
    if let (false, Some((call, _))) = (absent.is_empty(), &call) {
        let _ = write!(text, "; {} never entered #{}", words::ranks(&absent), call.sequence);
    }
    let _ = write!(text, "; look at {}", words::verb(silent, "that process", "those processes"));
    let sequence = call.map(|(call, _)| call.sequence);
    Some(Verdict { blame: Blame::Silent, culprits: silent.clone(), sequence, text })
}

/// Ranks that never entered the collective that others wait in.
pub(super) fn absent(scene: &Scene<'_>) -> Option<Verdict> {
    let (call, waiting) = waited_in(scene)?;
    let mut absent: Vec<Rank> = not_in(scene, call.sequence).collect();
    if absent.is_empty() {
        return None;
    }
    // Those that wait in a transfer themselves are held up by the others, if there are others.
    let is_idle = |rank: &Rank| scene.states.get(rank).is_some_and(|state| state.running.is_empty());
    if absent.iter().any(is_idle) {
        absent.retain(is_idle);
    }
    // What they do instead, and who does it.
    let mut groups: BTreeMap<Instead<'_>, Vec<Rank>> = BTreeMap::new();
    for rank in &absent {
        groups.entry(Instead::of(scene.states.get(rank)?)).or_default().push(*rank);
    }
    let mut groups: Vec<(Instead<'_>, Vec<Rank>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, ranks)| ranks.first().copied());
    let said = groups.iter().take(MOST_GROUPS).map(|(instead, ranks)| match groups.len() {
        1 => instead.text(scene, ranks),
        _ => format!("{} ({})", instead.text(scene, ranks), words::ranks(ranks)),
    });
    let said: Vec<String> = said.collect();
    let more = if groups.len() > MOST_GROUPS { ", and so on" } else { "" };
    let mut text = format!("{} never entered {call}: {}{more}", words::ranks(&absent), said.join(", "));
    let _ = write!(text, "; {}", wait_in(scene, &waiting, "it"));
    let _ = write!(
        text,
        "; look at what {} there",
        words::verb(&absent, "that process does", "those processes do")
    );
    Some(Verdict { blame: Blame::Absent, culprits: absent, sequence: Some(call.sequence), text })
}

/// A rank that others wait for in a transfer, and that waits for nobody and has not its end of it. Who asks is heard first.
pub(super) fn absent_from_transfer(scene: &Scene<'_>, reason: &Reason) -> Option<Verdict> {
    let has_end = |peer: Rank, rank: Rank, call: &CallState| {
        let mut ends = scene.transfers(peer);
        ends.any(|(other, end)| other == rank && end.sequence == call.sequence && end.name != call.name)
    };
    let asks = |rank: &Rank| matches!(reason, Reason::Timeout { by, .. } if by == rank);
    let mut ranks: Vec<Rank> = scene.states.keys().copied().collect();
    ranks.sort_by_key(|rank| !asks(rank));
    let mut open =
        ranks.into_iter().flat_map(|rank| scene.transfers(rank).map(move |(peer, call)| (rank, peer, call)));
    let (rank, peer, call) = open.find(|(rank, peer, call)| {
        scene.states.get(peer).is_some_and(|state| state.running.is_empty()) && !has_end(*peer, *rank, call)
    })?;
    let (does, other) = if call.name == "send" { ("receive", "from") } else { ("send", "to") };
    let state = scene.states.get(&peer)?;
    let text = format!(
        "rank {peer} is not in the {does} {other} rank {rank} ({}); rank {rank} waits in {call}{}; each send needs a \
         receive of the same count and type",
        Instead::of(state).text(scene, &[peer]),
        since(scene, &[rank]),
    );
    Some(Verdict { blame: Blame::Absent, culprits: vec![peer], sequence: Some(call.sequence), text })
}

/// All are in it: the waits are followed to where they end.
pub(super) fn stuck(scene: &Scene<'_>) -> Option<Verdict> {
    let waiting: Vec<Rank> =
        scene.states.keys().copied().filter(|rank| !scene.waits_for(*rank).is_empty()).collect();
    let collective = waited_in(scene);
    if waiting.is_empty() && collective.is_none() {
        return None;
    }
    let sequence = collective.as_ref().map(|(call, _)| call.sequence);
    let mut text = match &collective {
        Some((call, ranks)) => {
            let missing = scene.ranks as usize - ranks.len();
            let who = if missing == 0 { "all".to_string() } else { words::ranks(ranks) };
            format!("{who} {} in {call}", words::verb(if missing == 0 { &[] } else { ranks }, "is", "are"))
        }
        None => format!("{} wait{} in transfers", words::ranks(&waiting), words::verb(&waiting, "s", "")),
    };
    let verdict = |culprits: Vec<Rank>, text| Some(Verdict { blame: Blame::Stuck, culprits, sequence, text });

    let ends = ends_of_waits(scene, &waiting);
    if let Some((rank, peer, wait)) = broken_link(scene, &waiting) {
        let time = scene.waited(rank).map_or_else(String::new, |time| format!(" for {}", words::span(time)));
        let _ = write!(
            text,
            "; rank {peer}'s link to rank {rank} has not moved{time}: rank {rank} {}, and rank {peer} waits for it to \
             take one; look at the transport between them",
            words::wait(wait)
        );
        return verdict(vec![peer.min(rank), peer.max(rank)], text);
    }
    if !ends.is_empty() {
        let ends: Vec<Rank> = ends.into_iter().collect();
        let _ = write!(text, "; {} {}", words::ranks(&ends), idle(scene, &ends, sequence));
        let first = waiting.iter().flat_map(|rank| scene.waits(*rank).iter().map(move |wait| (*rank, wait)));
        let mut first = first.filter(|(_, wait)| wait.peers.iter().any(|peer| ends.contains(peer)));
        if let Some((rank, wait)) = first.next() {
            let _ = write!(text, ", and rank {rank} {}{}", words::wait(wait), since(scene, &[rank]));
        }
        let _ =
            write!(text, "; look at what {}", words::verb(&ends, "that process does", "those processes do"));
        return verdict(ends, text);
    }
    // Everybody waits for somebody who waits: the one that is furthest behind says most.
    let waits = waiting.iter().flat_map(|rank| scene.waits(*rank).iter().map(move |wait| (*rank, wait)));
    match waits
        .min_by_key(|(rank, wait)| (wait.tile, std::cmp::Reverse(scene.waited(*rank)), *rank, wait.lane))
    {
        Some((rank, wait)) => {
            let _ = write!(
                text,
                "; they wait for each other in a circle: furthest behind, rank {rank} {}{}",
                words::wait(wait),
                since(scene, &[rank])
            );
        }
        None if waiting.is_empty() => text.push_str("; none of them has waited for long"),
        None => {
            let (rank, peers) = (waiting[0], scene.waits_for(waiting[0]));
            let _ = write!(
                text,
                "; they wait for each other in a circle: rank {rank} for {}",
                words::ranks(&peers)
            );
        }
    }
    verdict(Vec::new(), text)
}

/// Nothing is found.
pub(super) fn unclear(scene: &Scene<'_>, reason: &Reason) -> Verdict {
    let mut text = match scene.states.values().filter(|state| state.running.is_empty()).count() {
        idle if idle == scene.states.len() => "no rank is in a call".to_string(),
        _ => "the ranks' states show no cause".to_string(),
    };
    match reason {
        Reason::Timeout { by, waited } => {
            let _ = write!(text, "; rank {by} asked after {}", words::span(*waited));
        }
        Reason::Mismatch { by, peer } => {
            let _ = write!(text, "; rank {by} got a piece of another call from rank {peer}");
        }
        Reason::Left { .. } | Reason::Asked => {}
    }
    Verdict { blame: Blame::Unclear, culprits: Vec::new(), sequence: None, text }
}

/// The first collective that ranks wait in, and who is in it.
fn waited_in<'a>(scene: &Scene<'a>) -> Option<(&'a CallState, Vec<Rank>)> {
    let inside = || {
        scene.places().filter_map(|(rank, at)| match at {
            At::In(call) => Some((rank, call)),
            At::Before(_) => None,
        })
    };
    let first = inside().map(|(_, call)| call.sequence).min()?;
    let mut in_it = inside().filter(|(_, call)| call.sequence == first).peekable();
    let call = in_it.peek()?.1;
    Some((call, in_it.map(|(rank, _)| rank).collect()))
}

/// Ranks that have not begun call `number`.
fn not_in(scene: &Scene<'_>, number: u64) -> impl Iterator<Item = Rank> {
    let not_in = move |at: &At<'_>| matches!(at, At::Before(next) if *next <= number);
    scene.places().filter(move |(_, at)| not_in(at)).map(|(rank, _)| rank)
}

/// `ranks 0-4, 6-7 wait in it for 31 s`.
fn wait_in(scene: &Scene<'_>, ranks: &[Rank], call: &str) -> String {
    format!(
        "{} {} in {call}{}",
        words::ranks(ranks),
        words::verb(ranks, "waits", "wait"),
        since(scene, ranks)
    )
}

/// ` for 31 s`, or nothing.
fn since(scene: &Scene<'_>, ranks: &[Rank]) -> String {
    scene.longest(ranks).map_or_else(String::new, |time| format!(" for {}", words::span(time)))
}

/// What a rank does that is not in a call.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Instead<'a> {
    Broken(&'a str),
    /// A transfer.
    In(String),
    /// The call that ended last.
    After(&'a str, u64),
    Nothing,
}

impl<'a> Instead<'a> {
    fn of(state: &'a RankState) -> Instead<'a> {
        match (&state.broken, state.running.first(), &state.last) {
            (Some(cause), ..) => Instead::Broken(cause),
            (None, Some(call), _) => Instead::In(call.to_string()),
            (None, None, Some(last)) => Instead::After(&last.name, last.sequence),
            (None, None, None) => Instead::Nothing,
        }
    }

    /// In words, of all the ranks that do it.
    fn text(&self, scene: &Scene<'_>, ranks: &[Rank]) -> String {
        let (it, its) = (words::verb(ranks, "it", "they"), words::verb(ranks, "its", "their"));
        match self {
            Instead::Broken(cause) => {
                format!("{it} {} no more calls: {cause}", words::verb(ranks, "takes", "take"))
            }
            Instead::In(call) => format!("{it} {} in {call}", words::verb(ranks, "is", "are")),
            Instead::Nothing => format!("{it} {} made no call yet", words::verb(ranks, "has", "have")),
            Instead::After(name, sequence) => {
                let ended = |rank: &Rank| {
                    let state = scene.states.get(rank)?;
                    Some(words::between(state.last.as_ref()?.ended_ns?, state.now_ns))
                };
                let ago = ranks.iter().filter_map(ended).min();
                let ago = ago.map_or_else(String::new, |ago| format!(", finished {} ago", words::span(ago)));
                format!("{its} last was {name} #{sequence}{ago}")
            }
        }
    }
}

/// Where the waits of these ranks end: ranks that wait for nobody.
fn ends_of_waits(scene: &Scene<'_>, waiting: &[Rank]) -> BTreeSet<Rank> {
    let (mut seen, mut ends) = (BTreeSet::new(), BTreeSet::new());
    let mut follow = waiting.to_vec();
    while let Some(rank) = follow.pop() {
        if !seen.insert(rank) {
            continue;
        }
        match scene.waits_for(rank) {
            // Of a rank that was not asked it is not known whether it waits.
            none if none.is_empty() => ends.extend(scene.states.contains_key(&rank).then_some(rank)),
            peers => follow.extend(peers),
        }
    }
    ends
}

/// What ranks do that wait for nobody.
fn idle(scene: &Scene<'_>, ranks: &[Rank], sequence: Option<u64>) -> String {
    let inside = |rank: &Rank| scene.states.get(rank).is_some_and(|state| !state.running.is_empty());
    match (ranks.iter().any(inside), sequence) {
        (false, Some(_)) => format!("{} finished it", words::verb(ranks, "has", "have")),
        _ => format!("{} for nobody: computing, or without a core", words::verb(ranks, "waits", "wait")),
    }
}

/// A rank that waits for a piece from another one that waits for it to take one, on the same link.
fn broken_link<'a>(scene: &Scene<'a>, waiting: &[Rank]) -> Option<(Rank, Rank, &'a WaitState)> {
    let takes = |peer: Rank, rank: Rank, channel: u16| {
        let mut waits = scene.waits(peer).iter();
        waits.any(|wait| wait.on == WaitFor::Credit && wait.channel == channel && wait.peers.contains(&rank))
    };
    let waits = waiting.iter().flat_map(|rank| scene.waits(*rank).iter().map(move |wait| (*rank, wait)));
    let mut pieces = waits.filter(|(_, wait)| wait.on == WaitFor::Piece);
    pieces.find_map(|(rank, wait)| {
        let mut peers = wait.peers.iter().copied().filter(|peer| *peer != rank);
        peers.find(|peer| takes(*peer, rank, wait.channel)).map(|peer| (rank, peer, wait))
    })
}
