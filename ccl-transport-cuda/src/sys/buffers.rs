//! Buffers in a step's memory.

use ccl_core::simd::{Buffers, Piece, PieceMut};

/// The buffers of a call on pinned memory, which the call's step keeps until it is over.
pub(crate) fn buffers(input: Piece, output: PieceMut, in_place: bool) -> Buffers<'static> {
    // SAFETY: who made the pieces vouches for them; a step's memory lives as long as the step, and no other step has it
    // meanwhile.
    unsafe { Buffers::from_raw(input.as_ptr(), input.len(), output.as_mut_ptr(), output.len(), in_place) }
}
