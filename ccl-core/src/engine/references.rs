//! Pieces that travel without a slot: which may be sent by reference, and when all such are released.

use super::layout::Layout;
use super::run::{Wait, WaitOn};
use super::schedule::{Code, Lane, Machine, Operand, Schedule};
use super::task::Task;
use crate::error::{Error, Result};
use crate::plan::{Program, Referent};
use crate::simd::{Buffers, Piece, Source};
use crate::transport::{Fabric, SenderId};
use crate::verify::May;

/// What a move may send by reference.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refers {
    may: May,
    /// The operand that holds what is sent, counted within the move.
    operand: u32,
}

impl Code {
    /// Whether the operand of this number within the move is what may be sent by reference.
    pub(super) fn may_refer_to(&self, operand: u32) -> bool {
        let Refers { may, operand: referent } = self.refers;
        (may.apart || may.in_place) && operand == referent
    }
}

/// From which sizes references pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferFrom {
    /// Bytes of a piece: shorter ones are copied sooner than their release is waited for.
    pub piece: usize,
    /// Bytes of a buffer that the plan writes to, if it is what is referred to. In a shorter one the lines that are
    /// written still lie in the cache of the peer that has read them, and taking them away from there costs more than a
    /// copy does.
    pub written_buffer: usize,
}

/// Pieces that were sent by reference in the running call.
#[derive(Debug)]
pub(super) struct Lending {
    from: ReferFrom,
    /// Whether the running call's buffers are long enough to refer to what is written.
    refers_to_written: bool,
    /// Ends that sent some and are not known to be settled.
    open: Vec<Lent>,
    /// By number of the end, whether it is among these.
    is_open: Vec<bool>,
}

/// An end that has sent references.
#[derive(Clone, Copy, Debug)]
struct Lent {
    to: SenderId,
    end: u32,
    /// The first move of this call that did, by its number among all of the program's moves.
    at: u32,
}

impl Lending {
    pub(super) fn new(ends: usize) -> Lending {
        let from = ReferFrom { piece: usize::MAX, written_buffer: usize::MAX };
        Lending { from, refers_to_written: false, open: Vec::with_capacity(ends), is_open: vec![false; ends] }
    }

    /// A call begins.
    #[inline(always)]
    pub(super) fn start(&mut self, layout: &Layout) {
        let longest = layout.input_bytes().max(layout.output_bytes());
        self.refers_to_written = longest >= self.from.written_buffer;
        // Some are left over from a call that failed only.
        while let Some(lent) = self.open.pop() {
            self.is_open[lent.end as usize] = false;
        }
    }

    /// Shorter pieces are never sent by reference.
    #[inline]
    pub(super) fn refer_from(&self) -> usize {
        self.from.piece
    }

    /// The lane's next move sends by reference.
    #[inline]
    pub(super) fn note(&mut self, to: SenderId, end: u32, lane: &Lane) {
        if !std::mem::replace(&mut self.is_open[end as usize], true) {
            self.open.push(Lent { to, end, at: lane.at });
        }
    }
}

impl Schedule {
    /// Lets pieces travel by reference `from` some sizes, where the proof says of a move that they `may` and the
    /// transport can. `program` is the one that was bound, and `may` has an entry for each of its moves.
    pub fn allow_references(&mut self, program: &Program, may: &[May], from: ReferFrom) -> Result<()> {
        self.check_proofs(program, may)?;
        let moves = program.lanes.iter().flat_map(|lane| &lane.moves);
        let code = &mut self.machine.moves;
        for ((code, mv), &may) in code.iter_mut().zip(moves).zip(may) {
            code.refers = match mv.referent() {
                None => Refers::default(),
                Some(Referent::Source) => Refers { may, operand: 0 },
                Some(Referent::Sink(_)) => {
                    // The same one, the first output; links of several transports are several operands.
                    let operands = &self.machine.operands[code.from as usize..code.end as usize];
                    let sources = mv.from.len();
                    let outputs = |operand: &Operand| matches!(operand, Operand::Output(_));
                    match operands[sources..].iter().position(outputs) {
                        Some(before) => Refers { may, operand: (sources + before) as u32 },
                        None => Refers::default(),
                    }
                }
            };
        }
        self.machine.lending.from = from;
        Ok(())
    }

    /// Whether there is a proof for each move of the program that was bound.
    pub(super) fn check_proofs(&self, program: &Program, may: &[May]) -> Result<()> {
        let (moves, bound) =
            (program.lanes.iter().map(|lane| lane.moves.len()).sum(), self.machine.moves.len());
        if [moves, may.len()] == [bound; 2] {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{} proofs for {moves} moves of {bound}", may.len()),
            "give the program that was bound, and what was proved for it",
        ))
    }

    /// What the call waits for once all moves are made.
    pub(super) fn unsettled(&self) -> Option<Wait<'_>> {
        let machine = &self.machine;
        let lent = machine.lending.open.last().filter(|_| machine.running == 0)?;
        let index = machine.lanes.partition_point(|lane| lane.end <= lent.at);
        let (lane, end) = (machine.lanes.get(index)?, &self.ends[lent.end as usize]);
        let on = WaitOn::Credit { peers: &end.peers, channel: end.channel };
        Some(Wait { lane: index, mv: (lent.at - lane.first) as usize, tile: lane.tile.saturating_sub(1), on })
    }
}

impl Machine {
    /// The bytes that a move may send by reference, if they are long enough.
    #[inline(never)]
    pub(super) fn referent(
        &self,
        code: &Code,
        lane: &Lane,
        task: &Task,
        buffers: &Buffers<'_>,
        sources: &[Source],
    ) -> Option<Piece> {
        let Refers { may, operand } = code.refers;
        let allowed = if buffers.is_in_place() { may.in_place } else { may.apart };
        if !allowed {
            return None;
        }
        let operand_is = self.operands[(code.from + operand) as usize];
        let is_read_only = matches!(operand_is, Operand::Input(_)) && !buffers.is_in_place();
        if !is_read_only && !self.lending.refers_to_written {
            return None;
        }
        match operand_is {
            _ if operand == 0 => {
                Some(sources[0].piece).filter(|_| !(sources[0].scaled && task.reducer.scales()))
            }
            Operand::Output(_) => {
                let (at, len) =
                    task.operands[(code.from + operand) as usize].span.piece(lane.skip, task.tile);
                Some(buffers.output().as_piece().slice(at, len))
            }
            _ => None,
        }
    }

    /// Whether all references of the call are released.
    #[inline]
    pub(super) fn settle<F: Fabric + ?Sized>(&mut self, fabric: &mut F) -> Result<bool> {
        while let Some(lent) = self.lending.open.last() {
            if !fabric.settled(lent.to)? {
                return Ok(false);
            }
            self.lending.is_open[lent.end as usize] = false;
            self.lending.open.pop();
        }
        Ok(true)
    }
}
