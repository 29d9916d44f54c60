//! Where the buffers of calls lie in a step's memory.

use ccl_core::communicator::Operation;
use ccl_core::simd::{Buffers, PieceMut};

/// Buffers begin at multiples of this: the host's kernels like it, and copies too.
const ALIGNMENT: usize = 256;

/// One call's buffers, as offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) input: usize,
    pub(super) output: usize,
}

/// The places of some calls' buffers, and the bytes that they take together. Buffers in place lie in place.
pub(super) fn places(operations: &[Operation<'_>]) -> (Vec<Place>, usize) {
    let mut end = 0usize;
    let places = operations.iter().map(|operation| {
        let buffers = operation.buffers();
        let (input, output) = (buffers.input(), buffers.output());
        let start = end.next_multiple_of(ALIGNMENT);
        // A rank that has one of the two only has no place to share.
        if buffers.is_in_place() && !input.is_empty() && !output.is_empty() {
            let (from, into) = (input.as_ptr().addr(), output.as_mut_ptr().addr());
            let first = from.min(into);
            end = start + (from + input.len()).max(into + output.len()) - first;
            return Place { input: start + from - first, output: start + into - first };
        }
        let second = (start + input.len()).next_multiple_of(ALIGNMENT);
        end = second + output.len();
        Place { input: start, output: second }
    });
    (places.collect(), end)
}

/// The buffers at a place in a step's memory.
pub(super) fn buffers_at(place: Place, of: &Buffers<'_>, memory: PieceMut) -> Buffers<'static> {
    let input = memory.slice(place.input, of.input().len()).as_piece();
    let output = memory.slice(place.output, of.output().len());
    crate::sys::buffers(input, output, of.is_in_place())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::communicator::Call;
    use ccl_core::{Collective, DataType, ReduceOp};

    fn operation(collective: Collective, buffers: Buffers<'_>) -> Operation<'_> {
        Operation::collective(
            Call { collective, count: 10, dtype: DataType::U8, op: ReduceOp::Sum, root: 0 },
            buffers,
        )
    }

    #[test]
    fn buffers_lie_apart_and_in_place_as_the_caller_has_them() {
        let (input, mut output, mut both) = ([0u8; 10], [0u8; 20], [0u8; 30]);
        let calls = [
            operation(Collective::AllGather, Buffers::new(&input, &mut output)),
            operation(Collective::AllGather, Buffers::in_place(&mut both, 10..20, 0..30)),
        ];
        let (places, bytes) = places(&calls);
        assert_eq!(places, [Place { input: 0, output: 256 }, Place { input: 522, output: 512 }]);
        assert_eq!(bytes, 542);
    }

    #[test]
    fn a_rank_with_one_of_two_buffers_in_place_has_room_for_that_one() {
        let mut both = [0u8; 10];
        for (from, into) in [(0..0, 0..10), (0..10, 0..0)] {
            let call = operation(Collective::Broadcast, Buffers::in_place(&mut both, from, into));
            assert!(places(&[call]).1 <= 10 + 256);
        }
    }

    #[test]
    fn calls_without_bytes_take_none() {
        let (places, bytes) = places(&[operation(Collective::AllReduce, Buffers::new(&[], &mut []))]);
        assert_eq!((places.len(), bytes), (1, 0));
    }
}
