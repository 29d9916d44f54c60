//! A call with its buffers, as groups take it.

use super::Call;
use crate::DataType;
use crate::engine::Blocks;
use crate::plan::Rank;
use crate::simd::Buffers;
use std::ops::Range;

/// One call of a group: what to do, and with which memory.
#[derive(Clone, Debug)]
pub struct Operation<'b> {
    pub(super) what: What,
    pub(super) buffers: Buffers<'b>,
}

/// The kinds of calls.
#[derive(Clone, Debug)]
pub(super) enum What {
    Collective(Call),
    /// Its count is not looked at.
    Uneven(Call, Blocks),
    Send(Transfer),
    Receive(Transfer),
}

/// What two ranks agree on when one sends and the other receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transfer {
    pub(super) peer: Rank,
    pub(super) dtype: DataType,
    pub(super) count: usize,
}

impl<'b> Operation<'b> {
    /// A collective with blocks of one length; the buffers are as long as [`Call`] says.
    pub fn collective(call: Call, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Collective(call), buffers }
    }

    /// A collective whose blocks differ; [`Blocks`] says which take them, and the call's `count` is not looked at.
    pub fn uneven(call: Call, blocks: Blocks, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Uneven(call, blocks), buffers }
    }

    /// Sends `count` elements of the send buffer to `peer`, whose group or call must receive as many of the same
    /// type. A rank may send to itself, if it also receives in the same group.
    pub fn send(peer: Rank, dtype: DataType, count: usize, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Send(Transfer { peer, dtype, count }), buffers }
    }

    /// Receives `count` elements from `peer` into the receive buffer.
    pub fn receive(peer: Rank, dtype: DataType, count: usize, buffers: Buffers<'b>) -> Operation<'b> {
        Operation { what: What::Receive(Transfer { peer, dtype, count }), buffers }
    }

    /// The memory that it was given.
    pub fn buffers(&self) -> Buffers<'b> {
        self.buffers
    }

    /// The same call with other memory, which lies in place where this does.
    pub fn with_buffers<'o>(self, buffers: Buffers<'o>) -> Operation<'o> {
        Operation { what: self.what, buffers }
    }

    /// The collective with blocks of one length that it is, if it is one.
    pub fn even(&self) -> Option<&Call> {
        match &self.what {
            What::Collective(call) => Some(call),
            _ => None,
        }
    }

    /// The parts of the receive buffer that it writes, in bytes; the others keep what they hold.
    pub fn writes(&self) -> Vec<Range<usize>> {
        match &self.what {
            What::Uneven(call, blocks) => {
                let size = call.dtype.size();
                blocks.output.iter().map(|block| block.start * size..block.end * size).collect()
            }
            // One range of all of them.
            _ => Vec::from([0..self.buffers.output().len()]),
        }
    }
}
