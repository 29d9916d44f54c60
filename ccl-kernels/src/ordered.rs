//! The least and the largest of floats, by comparing integers.
//!
//! A float's code, read as a signed integer, is in the order of its values where it is positive, and
//! in the opposite order where it is negative; turning those round gives one order of all codes:
//!
//! ```text
//! -NaN … -NaN  -inf … -0  +0 … +inf  +NaN … +NaN
//! ```
//!
//! Shifted by the number of codes that are NaN, in one direction or the other, the order wraps round so that all
//! NaN lie at one end. So a NaN wins, -0 is below +0, and nothing is widened, rounded or branched on.

use super::number::Number;

/// A float whose code is `I`, of which `NANS` of each sign are NaN. These lie below all others where `SIGN` is 1, as
/// the least value wants them, and above where it is -1, as the largest does.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ordered<I, const NANS: i64, const SIGN: i64>(I);

macro_rules! ordered {
    ($($code:ty, blocks: $blocks:expr;)*) => {$(
        impl<const NANS: i64, const SIGN: i64> Number for Ordered<$code, NANS, SIGN> {
            type Value = $code;
            const BLOCKS: bool = $blocks;
            #[inline(always)]
            fn widen(self) -> $code {
                Self::turn(self.0).wrapping_add((NANS * SIGN) as $code)
            }
            #[inline(always)]
            fn narrow(value: $code) -> Self {
                Ordered(Self::turn(value.wrapping_sub((NANS * SIGN) as $code)))
            }
        }

        impl<const NANS: i64, const SIGN: i64> Ordered<$code, NANS, SIGN> {
            /// Turns the order of negative codes round, and back.
            #[inline(always)]
            fn turn(code: $code) -> $code {
                code ^ (code >> (<$code>::BITS - 1) & <$code>::MAX)
            }
        }
    )*};
}

ordered!(i8, blocks: false; i16, blocks: true; i32, blocks: true; i64, blocks: true;);
