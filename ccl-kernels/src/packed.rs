//! Registers full of narrow floats: elements of their own to the kernels, which convert and combine all at once.
//!
//! A 32-bit word holds two floats of 16 bits or four of 8. They are widened where they lie, into two or four registers:
//! the first of every word into one, the second of every word into the next. That takes shifts and masks only;
//! putting neighbours beside each other would take shuffles, of which a CPU does fewer at a time. The order of values
//! does not matter between load and store.

use super::number::{Number, Value};
use super::register::Register;

/// The values of a register full of floats of 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Two<R>([R; 2]);

/// The arithmetic of registers, one by one.
macro_rules! values {
    ($name:ident: $($i:literal)*) => {
        impl<R: Register> Value for $name<R> {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: only kernels that are compiled with the register's instructions use it; so below.
                unsafe { $name([$(R::add(self.0[$i], other.0[$i])),*]) }
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $name([$(R::multiply(self.0[$i], other.0[$i])),*]) }
            }
            #[inline(always)]
            fn one() -> Self {
                Self::from_bits(u64::from(1f32.to_bits()))
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                // SAFETY: as above.
                $name([unsafe { R::splat(bits as u32) }; [$($i),*].len()])
            }
        }
    };
}

values!(Two: 0 1);

/// A register full of bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Brains<R>(R);

impl<R: Register> Number for Brains<R> {
    type Value = Two<R>;
    const BLOCKS: bool = true;
    const PACKED: bool = true;

    #[inline(always)]
    unsafe fn part(from: *const u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Brains(unsafe { R::part(from, len) })
    }

    #[inline(always)]
    fn widen(self) -> Two<R> {
        // SAFETY: as above.
        unsafe { Two([R::shift_left::<16>(self.0), R::and(self.0, R::splat(0xffff_0000))]) }
    }

    #[inline(always)]
    fn narrow(Two([first, second]): Two<R>) -> Self {
        // SAFETY: as above.
        unsafe {
            let (first, second) = (brain(first), brain(second));
            Brains(R::or(R::shift_right::<16>(first), R::and(second, R::splat(0xffff_0000))))
        }
    }
}

/// The nearest bfloat16 in the upper half of each word, as [`single_to_brain`](crate::element::format) finds it; what
/// is below means nothing.
///
/// # Safety
/// The register's instructions are there.
#[inline(always)]
unsafe fn brain<R: Register>(value: R) -> R {
    // SAFETY: the caller's promise.
    unsafe {
        let odd = R::and(R::shift_right::<16>(value), R::splat(1));
        let rounded = R::plus(R::plus(value, R::splat(0x7fff)), odd);
        R::unless_nan(value, rounded, R::splat(u32::MAX))
    }
}

/// A register full of halves, in two parts as the conversions want them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Halves<R: Register>([R::Halves; 2]);

impl<R: Register> Number for Halves<R> {
    type Value = Two<R>;
    const BLOCKS: bool = true;
    const PACKED: bool = true;

    #[inline(always)]
    unsafe fn part(from: *const u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Halves(unsafe { R::halves(R::part(from, len)) })
    }

    #[inline(always)]
    fn widen(self) -> Two<R> {
        // SAFETY: as above.
        unsafe { Two([R::from_halves(self.0[0]), R::from_halves(self.0[1])]) }
    }

    #[inline(always)]
    fn narrow(Two([first, second]): Two<R>) -> Self {
        // SAFETY: as above.
        unsafe { Halves([half(first), half(second)]) }
    }
}

/// The nearest halves. All NaN become the one that [`HALF`](crate::element::format::HALF) writes.
///
/// # Safety
/// The register's instructions are there.
#[inline(always)]
unsafe fn half<R: Register>(value: R) -> R::Halves {
    // SAFETY: the caller's promise.
    unsafe { R::to_halves(R::unless_nan(value, value, R::splat(f32::NAN.to_bits()))) }
}
