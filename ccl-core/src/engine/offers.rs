//! Memory that is offered to those who send: chunks of the output that become copies of what comes in.

use super::schedule::{Machine, Operand, Schedule, Share};
use super::task::{Bound, Task};
use crate::error::Result;
use crate::plan::Program;
use crate::simd::Buffers;
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
}

impl Schedule {
    /// Lets what is received be offered memory of the output when a call begins, where the proof says of a move that it
    /// `may`, and pieces may [be referred to](Schedule::allow_references) that are as long. `program` is the one that was
    /// bound, and `may` has an entry for each of its moves.
    pub fn allow_offers(&mut self, program: &Program, may: &[May]) -> Result<()> {
        self.check_proofs(program, may)?;
        let machine = &mut self.machine;
        let (code, operands) = (&machine.moves, &machine.operands);
        let lanes =
            (0..).zip(&program.lanes).flat_map(|(lane, code)| code.moves.iter().map(move |mv| (lane, mv)));
        let moves = lanes.zip(code).zip(may).zip(0..);
        let landings = moves.filter_map(|((((lane, mv), code), &may), at)| {
            mv.landing().filter(|_| may.apart || may.in_place)?;
            let Operand::Receive { from, .. } = operands[code.from as usize] else { return None };
            let is_output = |sink: &u32| matches!(operands[*sink as usize], Operand::Output(_));
            let sink = (code.into..code.end).find(is_output)?;
            Some(Landing { may, from, lane, at, sink })
        });
        machine.landings = landings.collect();
        Ok(())
    }
}

impl Machine {
    /// Whether some chunk that may be offered is long enough in a call with these operands, where pieces are offered `from` so many bytes.
    pub(super) fn has_offers(&self, operands: &[Bound], tile: usize, from: usize) -> bool {
        let is_long = |landing: &Landing| tile.min(operands[landing.sink as usize].span.len) >= from;
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
            let allowed = if buffers.is_in_place() { landing.may.in_place } else { landing.may.apart };
            let span = task.operands[landing.sink as usize].span;
            let tiles = share.tiles(task.tiles_of(landing.lane));
            let skip = (tiles.start * task.tile).min(span.len);
            let len = (span.len - skip).min(tiles.len() * task.tile);
            if allowed && task.tile.min(len) >= task.refers.piece {
                let code = &self.moves[landing.at as usize];
                let tag = task.tag_of(code, tag);
                let sink = buffers.output().slice(span.at + skip, len);
                fabric.offer(landing.from, Offer { tag, sink, piece: task.tile })?;
            }
        }
        Ok(())
    }
}
