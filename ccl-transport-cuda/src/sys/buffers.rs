//! Buffers in a step's memory.

use ccl_core::communicator::Operation;
use ccl_core::kernels::{Buffers, Piece, PieceMut};

/// The buffers of a call, for as long as who has them keeps their memory.
pub(crate) fn buffers(input: Piece, output: PieceMut, in_place: bool) -> Buffers<'static> {
    // SAFETY: who made the pieces vouches for them; a step's memory lives as long as the step, and no other step has it
    // meanwhile; a call's is borrowed until the call is over.
    unsafe { Buffers::from_raw(input.as_ptr(), input.len(), output.as_mut_ptr(), output.len(), in_place) }
}

/// A call whose memory is borrowed, for work that outlives no borrow: whoever asks for it waits until the device and the host
/// are done with the call before the borrow ends.
pub(crate) fn awaited(operation: Operation<'_>) -> Operation<'static> {
    let of = operation.buffers();
    let buffers = buffers(of.input(), of.output(), of.is_in_place());
    operation.with_buffers(buffers)
}
