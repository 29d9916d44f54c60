//! Headers and records in registered memory, which devices read and write.

use ccl_core::kernels::{Piece, PieceMut};

/// Writes bytes. Panics if the place is not as long.
#[inline]
pub(super) fn write<const N: usize>(place: PieceMut, bytes: [u8; N]) {
    assert_eq!(place.len(), N);
    // SAFETY: the place is writable for its length and this rank's alone until the work request that names it is posted.
    unsafe { place.as_mut_ptr().cast::<[u8; N]>().write(bytes) };
}

/// Reads bytes. Panics if the place is not as long.
#[inline]
pub(super) fn read<const N: usize>(place: Piece) -> [u8; N] {
    assert_eq!(place.len(), N);
    // SAFETY: the place is readable for its length; the device has written it before it gave the completion. A peer that
    // writes it again meanwhile gives any bytes, which are checked.
    unsafe { place.as_ptr().cast::<[u8; N]>().read() }
}
