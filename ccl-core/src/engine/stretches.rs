//! Several tiles in one go, where what comes in lies side by side in memory that its sender has lent.
//!
//! A sender tells of its tiles by a message each, and they are as long as a slot holds, since others may have to travel through one. But between two tiles a kernel stands still: what it
//! reads is not asked for ahead, and messages are looked for. So a rank that finds several of them waiting reads them as one, and writes what it makes of them to its own
//! output and to where the others have offered memory. On the links nothing changes: each tile is released and told of by a message of its own.
//!
//! What several ranks read, as in an all-gather or a broadcast, they read tile by tile: while they keep pace, those that come later find it in the caches.
//!
//! None of it blocks what would not block without: a stretch is as long as what is there already, and what it needs itself.

use super::schedule::{Lane, Machine, Operand};
use super::stages::Stage;
use super::task::{Bound, Span, Task};
use crate::error::Result;
use crate::kernels::{Buffers, Direction, Source, Store};
use crate::transport::{Fabric, Stretch};

/// Bytes of a stretch at most. Two threads that know nothing else gain nothing by pieces longer than 2 MiB.
const MOST_BYTES: usize = 4 << 20;

impl Span {
    /// The pieces of so many tiles from the one on that `skip` bytes lie before, in the direction of a call: offset within the buffer, and length. Tiles that lie past the
    /// end have none.
    fn pieces(self, skip: usize, tile: usize, tiles: usize, direction: Direction) -> (usize, usize) {
        let first = match direction {
            Direction::Forwards => skip,
            Direction::Backwards => skip - (tiles - 1) * tile,
        };
        self.piece(first, tiles * tile)
    }
}

impl Machine {
    /// Whether a stage may make several tiles in one go, in a call of so many ranks: its only move combines what comes in, or has it from the only other rank, and brings it to the output, and to
    /// others where they have offered memory for it.
    pub(super) fn stretches(&self, stage: &Stage, ranks: u32) -> bool {
        if stage.end - stage.first != 1 {
            return false;
        }
        let code = self.moves[stage.first as usize];
        let operands = |range: std::ops::Range<u32>| &self.operands[range.start as usize..range.end as usize];
        let (from, into) = (operands(code.from..code.into), operands(code.into..code.end));
        let receives = from.iter().any(|operand| matches!(operand, Operand::Receive { .. }));
        let keeps = into.iter().any(|operand| matches!(operand, Operand::Output(_)));
        let sends = |operand: &&Operand| matches!(operand, Operand::Send { .. });
        let has_scratch = from.iter().chain(into).any(|operand| matches!(operand, Operand::Scratch(_)));
        let reaches = into.iter().filter(sends).count() == 0 || code.reaches.is_all();
        let has_it_alone = from.len() > 1 || ranks == 2;
        receives && has_it_alone && keeps && reaches && !has_scratch
    }

    /// Makes the lane's move for as many tiles before `until` as can be made in one go; how many these are, or 0, and then nothing was done.
    pub(super) fn try_stretch<F: Fabric + ?Sized>(
        &mut self,
        index: usize,
        until: usize,
        task: &Task,
        tag: u64,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<usize> {
        let Lane { at, tile, skip, .. } = self.lanes[index];
        let code = self.moves[at as usize];
        let tag = task.tag_of(&code, tag);
        let operands = &task.operands[code.from as usize..code.end as usize];
        let (from, into) = operands.split_at((code.into - code.from) as usize);
        let mut tiles = (MOST_BYTES / task.tile).min(until - tile);
        for (source, Bound { operand, .. }) in self.sources.iter_mut().zip(from) {
            let Operand::Receive { from, .. } = *operand else { continue };
            if tiles < 2 {
                return Ok(0);
            }
            match fabric.peek_stretch(from, tiles, self.direction)? {
                Some((arrival, pieces)) if arrival.tag == tag => {
                    *source = Source { piece: arrival.piece, scaled: false };
                    tiles = pieces;
                }
                _ => return Ok(0),
            }
        }
        // Where there are not as many credits, some fewer will do.
        while tiles > 1 {
            if let Some(written) =
                self.open_stretch(tiles, (index, skip, tag), task, (from, into), fabric, buffers)?
            {
                self.make_stretch(written, tiles, tag, task, (from, into), fabric)?;
                return Ok(tiles);
            }
            tiles /= 2;
        }
        Ok(0)
    }

    /// Finds sources and sinks of so many tiles, of which those that come in are known; how many sinks, or `None` if it cannot be done.
    fn open_stretch<F: Fabric + ?Sized>(
        &mut self,
        tiles: usize,
        (lane, skip, tag): (usize, usize, u64),
        task: &Task,
        (from, into): (&[Bound], &[Bound]),
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<Option<usize>> {
        let (direction, tile) = (self.direction, task.tile);
        let pieces = |bound: &Bound| bound.span.pieces(skip, tile, tiles, direction);
        let own = from.iter().chain(into).filter(|bound| bound.operand.is_of_a_buffer());
        let mut lens = own.map(|bound| pieces(bound).1);
        let bytes = lens.next().unwrap_or(0);
        let is_whole = bytes > (tiles - 1) * tile && bytes & task.element_mask == 0;
        if !is_whole || !lens.all(|len| len == bytes) {
            return Ok(None);
        }
        for (source, bound) in self.sources.iter_mut().zip(from) {
            match bound.operand {
                Operand::Input(_) => {
                    let piece = buffers.input().slice(pieces(bound).0, bytes);
                    *source = Source { piece, scaled: self.reduces };
                }
                Operand::Output(_) => {
                    let piece = buffers.output().as_piece().slice(pieces(bound).0, bytes);
                    *source = Source { piece, scaled: false };
                }
                _ if source.piece.len() < bytes => return Ok(None),
                _ => {
                    // What came first is where the others begin, or behind them.
                    let at = match direction {
                        Direction::Forwards => 0,
                        Direction::Backwards => source.piece.len() - bytes,
                    };
                    source.piece = source.piece.slice(at, bytes);
                }
            }
        }
        let mut written = 0;
        for Bound { operand, span, store } in into {
            match *operand {
                Operand::Send { to, .. } => {
                    let stretch = Stretch { pieces: tiles, tile, bytes, direction };
                    let (own, sinks) = self.sinks.split_at_mut(written);
                    let offered = fabric.reserve_offered(to, stretch, tag, sinks)?;
                    if offered == 0 {
                        return Ok(None);
                    }
                    self.lanes[lane].is_light = true;
                    sinks[..offered].iter_mut().for_each(|sink| *sink = sink.stored(*store));
                    if task.keeps {
                        own.iter_mut().for_each(|sink| *sink = sink.stored(Store::Cached));
                    }
                    written += offered;
                }
                _ => {
                    let (at, _) = span.pieces(skip, tile, tiles, direction);
                    self.sinks[written] = buffers.output().slice(at, bytes).stored(*store);
                    written += 1;
                }
            }
        }
        Ok(Some(written))
    }

    /// Does the work, and gives back and hands over what is due.
    fn make_stretch<F: Fabric + ?Sized>(
        &mut self,
        written: usize,
        tiles: usize,
        tag: u64,
        task: &Task,
        (from, into): (&[Bound], &[Bound]),
        fabric: &mut F,
    ) -> Result<()> {
        // What was offered is there already.
        let is_there = match (&self.sources[..from.len()], &self.sinks[..written]) {
            ([source], [sink]) => !source.scaled && source.piece.is(sink.as_piece()),
            _ => false,
        };
        if !is_there {
            task.reducer.apply(&self.sources[..from.len()], &self.sinks[..written], self.direction);
        }
        // In this order: bytes that were withdrawn while they were read must not be passed on.
        for bound in from {
            if let Operand::Receive { from, .. } = bound.operand {
                for _ in 0..tiles {
                    fabric.peek(from)?;
                    fabric.release(from)?;
                }
            }
        }
        for bound in into {
            if let Operand::Send { to, .. } = bound.operand {
                fabric.publish(to, tag)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, OneShot, Ring, TwoShot};
    use crate::engine::idle::Ends;
    use crate::engine::{Layout, Progress, ReferFrom, Schedule};
    use crate::kernels::{Piece, PieceMut, Reducer};
    use crate::plan::{Collective, Plan, Spec};
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{Arrival, LocalHub, LocalTransport, Offer, ReceiverId, Refer, SenderId};
    use crate::verify::{Limits, verify_shortcuts};
    use crate::{DataType, ReduceOp};
    use std::sync::Arc;

    const TILE: usize = 64;

    /// Notes how many pieces were looked at as one, and written as one.
    struct Watched {
        transport: LocalTransport,
        read: Vec<usize>,
        written: Vec<usize>,
    }

    impl Fabric for Watched {
        fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
            self.transport.reserve(to, len)
        }

        fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
            self.transport.refer(to, piece)
        }

        fn settled(&mut self, to: SenderId) -> Result<bool> {
            self.transport.settled(to)
        }

        fn reserve_offered(
            &mut self,
            to: SenderId,
            stretch: Stretch,
            tag: u64,
            sinks: &mut [PieceMut],
        ) -> Result<usize> {
            let given = self.transport.reserve_offered(to, stretch, tag, sinks)?;
            self.written.extend((given > 0).then_some(stretch.pieces));
            Ok(given)
        }

        fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
            self.transport.publish(to, tag)
        }

        fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
            self.transport.offer(from, offer)
        }

        fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
            self.transport.peek(from)
        }

        fn peek_stretch(
            &mut self,
            from: ReceiverId,
            most: usize,
            direction: Direction,
        ) -> Result<Option<(Arrival, usize)>> {
            let found = self.transport.peek_stretch(from, most, direction)?;
            self.read.extend(found.map(|(_, pieces)| pieces));
            Ok(found)
        }

        fn release(&mut self, from: ReceiverId) -> Result<()> {
            self.transport.release(from)
        }
    }

    /// Two ranks sum `count` bytes, with so many credits, in the call of this number: the longest stretch that was read, and that was written.
    fn all_reduce(algorithm: &dyn Algorithm, count: usize, credits: u32, sequence: u64) -> (usize, usize) {
        let hub = LocalHub::new(2, TILE, credits);
        let mut transports = [0, 1].map(|rank| hub.transport(rank));
        connect(&mut transports, &mesh(2, 2));
        let parts = algorithm.parts(Collective::AllReduce, 2.into()).unwrap();
        let spec = Spec::new(Collective::AllReduce, 2, 0, parts);
        let programs = [0, 1].map(|rank| algorithm.program(&spec, rank)).into();
        let plan = Plan { spec, algorithm: algorithm.name().into(), programs };
        let (_, shortcuts) = verify_shortcuts(&plan, &Limits { credits, ..Limits::default() }).unwrap();
        let mut rank = 0..;
        let mut members = transports.map(|mut transport| {
            let rank = rank.next().unwrap();
            let program = &plan.programs[rank as usize];
            let mut schedule = Schedule::bind(&spec, rank, program, &mut transport).unwrap();
            schedule.allow_references(program, shortcuts.refers(rank), ReferFrom::ALWAYS).unwrap();
            schedule.allow_offers(program, shortcuts.offers(rank), 0).unwrap();
            let layout = Layout::new(&spec, rank, count, DataType::U8, TILE).unwrap();
            let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, 2).unwrap();
            let task = Arc::new(schedule.task(layout, reducer).unwrap());
            schedule.start(&task, 7, sequence).unwrap();
            let input: Vec<u8> = (0..count).map(|at| (at * (3 + rank as usize)) as u8).collect();
            (schedule, Watched { transport, read: Vec::new(), written: Vec::new() }, input, vec![0; count])
        });
        let mut left = 10_000;
        while members.iter().any(|(schedule, ..)| schedule.is_running()) {
            left -= 1;
            assert!(
                left > 0,
                "they wait for each other: {} of {count}, {credits} credits, call {sequence}",
                algorithm.name()
            );
            for (schedule, fabric, input, output) in &mut members {
                if schedule.is_running() {
                    let done = schedule.step(fabric, &Buffers::new(input, output)).unwrap();
                    assert_eq!(done == Progress::Done, !schedule.is_running());
                }
            }
        }
        let sum: Vec<u8> = (0..count)
            .map(|at| (at * 3) as u8)
            .zip(0..)
            .map(|(own, at)| own.wrapping_add((at * 4) as u8))
            .collect();
        let longest = |of: fn(&Watched) -> &Vec<usize>| {
            members.iter().flat_map(|(_, fabric, ..)| of(fabric)).copied().max().unwrap_or(0)
        };
        for (_, _, _, output) in &members {
            assert!(*output == sum, "{} of {count} with {credits} credits", algorithm.name());
        }
        (longest(|fabric| &fabric.read), longest(|fabric| &fabric.written))
    }

    #[test]
    fn tiles_that_have_come_are_made_in_one_go_both_ways() {
        // Twenty tiles of each rank's part, of which the last is short.
        let count = 2 * (19 * TILE + 10);
        for sequence in 0..2 {
            let (read, written) = all_reduce(&TwoShot, count, 64, sequence);
            assert!(read >= 8 && written >= 8, "{read} {written}");
        }
    }

    #[test]
    fn whatever_is_there_the_sums_are_right_and_nobody_waits_forever() {
        // With fewer than two credits a ring of two waits for itself, as the verifier says.
        for (algorithm, least) in [(&TwoShot as &dyn Algorithm, 1), (&OneShot, 1), (&Ring, 2)] {
            for count in [1, 63, 64, 65, 128, 129, 500, 1290, 2566] {
                for credits in [least, 2, 3, 5, 64] {
                    for sequence in 0..2 {
                        let (read, written) = all_reduce(algorithm, count, credits, sequence);
                        assert!(read.max(written) <= credits as usize);
                    }
                }
            }
        }
    }

    #[test]
    fn only_a_stage_of_one_move_that_keeps_what_comes_in_takes_several_tiles() {
        let stretches = |algorithm: &dyn Algorithm, collective, ranks: u32| {
            let spec = Spec::new(collective, ranks, 0, algorithm.parts(collective, ranks.into()).unwrap());
            // Not the root.
            let program = algorithm.program(&spec, 1);
            let schedule = Schedule::bind(&spec, 1, &program, &mut Ends).unwrap();
            let machine = &schedule.machine;
            machine.stages.iter().map(|stage| machine.stretches(stage, ranks)).collect::<Vec<_>>()
        };
        assert_eq!(stretches(&TwoShot, Collective::AllReduce, 2), [false, true, true]);
        assert_eq!(stretches(&TwoShot, Collective::AllReduce, 4), [false, true, false]);
        assert_eq!(stretches(&OneShot, Collective::AllGather, 2), [false, true]);
        assert_eq!(stretches(&OneShot, Collective::Reduce, 4), [false], "it only sends");
        assert_eq!(stretches(&OneShot, Collective::Broadcast, 2), [true]);
        assert_eq!(stretches(&OneShot, Collective::Broadcast, 4), [false], "others read the same");
        assert_eq!(stretches(&Ring, Collective::AllReduce, 4), [false]);
    }

    #[test]
    fn what_goes_to_several_is_not_told_of_long_before() {
        let alone = |algorithm: &dyn Algorithm, collective| {
            let spec = Spec::new(collective, 4, 0, algorithm.parts(collective, 4.into()).unwrap());
            let schedule = Schedule::bind(&spec, 0, &algorithm.program(&spec, 0), &mut Ends).unwrap();
            schedule.machine.moves.iter().map(|code| code.has_one_receiver).collect::<Vec<_>>()
        };
        assert_eq!(alone(&TwoShot, Collective::AllReduce), [true, true, true, false, false, false, false]);
        assert_eq!(alone(&OneShot, Collective::AllGather), [false; 4]);
        assert_eq!(alone(&OneShot, Collective::AllToAll)[..3], [true; 3]);
    }

    #[test]
    fn the_pieces_of_some_tiles_end_with_their_span() {
        use Direction::{Backwards, Forwards};
        let span = Span { at: 1000, len: 3 * TILE + 10 };
        assert_eq!(span.pieces(TILE, TILE, 2, Forwards), (1000 + TILE, 2 * TILE));
        assert_eq!(span.pieces(TILE, TILE, 3, Forwards), (1000 + TILE, 2 * TILE + 10));
        assert_eq!(span.pieces(3 * TILE, TILE, 2, Backwards), (1000 + 2 * TILE, TILE + 10));
        assert_eq!(span.pieces(4 * TILE, TILE, 2, Forwards).1, 0, "past the end");
    }
}
