//! Broadcast and reduce: the block is cut into as many parts as a host has ranks, and part L crosses between the ranks of
//! column L.
//!
//! For a *broadcast* the root gives all parts to the ranks of its host, one piece for all of them; rank L there sends part L
//! to its column, and each of these passes it on to its local peers. A *reduce* is the way back: every host combines part
//! L at its rank L, the sums go to rank L of the root's host, which combines them in host order, and from there to the
//! root. Three messages deep, one of them across. Each other host sends or gets the block once; the root's host does so
//! h - 1 times, over all its ranks.

use super::{FINISHED, Place, RELAYED, TERMS, lane};
use crate::algorithms::moves::{after, before, from_on, step, to_all_on};
use crate::plan::{Lane, Sink, Source, Spec};

/// Where the root is.
fn root_of(spec: &Spec) -> Place {
    Place::new(spec, spec.root)
}

pub(super) fn broadcast(spec: &Spec, place: Place) -> Vec<Lane> {
    let Place { locals, host, local, .. } = place;
    let root = root_of(spec);
    // In the order in which the root sends: its own part, which only it can send across, comes last.
    let parts = || after(locals, root.local).chain([root.local]);
    if host != root.host {
        let relayed = [Sink::Output(local), to_all_on(RELAYED, place.peers())];
        let relay = step([from_on(FINISHED, place.rank(root.host, local))], relayed);
        let take = before(locals, local)
            .map(|part| step([from_on(RELAYED, place.rank(host, part))], [Sink::Output(part)]));
        return vec![lane([relay]), lane(take)];
    }
    let is_root = local == root.local;
    let moves = parts().map(|part| {
        let from = if is_root { Source::Input(part) } else { from_on(FINISHED, spec.root) };
        let mut into = vec![Sink::Output(part)];
        let across = place.column().filter(|_| part == local);
        let here = place.peers().filter(|_| is_root);
        let peers: Vec<_> = across.chain(here).collect();
        into.extend((!peers.is_empty()).then(|| to_all_on(FINISHED, peers)));
        step([from], into)
    });
    vec![lane(moves)]
}

pub(super) fn reduce(spec: &Spec, place: Place) -> Vec<Lane> {
    let Place { locals, host, local, .. } = place;
    let root = root_of(spec);
    let scatter = after(locals, local)
        .map(|peer| step([Source::Input(peer)], [to_all_on(TERMS, [place.rank(host, peer)])]));
    let terms = place.terms(TERMS, Source::Input(local));
    if host != root.host {
        let combine = step(terms, [to_all_on(TERMS, [place.rank(root.host, local)])]);
        return vec![lane(scatter), lane([combine])];
    }
    let is_root = local == root.local;
    let finished = if is_root { Sink::Output(local) } else { to_all_on(FINISHED, [spec.root]) };
    let finish = vec![step(terms, [Sink::Scratch(0)]), step(place.sums(Source::Scratch(0)), [finished])];
    let mut lanes = vec![lane(scatter), Lane { scratch: 1, moves: finish }];
    if is_root {
        let take = before(locals, local)
            .map(|part| step([from_on(FINISHED, place.rank(host, part))], [Sink::Output(part)]));
        lanes.push(lane(take));
    }
    lanes
}
