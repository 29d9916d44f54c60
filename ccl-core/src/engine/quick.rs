//! Moves of short calls. Each is one of a few kinds, and all that it needs is worked out before the first call.

use super::references::ReferInCall;
use super::schedule::{Code, Machine, Operand};
use super::task::{Bound, Span};
use crate::error::{Error, Result};
use crate::kernels::{Buffers, Direction, Merge, Piece, Reducer, Source};
use crate::transport::{Fabric, Lent, ReceiverId, SenderId, Sent, Taken};
use std::ptr;

/// A move of a call with one tile, between ranks that know the whole call.
///
/// It does what the same move does otherwise, and what it does not foresee it leaves to that.
#[derive(Clone, Copy, Debug)]
pub(super) enum Quick {
    /// Not of these kinds.
    No,
    /// A part of a buffer goes into one end of links, and into the output if that is to `keep` it too.
    Send { from: Part, keep: Option<Span>, to: SenderId, at: u32 },
    /// The same, by reference where `lends` says so of two buffers and of one, and the transport can.
    Lend { from: Part, keep: Option<Span>, to: SenderId, at: u32, end: u32, lends: [bool; 2] },
    /// What comes on a link becomes a part of the output, combined with one part of a buffer if there is an `own`.
    Take { from: ReceiverId, own: Option<Own>, into: Span, at: u32 },
    /// A part of a buffer becomes a part of the output.
    Keep { from: Part, into: Span },
}

/// A part of one of the two buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    is_input: bool,
    span: Span,
}

/// What is combined with a piece that comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    part: Part,
    /// Whether it is the first of the two sources.
    is_first: bool,
}

impl Part {
    fn of(Bound { operand, span, .. }: &Bound) -> Option<Part> {
        operand
            .is_of_a_buffer()
            .then_some(Part { is_input: matches!(operand, Operand::Input(_)), span: *span })
    }

    #[inline(always)]
    fn piece(&self, buffers: &Buffers<'_>) -> Piece {
        let buffer = if self.is_input { buffers.input() } else { buffers.output().as_piece() };
        buffer.slice(self.span.at, self.span.len)
    }
}

impl Quick {
    /// What a move of a call with one tile is, in which nothing is offered. `operands` are those of the move; `refers` says what pays to be
    /// referred to.
    pub(super) fn of(
        machine: &Machine,
        code: &Code,
        operands: &[Bound],
        reducer: &Reducer,
        refers: ReferInCall,
    ) -> Quick {
        let (from, into) = operands.split_at((code.into - code.from) as usize);
        let quick = Quick::classify(from, into, machine.reduces && reducer.scales());
        match quick.unwrap_or(Quick::No) {
            quick @ Quick::Send { from, keep, to, at } if from.span.len >= refers.piece => {
                let Operand::Send { end, .. } = operands[operands.len() - 1].operand else {
                    return Quick::No;
                };
                match code.refers.of_source(refers) {
                    Some([false, false]) => quick,
                    Some(lends) => Quick::Lend { from, keep, to, at, end, lends },
                    None => Quick::No,
                }
            }
            quick => quick,
        }
    }

    fn classify(from: &[Bound], into: &[Bound], scales: bool) -> Option<Quick> {
        let sends = |bound: &Bound| match bound.operand {
            Operand::Send { to, .. } => Some(to),
            _ => None,
        };
        let takes = |bound: &Bound| match bound.operand {
            Operand::Receive { from, .. } => Some(from),
            _ => None,
        };
        // A reduction's contribution that is not combined yet may have to be scaled.
        let plain = |bound: &Bound| Part::of(bound).filter(|part| !(part.is_input && scales));
        let output = |bound: &Bound| matches!(bound.operand, Operand::Output(_)).then_some(bound.span);
        match (from, into) {
            ([from], [to]) if sends(to).is_some() => {
                Some(Quick::Send { from: plain(from)?, keep: None, to: sends(to)?, at: 1 })
            }
            ([from], [keep, to]) if output(keep).is_some() => {
                let (keep, from) = (output(keep)?, plain(from)?);
                (keep.len == from.span.len).then_some(())?;
                Some(Quick::Send { from, keep: Some(keep), to: sends(to)?, at: 2 })
            }
            ([from], [into]) if takes(from).is_some() => {
                Some(Quick::Take { from: takes(from)?, own: None, into: output(into)?, at: 0 })
            }
            ([from], [into]) => {
                let (from, into) = (plain(from)?, output(into)?);
                (from.span.len == into.len).then_some(Quick::Keep { from, into })
            }
            ([first, second], [into]) => {
                let into = output(into)?;
                let (from, part, at) = match (takes(first), takes(second)) {
                    (None, Some(from)) => (from, Part::of(first)?, 1),
                    (Some(from), None) => (from, Part::of(second)?, 0),
                    _ => return None,
                };
                let own = Own { part, is_first: at == 1 };
                (part.span.len == into.len).then_some(Quick::Take { from, own: Some(own), into, at })
            }
            _ => None,
        }
    }

    /// The length of its pieces.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Quick::No => 0,
            Quick::Send { from, .. } | Quick::Lend { from, .. } => from.span.len,
            Quick::Take { into, .. } | Quick::Keep { into, .. } => into.len,
        }
    }

    /// Makes the move, if it can be made at once; one that lends only where such are foreseen.
    #[inline(always)]
    pub(super) fn try_move<const LENDS: bool, F: Fabric + ?Sized>(
        &self,
        reducer: &Reducer,
        (tag, direction): (u64, Direction),
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Tried {
        match self {
            Quick::Send { from, keep, to, at } => {
                let piece = from.piece(buffers);
                match fabric.send(*to, piece, tag) {
                    Ok(Sent::Done) => {}
                    Ok(Sent::NoCredit) => return Tried::Waits(*at),
                    Err(error) => return Tried::Failed(error),
                }
                keep_too(*keep, piece, buffers);
            }
            Quick::Lend { from, keep, to, at, end, lends } if LENDS => {
                let piece = from.piece(buffers);
                match lend(*to, piece, tag, lends[usize::from(buffers.is_in_place())], fabric) {
                    Ok(Lent::Reference) => {
                        keep_too(*keep, piece, buffers);
                        return Tried::Lent { to: *to, end: *end };
                    }
                    Ok(Lent::Copied) => keep_too(*keep, piece, buffers),
                    Ok(Lent::NoCredit) => return Tried::Waits(*at),
                    Err(error) => return Tried::Failed(error),
                }
            }
            Quick::Take { from, own, into, at } => {
                let sink = buffers.output().slice(into.at, into.len);
                let merge = match own {
                    None => Merge::copy(sink),
                    Some(Own { part, is_first }) => {
                        let own = Source { piece: part.piece(buffers), scaled: part.is_input };
                        Merge::combine(reducer, own, *is_first, direction, sink)
                    }
                };
                match fabric.take(*from, tag, &merge) {
                    Ok(Taken::Done) => {}
                    Ok(Taken::NotYet) => return Tried::Waits(*at),
                    Ok(Taken::Another) => return Tried::Unforeseen,
                    Err(error) => return Tried::Failed(error),
                }
            }
            Quick::Keep { from, into } => {
                keep_too(Some(*into), from.piece(buffers), buffers);
            }
            Quick::No | Quick::Lend { .. } => return Tried::Unforeseen,
        }
        Tried::Made
    }
}

/// A piece goes into the output, if it is to be kept. In place it is there.
#[inline(always)]
fn keep_too(keep: Option<Span>, piece: Piece, buffers: &Buffers<'_>) {
    if let Some(keep) = keep
        && !ptr::eq(buffers.output().as_mut_ptr().wrapping_add(keep.at), piece.as_ptr())
    {
        buffers.output().slice(keep.at, keep.len).copy_from(piece);
    }
}

/// Sends a piece that is long enough to be lent, if it may be. Apart, so that short ones do not pay for the room.
#[inline(never)]
fn lend<F: Fabric + ?Sized>(
    to: SenderId,
    piece: Piece,
    tag: u64,
    lends: bool,
    fabric: &mut F,
) -> Result<Lent> {
    if lends { fabric.lend(to, piece, tag) } else { fabric.send(to, piece, tag).map(Lent::from) }
}

/// What became of a move.
pub(super) enum Tried {
    Made,
    /// It is made, and the end has sent a reference.
    Lent {
        to: SenderId,
        end: u32,
    },
    /// It waits for this operand.
    Waits(u32),
    /// Nothing was done: it must be made in the other way.
    Unforeseen,
    Failed(Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, OneShot, Ring, TwoShot};
    use crate::engine::idle::Ends;
    use crate::engine::{Layout, ReferFrom, Schedule};
    use crate::plan::{Collective, Spec};
    use crate::verify::May;
    use crate::{DataType, ReduceOp};

    /// What the moves of rank 0 of two are, in letters.
    fn moves(algorithm: &dyn Algorithm, collective: Collective, op: ReduceOp, tile_bytes: usize) -> String {
        let parts = algorithm.parts(collective, 2.into()).unwrap();
        let spec = Spec::new(collective, 2, 0, parts);
        let schedule = Schedule::bind(&spec, 0, &algorithm.program(&spec, 0), &mut Ends).unwrap();
        in_letters(&schedule, &spec, op, tile_bytes)
    }

    fn in_letters(schedule: &Schedule, spec: &Spec, op: ReduceOp, tile_bytes: usize) -> String {
        let layout = Layout::new(spec, 0, 16, DataType::F32, tile_bytes).unwrap();
        let task = schedule.task(layout, Reducer::new(DataType::F32, op, 2).unwrap()).unwrap();
        let letter = |quick: &Quick| match quick {
            Quick::No => '-',
            Quick::Send { keep: None, .. } => 's',
            Quick::Send { keep: Some(_), .. } => 'S',
            Quick::Lend { lends: [true, true], .. } => 'L',
            Quick::Lend { .. } => 'l',
            Quick::Take { own: None, .. } => 't',
            Quick::Take { own: Some(_), .. } => 'T',
            Quick::Keep { .. } => 'k',
        };
        task.quick.iter().map(letter).collect()
    }

    #[test]
    fn short_calls_of_two_ranks_are_made_of_quick_moves() {
        let kinds = |collective| moves(&OneShot, collective, ReduceOp::Sum, 64);
        assert_eq!(kinds(Collective::AllReduce), "sT");
        assert_eq!(kinds(Collective::Broadcast), "S");
        assert_eq!(kinds(Collective::AllGather), "St");
        assert_eq!(kinds(Collective::ReduceScatter), "sT");
        assert_eq!(kinds(Collective::AllToAll), "skt");
        assert_eq!(kinds(Collective::Gather), "kt");
    }

    #[test]
    fn what_may_be_lent_is_where_no_move_writes_to_it() {
        let kinds = |algorithm: &dyn Algorithm, collective| {
            let spec = Spec::new(collective, 2, 0, algorithm.parts(collective, 2.into()).unwrap());
            let program = algorithm.program(&spec, 0);
            let mut schedule = Schedule::bind(&spec, 0, &program, &mut Ends).unwrap();
            let may = vec![May { apart: true, in_place: true }; schedule.machine.moves.len()];
            let from =
                ReferFrom { piece: 32, piece_of_one_step: 32, written_buffer: 1 << 20, ..ReferFrom::ALWAYS };
            schedule.allow_references(&program, &may, from).unwrap();
            [64, 32].map(|tile_bytes| in_letters(&schedule, &spec, ReduceOp::Sum, tile_bytes))
        };
        assert_eq!(
            kinds(&OneShot, Collective::AllReduce),
            ["lT", "--"],
            "in place the sum comes to where it lies"
        );
        assert_eq!(kinds(&OneShot, Collective::Broadcast), ["L", "-"]);
        assert_eq!(kinds(&OneShot, Collective::AllGather), ["Lt", "--"]);
        assert_eq!(kinds(&OneShot, Collective::ReduceScatter), ["LT", "--"]);
        assert_eq!(kinds(&OneShot, Collective::AllToAll), ["lkt", "---"]);
        // What it combines is referred to where it is written, in a longer buffer.
        assert_eq!(kinds(&TwoShot, Collective::AllReduce), ["l-t", "l-t"]);
    }

    #[test]
    fn what_is_scaled_passed_on_or_cut_into_tiles_is_not() {
        let scaled = moves(&OneShot, Collective::AllReduce, ReduceOp::Avg, 64);
        assert_eq!(scaled, "-T", "a contribution is scaled before it is sent");
        assert_eq!(moves(&OneShot, Collective::AllReduce, ReduceOp::Sum, 32), "--");
        let ring = moves(&Ring, Collective::AllReduce, ReduceOp::Sum, 64);
        assert!(ring.contains('-'), "{ring}");
    }
}
