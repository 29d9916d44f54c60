//! A call with its buffers, as groups take it.

use super::Call;
use crate::DataType;
use crate::engine::Blocks;
use crate::kernels::Buffers;
use crate::plan::{Collective, Rank};
use std::ops::Range;

/// One call of a group: what to do, and with which memory.
#[derive(Clone, Debug)]
pub struct Operation<'b> {
    pub(super) what: What,
    pub(super) buffers: Buffers<'b>,
}

/// The kinds of calls.
#[derive(Clone, Debug)]
pub enum What {
    /// A collective with blocks of one length.
    Collective(Call),
    /// A collective whose blocks differ. The call's count is not looked at.
    Uneven(Call, Box<Blocks>),
    /// To a rank, which receives it.
    Send(Transfer),
    /// From a rank, which sends it.
    Receive(Transfer),
}

/// What two ranks agree on when one sends and the other receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The other rank.
    pub peer: Rank,
    /// The type of the elements.
    pub dtype: DataType,
    /// How many.
    pub count: usize,
}

impl<'b> Operation<'b> {
    /// A collective with blocks of one length; the buffers are as long as [`Call`] says.
    pub fn collective(call: Call, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Collective(call), buffers }
    }

    /// A collective whose blocks differ; [`Blocks`] says which take them, and the call's `count` is not looked at.
    pub fn uneven(call: Call, blocks: Blocks, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Uneven(call, Box::new(blocks)), buffers }
    }

    /// Sends `count` elements of the send buffer to `peer`, whose group or call must receive as many of the same
    /// type. A rank may send to itself, if it also receives in the same group.
    #[inline]
    pub fn send(peer: Rank, dtype: DataType, count: usize, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Send(Transfer { peer, dtype, count }), buffers }
    }

    /// Receives `count` elements from `peer` into the receive buffer.
    #[inline]
    pub fn receive(peer: Rank, dtype: DataType, count: usize, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Receive(Transfer { peer, dtype, count }), buffers }
    }

    /// What to do.
    pub fn what(&self) -> &What {
        &self.what
    }

    /// The memory that it was given.
    pub fn buffers(&self) -> Buffers<'b> {
        self.buffers
    }

    /// The same call with other memory, which lies in place where this does.
    pub fn with_buffers<'o>(self, buffers: Buffers<'o>) -> Operation<'o> {
        Operation { what: self.what, buffers }
    }

    /// The parts of the receive buffer that it writes, in bytes; the others keep what they hold.
    pub fn writes(&self) -> Vec<Range<usize>> {
        match &self.what {
            What::Uneven(call, blocks) => {
                let size = call.dtype.size();
                blocks.output.iter().map(|block| block.start * size..block.end * size).collect()
            }
            _ => std::iter::once(0..self.buffers.output().len()).collect(),
        }
    }

    /// The same in pieces of [`PIECE_BYTES`], or longer ones where there would be too many of them, if it is a collective whose
    /// elements do not depend on their places; itself otherwise. All ranks cut alike.
    pub fn cut(self) -> Vec<Operation<'b>> {
        let What::Collective(call) = &self.what else { return vec![self] };
        if !is_long(call) {
            return vec![self];
        }
        let bytes = (call.count * call.dtype.size()).div_ceil(MOST_PIECES).next_multiple_of(PIECE_BYTES);
        let most = bytes / call.dtype.size();
        let starts = (0..call.count).step_by(most);
        let piece = |start: usize| {
            let count = most.min(call.count - start);
            let bytes = start * call.dtype.size()..(start + count) * call.dtype.size();
            Operation { what: What::Collective(Call { count, ..*call }), buffers: self.buffers.part(bytes) }
        };
        starts.map(piece).collect()
    }
}

/// Where some rank may have device buffers, long calls are made in pieces of so many bytes on all ranks: on its way to and from a
/// device a piece passes those before and after it. Long enough that a piece costs little more than as many bytes
/// of a longer call.
pub const PIECE_BYTES: usize = 4 << 20;

/// Most pieces of a call: what a device does for all of them is queued up at once, and its queues hold about a thousand things.
const MOST_PIECES: usize = 128;

/// Whether a call is one of those that are made in pieces.
#[inline]
pub(super) fn is_long(call: &Call) -> bool {
    let is_elementwise =
        matches!(call.collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast);
    is_elementwise && call.count > PIECE_BYTES / call.dtype.size()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;

    fn call(collective: Collective, count: usize) -> Call {
        Call { collective, count, dtype: DataType::F32, op: ReduceOp::Sum, root: 0 }
    }

    fn count(operation: &Operation<'_>) -> usize {
        let What::Collective(call) = operation.what() else { panic!("no collective of even blocks") };
        call.count
    }

    #[test]
    fn pieces_cover_a_long_call_once_and_in_order() {
        let most = PIECE_BYTES / 4;
        let (input, mut output) = (vec![1u8; 4 * (2 * most + 3)], vec![0u8; 4 * (2 * most + 3)]);
        let start = input.as_ptr().addr();
        let buffers = Buffers::new(&input, &mut output);
        let pieces = Operation::collective(call(Collective::AllReduce, 2 * most + 3), buffers).cut();
        let counts: Vec<_> = pieces.iter().map(count).collect();
        assert_eq!(counts, [most, most, 3]);
        let ranges: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.buffers.input().as_ptr().addr() - start, piece.buffers.output().len()))
            .collect();
        assert_eq!(ranges, [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES), (2 * PIECE_BYTES, 12)]);
    }

    #[test]
    fn there_are_never_too_many_pieces() {
        for gib in [1, 3, 100] {
            let call = call(Collective::AllReduce, (gib << 28) + 1);
            let pieces = Operation::collective(call, Buffers::new(&[], &mut [])).cut();
            let counts: Vec<_> = pieces.iter().map(count).collect();
            assert!(counts.len() <= MOST_PIECES && counts.len() > MOST_PIECES / 2, "{}", counts.len());
            assert_eq!(counts.iter().sum::<usize>(), call.count);
        }
    }

    #[test]
    fn a_rank_without_a_buffer_cuts_as_the_others_do() {
        let input = vec![0u8; PIECE_BYTES + 4];
        let long = call(Collective::Reduce, PIECE_BYTES / 4 + 1);
        let pieces = Operation::collective(long, Buffers::new(&input, &mut [])).cut();
        assert_eq!(pieces.len(), 2);
        assert!(pieces.iter().all(|piece| piece.buffers.output().is_empty()));
    }

    #[test]
    fn short_calls_and_those_with_blocks_are_left_whole() {
        let whole = |call: Call| Operation::collective(call, Buffers::new(&[], &mut [])).cut().len();
        assert_eq!(whole(call(Collective::AllReduce, PIECE_BYTES / 4)), 1);
        assert_eq!(whole(call(Collective::AllGather, PIECE_BYTES)), 1);
    }
}
