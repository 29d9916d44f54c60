//! Short forms for writing moves.

use crate::plan::{Lane, Link, Links, Move, Placement, Program, Rank, Sink, Source, Spec};

/// One move.
pub(super) fn step(from: impl Into<Vec<Source>>, into: impl Into<Vec<Sink>>) -> Move {
    Move { from: from.into(), into: into.into() }
}

/// The next piece from `peer`, on channel 0.
pub(super) fn from(peer: Rank) -> Source {
    from_on(0, peer)
}

/// The next piece from `peer` on this channel.
pub(super) fn from_on(channel: u16, peer: Rank) -> Source {
    Source::Link(Link { peer, channel })
}

/// To `peer`, on channel 0.
pub(super) fn to(peer: Rank) -> Sink {
    to_all([peer])
}

/// The same piece to all of these, on channel 0.
pub(super) fn to_all(peers: impl IntoIterator<Item = Rank>) -> Sink {
    to_all_on(0, peers)
}

/// The same piece to all of these, on this channel.
pub(super) fn to_all_on(channel: u16, peers: impl IntoIterator<Item = Rank>) -> Sink {
    Sink::Links(Links { peers: peers.into_iter().collect(), channel })
}

/// A program of one lane without scratch.
pub(super) fn one_lane(moves: Vec<Move>) -> Program {
    Program { lanes: vec![Lane { scratch: 0, moves }] }
}

/// What a communicator of one rank does, whatever the collective: copy.
pub(super) fn alone(spec: &Spec) -> Program {
    let chunks = 0..spec.output_chunks(0);
    one_lane(chunks.map(|c| step([Source::Input(c)], [Sink::Output(c)])).collect())
}

/// How many messages of a row of so many cross hosts, if each is as likely to go to any host as to another.
pub(super) fn share_across(depth: u32, placement: Placement) -> u32 {
    (depth * (placement.hosts - 1)).div_ceil(placement.hosts)
}

/// The other ranks, from the next one round to the previous one. When all ranks send in this order, no two
/// of them send to the same one at a time.
pub(super) fn after(ranks: u32, rank: Rank) -> impl DoubleEndedIterator<Item = Rank> + Clone {
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}

/// The other ranks, from the previous one round to the next one: the order in which the pieces that were
/// sent in the order of [`after`] come in.
pub(super) fn before(ranks: u32, rank: Rank) -> impl Iterator<Item = Rank> + Clone {
    after(ranks, rank).rev()
}
