//! Where the buffers of calls lie in a step's memory.

use ccl_core::kernels::{Buffers, PieceMut};

/// Buffers begin at multiples of this: the host's kernels like it, and copies too.
const ALIGNMENT: usize = 256;

/// A call's buffers, and which of them have to come to the host: those on the device do, pinned ones are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) buffers: Buffers<'static>,
    pub(super) comes: bool,
    pub(super) goes: bool,
}

/// Where they lie, as offsets; `None`: where the caller has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) input: Option<usize>,
    pub(super) output: Option<usize>,
}

/// The places of some calls' buffers, and the bytes that they take together. Buffers in place lie in place.
pub(super) fn places(wanted: &[Wanted]) -> (Vec<Place>, usize) {
    let mut end = 0usize;
    let mut take = |len: usize| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + len;
        start
    };
    let places = wanted.iter().map(|Wanted { buffers, comes, goes }| {
        let (input, output) = (buffers.input(), buffers.output());
        let comes = *comes && !input.is_empty();
        let goes = *goes && !output.is_empty();
        if buffers.is_in_place() && comes && goes {
            let (from, into) = (input.as_ptr().addr(), output.as_mut_ptr().addr());
            let first = from.min(into);
            let start = take((from + input.len()).max(into + output.len()) - first);
            return Place { input: Some(start + from - first), output: Some(start + into - first) };
        }
        Place { input: comes.then(|| take(input.len())), output: goes.then(|| take(output.len())) }
    });
    (places.collect(), end)
}

/// The buffers at a place in a step's memory.
pub(super) fn buffers_at(place: Place, of: &Buffers<'_>, memory: Option<PieceMut>) -> Buffers<'static> {
    let at = |offset: Option<usize>, len| Some(memory?.slice(offset?, len));
    let input = at(place.input, of.input().len()).map_or(of.input(), |piece| piece.as_piece());
    let output = at(place.output, of.output().len()).unwrap_or(of.output());
    crate::sys::buffers(input, output, of.is_in_place())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(buffers: &Buffers<'_>) -> Wanted {
        let buffers = crate::sys::buffers(buffers.input(), buffers.output(), buffers.is_in_place());
        Wanted { buffers, comes: true, goes: true }
    }

    fn at(input: usize, output: usize) -> Place {
        Place { input: Some(input), output: Some(output) }
    }

    #[test]
    fn buffers_lie_apart_and_in_place_as_the_caller_has_them() {
        let (input, mut output, mut both) = ([0u8; 10], [0u8; 20], [0u8; 30]);
        let apart = wanted(&Buffers::new(&input, &mut output));
        let together = wanted(&Buffers::in_place(&mut both, 10..20, 0..30));
        let (places, bytes) = places(&[apart, together]);
        assert_eq!(places, [at(0, 256), at(522, 512)]);
        assert_eq!(bytes, 542);
    }

    #[test]
    fn buffers_that_are_empty_or_on_the_host_take_no_room() {
        let (input, mut output) = ([0u8; 10], [0u8; 20]);
        let buffers = Buffers::new(&input, &mut output);
        let pinned = Wanted { comes: false, ..wanted(&buffers) };
        assert_eq!(places(&[pinned]), (vec![Place { input: None, output: Some(0) }], 20));
        let empty = wanted(&Buffers::new(&[], &mut []));
        assert_eq!(places(&[empty]), (vec![Place { input: None, output: None }], 0));
        assert_eq!(
            buffers_at(Place { input: None, output: None }, &buffers, None).input().as_ptr(),
            input.as_ptr()
        );
    }

    #[test]
    fn a_rank_with_one_of_two_buffers_in_place_has_room_for_that_one() {
        let mut both = [0u8; 10];
        for (from, into) in [(0..0, 0..10), (0..10, 0..0)] {
            assert_eq!(places(&[wanted(&Buffers::in_place(&mut both, from, into))]).1, 10);
        }
    }
}
