//! Calls on device memory that is borrowed.

use crate::sys::DeviceMemory;
use ccl_core::DataType;
use ccl_core::communicator::{Call, Operation};
use ccl_core::engine::Blocks;
use ccl_core::kernels::Buffers;
use ccl_core::plan::Rank;
use std::ops::Range;

/// The send and the receive buffer of a call, in device memory.
#[derive(Clone, Copy)]
pub struct DeviceBuffers<'m>(Buffers<'m>);

impl<'m> DeviceBuffers<'m> {
    /// Parts of two memories, in bytes. Panics where a part does not lie inside.
    pub fn new(
        send: &'m DeviceMemory,
        sent: Range<usize>,
        receive: &'m mut DeviceMemory,
        received: Range<usize>,
    ) -> DeviceBuffers<'m> {
        DeviceBuffers(DeviceMemory::buffers((send, sent), (receive, received), false))
    }

    /// Two parts of one memory, as an in-place call wants them. Panics where a part does not lie inside.
    pub fn in_place(
        memory: &'m mut DeviceMemory,
        sent: Range<usize>,
        received: Range<usize>,
    ) -> DeviceBuffers<'m> {
        DeviceBuffers(DeviceMemory::buffers((memory, sent), (memory, received), true))
    }
}

/// A call on device memory; as [`Operation`], which is one on host memory.
pub struct DeviceCall<'m>(pub(super) Operation<'m>);

impl<'m> DeviceCall<'m> {
    /// The call, with addresses of the device in place of memory.
    pub fn into_operation(self) -> Operation<'m> {
        self.0
    }

    /// A collective with blocks of one length.
    pub fn collective(call: Call, buffers: DeviceBuffers<'m>) -> DeviceCall<'m> {
        DeviceCall(Operation::collective(call, buffers.0))
    }

    /// A collective whose blocks differ.
    pub fn uneven(call: Call, blocks: Blocks, buffers: DeviceBuffers<'m>) -> DeviceCall<'m> {
        DeviceCall(Operation::uneven(call, blocks, buffers.0))
    }

    /// A send of `count` elements of the send buffer to `peer`, and a receive of as many from `from`, together.
    pub fn exchange(
        (peer, from): (Rank, Rank),
        dtype: DataType,
        count: usize,
        buffers: DeviceBuffers<'m>,
    ) -> [DeviceCall<'m>; 2] {
        [Operation::send(peer, dtype, count, buffers.0), Operation::receive(from, dtype, count, buffers.0)]
            .map(DeviceCall)
    }
}
