//! How each type's elements become values that can be combined, and back.
//!
//! Everything is written without branches and with normal numbers only, so that it vectorises, and gives
//! the same bits in a thread that flushes subnormals to zero.

/// An element as it lies in memory.
pub(super) trait Number: Copy + 'static {
    /// The type in which it is combined.
    type Value: Value;

    /// Whether sums and products are best made in registers, a block at a time; see [`super::wide`].
    const BLOCKS: bool = false;

    /// Exactly the element's value.
    fn widen(self) -> Self::Value;

    /// The nearest element, ties to even.
    fn narrow(value: Self::Value) -> Self;

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
pub(super) trait Value: Copy + 'static {
    /// Whether minima and maxima are one instruction.
    const ORDERED: bool;

    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    fn from_f64(x: f64) -> Self;
}

/// A reduction operator.
pub(super) trait Op: 'static {
    /// Whether it asks which value is less.
    const COMPARES: bool;

    fn combine<V: Value>(a: V, b: V) -> V;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;

impl Op for Sum {
    const COMPARES: bool = false;
    #[inline(always)]
    fn combine<V: Value>(a: V, b: V) -> V {
        a.add(b)
    }
}

impl Op for Prod {
    const COMPARES: bool = false;
    #[inline(always)]
    fn combine<V: Value>(a: V, b: V) -> V {
        a.multiply(b)
    }
}

impl Op for Min {
    const COMPARES: bool = true;
    #[inline(always)]
    fn combine<V: Value>(a: V, b: V) -> V {
        a.least(b)
    }
}

impl Op for Max {
    const COMPARES: bool = true;
    #[inline(always)]
    fn combine<V: Value>(a: V, b: V) -> V {
        a.most(b)
    }
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Number for $t {
            type Value = $t;
            const BLOCKS: bool = size_of::<$t>() > 1;
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
            const ORDERED: bool = true;
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: $t) -> $t {
                self.min(other)
            }
            #[inline(always)]
            fn most(self, other: $t) -> $t {
                self.max(other)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
        }
    )*};
}

integer!(i8, u8, i16, u16, i32, u32, i64, u64);

/// All bits where the condition holds, none where it does not.
macro_rules! mask {
    ($bits:ty, $condition:expr) => {
        <$bits>::from($condition).wrapping_neg()
    };
}

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
            const ORDERED: bool = false;
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: $t) -> $t {
                self * other
            }
            // A comparison with NaN is false, so the choice takes `other` where that is NaN; where `self` is, all
            // bits are set. Equal values have equal bits, or are zeros whose sign bits decide. Masks, not
            // choices: those come out as scalar code.
            #[inline(always)]
            fn least(self, other: $t) -> $t {
                let less = if self < other { self } else { other };
                let zeros = self.to_bits() & mask!($bits, self == other);
                <$t>::from_bits(less.to_bits() | zeros | mask!($bits, self != self))
            }
            #[inline(always)]
            fn most(self, other: $t) -> $t {
                let more = if self > other { self } else { other };
                let zeros = self.to_bits() | mask!($bits, self != other);
                <$t>::from_bits(more.to_bits() & zeros | mask!($bits, self != self))
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
        }
    )*};
}

float!(f32 as u32, f64 as u64);

/// IEEE half precision.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Half(pub(super) u16);

/// IEEE half precision on a CPU with F16C, whose conversions take many at a time.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct HalfF16c(Half);

/// bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Brain(pub(super) u16);

/// OCP E4M3.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct E4m3(pub(super) u8);

/// OCP E5M2.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct E5m2(pub(super) u8);

impl Number for Half {
    type Value = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        HALF.decode(self.0 as u32)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Half {
        Half(HALF.encode(value) as u16)
    }
}

/// Only for kernels that are compiled with F16C.
#[cfg(target_arch = "x86_64")]
impl Number for HalfF16c {
    type Value = f32;
    const BLOCKS: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.0.widen()
    }
    #[inline(always)]
    fn narrow(value: f32) -> HalfF16c {
        HalfF16c(Half::narrow(value))
    }
    #[inline(always)]
    unsafe fn load<const W: usize>(from: *const HalfF16c) -> [f32; W] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut values = [0.0; W];
        if !W.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { from.cast::<[HalfF16c; W]>().read_unaligned() }.map(HalfF16c::widen);
        }
        for (i, eight) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: eight elements lie there, and the kernels that use this type are compiled with F16C.
            unsafe {
                let codes = _mm_loadu_si128(from.add(8 * i).cast());
                _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(codes));
            }
        }
        values
    }
    #[inline(always)]
    unsafe fn store<const W: usize>(into: *mut HalfF16c, values: &[f32; W]) {
        use std::arch::x86_64::{
            _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
        };
        if !W.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { into.cast::<[HalfF16c; W]>().write_unaligned(values.map(HalfF16c::narrow)) };
        }
        for (i, eight) in values.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(eight.as_ptr()));
                _mm_storeu_si128(into.add(8 * i).cast(), codes);
            }
        }
    }
}

impl Number for E4m3 {
    type Value = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        E4M3.decode(self.0 as u32)
    }
    #[inline(always)]
    fn narrow(value: f32) -> E4m3 {
        E4m3(E4M3.encode(value) as u8)
    }
}

impl Number for E5m2 {
    type Value = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        E5M2.decode(self.0 as u32)
    }
    #[inline(always)]
    fn narrow(value: f32) -> E5m2 {
        E5m2(E5M2.encode(value) as u8)
    }
}

impl Number for Brain {
    type Value = f32;
    const BLOCKS: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Brain {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // All bits set are a NaN.
        Brain((rounded | mask!(u32, value.is_nan())) as u16)
    }
}

/// A float narrower than `f32` in exponent and mantissa.
struct Narrow {
    /// Bits of its mantissa.
    mantissa: u32,
    /// Its exponent's bias.
    bias: u32,
    /// The largest code of a number: infinity, or the largest finite number where there is no infinity.
    /// The codes above are NaN.
    top: u32,
    /// The code of the NaN that `encode` writes.
    nan: u32,
    /// The place of the sign bit.
    sign: u32,
}

const HALF: Narrow = Narrow { mantissa: 10, bias: 15, top: 0x7c00, nan: 0x7e00, sign: 15 };
const E5M2: Narrow = Narrow { mantissa: 2, bias: 15, top: 0x7c, nan: 0x7f, sign: 7 };
const E4M3: Narrow = Narrow { mantissa: 3, bias: 7, top: 0x7e, nan: 0x7f, sign: 7 };

impl Narrow {
    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        let shift = 23 - self.mantissa;
        let magnitude = code & ((1 << self.sign) - 1);
        let sign = (code >> self.sign) << 31;
        // A normal number: the same mantissa, the exponent with the other bias.
        let normal = f32::from_bits((magnitude << shift) + ((127 - self.bias) << 23));
        // A subnormal one: its mantissa under a one, which is then taken away.
        let one = (128 - self.bias) << 23;
        let subnormal = f32::from_bits((magnitude << shift) + one) - f32::from_bits(one);
        let finite = if magnitude < 1 << self.mantissa { subnormal } else { normal };
        let top = if self.has_infinity() && magnitude == self.top { f32::INFINITY } else { finite };
        let value = if magnitude > self.top { f32::NAN } else { top };
        f32::from_bits(value.to_bits() | sign)
    }

    #[inline(always)]
    fn encode(&self, value: f32) -> u32 {
        let shift = 23 - self.mantissa;
        let magnitude = value.to_bits() & 0x7fff_ffff;
        let sign = value.to_bits() >> 31 << self.sign;
        // A normal number: rounded as an integer, where a carry goes into the exponent as it should.
        let half = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1);
        let normal = ((magnitude + half) >> shift).wrapping_sub((127 - self.bias) << self.mantissa);
        // A subnormal one: added to a number whose last place is worth the smallest of ours.
        let place = (127 + 23 - self.mantissa + 1 - self.bias) << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(place)).to_bits().wrapping_sub(place);
        let finite = if magnitude < (128 - self.bias) << 23 { subnormal } else { normal };
        let finite = if finite > self.top { self.top } else { finite };
        if value.is_nan() { self.nan } else { finite | sign }
    }

    #[inline(always)]
    fn has_infinity(&self) -> bool {
        self.top.is_multiple_of(1 << self.mantissa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_agrees_with_the_half_crate() {
        for code in 0..=u16::MAX {
            let (ours, theirs) = (Half(code).widen(), half::f16::from_bits(code).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
        }
        for bits in (0..=u32::MAX).step_by(997).chain(edges()) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (Half::narrow(x).0, half::f16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && ours & 0x7fff > 0x7c00, "{x:e} {ours:#x}");
        }
    }

    #[test]
    fn brain_agrees_with_the_half_crate() {
        for code in 0..=u16::MAX {
            assert_eq!(Brain(code).widen().to_bits(), (code as u32) << 16);
        }
        for bits in (0..=u32::MAX).step_by(997).chain(edges()) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (Brain::narrow(x).0, half::bf16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && ours & 0x7fff > 0x7f80, "{x:e} {ours:#x}");
        }
    }

    /// Every value of the format from the definition: sign, exponent, mantissa.
    fn defined(code: u8, mantissa_bits: u32, bias: i32) -> f32 {
        let (e, m) = ((code & 0x7f) >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) as f32);
        let m = m / (1 << mantissa_bits) as f32;
        let magnitude = if e == 0 { m * 2f32.powi(1 - bias) } else { (1.0 + m) * 2f32.powi(e as i32 - bias) };
        if code & 0x80 != 0 { -magnitude } else { magnitude }
    }

    #[test]
    fn eight_bit_values_are_those_of_the_standard() {
        for code in 0..=u8::MAX {
            let (four, five) = (E4m3(code).widen(), E5m2(code).widen());
            match code & 0x7f {
                0x7f => assert!(four.is_nan()),
                _ => assert_eq!(four.to_bits(), defined(code, 3, 7).to_bits(), "{code:#x}"),
            }
            match code & 0x7f {
                0x7d.. => assert!(five.is_nan()),
                0x7c => assert_eq!(five.abs(), f32::INFINITY),
                _ => assert_eq!(five.to_bits(), defined(code, 2, 15).to_bits(), "{code:#x}"),
            }
        }
        assert_eq!((E4m3(0x7e).widen(), E5m2(0x7b).widen()), (448.0, 57344.0));
    }

    /// The nearest of all finite codes, ties to the even code: what `encode` must find.
    fn nearest(x: f32, widen: fn(u8) -> f32, last: u8) -> u8 {
        let distance = |c: u8| (widen(c) as f64 - x.abs() as f64).abs();
        let best =
            (0..=last).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
        best.expect("not empty") | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn eight_bit_rounding_is_to_nearest_even() {
        for bits in (0..=u32::MAX).step_by(99_991).chain(edges()) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert_eq!((E4m3::narrow(x).0, E5m2::narrow(x).0), (0x7f, 0x7f));
                continue;
            }
            let four = if x.abs() >= 448.0 {
                0x7e | (bits >> 31 << 7) as u8
            } else {
                nearest(x, |c| E4m3(c).widen(), 0x7e)
            };
            assert_eq!(E4m3::narrow(x).0, four, "{x:e}");
            let five = if x.abs() >= 61440.0 {
                0x7c | (bits >> 31 << 7) as u8
            } else {
                nearest(x, |c| E5m2(c).widen(), 0x7b)
            };
            assert_eq!(E5m2::narrow(x).0, five, "{x:e}");
        }
    }

    /// Bit patterns around every narrow value and every midpoint of two, and the odd ones.
    fn edges() -> impl Iterator<Item = u32> {
        let around = (0..=u16::MAX).step_by(37).chain(0x3f00..0x4000).chain(0..64).flat_map(|c| {
            let (a, b) = (half::f16::from_bits(c).to_f32(), half::f16::from_bits(c.wrapping_add(1)).to_f32());
            let middle = ((a as f64 + b as f64) / 2.0) as f32;
            [a, middle]
                .into_iter()
                .flat_map(|x| [x.to_bits().wrapping_sub(1), x.to_bits(), x.to_bits().wrapping_add(1)])
        });
        let codes = (0..=u8::MAX).flat_map(|c| {
            let pairs = [
                (E4m3(c).widen(), E4m3(c.wrapping_add(1)).widen()),
                (E5m2(c).widen(), E5m2(c.wrapping_add(1)).widen()),
            ];
            pairs.into_iter().flat_map(|(a, b)| {
                let middle = ((a as f64 + b as f64) / 2.0) as f32;
                [a, middle]
                    .into_iter()
                    .flat_map(|x| [x.to_bits().wrapping_sub(1), x.to_bits(), x.to_bits().wrapping_add(1)])
            })
        });
        let odd = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            65504.0,
            65519.9,
            65520.0,
            448.0,
            464.0,
            464.1,
            61439.0,
            61440.0,
        ];
        around.chain(codes).chain(odd.map(f32::to_bits)).chain([
            1,
            0x8000_0001,
            0x7fff_ffff,
            0xffff_ffff,
            0x7f80_0001,
        ])
    }

    #[test]
    fn min_and_max_order_zeros_and_keep_nan() {
        for (a, b) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            assert_eq!(a.least(b).to_bits(), (-0.0f32).to_bits());
            assert_eq!(a.most(b).to_bits(), 0.0f32.to_bits());
        }
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
            assert!(a.least(b).is_nan() && a.most(b).is_nan());
        }
        assert_eq!((1.0f32.least(2.0), 1.0f32.most(2.0)), (1.0, 2.0));
        assert_eq!((2.0f32.least(1.0), 2.0f32.most(1.0)), (1.0, 2.0));
    }
}
