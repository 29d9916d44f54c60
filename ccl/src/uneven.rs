//! The v-collectives: blocks of different lengths.

use crate::{Blocks, Buffers, Call, Collective, Communicator, Element, Rank, ReduceOp, Result};
use std::ops::Range;

/// Blocks are ranges of elements of a buffer, one for each rank; [`Blocks::packed`] makes them from counts. They
/// may leave gaps, which keep what they hold.
impl Communicator {
    /// All ranks' `send` in every rank's `recv`, rank i's at `blocks[i]`. All ranks give the same lengths.
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        blocks: &[Range<usize>],
    ) -> Result<()> {
        self.uneven(Collective::AllGather, ReduceOp::Sum, 0, (send, &whole(send)), (recv, blocks))
    }

    /// `op` of all ranks' `blocks[i]` of `send`, on rank i in `recv`. All ranks give the same lengths.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &[T],
        blocks: &[Range<usize>],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let own = whole(recv);
        self.uneven(Collective::ReduceScatter, op, 0, (send, blocks), (recv, &own))
    }

    /// Rank i's `send_blocks[j]` becomes rank j's `recv_blocks[i]`; the two are of one length.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_blocks: &[Range<usize>],
        recv: &mut [T],
        recv_blocks: &[Range<usize>],
    ) -> Result<()> {
        self.uneven(Collective::AllToAll, ReduceOp::Sum, 0, (send, send_blocks), (recv, recv_blocks))
    }

    /// All ranks' `send` in `recv` of rank `root`, rank i's at `blocks[i]`; the others' `recv` and `blocks` are not
    /// looked at.
    pub fn gather_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        blocks: &[Range<usize>],
        root: Rank,
    ) -> Result<()> {
        let blocks = if self.rank() == root { blocks } else { &[] };
        self.uneven(Collective::Gather, ReduceOp::Sum, root, (send, &whole(send)), (recv, blocks))
    }

    /// `blocks[i]` of rank `root`'s `send` in rank i's `recv`; the others' `send` and `blocks` are not looked at.
    pub fn scatter_v<T: Element>(
        &mut self,
        send: &[T],
        blocks: &[Range<usize>],
        recv: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let blocks = if self.rank() == root { blocks } else { &[] };
        let own = whole(recv);
        self.uneven(Collective::Scatter, ReduceOp::Sum, root, (send, blocks), (recv, &own))
    }

    /// What the calls above come to: a collective whose blocks differ, on buffers of bytes. The call's count is not
    /// looked at.
    pub fn run_uneven(&mut self, call: &Call, blocks: &Blocks, buffers: Buffers<'_>) -> Result<()> {
        self.core().run_uneven(call, blocks, buffers)
    }

    fn uneven<T: Element>(
        &mut self,
        collective: Collective,
        op: ReduceOp,
        root: Rank,
        (send, input): (&[T], &[Range<usize>]),
        (recv, output): (&mut [T], &[Range<usize>]),
    ) -> Result<()> {
        let call = Call { collective, count: 0, dtype: T::TYPE, op, root };
        let blocks = Blocks { input: input.to_vec(), output: output.to_vec() };
        let buffers = Buffers::new(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(recv));
        self.run_uneven(&call, &blocks, buffers)
    }
}

/// A buffer of one block.
#[allow(clippy::single_range_in_vec_init)] // it is an array of one block
fn whole<T>(buffer: &[T]) -> [Range<usize>; 1] {
    [0..buffer.len()]
}
