//! Memory that is offered to those who send: chunks of the output that become copies of what comes in.

use super::schedule::{Machine, Operand, Schedule, Share};
use super::task::{Bound, Task};
use crate::error::Result;
use crate::kernels::{Buffers, Direction};
use crate::plan::{Move, Program, Rank, Sink, Source, Spec};
use crate::transport::{Fabric, Offer, ReceiverId};
use crate::verify::May;

/// A chunk that may be offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    may: May,
    from: ReceiverId,
    /// The lane whose tiles come in.
    lane: u32,
    /// The move that receives, by its number among all of the program's moves.
    at: u32,
    /// The output, among all operands.
    sink: u32,
    /// It is offered where it has so many bytes.
    least: usize,
    beneath: Beneath,
}

/// What lies where a chunk lands, in a call in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beneath {
    /// No input.
    Nothing,
    /// An input that is sent to the rank from which the chunk comes, and to no other. Where that rank reads it by reference, its core has the lines
    /// when it writes to them.
    SentThere,
    /// One that this rank reads itself, or others. Its lines are in their caches, and taken away from there for more than a copy costs.
    ReadElsewhere,
}

impl Beneath {
    /// What lies beneath an output chunk of this rank that comes from a peer; and the move that sends it there, by its number among all of
    /// the program's moves.
    fn of(spec: &Spec, rank: Rank, program: &Program, output: u32, peer: Rank) -> (Beneath, Option<usize>) {
        let lies_there = |chunk: &u32| spec.in_place_chunk(rank, *chunk) == Some(output);
        let reads =
            |mv: &Move| mv.from.iter().any(|s| matches!(s, Source::Input(chunk) if lies_there(chunk)));
        let moves = || program.lanes.iter().flat_map(|lane| &lane.moves).enumerate();
        let mut readers = moves().filter(|(_, mv)| reads(mv));
        match (readers.next(), readers.next()) {
            (None, _) => (Beneath::Nothing, None),
            (Some((at, Move { from, into })), None) => match (&from[..], &into[..]) {
                ([_], [Sink::Links(links)]) if links.peers == [peer] => (Beneath::SentThere, Some(at)),
                _ => (Beneath::ReadElsewhere, None),
            },
            _ => (Beneath::ReadElsewhere, None),
        }
    }
}

impl Schedule {
    /// Lets what is received be offered memory of the output when a call begins, where the proof says of a move that it
    /// `may`, and pieces may [be referred to](Schedule::allow_references) that are as long. `program` is the one that was
    /// bound, and `may` has an entry for each of its moves. Chunks of less than `least` bytes are not offered. What was allowed before stays.
    pub fn allow_offers(&mut self, program: &Program, may: &[May], least: usize) -> Result<()> {
        self.check_proofs(program, may)?;
        let machine = &mut self.machine;
        let (code, operands) = (&machine.moves, &machine.operands);
        let lanes =
            (0..).zip(&program.lanes).flat_map(|(lane, code)| code.moves.iter().map(move |mv| (lane, mv)));
        let moves = lanes.zip(code).zip(may).zip(0..);
        let mut read_there = Vec::new();
        let landings = moves.filter_map(|((((lane, mv), code), &may), at)| {
            let chunk = mv.landing().filter(|_| may.apart || may.in_place)?;
            let [Source::Link(link)] = mv.from[..] else { return None };
            let Operand::Receive { from, .. } = operands[code.from as usize] else { return None };
            let is_output = |sink: &u32| matches!(operands[*sink as usize], Operand::Output(_));
            let sink = (code.into..code.end).find(is_output)?;
            let (beneath, sent_by) = Beneath::of(&self.spec, self.rank, program, chunk, link.peer);
            read_there.extend(sent_by.filter(|_| may.in_place));
            Some(Landing { may, from, lane, at, sink, least, beneath })
        });
        let landings: Vec<Landing> = landings.collect();
        machine.landings.extend(landings);
        // This rank does not write to what was sent: its reader does.
        read_there.into_iter().for_each(|at| machine.moves[at].refers.keep_in_place());
        Ok(())
    }
}

impl Machine {
    /// Whether some chunk that may be offered is long enough in a call with these operands, where pieces are offered `from` so many bytes.
    pub(super) fn has_offers(&self, operands: &[Bound], tile: usize, from: usize) -> bool {
        let is_long = |landing: &Landing| {
            let len = operands[landing.sink as usize].span.len;
            tile.min(len) >= from && len >= landing.least
        };
        self.landings.iter().any(is_long)
    }

    /// Offers what may be, if it is long enough: once in a call, before anything else.
    #[cold]
    pub(super) fn offer<F: Fabric + ?Sized>(
        &self,
        task: &Task,
        share: Share,
        tag: u64,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<()> {
        for landing in &self.landings {
            let allowed = if buffers.is_in_place() {
                let pays = match landing.beneath {
                    Beneath::Nothing => true,
                    Beneath::SentThere => task.refers.to_written || !task.reducer.scales(),
                    Beneath::ReadElsewhere => task.refers.to_written,
                };
                landing.may.in_place && pays
            } else {
                landing.may.apart
            };
            let span = task.operands[landing.sink as usize].span;
            let tiles = share.tiles(task.tiles_of(landing.lane));
            let skip = (tiles.start * task.tile).min(span.len);
            let len = (span.len - skip).min(tiles.len() * task.tile);
            // Where the first pieces are past the end of a shorter chunk, backwards none would find its place.
            let begins_there =
                self.direction == Direction::Forwards || len.div_ceil(task.tile) == tiles.len();
            if allowed && len >= landing.least && begins_there && task.tile.min(len) >= task.refers.piece {
                let code = &self.moves[landing.at as usize];
                let tag = task.tag_of(code, tag);
                let sink = buffers.output().slice(span.at + skip, len);
                fabric
                    .offer(landing.from, Offer { tag, sink, piece: task.tile, direction: self.direction })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, OneShot, Ring, TwoShot};
    use crate::engine::ReferFrom;
    use crate::engine::idle::Ends;
    use crate::plan::Collective;

    /// What lies beneath each chunk that rank 0 of three may be offered, were all allowed, and how many of its moves that send an input keep it in place.
    fn beneath(algorithm: &dyn Algorithm, collective: Collective) -> (Vec<Beneath>, usize) {
        let spec = Spec::new(collective, 3, 0, algorithm.parts(collective, 3.into()).unwrap());
        let program = algorithm.program(&spec, 0);
        let mut schedule = Schedule::bind(&spec, 0, &program, &mut Ends).unwrap();
        let moves: usize = program.lanes.iter().map(|lane| lane.moves.len()).sum();
        let may = vec![May { apart: true, in_place: true }; moves];
        schedule.allow_references(&program, &may, ReferFrom::ALWAYS).unwrap();
        let kept = |schedule: &Schedule| {
            schedule.machine.moves.iter().filter(|code| code.refers.is_kept(true)).count()
        };
        let before = kept(&schedule);
        schedule.allow_offers(&program, &may, 0).unwrap();
        let beneath = schedule.machine.landings.iter().map(|landing| landing.beneath).collect();
        (beneath, kept(&schedule) - before)
    }

    #[test]
    fn a_result_that_lands_on_what_its_rank_has_read_is_told_from_others() {
        use Beneath::{Nothing, ReadElsewhere, SentThere};
        assert_eq!(beneath(&TwoShot, Collective::AllReduce), (vec![SentThere; 2], 2));
        // What it sends on to the next is what comes from the one before.
        assert_eq!(beneath(&Ring, Collective::AllReduce), (vec![ReadElsewhere; 2], 0));
        assert_eq!(beneath(&OneShot, Collective::AllGather), (vec![Nothing; 2], 0));
        // Block j goes to rank j, and rank j's comes to where it was.
        assert_eq!(beneath(&OneShot, Collective::AllToAll), (vec![SentThere; 2], 2));
    }
}
