//! Plans with one mistake in them: what the verifier must catch.
//!
//! Every [`Class`] is a kind of mistake; [`mutants`] makes it at every place of a plan where it can be
//! made, and [`judge`] says whether the verifier saw it. *Seen* means: the plan is rejected, or its proof
//! says something else than the original's (another digest, order, or no longer in place). A mutant of which
//! the proof says the same must mean the same: its moves commute, say. [`Class::may_be_harmless`] names
//! the classes where that can be; in all others everything must be seen.

use super::{Fault, Limits, Proof, min_credits, verify};
use crate::plan::{Lane, Plan, Rank, Sink, Source};

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A move is left out.
    DroppedMove,
    /// A move stands twice.
    DoubledMove,
    /// Two neighbours in a lane change places.
    SwappedMoves,
    /// Two neighbours among the sources change places: another order of reduction.
    SwappedSources,
    /// A source is left out.
    MissingSource,
    /// A source is added: one that is there already, or the first input chunk.
    ExtraSource,
    /// Another chunk or scratch piece is read.
    WrongSourceChunk,
    /// A sink, or one peer of it, is left out.
    DroppedSink,
    /// Another chunk or scratch piece is written, which belongs to others.
    OverlappingChunk,
    /// A piece is taken from another rank, from oneself, or from nobody.
    WrongSender,
    /// A piece is sent to another rank, to oneself, or to nobody.
    WrongReceiver,
    /// One end of a link is on another channel.
    WrongChannel,
    /// A chunk past the end is read or written.
    ChunkOutOfBounds,
    /// A scratch piece past the end is read or written.
    ScratchOutOfBounds,
    /// The second half of a lane becomes a lane of its own.
    SplitLane,
    /// A lane is put behind another one.
    MergedLanes,
    /// The links have one credit less than the plan needs.
    CreditTooFew,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 17] = [
        Class::DroppedMove,
        Class::DoubledMove,
        Class::SwappedMoves,
        Class::SwappedSources,
        Class::MissingSource,
        Class::ExtraSource,
        Class::WrongSourceChunk,
        Class::DroppedSink,
        Class::OverlappingChunk,
        Class::WrongSender,
        Class::WrongReceiver,
        Class::WrongChannel,
        Class::ChunkOutOfBounds,
        Class::ScratchOutOfBounds,
        Class::SplitLane,
        Class::MergedLanes,
        Class::CreditTooFew,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Class::DroppedMove => "dropped move",
            Class::DoubledMove => "doubled move",
            Class::SwappedMoves => "swapped moves",
            Class::SwappedSources => "swapped sources",
            Class::MissingSource => "missing source",
            Class::ExtraSource => "extra source",
            Class::WrongSourceChunk => "wrong source chunk",
            Class::DroppedSink => "dropped sink or peer",
            Class::OverlappingChunk => "overlapping chunk",
            Class::WrongSender => "receive from wrong peer",
            Class::WrongReceiver => "send to wrong peer",
            Class::WrongChannel => "wrong channel",
            Class::ChunkOutOfBounds => "chunk out of bounds",
            Class::ScratchOutOfBounds => "scratch out of bounds",
            Class::SplitLane => "split lane",
            Class::MergedLanes => "merged lanes",
            Class::CreditTooFew => "one credit too few",
        }
    }

    /// Whether it can change nothing: a copy made twice, neighbours that commute, work that may stand in
    /// one lane as well as in two.
    pub const fn may_be_harmless(self) -> bool {
        matches!(self, Class::DoubledMove | Class::SwappedMoves | Class::SplitLane | Class::MergedLanes)
    }
}

/// A plan with one mistake.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The kind of mistake.
    pub class: Class,
    /// Where it is: rank, lane, move.
    pub at: (Rank, usize, usize),
    /// The plan.
    pub plan: Plan,
    /// What it is verified with.
    pub limits: Limits,
}

/// What the verifier made of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was rejected.
    Rejected(Fault),
    /// It was proved, but not to do what the original does.
    Changed(Proof),
    /// It was proved to do the same.
    Same,
}

/// Whether the verifier tells the mutant from the plan that `original` is the proof of.
pub fn judge(original: &Proof, mutant: &Mutant) -> Verdict {
    match verify(&mutant.plan, &mutant.limits) {
        Err(fault) => Verdict::Rejected(fault),
        Ok(proof) => {
            let says = |p: &Proof| (p.digest, p.order, p.in_place);
            if says(&proof) == says(original) { Verdict::Same } else { Verdict::Changed(proof) }
        }
    }
}

/// The plan with this mistake, at every place where it can be made. None of a plan that is not proved.
pub fn mutants(plan: &Plan, limits: &Limits, class: Class) -> Vec<Mutant> {
    if verify(plan, limits).is_err() {
        return Vec::new();
    }
    if class == Class::CreditTooFew {
        return match min_credits(plan, limits) {
            Ok(least) if least > 1 => {
                let limits = Limits { credits: least - 1, ..*limits };
                vec![Mutant { class, at: (0, 0, 0), plan: plan.clone(), limits }]
            }
            _ => Vec::new(),
        };
    }
    let mut mutants = Vec::new();
    for (rank, program) in plan.programs.iter().enumerate() {
        for (lane, code) in program.lanes.iter().enumerate() {
            for step in 0..code.moves.len() {
                let at = Site { plan, rank, lane, step };
                let edited = at.edited(class).into_iter();
                mutants.extend(edited.map(|plan| Mutant {
                    class,
                    at: (rank as Rank, lane, step),
                    plan,
                    limits: *limits,
                }));
            }
        }
    }
    mutants
}

/// A place where a mistake is made.
struct Site<'a> {
    plan: &'a Plan,
    rank: usize,
    lane: usize,
    step: usize,
}

impl Site<'_> {
    fn code(&self) -> &Lane {
        &self.plan.programs[self.rank].lanes[self.lane]
    }

    /// A copy of the plan with its lanes of this rank changed.
    fn with(&self, edit: impl FnOnce(&mut Vec<Lane>)) -> Plan {
        let mut plan = self.plan.clone();
        edit(&mut plan.programs[self.rank].lanes);
        plan
    }

    fn with_moves(&self, edit: impl FnOnce(&mut Lane)) -> Vec<Plan> {
        vec![self.with(|lanes| edit(&mut lanes[self.lane]))]
    }

    /// One copy per source and replacement that `change` finds for it.
    fn each_source(&self, change: impl Fn(Source) -> Vec<Source>) -> Vec<Plan> {
        let sources = self.code().moves[self.step].from.iter().enumerate();
        let changes = sources.flat_map(|(i, &source)| change(source).into_iter().map(move |new| (i, new)));
        changes.map(|(i, new)| self.with(|lanes| lanes[self.lane].moves[self.step].from[i] = new)).collect()
    }

    fn each_sink(&self, change: impl Fn(&Sink) -> Vec<Sink>) -> Vec<Plan> {
        let sinks = self.code().moves[self.step].into.iter().enumerate();
        let changes = sinks.flat_map(|(i, sink)| change(sink).into_iter().map(move |new| (i, new)));
        changes.map(|(i, new)| self.with(|lanes| lanes[self.lane].moves[self.step].into[i] = new)).collect()
    }

    fn edited(&self, class: Class) -> Vec<Plan> {
        let (step, spec, rank) = (self.step, self.plan.spec, self.rank as Rank);
        let (inputs, outputs) = (spec.input_chunks(rank), spec.output_chunks(rank));
        let code = self.code();
        let here = &code.moves[step];
        let other = |peer: Rank| {
            let others = (1..spec.ranks).map(|by| (peer + by) % spec.ranks);
            others.filter(|&other| other != rank && other != peer).collect::<Vec<_>>()
        };
        // The next number, and the same part of the next block.
        let elsewhere = |chunk: u32, len: u32| {
            let mut chunks = vec![(chunk + 1) % len, (chunk + spec.parts) % len];
            chunks.dedup();
            chunks.retain(|&c| c != chunk);
            chunks
        };
        match class {
            Class::DroppedMove => self.with_moves(|lane| _ = lane.moves.remove(step)),
            Class::DoubledMove => self.with_moves(|lane| lane.moves.insert(step, here.clone())),
            Class::SwappedMoves if code.moves.get(step + 1).is_some_and(|next| next != here) => {
                self.with_moves(|lane| lane.moves.swap(step, step + 1))
            }
            Class::SwappedSources => (1..here.from.len())
                .flat_map(|i| self.with_moves(|lane| lane.moves[step].from.swap(i - 1, i)))
                .collect(),
            Class::MissingSource => (0..here.from.len())
                .flat_map(|i| self.with_moves(|lane| _ = lane.moves[step].from.remove(i)))
                .collect(),
            Class::ExtraSource => here
                .from
                .iter()
                .copied()
                .chain((inputs > 0).then_some(Source::Input(0)))
                .flat_map(|source| self.with_moves(|lane| lane.moves[step].from.push(source)))
                .collect(),
            Class::WrongSourceChunk => self.each_source(|source| match source {
                Source::Input(c) => elsewhere(c, inputs).into_iter().map(Source::Input).collect(),
                Source::Output(c) => elsewhere(c, outputs).into_iter().map(Source::Output).collect(),
                Source::Scratch(c) => elsewhere(c, code.scratch).into_iter().map(Source::Scratch).collect(),
                Source::Link(_) => Vec::new(),
            }),
            Class::DroppedSink => {
                let whole = (0..here.into.len())
                    .flat_map(|i| self.with_moves(|lane| _ = lane.moves[step].into.remove(i)));
                let one_peer = self.each_sink(|sink| match sink {
                    Sink::Links(links) => (0..links.peers.len())
                        .map(|i| {
                            let mut fewer = links.clone();
                            fewer.peers.remove(i);
                            Sink::Links(fewer)
                        })
                        .collect(),
                    _ => Vec::new(),
                });
                whole.chain(one_peer).collect()
            }
            Class::OverlappingChunk => self.each_sink(|sink| match *sink {
                Sink::Output(c) => elsewhere(c, outputs).into_iter().map(Sink::Output).collect(),
                Sink::Scratch(c) => elsewhere(c, code.scratch).into_iter().map(Sink::Scratch).collect(),
                Sink::Links(_) => Vec::new(),
            }),
            Class::WrongSender => self.each_source(|source| match source {
                Source::Link(link) => {
                    let peers = other(link.peer).into_iter().chain([rank, spec.ranks]);
                    peers.map(|peer| Source::Link(crate::plan::Link { peer, ..link })).collect()
                }
                _ => Vec::new(),
            }),
            Class::WrongReceiver => self.each_sink(|sink| match sink {
                Sink::Links(links) => {
                    let peers = other(links.peers[0]).into_iter().chain([rank, spec.ranks]);
                    peers
                        .map(|peer| {
                            let mut wrong = links.clone();
                            wrong.peers[0] = peer;
                            Sink::Links(wrong)
                        })
                        .collect()
                }
                _ => Vec::new(),
            }),
            Class::WrongChannel => {
                let mut plans = self.each_source(|source| match source {
                    Source::Link(l) => vec![Source::Link(crate::plan::Link { channel: l.channel ^ 1, ..l })],
                    _ => Vec::new(),
                });
                plans.extend(self.each_sink(|sink| match sink {
                    Sink::Links(links) => {
                        let channel = links.channel ^ 1;
                        vec![Sink::Links(crate::plan::Links { channel, ..links.clone() })]
                    }
                    _ => Vec::new(),
                }));
                plans
            }
            Class::ChunkOutOfBounds => {
                let mut plans = self.each_source(|source| match source {
                    Source::Input(_) => vec![Source::Input(inputs), Source::Input(u32::MAX)],
                    Source::Output(_) => vec![Source::Output(outputs)],
                    _ => Vec::new(),
                });
                plans.extend(self.each_sink(|sink| match sink {
                    Sink::Output(_) => vec![Sink::Output(outputs), Sink::Output(u32::MAX)],
                    _ => Vec::new(),
                }));
                plans
            }
            Class::ScratchOutOfBounds => {
                let mut plans = self.each_source(|_| vec![Source::Scratch(code.scratch)]);
                plans.extend(self.each_sink(|_| vec![Sink::Scratch(code.scratch)]));
                plans
            }
            Class::SplitLane if step > 0 => vec![self.with(|lanes| {
                let moves = lanes[self.lane].moves.split_off(step);
                lanes.push(Lane { scratch: code.scratch, moves });
            })],
            Class::MergedLanes if step == 0 => (0..self.plan.programs[self.rank].lanes.len())
                .filter(|&other| other != self.lane)
                .map(|other| {
                    self.with(|lanes| {
                        let tail = lanes[self.lane].clone();
                        let head = &mut lanes[other];
                        head.moves.extend(tail.moves);
                        head.scratch = head.scratch.max(tail.scratch);
                        lanes.remove(self.lane);
                    })
                })
                .collect(),
            Class::SwappedMoves | Class::SplitLane | Class::MergedLanes | Class::CreditTooFew => Vec::new(),
        }
    }
}
