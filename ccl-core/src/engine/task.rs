//! A call as it is each time it is made: where each operand's bytes lie, and how they are combined.

use super::layout::{Layout, Place};
use super::quick::Quick;
use super::references::ReferInCall;
use super::schedule::{Code, Operand, Schedule};
use super::stages::{Stage, StageInCall};
use super::tag::mix;
use crate::error::{Error, Result};
use crate::kernels::{Direction, LEAST_BACKWARDS, Reducer, Store};

/// Bytes of all ranks' longest buffers in calls that go through them forwards and backwards in turn. In mapped memory between two ranks on near cores
/// all-reduces of 32 KiB take nine tenths of the time with it and of 1 MiB four fifths, other collectives of 1 MiB 0.8 to 0.95; in other memory calls of 1 and 4 MiB
/// a twentieth less. Of longer ones little is left in the caches, and what the processor asks for ahead of time is wrong where a tile ends: 4 ranks took a twentieth
/// longer for 4 MiB, and 2 for all-to-alls of 16 MiB a tenth.
const MOST_ALTERNATING: usize = 8 << 20;

/// What a schedule runs, worked out once and run any number of times.
#[derive(Debug)]
pub struct Task {
    pub(super) layout: Layout,
    pub(super) reducer: Reducer,
    /// The program's operands.
    pub(super) operands: Box<[Bound]>,
    /// The program's moves, as they are made if the call has one tile.
    pub(super) quick: Box<[Quick]>,
    /// Whether they are all that the call comes to.
    pub(super) is_brief: bool,
    /// From which of them on nothing is sent any more; none if nothing is sent at all.
    pub(super) all_sent: usize,
    /// Whether some of them may send by reference, or are so long that it counts which way they go.
    pub(super) is_long: bool,
    /// What the program is run in.
    pub(super) stages: Box<[StageInCall]>,
    /// Whether some of them are of one lane.
    pub(super) is_staged: bool,
    /// Bytes of a tile.
    pub(super) tile: usize,
    /// Whether every other call of it goes backwards through its buffers.
    pub(super) alternates: bool,
    /// What whole elements have no bit of.
    pub(super) element_mask: usize,
    pub(super) is_pairwise: bool,
    /// What may travel by reference.
    pub(super) refers: ReferInCall,
    /// Whether something is long enough to be offered.
    pub(super) offers: bool,
    /// Whether results that go to memory offered by others are kept in the caches here.
    pub(super) keeps: bool,
}

/// Writing past the caches, in calls whose buffers are longer than they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    /// Whether both buffers are one.
    pub in_place: bool,
    /// Whether what a move has read is gone from the caches when another one writes there.
    pub forgets: bool,
    /// Whether the caches hold at least what each rank writes to its own output, where the others get it past them.
    pub keeps: bool,
}

/// An operand, and the whole chunk that it is: of no length where it is none of a user's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) operand: Operand,
    pub(super) span: Span,
    /// How it is written, if it is a part of the receive buffer, or of those that are offered to what it sends.
    pub(super) store: Store,
}

/// Bytes of a user's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Span {
    /// The piece of at most `tile` bytes after the first `skip`: offset within the buffer, and length, which is 0 past
    /// the end.
    #[inline(always)]
    pub(super) fn piece(self, skip: usize, tile: usize) -> (usize, usize) {
        let skip = skip.min(self.len);
        (self.at + skip, (self.len - skip).min(tile))
    }
}

impl Schedule {
    /// The task of calls with this layout, which must be made for this schedule's plan and rank. Values are combined by
    /// `reducer`; a collective that does not reduce takes any of its type.
    pub fn task(&self, layout: Layout, reducer: Reducer) -> Result<Task> {
        if layout.spec != self.spec || layout.rank != self.rank {
            return Err(Error::invalid(
                "a layout of another plan or rank",
                format!("it must be made for rank {} and {:?}", self.rank, self.spec),
            ));
        }
        let machine = &self.machine;
        let bound = |&operand: &Operand| {
            let span = match operand {
                Operand::Input(place) => layout.input_span(place),
                Operand::Output(place) => layout.output_span(place),
                Operand::Scratch(_) | Operand::Receive { .. } | Operand::Send { .. } => Span::default(),
            };
            Bound { operand, span, store: Store::Cached }
        };
        let operands: Box<[Bound]> = machine.operands.iter().map(bound).collect();
        let tiles_of = |lane: &Stage| {
            let moves = &machine.moves[lane.first as usize..lane.end as usize];
            let (Some(first), Some(last)) = (moves.first(), moves.last()) else { return 0 };
            if !layout.is_pairwise() {
                return layout.tiles();
            }
            // Where ranks know their own blocks only, all that the two ends of a link both know is the block that travels
            // on it; so each lane is run as often as its own chunks need.
            let own = &operands[first.from as usize..last.end as usize];
            let longest =
                own.iter().filter(|bound| bound.operand.is_of_a_buffer()).map(|bound| bound.span.len).max();
            longest.map_or(layout.tiles(), |bytes| layout.tiles_of(bytes))
        };
        let piece = layout.longest_piece();
        let lanes: Vec<StageInCall> =
            machine.whole.iter().map(|lane| lane.in_call(tiles_of(lane), piece)).collect();
        // With one tile nothing can be ahead.
        let is_staged = machine.stages.len() > lanes.len() && lanes.iter().any(|lane| lane.tiles > 1);
        let staged = |stage: &Stage| stage.in_call(lanes[stage.lane as usize].tiles, piece);
        let mut stages: Box<[StageInCall]> = match is_staged {
            true => machine.stages.iter().map(staged).collect(),
            false => lanes.into(),
        };
        let refers = machine.lending.from().in_call(&layout);
        if layout.tile_bytes() >= refers.piece {
            stages.iter_mut().for_each(|run| {
                run.stretches = run.tiles > 1 && machine.stretches(&run.stage, self.spec.ranks)
            });
        }
        let offers = machine.has_offers(&operands, layout.tile_bytes(), refers.piece);
        let is_quick = layout.tiles() == 1 && !layout.is_pairwise() && !offers;
        let quick = machine.moves.iter().map(|code| match is_quick {
            true => {
                let operands = &operands[code.from as usize..code.end as usize];
                Quick::of(machine, code, operands, &reducer, refers)
            }
            false => Quick::No,
        });
        let quick: Box<[Quick]> = quick.collect();
        let last_sent =
            quick.iter().rposition(|quick| matches!(quick, Quick::Send { .. } | Quick::Lend { .. }));
        let divides = machine.reduces && reducer.divides();
        Ok(Task {
            is_brief: !offers && !divides && quick.iter().all(|quick| !matches!(quick, Quick::No)),
            all_sent: last_sent.map_or(usize::MAX, |last| last + 1),
            is_long: quick
                .iter()
                .any(|quick| matches!(quick, Quick::Lend { .. }) || quick.bytes() >= LEAST_BACKWARDS),
            quick,
            stages,
            is_staged,
            tile: layout.tile_bytes(),
            alternates: layout.longest_buffers().is_some_and(|bytes| bytes <= MOST_ALTERNATING),
            element_mask: layout.element_bytes() - 1,
            is_pairwise: layout.is_pairwise(),
            refers,
            offers,
            keeps: false,
            layout,
            reducer,
            operands,
        })
    }
}

impl Task {
    /// Writes past the caches what no move reads: for buffers larger than they are. In place that is what was no input either, or,
    /// where the caches have forgotten by then what an earlier move has read, what the move itself does not read. What a peer
    /// reads where it lies goes into them nevertheless; that is known only when it is sent. So does, of a result that
    /// is written to the peers, the own one, where it is kept.
    pub fn streaming(mut self, schedule: &Schedule, Streams { in_place, forgets, keeps }: Streams) -> Task {
        self.keeps = keeps;
        let machine = &schedule.machine;
        let spec = &schedule.spec;
        let is_input = |read: Place, place: Place| {
            in_place
                && read.part == place.part
                && spec.collective.in_place_output(schedule.rank, read.block) == Some(place.block)
        };
        for (at, (code, quick)) in machine.moves.iter().zip(&mut self.quick).enumerate() {
            for index in code.into as usize..code.end as usize {
                let Operand::Output(place) = self.operands[index].operand else { continue };
                let is_read = machine.moves.iter().enumerate().any(|(other, code)| {
                    let sources = &machine.operands[code.from as usize..code.into as usize];
                    sources.iter().any(|source| match *source {
                        Operand::Output(read) => read == place,
                        Operand::Input(read) => is_input(read, place) && (!forgets || other == at),
                        _ => false,
                    })
                });
                if !is_read {
                    self.operands[index].store = Store::Streaming;
                    *quick = Quick::No;
                    self.is_brief = false;
                }
            }
            // At the peers as here; what this rank does not write itself, it does not read there either.
            let own = &self.operands[code.into as usize..code.end as usize];
            let keeps = own.iter().find(|bound| matches!(bound.operand, Operand::Output(_)));
            let keeps_past = keeps.is_some_and(|own| own.store == Store::Streaming);
            if code.reaches.is_share() || code.reaches.is_all() && keeps_past {
                self.operands[code.end as usize - 1].store = Store::Streaming;
            }
        }
        self
    }

    /// With a lead of so many bytes where one stage sends ahead of another, unless the call is long.
    pub fn led_by(mut self, bytes: usize) -> Task {
        let piece = self.layout.longest_piece();
        self.stages.iter_mut().for_each(|stage| *stage = stage.led_by(bytes, piece));
        self
    }

    /// Which way the call of this number goes through its buffers. Both ends of each link find the same.
    #[inline(always)]
    pub(super) fn direction(&self, sequence: u64) -> Direction {
        if self.alternates && sequence % 2 == 1 { Direction::Backwards } else { Direction::Forwards }
    }

    /// What the pieces of a move carry in a call with this `tag`.
    #[inline(always)]
    pub(super) fn tag_of(&self, code: &Code, tag: u64) -> u64 {
        if self.is_pairwise { self.pair_tag(code, tag) } else { tag }
    }

    /// The tag of a move whose ranks know no more of the call than the block that travels between them: it covers
    /// that block's length.
    #[cold]
    fn pair_tag(&self, code: &Code, tag: u64) -> u64 {
        let operands = &self.operands[code.from as usize..code.end as usize];
        let bytes = operands.iter().find(|bound| bound.operand.is_of_a_buffer()).map(|bound| bound.span.len);
        mix(tag, bytes.map_or(0, |bytes| bytes as u64 + 1))
    }

    /// How often the program's lane of this number is run.
    pub(super) fn tiles_of(&self, lane: u32) -> usize {
        let at = self.stages.partition_point(|run| run.stage.lane < lane);
        self.stages.get(at).map_or(0, |run| run.tiles)
    }

    /// How its buffers are cut.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, OneShot, Recursive, TwoShot};
    use crate::engine::idle::Ends;
    use crate::plan::{Collective, Spec};
    use crate::{DataType, ReduceOp};

    fn schedule(algorithm: &dyn Algorithm, collective: Collective) -> Schedule {
        let parts = algorithm.parts(collective, 4.into()).unwrap();
        let spec = Spec::new(collective, 4, 0, parts);
        Schedule::bind(&spec, 0, &algorithm.program(&spec, 0), &mut Ends).unwrap()
    }

    fn task(schedule: &Schedule) -> Task {
        let layout = Layout::new(&schedule.spec, 0, 100, DataType::F32, 64).unwrap();
        schedule.task(layout, Reducer::new(DataType::F32, ReduceOp::Sum, 4).unwrap()).unwrap()
    }

    #[test]
    fn pieces_cover_a_span_and_end_with_it() {
        let span = Span { at: 100, len: 10 };
        assert_eq!([0, 4, 8, 12].map(|skip| span.piece(skip, 4)), [(100, 4), (104, 4), (108, 2), (110, 0)]);
        assert_eq!(Span::default().piece(64, 64), (0, 0));
    }

    #[test]
    fn calls_alternate_as_long_as_all_buffers_together_are_short() {
        let alternates = |collective, count| {
            let schedule = schedule(&OneShot, collective);
            let layout = Layout::new(&schedule.spec, 0, count, DataType::U8, 64 << 10).unwrap();
            schedule.task(layout, Reducer::new(DataType::U8, ReduceOp::Sum, 4).unwrap()).unwrap().alternates
        };
        let most = MOST_ALTERNATING / 4;
        for (collective, most) in [(Collective::AllReduce, most), (Collective::Gather, most / 4)] {
            assert!(alternates(collective, most) && !alternates(collective, most + 1), "{collective}");
        }
        assert!(!alternates(Collective::AllReduce, isize::MAX as usize));
    }

    #[test]
    fn only_what_no_move_reads_is_written_past_the_caches() {
        let stores_of = |schedule: &Schedule, in_place, forgets| {
            let task = task(schedule).streaming(schedule, Streams { in_place, forgets, keeps: false });
            let outputs = task.operands.iter().filter(|bound| matches!(bound.operand, Operand::Output(_)));
            outputs.map(|bound| bound.store).collect::<Vec<_>>()
        };
        let stores = |schedule: &Schedule, in_place| stores_of(schedule, in_place, false);
        let one_shot = schedule(&OneShot, Collective::AllReduce);
        assert_eq!(stores(&one_shot, false), [Store::Streaming]);
        assert_eq!(stores(&one_shot, true), [Store::Cached], "the sum comes to where the contribution was");
        // Its own block, and those of the others.
        let gather = schedule(&OneShot, Collective::AllGather);
        assert_eq!(stores(&gather, false), [Store::Streaming; 4]);
        assert_eq!(
            stores(&gather, true),
            [Store::Cached, Store::Streaming, Store::Streaming, Store::Streaming]
        );
        // The own part goes to the peers in the move that combines it.
        let two_shot = schedule(&TwoShot, Collective::AllReduce);
        assert_eq!(stores(&two_shot, false), [Store::Streaming; 4]);
        // In place all parts were contributions; the own one is in the caches in any case, as it is combined just then.
        assert_eq!(stores(&two_shot, true), [Store::Cached; 4]);
        let mut forgotten = stores_of(&two_shot, true, true);
        forgotten.sort_by_key(|store| *store == Store::Streaming);
        assert_eq!(forgotten, [Store::Cached, Store::Streaming, Store::Streaming, Store::Streaming]);
        // What is written at the peers goes past the caches as here; a root has no output to go by.
        let reached = |schedule: &Schedule, in_place, at: usize| {
            let task = task(schedule).streaming(schedule, Streams { in_place, ..Streams::default() });
            task.operands[schedule.machine.moves[at].end as usize - 1].store
        };
        assert_eq!(
            [false, true].map(|in_place| reached(&two_shot, in_place, 3)),
            [Store::Streaming, Store::Cached]
        );
        let mut root = schedule(&OneShot, Collective::Broadcast);
        root.allow_shares(&OneShot.program(&root.spec, 0));
        assert_eq!(reached(&root, true, 0), Store::Streaming);
        assert_eq!(reached(&gather, false, 0), Store::Cached, "it goes through slots");
        // Each step sends what the step before has written.
        let doubling = stores(&schedule(&Recursive, Collective::AllReduce), false);
        assert!(doubling.len() > 1 && doubling.iter().all(|store| *store == Store::Cached), "{doubling:?}");
    }

    #[test]
    fn a_task_of_another_plan_is_refused() {
        let (one, other) =
            (schedule(&OneShot, Collective::AllReduce), schedule(&OneShot, Collective::AllGather));
        let foreign = task(&one);
        let layout = foreign.layout().clone();
        let reducer = Reducer::new(DataType::F32, ReduceOp::Sum, 4).unwrap();
        assert!(other.task(layout, reducer).is_err());
        let mut other = other;
        assert!(other.start(&std::sync::Arc::new(foreign), 0, 0).is_err());
    }
}
