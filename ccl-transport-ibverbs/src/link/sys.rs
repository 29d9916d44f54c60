//! Headers in registered memory, which devices read and write.

use super::wire::HEADER;
use ccl_core::simd::{Piece, PieceMut};

/// Writes a header. Panics if the place is not as long as one.
#[inline]
pub(super) fn write_header(place: PieceMut, header: [u8; HEADER]) {
    assert_eq!(place.len(), HEADER);
    // SAFETY: the place is writable for its length and this rank's alone until the work request that names it is posted.
    unsafe { place.as_mut_ptr().copy_from_nonoverlapping(header.as_ptr(), HEADER) };
}

/// Reads a header. Panics if the place is not as long as one.
#[inline]
pub(super) fn read_header(place: Piece) -> [u8; HEADER] {
    assert_eq!(place.len(), HEADER);
    let mut header = [0; HEADER];
    // SAFETY: the place is readable for its length; the device has written it before it gave the completion. A peer that
    // writes it again meanwhile gives any bytes, which are checked.
    unsafe { place.as_ptr().copy_to_nonoverlapping(header.as_mut_ptr(), HEADER) };
    header
}
