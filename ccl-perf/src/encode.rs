//! Numbers as the bytes of a data type, written without the library that is under test.

use ccl::DataType;

/// Appends `value`, rounded to nearest (ties to even), as one element of the float type `dtype`.
/// The value must lie within the type's finite range.
pub(crate) fn float(dtype: DataType, value: f64, out: &mut Vec<u8>) {
    match dtype {
        DataType::F64 => out.extend(value.to_le_bytes()),
        DataType::F32 => out.extend((value as f32).to_le_bytes()),
        DataType::F16 => out.extend((small(value, 5, 10) as u16).to_le_bytes()),
        DataType::BF16 => out.extend((small(value, 8, 7) as u16).to_le_bytes()),
        DataType::F8E4M3 => out.push(small(value, 4, 3) as u8),
        DataType::F8E5M2 => out.push(small(value, 5, 2) as u8),
        _ => integer(dtype, value as i64 as u64, out),
    }
}

/// Appends the low bytes of `value` as one element of `dtype`.
pub(crate) fn integer(dtype: DataType, value: u64, out: &mut Vec<u8>) {
    out.extend(&value.to_le_bytes()[..dtype.size()]);
}

/// The integer that the low bytes of `value` are in `dtype`, signed or not.
pub(crate) fn meaning(dtype: DataType, value: u64) -> i128 {
    match dtype {
        DataType::I8 => (value as i8).into(),
        DataType::I16 => (value as i16).into(),
        DataType::I32 => (value as i32).into(),
        DataType::I64 => (value as i64).into(),
        DataType::U8 => (value as u8).into(),
        DataType::U16 => (value as u16).into(),
        DataType::U32 => (value as u32).into(),
        _ => value.into(),
    }
}

/// The bits of a float of `exponent` and `mantissa` bits with the usual bias.
fn small(value: f64, exponent: u32, mantissa: u32) -> u32 {
    let bias = (1i32 << (exponent - 1)) - 1;
    let sign = u32::from(value.is_sign_negative()) << (exponent + mantissa);
    let size = value.abs();
    if size == 0.0 {
        return sign;
    }
    let raw = (size.to_bits() >> 52) as i32 - 1023;
    // Below the smallest normal number the grid stops getting finer.
    let scale = raw.max(1 - bias);
    let units = (size * 2f64.powi(mantissa as i32 - scale)).round_ties_even() as u32;
    // A carry out of the mantissa, and the step from subnormal to normal, land in the exponent by addition.
    let normal = if raw < 1 - bias { 0 } else { ((scale + bias - 1) as u32) << mantissa };
    sign | (normal + units)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: DataType, value: f64) -> Vec<u8> {
        let mut out = Vec::new();
        float(dtype, value, &mut out);
        out
    }

    #[test]
    fn known_bit_patterns() {
        assert_eq!(bytes(DataType::F16, 1.0), 0x3c00u16.to_le_bytes());
        assert_eq!(bytes(DataType::F16, -65504.0), 0xfbffu16.to_le_bytes());
        assert_eq!(bytes(DataType::F16, 2f64.powi(-24)), 1u16.to_le_bytes());
        assert_eq!(bytes(DataType::BF16, 3.140625), 0x4049u16.to_le_bytes());
        assert_eq!(bytes(DataType::F8E4M3, 448.0), [0x7e]);
        assert_eq!(bytes(DataType::F8E4M3, 2f64.powi(-9)), [0x01]);
        assert_eq!(bytes(DataType::F8E5M2, 57344.0), [0x7b]);
        assert_eq!(bytes(DataType::F8E5M2, -1.25), [0xbd]);
        assert_eq!(bytes(DataType::F32, 0.1), 0.1f32.to_le_bytes());
    }

    #[test]
    fn rounding_is_to_nearest_with_ties_to_even_and_carries() {
        assert_eq!(bytes(DataType::F8E5M2, 1.125), [0x3c], "tie, down to even");
        assert_eq!(bytes(DataType::F8E5M2, 1.375), [0x3e], "tie, up to even");
        assert_eq!(bytes(DataType::F8E5M2, 1.9), [0x40], "carry into the exponent");
        assert_eq!(bytes(DataType::F8E4M3, 0.0156), [0x08], "subnormal rounds up to the smallest normal");
    }
}
