//! Pieces that travel without a slot: which may be sent by reference, and when all such are released.

use super::layout::Layout;
use super::run::{Wait, WaitOn};
use super::schedule::{Code, Lane, Machine, Operand, Schedule};
use super::stages::StageInCall;
use super::task::Task;
use crate::error::{Error, Result};
use crate::kernels::{Buffers, Piece, Source};
use crate::plan::{self, Collective, Program, Rank, Referent, Spec};
use crate::transport::{Fabric, SenderId};
use crate::verify::May;

/// What a move may send by reference.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refers {
    may: May,
    /// The operand that holds what is sent, counted within the move.
    operand: u32,
    /// Whether this rank leaves it as it is: with two buffers, and in place.
    is_kept: [bool; 2],
}

impl Refers {
    /// Whether this rank leaves it as it is.
    #[inline]
    pub(super) fn is_kept(&self, in_place: bool) -> bool {
        self.is_kept[usize::from(in_place)]
    }

    /// Whether the move's first source is sent by reference where that pays: with two buffers, and in place. `None`: something else
    /// may be.
    pub(super) fn of_source(&self, pays: ReferInCall) -> Option<[bool; 2]> {
        let May { apart, in_place } = self.may;
        let lends = [apart, in_place];
        let any = lends != [false; 2];
        (self.operand == 0 || !any)
            .then(|| [0, 1].map(|some| lends[some] && (self.is_kept[some] || pays.to_written)))
    }

    /// In place this rank leaves it as it is.
    pub(super) fn keep_in_place(&mut self) {
        self.is_kept[1] = true;
    }
}

/// From which sizes references pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferFrom {
    /// Bytes of a piece: shorter ones are copied sooner than their release is waited for.
    pub piece: usize,
    /// The same in a call of one step, which with slots ends while others still read.
    pub piece_of_one_step: usize,
    /// Bytes of a buffer where the plan writes to what is referred to. In a shorter one the lines that are
    /// written still lie in the cache of the peer that has read them, and taking them away from there costs more than a
    /// copy does.
    pub written_buffer: usize,
    /// Bytes of a buffer of a collective with a root. With slots the root goes on while others still read; with references it waits
    /// for them, which takes long where they wait for a core.
    pub rooted_buffer: usize,
    /// The same of a root's that is scattered, of which each of the others reads a part only.
    pub scattered_buffer: usize,
}

impl ReferFrom {
    /// Never.
    const NEVER: ReferFrom = ReferFrom {
        piece: usize::MAX,
        piece_of_one_step: usize::MAX,
        written_buffer: usize::MAX,
        rooted_buffer: usize::MAX,
        scattered_buffer: usize::MAX,
    };
    /// As early as can be.
    pub const ALWAYS: ReferFrom = ReferFrom {
        piece: 1,
        piece_of_one_step: 1,
        written_buffer: 0,
        rooted_buffer: 0,
        scattered_buffer: 0,
    };

    /// The same for calls of one kind.
    pub(super) fn in_call(&self, layout: &Layout) -> ReferInCall {
        let Spec { collective, parts, .. } = layout.spec;
        let longest = layout.input_bytes().max(layout.output_bytes());
        // Ranks that reduce a part each wait for one another in any case.
        let has_steps = collective == Collective::AllReduce && parts > 1;
        let of_root =
            if collective == Collective::Scatter { self.scattered_buffer } else { self.rooted_buffer };
        let piece = match has_steps {
            _ if collective.rooted() && longest < of_root => usize::MAX,
            true => self.piece,
            false => self.piece_of_one_step,
        };
        ReferInCall { piece, to_written: longest >= self.written_buffer }
    }
}

/// What of a call pays to be referred to.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReferInCall {
    /// Pieces of so many bytes.
    pub(super) piece: usize,
    /// And if the plan writes to what is referred to.
    pub(super) to_written: bool,
}

/// Pieces that were sent by reference in the running call.
#[derive(Debug)]
pub(super) struct Lending {
    from: ReferFrom,
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
        Lending { from: ReferFrom::NEVER, open: Vec::with_capacity(ends), is_open: vec![false; ends] }
    }

    /// A call begins.
    #[inline(always)]
    pub(super) fn start(&mut self) {
        // Some are left over from a call that failed only.
        while let Some(lent) = self.open.pop() {
            self.is_open[lent.end as usize] = false;
        }
    }

    /// From which sizes references pay.
    pub(super) fn from(&self) -> ReferFrom {
        self.from
    }

    /// Whether something was sent by reference on an end.
    pub(super) fn is_open(&self, end: u32) -> bool {
        self.is_open[end as usize]
    }

    /// The move `at` this number sends by reference.
    #[inline]
    pub(super) fn note(&mut self, to: SenderId, end: u32, at: u32) {
        if !std::mem::replace(&mut self.is_open[end as usize], true) {
            self.open.push(Lent { to, end, at });
        }
    }
}

impl Schedule {
    /// Lets pieces travel by reference `from` some sizes, where the proof says of a move that they `may` and the
    /// transport can. `program` is the one that was bound, and `may` has an entry for each of its moves.
    pub fn allow_references(&mut self, program: &Program, may: &[May], from: ReferFrom) -> Result<()> {
        self.check_proofs(program, may)?;
        let moves = program.lanes.iter().flat_map(|lane| &lane.moves);
        let (spec, rank) = (self.spec, self.rank);
        let code = &mut self.machine.moves;
        for ((code, mv), &may) in code.iter_mut().zip(moves).zip(may) {
            code.refers = match mv.referent() {
                None => Refers::default(),
                Some(Referent::Source) => {
                    Refers { may, operand: 0, is_kept: is_kept(&spec, rank, program, &mv.from[0]) }
                }
                Some(Referent::Sink(_)) => {
                    // The same one, the first output; links of several transports are several operands.
                    let operands = &self.machine.operands[code.from as usize..code.end as usize];
                    let sources = mv.from.len();
                    let outputs = |operand: &Operand| matches!(operand, Operand::Output(_));
                    match operands[sources..].iter().position(outputs) {
                        Some(before) => {
                            Refers { may, operand: (sources + before) as u32, is_kept: [false; 2] }
                        }
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
        let StageInCall { stage, .. } = self.task.as_ref()?.stages[index];
        let on = WaitOn::Credit { peers: &end.peers, channel: end.channel };
        let (mv, tile) = ((lent.at - stage.base) as usize, lane.tile.saturating_sub(1));
        Some(Wait { lane: stage.lane as usize, mv, tile, on })
    }
}

/// Whether a program never writes what is referred to, with two buffers and in place. That an input chunk becomes the output
/// chunk which it is in place writes nothing.
fn is_kept(spec: &Spec, rank: Rank, program: &Program, referent: &plan::Source) -> [bool; 2] {
    let plan::Source::Input(chunk) = *referent else { return [false; 2] };
    let Some(output) = spec.in_place_chunk(rank, chunk) else { return [true; 2] };
    let alias = plan::Sink::Output(output);
    let mut moves = program.lanes.iter().flat_map(|lane| &lane.moves);
    [true, !moves.any(|mv| mv.into.contains(&alias) && mv.from != [plan::Source::Input(chunk)])]
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
        let Refers { may, operand, .. } = code.refers;
        let allowed = if buffers.is_in_place() { may.in_place } else { may.apart };
        if !allowed {
            return None;
        }
        let operand_is = self.operands[(code.from + operand) as usize];
        if !code.refers.is_kept(buffers.is_in_place()) && !task.refers.to_written {
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
    #[inline(always)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;
    use crate::algorithms::{Algorithm, OneShot, TwoShot};
    use crate::engine::idle::Ends;
    use crate::plan::{Collective, Spec};

    /// For each of rank 0's moves that may refer to something, whether that stays as it is: apart, in place.
    fn kept(algorithm: &dyn Algorithm, collective: Collective) -> Vec<[bool; 2]> {
        let spec = Spec::new(collective, 2, 0, algorithm.parts(collective, 2.into()).unwrap());
        let program = algorithm.program(&spec, 0);
        let mut schedule = Schedule::bind(&spec, 0, &program, &mut Ends).unwrap();
        let moves: usize = program.lanes.iter().map(|lane| lane.moves.len()).sum();
        let may = vec![May { apart: true, in_place: true }; moves];
        schedule.allow_references(&program, &may, ReferFrom::ALWAYS).unwrap();
        let refers = schedule.machine.moves.iter().map(|code| code.refers);
        refers.filter(|refers| refers.may.apart).map(|refers| refers.is_kept).collect()
    }

    #[test]
    fn calls_of_one_step_refer_to_longer_pieces_only() {
        let from = ReferFrom {
            piece: 8,
            piece_of_one_step: 16,
            written_buffer: 0,
            rooted_buffer: 1 << 20,
            scattered_buffer: 1 << 10,
        };
        let piece = |algorithm: &dyn Algorithm, collective| {
            let spec = Spec::new(collective, 4, 0, algorithm.parts(collective, 4.into()).unwrap());
            from.in_call(&Layout::new(&spec, 0, 64, DataType::F32, 1 << 20).unwrap()).piece
        };
        assert_eq!(piece(&TwoShot, Collective::AllReduce), 8);
        assert_eq!(piece(&OneShot, Collective::AllReduce), 16);
        assert_eq!(piece(&OneShot, Collective::AllGather), 16);
        assert_eq!(piece(&OneShot, Collective::Broadcast), usize::MAX);
        assert_eq!(piece(&OneShot, Collective::Scatter), 16, "a buffer of 4 x 64 x 4 bytes");
    }

    #[test]
    fn what_no_move_writes_is_kept() {
        // Its own block lies where the output has it; a block that it reduces is not one that it sends.
        assert_eq!(kept(&OneShot, Collective::AllGather), [[true, true]]);
        assert_eq!(kept(&OneShot, Collective::Broadcast), [[true, true]]);
        assert_eq!(kept(&OneShot, Collective::ReduceScatter), [[true, true]]);
        // The sum comes to where the contribution was.
        assert_eq!(kept(&OneShot, Collective::AllReduce), [[true, false]]);
        assert_eq!(kept(&TwoShot, Collective::AllReduce), [[true, false], [false, false]]);
        assert_eq!(kept(&OneShot, Collective::AllToAll), [[true, false]]);
    }
}
