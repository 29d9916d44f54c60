//! Stages: which moves of a lane may be tiles ahead of which.
//!
//! A lane's moves are made tile by tile. But where moves that receive come behind moves that send, a rank does better to send some tiles and
//! to take as many then: between two cores an all-gather of 1 MiB takes a seventh less than with tiles sent and taken in turn, since
//! what comes in has been there for a while; and where a piece travels long, more of them are under way. So a lane is cut before such moves, if no link and
//! no scratch is used on both sides of the cut. Each *stage* goes through the tiles by itself: it makes a tile's moves once the stage
//! before it has made its own, and keeps a bounded *lead* over the one behind it.
//!
//! Stages change neither what a link carries nor in which order, since each link belongs to one of them, so the other ranks
//! need not cut alike. Nor can they block what does not block without them. Take the earliest tile that is unfinished anywhere, and
//! of its moves, in an order in which they can be made alone (which the verifier has found), the first that has not been made. Its stage has come to it; all it
//! takes has been sent; and as its links carry nothing of earlier tiles, nor anything later before it, they have a credit.

use crate::plan::{Move, Program, Rank, Sink, Source};
use std::collections::HashMap;

/// Bytes of pieces that a stage may have sent before the next one takes its turn, unless the call is [led by](StageInCall::led_by) fewer. What has left the caches before it is taken takes longer: with
/// 1.5 MiB all-to-alls of 16 MiB between two cores took up to a half longer, and with 1 MiB those of 1 MiB between 8 ranks on two cores a third.
const LEAD_BYTES: usize = 512 << 10;

/// A stage that sends so many bytes in a call has that lead in any case: nothing of it stays in the caches until it is used again, not even the slots, which shared
/// memory therefore hands to and fro in shorter calls only.
const LONG_BYTES: usize = 12 << 20;

/// The same for pieces that are only told of, or written to where they are offered: they take no room in the caches, and a receiver that finds many of them
/// [takes them as one](super::stretches).
const LIGHT_LEAD_BYTES: usize = 8 << 20;

/// Consecutive moves of one lane, by their numbers among all of the program's moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) first: u32,
    pub(super) end: u32,
    /// The lane, as numbered in the program.
    pub(super) lane: u32,
    /// The lane's first move.
    pub(super) base: u32,
    /// Whether the stage before this one is of the same lane.
    pub(super) follows: bool,
    /// Whether the next one is.
    pub(super) leads: bool,
    /// Pieces that it sends for each tile.
    pub(super) sends: u32,
}

/// A stage as a call runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageInCall {
    pub(super) stage: Stage,
    /// How often.
    pub(super) tiles: usize,
    /// How many of these it may be ahead of the stage behind it.
    pub(super) lead: usize,
    /// The same while what it sends takes no room.
    pub(super) light_lead: usize,
    /// Whether it may make its move for several tiles in one go.
    pub(super) stretches: bool,
}

impl Stage {
    /// It in a call of so many tiles, whose pieces have so many bytes: at least one tile may be ahead.
    pub(super) fn in_call(self, tiles: usize, piece: usize) -> StageInCall {
        let lead = self.lead(LEAD_BYTES, piece);
        let light_lead = self.lead(LIGHT_LEAD_BYTES, piece);
        StageInCall { stage: self, tiles, lead, light_lead, stretches: false }
    }

    /// Tiles that send so many bytes, at least one.
    fn lead(self, bytes: usize, piece: usize) -> usize {
        (bytes / piece.saturating_mul(self.sends as usize).max(1)).max(1)
    }
}

impl StageInCall {
    /// It with a lead of so many bytes, where the call is not long.
    pub(super) fn led_by(self, bytes: usize, piece: usize) -> StageInCall {
        let sent = piece.saturating_mul(self.stage.sends as usize).saturating_mul(self.tiles);
        if sent < LONG_BYTES { StageInCall { lead: self.stage.lead(bytes, piece), ..self } } else { self }
    }
}

/// The program's lanes, each one stage.
pub(super) fn whole(program: &Program) -> Vec<Stage> {
    cut(program, |_| Vec::new())
}

/// The program's lanes in as many stages as they have.
pub(super) fn stages(program: &Program) -> Vec<Stage> {
    cut(program, cuts)
}

fn cut(program: &Program, cuts: impl Fn(&[Move]) -> Vec<usize>) -> Vec<Stage> {
    let (mut stages, mut base) = (Vec::new(), 0);
    for (lane, code) in (0..).zip(&program.lanes) {
        let mut ends = cuts(&code.moves);
        ends.push(code.moves.len());
        let mut first = 0;
        for &end in &ends {
            let sends = code.moves[first..end].iter().flat_map(|mv| &mv.into);
            stages.push(Stage {
                first: base + first as u32,
                end: base + end as u32,
                lane,
                base,
                follows: first > 0,
                leads: end < code.moves.len(),
                sends: sends.filter(|sink| matches!(sink, Sink::Links(_))).count() as u32,
            });
            first = end;
        }
        base += code.moves.len() as u32;
    }
    stages
}

/// What moves on both sides of a cut must not share: the order in which they use it is part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shared {
    From(Rank, u16),
    To(Rank, u16),
    Scratch(u32),
}

fn shared(mv: &Move) -> Vec<Shared> {
    let mut shared = Vec::new();
    for source in &mv.from {
        match source {
            Source::Link(link) => shared.push(Shared::From(link.peer, link.channel)),
            Source::Scratch(index) => shared.push(Shared::Scratch(*index)),
            Source::Input(_) | Source::Output(_) => {}
        }
    }
    for sink in &mv.into {
        match sink {
            Sink::Links(links) => {
                shared.extend(links.peers.iter().map(|peer| Shared::To(*peer, links.channel)))
            }
            Sink::Scratch(index) => shared.push(Shared::Scratch(*index)),
            Sink::Output(_) => {}
        }
    }
    shared
}

/// The moves before which a lane is cut: those that receive, behind some that send.
fn cuts(moves: &[Move]) -> Vec<usize> {
    let mut spans: HashMap<Shared, (usize, usize)> = HashMap::new();
    for (at, mv) in moves.iter().enumerate() {
        for used in shared(mv) {
            spans.entry(used).or_insert((at, at)).1 = at;
        }
    }
    // What begins to lie on both sides of a cut before each move, less what ends to.
    let mut across = vec![0i64; moves.len() + 2];
    for (first, last) in spans.into_values() {
        across[first + 1] += 1;
        across[last + 1] -= 1;
    }
    let (mut cuts, mut open, mut has_sent) = (Vec::new(), 0, false);
    for (at, mv) in moves.iter().enumerate() {
        open += across[at];
        if has_sent && open == 0 && mv.from.iter().any(|source| matches!(source, Source::Link(_))) {
            cuts.push(at);
            has_sent = false;
        }
        has_sent |= mv.into.iter().any(|sink| matches!(sink, Sink::Links(_)));
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{self, Algorithm, OneShot, Ring, TwoShot};
    use crate::engine::{Layout, Progress, Schedule};
    use crate::kernels::{Buffers, Reducer};
    use crate::plan::{Collective, Spec};
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{LocalHub, Transport as _};
    use crate::{DataType, ReduceOp};
    use std::sync::Arc;

    const RANKS: u32 = 4;

    fn program(algorithm: &dyn Algorithm, collective: Collective) -> Option<Program> {
        let parts = algorithm.parts(collective, RANKS.into())?;
        Some(algorithm.program(&Spec::new(collective, RANKS, 0, parts), 1))
    }

    /// How many moves each stage has.
    fn lengths(algorithm: &dyn Algorithm, collective: Collective) -> Vec<u32> {
        let stages = stages(&program(algorithm, collective).expect("a collective that it does"));
        stages.iter().map(|stage| stage.end - stage.first).collect()
    }

    #[test]
    fn what_receives_is_behind_what_sends() {
        assert_eq!(lengths(&OneShot, Collective::AllGather), [1, 3]);
        assert_eq!(lengths(&OneShot, Collective::AllReduce), [1, 1]);
        assert_eq!(lengths(&OneShot, Collective::ReduceScatter), [3, 1]);
        assert_eq!(lengths(&OneShot, Collective::AllToAll), [4, 3]);
        assert_eq!(lengths(&TwoShot, Collective::AllReduce), [3, 1, 3]);
        // It sends all that it has, or waits for it.
        assert_eq!(lengths(&OneShot, Collective::Broadcast), [1]);
        // Each step uses the same two links.
        assert_eq!(lengths(&Ring, Collective::AllReduce).len(), 1);
    }

    #[test]
    fn no_two_stages_share_a_link_or_scratch_and_none_is_left_out() {
        let mut staged = 0;
        for (algorithm, collective) in
            algorithms::all().iter().flat_map(|a| Collective::ALL.into_iter().map(move |c| (*a, c)))
        {
            let Some(program) = program(algorithm, collective) else { continue };
            let moves: Vec<&Move> = program.lanes.iter().flat_map(|lane| &lane.moves).collect();
            let stages = stages(&program);
            assert_eq!(
                stages.iter().map(|stage| stage.first..stage.end).fold(0, |at, moves| {
                    assert_eq!(moves.start, at);
                    moves.end
                }),
                moves.len() as u32
            );
            let mut users = HashMap::new();
            for (index, stage) in stages.iter().enumerate() {
                assert_eq!(stage.follows, index > 0 && stages[index - 1].lane == stage.lane);
                assert_eq!(stage.leads, stages.get(index + 1).is_some_and(|next| next.lane == stage.lane));
                staged += usize::from(stage.follows);
                for mv in &moves[stage.first as usize..stage.end as usize] {
                    for used in shared(mv) {
                        // Scratch is numbered in each lane anew.
                        let lane = matches!(used, Shared::Scratch(_)).then_some(stage.lane);
                        let user = *users.entry((format!("{used:?}"), lane)).or_insert(index);
                        assert_eq!(user, index, "{} {collective}: {used:?}", algorithm.name());
                    }
                }
            }
        }
        assert!(staged > 5, "{staged}");
    }

    #[test]
    fn a_lead_is_half_a_mebibyte_of_what_is_sent_but_a_tile_at_least() {
        let stage = stages(&program(&OneShot, Collective::AllToAll).unwrap())[0];
        let leads = [64 << 10, 16 << 10, 1 << 20, 0].map(|piece| stage.in_call(9, piece).lead);
        assert_eq!(leads, [2, 10, 1, LEAD_BYTES]);
    }

    #[test]
    fn short_calls_may_be_led_by_less() {
        let stage = stages(&program(&OneShot, Collective::AllToAll).unwrap())[0];
        let piece = 32 << 10;
        let long = LONG_BYTES / (piece * stage.sends as usize);
        let lead = |tiles| stage.in_call(tiles, piece).led_by(2 * piece * stage.sends as usize, piece).lead;
        assert_eq!(lead(long - 1), 2);
        assert_eq!(lead(long), stage.in_call(long, piece).lead);
        assert_ne!(lead(long), 2);
    }

    #[test]
    fn a_rank_sends_tiles_before_it_takes_any_as_far_as_credits_and_lead_reach() {
        const BLOCK: usize = 1 << 20;
        // The tiles that rank 0 has sent when its peer has done nothing, and then done its part.
        let ahead = |tile: usize, credits: u32| {
            let hub = LocalHub::new(2, tile, credits);
            let mut transports = [hub.transport(0), hub.transport(1)];
            connect(&mut transports, &mesh(2, 1));
            let spec = Spec::new(Collective::AllGather, 2, 0, 1);
            let mut runs = transports.iter_mut().zip(0..).map(|(transport, rank)| {
                let mut schedule =
                    Schedule::bind(&spec, rank, &OneShot.program(&spec, rank), transport).unwrap();
                let layout = Layout::new(&spec, rank, BLOCK, DataType::U8, tile).unwrap();
                let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, 2).unwrap();
                let task = Arc::new(schedule.task(layout, reducer).unwrap());
                schedule.start(&task, 7, 0).unwrap();
                schedule
            });
            let (mut own, mut peer) = (runs.next().unwrap(), runs.next().unwrap());
            drop(runs);
            let [here, there] = &mut transports;
            let inputs = [vec![1; BLOCK], vec![2; BLOCK]];
            let mut outputs = [vec![0; 2 * BLOCK], vec![0; 2 * BLOCK]];
            let [into, into_peers] = &mut outputs;
            let buffers = Buffers::new(&inputs[0], into);
            let peers = Buffers::new(&inputs[1], into_peers);
            while own.step(here, &buffers).unwrap() != Progress::Blocked {}
            let sent = here.counters().iter().map(|(_, counters)| counters.pieces).max();
            let (done, all) = own.progress();
            assert_eq!((done, all), (0, (BLOCK / tile) as u64), "a tile is done when it is taken");
            assert_eq!(own.waits().map(|wait| wait.mv).max(), Some(1), "the move that takes");
            let (mut here_is_done, mut there_is_done) = (false, false);
            while !(here_is_done && there_is_done) {
                here_is_done = here_is_done || own.step(here, &buffers).unwrap() == Progress::Done;
                there_is_done = there_is_done || peer.step(there, &peers).unwrap() == Progress::Done;
            }
            let expected = [vec![1; BLOCK], vec![2; BLOCK]].concat();
            assert!(outputs.iter().all(|output| *output == expected));
            sent
        };
        assert_eq!(ahead(64 << 10, 32), Some((LEAD_BYTES / (64 << 10)) as u64));
        assert_eq!(ahead(64 << 10, 3), Some(3));
        assert_eq!(ahead(512 << 10, 2), Some(1));
    }
}
