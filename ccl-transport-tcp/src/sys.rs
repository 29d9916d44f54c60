//! The unsafe parts: memory of slots, bytes of pieces, and a question that no safe call asks.

use ccl_core::kernels::{Piece, PieceMut};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Where the bytes of a slot begin: at a cache line, for the reduction kernels.
const ALIGN: usize = 64;

/// Memory for one piece, for its writer or for its reader.
#[derive(Debug)]
pub(crate) struct Slot {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, which no thread is special to.
unsafe impl Send for Slot {}

impl Slot {
    /// Room for so many bytes, at least one.
    pub(crate) fn new(bytes: usize) -> Slot {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).expect("slots have at most 64 MiB");
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) };
        Slot { at: NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// The first `len` bytes, for the engine to read.
    pub(crate) fn piece(&self, len: usize) -> Piece {
        assert!(len <= self.layout.size(), "a piece longer than its slot");
        // SAFETY: inside the slot, which nobody writes or reuses before the piece is released.
        unsafe { Piece::new(self.at.as_ptr(), len) }
    }

    /// The first `len` bytes, for the engine to write.
    pub(crate) fn piece_mut(&mut self, len: usize) -> PieceMut {
        assert!(len <= self.layout.size(), "a piece longer than its slot");
        // SAFETY: inside the slot, which nobody reads or reuses before the piece is published.
        unsafe { PieceMut::new(self.at.as_ptr(), len) }
    }

    /// Bytes of a piece that was published.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.layout.size(), "bytes outside their slot");
        // SAFETY: inside the slot and initialised; whoever was given a piece to write has published it.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(from), to - from) }
    }

    /// Bytes of a piece that is coming in.
    pub(crate) fn bytes_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        assert!(from <= to && to <= self.layout.size(), "bytes outside their slot");
        // SAFETY: inside the slot and initialised; nobody is given a piece to read before all of it is there.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(from), to - from) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: what `new` got, with the same layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// The bytes of a piece that the engine hands over, from `from` on.
pub(crate) fn bytes_of(piece: &Piece, from: usize) -> &[u8] {
    let rest = piece.slice(from, piece.len() - from);
    // SAFETY: a piece is readable, and nobody writes it, while it is being handed over, and longer where it is lent.
    unsafe { std::slice::from_raw_parts(rest.as_ptr(), rest.len()) }
}

/// Bytes that were written to a socket and that the other end's machine has not confirmed; 0 if it cannot be told.
pub(crate) fn unconfirmed(socket: &TcpStream) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, and the descriptor is open.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if answer == 0 { bytes.unsigned_abs() } else { 0 }
}
