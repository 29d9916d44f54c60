//! The floats that have no type in the language: their bits, and how they become singles and back.
//!
//! Everything is written without branches and with normal numbers only, so that it vectorises, and gives
//! the same bits in a thread that flushes subnormals to zero.

/// A float narrower than `f32` in exponent and mantissa.
pub(crate) struct Format {
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

/// IEEE half precision.
pub(crate) const HALF: Format = Format { mantissa: 10, bias: 15, top: 0x7c00, nan: 0x7e00, sign: 15 };
/// OCP E5M2.
pub(crate) const E5M2: Format = Format { mantissa: 2, bias: 15, top: 0x7c, nan: 0x7f, sign: 7 };
/// OCP E4M3.
pub(crate) const E4M3: Format = Format { mantissa: 3, bias: 7, top: 0x7e, nan: 0x7f, sign: 7 };

impl Format {
    /// Exactly the value of a code.
    #[inline(always)]
    pub(crate) fn decode(&self, code: u32) -> f32 {
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

    /// The code of the nearest value, ties to even.
    #[inline(always)]
    pub(crate) fn encode(&self, value: f32) -> u32 {
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

/// Exactly the value of a bfloat16.
#[inline(always)]
pub(crate) fn brain_to_single(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline(always)]
pub(crate) fn single_to_brain(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // All bits set are a NaN.
    (rounded | u32::from(value.is_nan()).wrapping_neg()) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{DataType, reference};

    #[test]
    fn half_agrees_with_the_half_crate() {
        for code in 0..=u16::MAX {
            let (ours, theirs) = (HALF.decode(code.into()), half::f16::from_bits(code).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
        }
        for bits in (0..=u32::MAX).step_by(997).chain(edges()) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (HALF.encode(x) as u16, half::f16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && ours & 0x7fff > 0x7c00, "{x:e} {ours:#x}");
        }
    }

    #[test]
    fn brain_agrees_with_the_half_crate() {
        for code in 0..=u16::MAX {
            assert_eq!(brain_to_single(code).to_bits(), (code as u32) << 16);
        }
        for bits in (0..=u32::MAX).step_by(997).chain(edges()) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (single_to_brain(x), half::bf16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && ours & 0x7fff > 0x7f80, "{x:e} {ours:#x}");
        }
    }

    #[test]
    fn eight_bit_values_are_those_of_the_standard() {
        for code in 0..=u8::MAX {
            for (dtype, format) in [(DataType::F8E4M3, E4M3), (DataType::F8E5M2, E5M2)] {
                let (ours, right) = (format.decode(code.into()), reference::decode(dtype, &[code]));
                assert!(
                    f64::from(ours).to_bits() == right.to_bits() || ours.is_nan() && right.is_nan(),
                    "{dtype} {code:#x}"
                );
            }
        }
        assert_eq!((E4M3.decode(0x7e), E5M2.decode(0x7b)), (448.0, 57344.0));
    }

    #[test]
    fn eight_bit_rounding_is_to_nearest_even() {
        for bits in (0..=u32::MAX).step_by(99_991).chain(edges()) {
            let x = f32::from_bits(bits);
            for (dtype, format) in [(DataType::F8E4M3, E4M3), (DataType::F8E5M2, E5M2)] {
                assert_eq!([format.encode(x) as u8], *reference::encode(dtype, x.into()), "{dtype} {x:e}");
            }
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
                (E4M3.decode(c.into()), E4M3.decode(c.wrapping_add(1).into())),
                (E5M2.decode(c.into()), E5M2.decode(c.wrapping_add(1).into())),
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
}
