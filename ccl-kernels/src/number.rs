//! Elements, and the values as which they are combined.

use super::copy::copy_one;
use std::mem::MaybeUninit;

/// An element as it lies in memory.
pub(crate) trait Number: Copy + 'static {
    /// The type in which it is combined.
    type Value: Value;

    /// Whether elements are best combined a block at a time; see [`super::wide`]. As measured.
    const BLOCKS: bool = false;

    /// Whether this is a register full of elements, of which the last of a piece may fill a part only.
    const PACKED: bool = false;

    /// Exactly the element's value.
    fn widen(self) -> Self::Value;

    /// The nearest element, ties to even.
    fn narrow(value: Self::Value) -> Self;

    /// The bytes of a part of a register full of elements, then zeros.
    ///
    /// # Safety
    /// There are `len` bytes at `from`, fewer than the register has.
    #[inline(always)]
    unsafe fn part(from: *const u8, len: usize) -> Self {
        let mut padded = MaybeUninit::<Self>::zeroed();
        // SAFETY: the caller's promise; any bytes are an element.
        unsafe {
            copy_one(from, padded.as_mut_ptr().cast(), len);
            padded.assume_init()
        }
    }

    /// Widens `W` elements.
    ///
    /// # Safety
    /// There are `W` elements at `from`, aligned or not.
    #[inline(always)]
    unsafe fn load<const W: usize>(from: *const Self) -> [Self::Value; W] {
        // SAFETY: the caller's promise.
        let elements = unsafe { from.cast::<[Self; W]>().read_unaligned() };
        let mut values = [elements[0].widen(); W];
        for i in 1..W {
            values[i] = elements[i].widen();
        }
        values
    }

    /// Narrows `W` values.
    ///
    /// # Safety
    /// There is room for `W` elements at `into`, aligned or not.
    #[inline(always)]
    unsafe fn store<const W: usize>(into: *mut Self, values: &[Self::Value; W]) {
        let mut elements = [Self::narrow(values[0]); W];
        for i in 1..W {
            elements[i] = Self::narrow(values[i]);
        }
        // SAFETY: the caller's promise.
        unsafe { into.cast::<[Self; W]>().write_unaligned(elements) }
    }
}

/// What operators work on.
pub(crate) trait Value: Copy + 'static {
    /// What changes nothing that it is multiplied with.
    fn one() -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// The value with the low bits of `bits`.
    fn from_bits(bits: u64) -> Self;
}

/// Values without fractions, which one instruction compares and whose bits may be combined one by one.
pub(crate) trait Integer: Value {
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn exclusive_or(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Number for $t {
            type Value = $t;
            const BLOCKS: bool = true;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(value: $t) -> $t {
                value
            }
        }

        impl Value for $t {
            #[inline(always)]
            fn one() -> $t {
                1 as $t
            }
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> $t {
                bits as $t
            }
        }

        impl Integer for $t {
            #[inline(always)]
            fn least(self, other: $t) -> $t {
                self.min(other)
            }
            #[inline(always)]
            fn most(self, other: $t) -> $t {
                self.max(other)
            }
            #[inline(always)]
            fn and(self, other: $t) -> $t {
                self & other
            }
            #[inline(always)]
            fn or(self, other: $t) -> $t {
                self | other
            }
            #[inline(always)]
            fn exclusive_or(self, other: $t) -> $t {
                self ^ other
            }
        }
    )*};
}

integer!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! float {
    ($($t:ty as $bits:ty),*) => {$(
        impl Number for $t {
            type Value = $t;
            const BLOCKS: bool = true;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(value: $t) -> $t {
                value
            }
        }

        impl Value for $t {
            #[inline(always)]
            fn one() -> $t {
                1 as $t
            }
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> $t {
                <$t>::from_bits(bits as $bits)
            }
        }
    )*};
}

float!(f32 as u32, f64 as u64);
