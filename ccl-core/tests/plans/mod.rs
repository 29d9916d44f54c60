//! Small plans written by hand, independent of the algorithms.

use ccl_core::plan::{Collective, Lane, Link, Links, Move, Plan, Program, Rank, Sink, Source, Spec};

pub(crate) fn from(peer: Rank) -> Source {
    Source::Link(Link { peer, channel: 0 })
}

pub(crate) fn to(peer: Rank) -> Sink {
    Sink::Links(Links { peers: vec![peer], channel: 0 })
}

pub(crate) fn step(from: impl Into<Vec<Source>>, into: impl Into<Vec<Sink>>) -> Move {
    Move { from: from.into(), into: into.into() }
}

pub(crate) fn lane(moves: Vec<Move>) -> Lane {
    Lane { scratch: 0, moves }
}

pub(crate) fn plan(collective: Collective, parts: u32, lanes_of: Vec<Vec<Lane>>) -> Plan {
    let spec = Spec::new(collective, lanes_of.len() as u32, 0, parts);
    let programs = lanes_of.into_iter().map(|lanes| Program { lanes }).collect();
    Plan { spec, algorithm: "by_hand".into(), programs }
}

/// The ring: a part goes once round to be summed, and once more to be given out.
pub(crate) fn ring(n: u32) -> Plan {
    use Source::Input;
    let program = |r: u32| {
        let (next, before) = ((r + 1) % n, (r + n - 1) % n);
        let part = |k: u32| (r + n - k % n) % n;
        let mut moves = vec![step([Input(part(0))], [to(next)])];
        for k in 1..n - 1 {
            moves.push(step([from(before), Input(part(k))], [to(next)]));
        }
        let turn = part(n - 1);
        moves.push(step([from(before), Input(turn)], [Sink::Output(turn), to(next)]));
        for k in 0..n - 2 {
            moves.push(step([from(before)], [Sink::Output(part(k)), to(next)]));
        }
        moves.push(step([from(before)], [Sink::Output(part(n - 2))]));
        vec![lane(moves)]
    };
    plan(Collective::AllReduce, n, (0..n).map(program).collect())
}

/// Everybody sends to everybody and sums in rank order.
pub(crate) fn one_shot(n: u32) -> Plan {
    let program = |r: u32| {
        let peers: Vec<Rank> = (0..n).filter(|&p| p != r).collect();
        let sources: Vec<Source> = (0..n).map(|p| if p == r { Source::Input(0) } else { from(p) }).collect();
        vec![lane(vec![
            step([Source::Input(0)], [Sink::Links(Links { peers, channel: 0 })]),
            step(sources, [Sink::Output(0)]),
        ])]
    };
    plan(Collective::AllReduce, 1, (0..n).map(program).collect())
}

/// Up a binary heap and down again, in two lanes.
pub(crate) fn tree(n: u32) -> Plan {
    let program = |r: u32| {
        let children: Vec<Rank> = [2 * r + 1, 2 * r + 2].into_iter().filter(|&c| c < n).collect();
        let mut up = vec![Source::Input(0)];
        up.extend(children.iter().map(|&c| from(c)));
        let mut down = vec![Sink::Output(0)];
        if !children.is_empty() {
            down.push(Sink::Links(Links { peers: children, channel: 1 }));
        }
        if r == 0 {
            return vec![lane(vec![step(up, down)])];
        }
        let parent = (r - 1) / 2;
        let above = Source::Link(Link { peer: parent, channel: 1 });
        vec![lane(vec![step(up, [to(parent)])]), lane(vec![step([above], down)])]
    };
    plan(Collective::AllReduce, 1, (0..n).map(program).collect())
}
