//! What a pre-multiplied sum multiplies by.

use super::DataType;
use super::format::{E4M3, E5M2, HALF, brain_to_single};
use crate::error::{Error, Result};

/// The scalar of a [`PreMulSum`](super::ReduceOp::PreMulSum), for one data type. Each rank has its own.
///
/// It is kept as values are multiplied: a float of 32 bits or less as a single, a double as a double, an
/// integer in the type's own bits. Two factors are equal where these bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    dtype: DataType,
    bits: u64,
}

impl Factor {
    /// The value of one element of `dtype`, as it lies in memory.
    pub fn from_bytes(dtype: DataType, bytes: &[u8]) -> Result<Factor> {
        let size = dtype.size();
        if bytes.len() != size {
            return Err(Error::invalid(
                format!("a factor of {} bytes for type {dtype}", bytes.len()),
                format!("give one element, {size} bytes"),
            ));
        }
        let mut word = [0; 8];
        word[..size].copy_from_slice(bytes);
        let code = u64::from_le_bytes(word);
        let single = |value: f32| u64::from(value.to_bits());
        let bits = match dtype {
            DataType::F16 => single(HALF.decode(code as u32)),
            DataType::BF16 => single(brain_to_single(code as u16)),
            DataType::F8E4M3 => single(E4M3.decode(code as u32)),
            DataType::F8E5M2 => single(E5M2.decode(code as u32)),
            _ => code,
        };
        Ok(Factor { dtype, bits })
    }

    /// A factor for a float type: rounded to a double for doubles and to a single for every other type, so
    /// that it may be finer than an element of 8 or 16 bits.
    pub fn float(dtype: DataType, value: f64) -> Result<Factor> {
        if !dtype.is_float() {
            return Err(Error::invalid(
                format!("the fraction {value} as a factor for type {dtype}"),
                "integers are multiplied by integers",
            ));
        }
        Ok(Factor::rounded(dtype, value))
    }

    /// A factor for an integer type, wrapped to its width.
    pub fn integer(dtype: DataType, value: i64) -> Result<Factor> {
        if dtype.is_float() {
            return Err(Error::invalid(
                format!("the integer {value} as a factor for type {dtype}"),
                "floats are multiplied by floats",
            ));
        }
        Ok(Factor { dtype, bits: value as u64 & u64::MAX >> (64 - 8 * dtype.size()) })
    }

    /// [`float`](Factor::float) for a type that is known to be one.
    pub(crate) fn rounded(dtype: DataType, value: f64) -> Factor {
        debug_assert!(dtype.is_float());
        let bits = if dtype == DataType::F64 { value.to_bits() } else { (value as f32).to_bits().into() };
        Factor { dtype, bits }
    }

    /// The type that it was made for.
    #[inline]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// The bits of the value in the type in which elements are multiplied.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_values_make_the_same_factor() {
        let from = |dtype, bytes: &[u8]| Factor::from_bytes(dtype, bytes).expect("one element");
        let float = |dtype, value| Factor::float(dtype, value).expect("a float type");
        let integer = |dtype, value| Factor::integer(dtype, value).expect("an integer type");
        assert_eq!(from(DataType::F64, &0.1f64.to_le_bytes()), float(DataType::F64, 0.1));
        assert_eq!(from(DataType::F32, &0.1f32.to_le_bytes()), float(DataType::F32, 0.1));
        let quarter = half::f16::from_f32(0.25).to_le_bytes();
        assert_eq!(from(DataType::F16, &quarter), float(DataType::F16, 0.25));
        let quarter = half::bf16::from_f32(-0.25).to_le_bytes();
        assert_eq!(from(DataType::BF16, &quarter), float(DataType::BF16, -0.25));
        assert_eq!(from(DataType::F8E4M3, &[0x3c]), float(DataType::F8E4M3, 1.5));
        assert_eq!(from(DataType::F8E5M2, &[0xbe]), float(DataType::F8E5M2, -1.5));
        assert_eq!(from(DataType::I8, &[0xff]), integer(DataType::I8, -1));
        assert_eq!(from(DataType::U16, &[0xff, 0xff]), integer(DataType::U16, -1));
        assert_eq!(from(DataType::I64, &(-3i64).to_le_bytes()), integer(DataType::I64, -3));
    }

    #[test]
    fn the_wrong_size_or_kind_is_refused() {
        let text = Factor::from_bytes(DataType::I32, &[1, 2]).unwrap_err().to_string();
        assert!(text.contains("2 bytes for type int32") && text.contains("4 bytes"), "{text}");
        assert!(Factor::float(DataType::U8, 0.5).is_err());
        assert!(Factor::integer(DataType::F8E4M3, 1).is_err());
    }
}
