//! References to memory that Rust's borrows cannot describe: slots of links and user buffers.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes that a move reads: part of a user's buffer, of scratch, or a filled slot of a link.
///
/// Borrows cannot describe such memory: the send and the receive buffer of an in-place call are the same
/// bytes, and a slot belongs to another process until it is published. So a piece is an address and a
/// length, and whoever makes one answers for it:
///
/// - *User buffers and scratch*: valid until the call that they were given to has ended.
/// - *Slots*: valid, and not written by anybody, from the link's `peek` until its `release`.
///
/// Only the engine holds pieces, and it drops them within the step in which it got them.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    at: NonNull<u8>,
    len: usize,
}

/// Bytes that a move writes; as [`Piece`], but nobody else reads or writes them: a slot from the link's `reserve` until its
/// `publish`.
///
/// A sink may be the very same bytes as a source of the same move (in place), never overlap it partly.
#[derive(Clone, Copy, Debug)]
pub struct PieceMut {
    at: NonNull<u8>,
    len: usize,
    store: Store,
}

/// How a sink is written. The bytes are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Into the caches: for what is read again soon from a core nearby, such as slots of links.
    #[default]
    Cached,
    /// Into the caches too, and a copy is made by words, however long it is: for what a core nearby has just written, and writes on
    /// while it is read. Where pieces are combined it is the same as `Cached`.
    Words,
    /// Past the caches, where the CPU has such stores and the piece is at least a page, or two where pieces are combined: for what is
    /// larger than the caches, or is read from a far core. Ordered before everything that the thread stores after the call, like other stores.
    Streaming,
}

// SAFETY: a piece is an address; what may be done with it, and when, is the contract above, which does
// not depend on the thread.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Send for PieceMut {}

impl Piece {
    /// No bytes.
    pub const EMPTY: Piece = Piece { at: NonNull::dangling(), len: 0 };

    /// The piece of `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are readable, and nobody writes them but a move that has this piece both as a source
    /// and as a sink, for as long as the type's contract says.
    #[inline]
    pub unsafe fn new(at: *const u8, len: usize) -> Piece {
        if len == 0 {
            return Piece::EMPTY;
        }
        debug_assert!(!at.is_null());
        // SAFETY: the caller gives readable, so non-null, bytes.
        Piece { at: unsafe { NonNull::new_unchecked(at.cast_mut()) }, len }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the two are the same bytes.
    #[inline]
    pub fn is(&self, other: Piece) -> bool {
        self.at == other.at && self.len == other.len
    }

    /// The two as one, if `next` begins where this one ends: whoever has made them vouches for all of the bytes.
    #[inline]
    pub fn join(&self, next: Piece) -> Option<Piece> {
        let is_next = self.as_ptr().wrapping_add(self.len) == next.as_ptr() && !self.is_empty();
        // SAFETY: each byte is of one of the two.
        is_next.then(|| unsafe { Piece::new(self.as_ptr(), self.len + next.len) })
    }

    /// The address, for kernels and transports.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// `len` bytes from `offset`, which must lie inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Piece {
        assert!(offset <= self.len && len <= self.len - offset, "piece sliced past its end");
        // SAFETY: the range lies inside a piece whose maker vouched for all of it.
        unsafe { Piece::new(self.at.as_ptr().add(offset), len) }
    }
}

impl PieceMut {
    /// No bytes.
    pub const EMPTY: PieceMut = PieceMut { at: NonNull::dangling(), len: 0, store: Store::Cached };

    /// The piece of `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are writable, and nobody else reads or writes them, for as long as the type's contract
    /// says.
    #[inline]
    pub unsafe fn new(at: *mut u8, len: usize) -> PieceMut {
        if len == 0 {
            return PieceMut::EMPTY;
        }
        debug_assert!(!at.is_null());
        // SAFETY: the caller gives writable, so non-null, bytes.
        PieceMut { at: unsafe { NonNull::new_unchecked(at) }, len, store: Store::Cached }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to write.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for kernels and transports.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Copies a piece of the same length here.
    #[inline(always)]
    pub fn copy_from(&self, from: Piece) {
        assert!(from.len == self.len, "a piece is copied to one of another length");
        // Nothing of it is put into memory for the short ones, which are most.
        match self.store {
            Store::Cached => super::copy::copy_one(from.as_ptr(), self.as_mut_ptr(), self.len),
            Store::Words | Store::Streaming => super::copy::copy(from, &[*self]),
        }
    }

    /// The same bytes to read, once written.
    #[inline]
    pub fn as_piece(&self) -> Piece {
        Piece { at: self.at, len: self.len }
    }

    /// `len` bytes from `offset`, which must lie inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> PieceMut {
        assert!(offset <= self.len && len <= self.len - offset, "piece sliced past its end");
        // SAFETY: the range lies inside a piece whose maker vouched for all of it.
        unsafe { PieceMut::new(self.at.as_ptr().add(offset), len) }.stored(self.store)
    }

    /// The same bytes, to be written so.
    #[inline]
    pub fn stored(self, store: Store) -> PieceMut {
        PieceMut { store, ..self }
    }

    /// The same bytes, to be written so if that is into the caches at all.
    #[inline(always)]
    pub fn copied(self, store: Store) -> PieceMut {
        if self.store == Store::Cached { self.stored(store) } else { self }
    }

    /// How the bytes are to be written.
    #[inline]
    pub fn store(&self) -> Store {
        self.store
    }
}

/// The send and the receive buffer of a call, as the engine sees them.
///
/// The lifetime is that of the slices they were made from; a call ends before it does.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    input: Piece,
    output: PieceMut,
    in_place: bool,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    /// Two buffers that do not overlap. Lengths in bytes; empty where a rank has none.
    pub fn new(input: &'a [u8], output: &'a mut [u8]) -> Buffers<'a> {
        // SAFETY: both are borrowed for 'a, the output exclusively.
        unsafe {
            Buffers {
                input: Piece::new(input.as_ptr(), input.len()),
                output: PieceMut::new(output.as_mut_ptr(), output.len()),
                in_place: false,
                life: PhantomData,
            }
        }
    }

    /// The send buffer of the one and the receive buffer of the other.
    pub fn joined(send: &Buffers<'a>, receive: &Buffers<'a>) -> Buffers<'a> {
        Buffers { input: send.input, output: receive.output, in_place: false, life: PhantomData }
    }

    /// Whether the two share some bytes without being the same.
    pub fn overlap_partly(&self) -> bool {
        let (from, into) = (self.input.as_ptr().addr(), self.output.as_mut_ptr().addr());
        let apart = from + self.input.len() <= into || into + self.output.len() <= from;
        !(apart || from == into && self.input.len() == self.output.len())
    }

    /// Input and output lie in one buffer, each at its byte range, as an in-place call wants it.
    /// Panics where a range does not lie inside the buffer.
    pub fn in_place(
        buffer: &'a mut [u8],
        input: std::ops::Range<usize>,
        output: std::ops::Range<usize>,
    ) -> Buffers<'a> {
        let (input_len, output_len) = (buffer[input.clone()].len(), buffer[output.clone()].len());
        let base = buffer.as_mut_ptr();
        // SAFETY: both ranges lie in `buffer`, borrowed exclusively for 'a.
        unsafe {
            Buffers {
                input: Piece::new(base.add(input.start), input_len),
                output: PieceMut::new(base.add(output.start), output_len),
                in_place: true,
                life: PhantomData,
            }
        }
    }

    /// Buffers given as addresses, as they come through the C ABI.
    ///
    /// # Safety
    /// `input` is readable for `input_len` bytes and `output` writable for `output_len` bytes for 'a;
    /// nobody else writes the first or touches the second meanwhile. They do not overlap, or, with
    /// `in_place`, lie as the collective wants its in-place output.
    pub unsafe fn from_raw(
        input: *const u8,
        input_len: usize,
        output: *mut u8,
        output_len: usize,
        in_place: bool,
    ) -> Buffers<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            Buffers {
                input: Piece::new(input, input_len),
                output: PieceMut::new(output, output_len),
                in_place,
                life: PhantomData,
            }
        }
    }

    /// The send buffer.
    #[inline]
    pub fn input(&self) -> Piece {
        self.input
    }

    /// The receive buffer.
    #[inline]
    pub fn output(&self) -> PieceMut {
        self.output
    }

    /// The same bytes of each; of an empty one none.
    pub fn part(&self, bytes: std::ops::Range<usize>) -> Buffers<'a> {
        let (mut input, mut output) = (self.input, self.output);
        if !input.is_empty() {
            input = input.slice(bytes.start, bytes.len());
        }
        if !output.is_empty() {
            output = output.slice(bytes.start, bytes.len());
        }
        Buffers { input, output, ..*self }
    }

    /// Whether the two lie on each other as an in-place call wants it.
    #[inline]
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_where_one_begins_where_the_other_ends() {
        let bytes = [1, 2, 3, 4, 5];
        let all = Buffers::new(&bytes, &mut []).input();
        let joined = all.slice(1, 2).join(all.slice(3, 1)).expect("side by side");
        assert!(joined.is(all.slice(1, 3)));
        assert!(all.slice(3, 1).join(all.slice(1, 2)).is_none(), "the other way around");
        assert!(all.slice(0, 2).join(all.slice(3, 1)).is_none(), "a gap");
        assert!(Piece::EMPTY.join(all).is_none());
    }
}
