//! The data types from their definitions, slowly: what tests compare the library with.

use super::DataType;

/// The value of an element of a float type.
pub(crate) fn decode(dtype: DataType, bytes: &[u8]) -> f64 {
    let short = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        DataType::F16 => half::f16::from_bits(short()).to_f64(),
        DataType::BF16 => half::bf16::from_bits(short()).to_f64(),
        DataType::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
        DataType::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        DataType::F8E4M3 if bytes[0] & 0x7f == 0x7f => f64::NAN,
        DataType::F8E4M3 => eight_bits(bytes[0], 3, 7),
        DataType::F8E5M2 if bytes[0] & 0x7f > 0x7c => f64::NAN,
        DataType::F8E5M2 if bytes[0] & 0x7f == 0x7c => f64::INFINITY.copysign(eight_bits(bytes[0], 2, 15)),
        DataType::F8E5M2 => eight_bits(bytes[0], 2, 15),
        _ => panic!("{dtype} is no float"),
    }
}

/// The element of a float type that is nearest to `value`, which a single holds exactly for types of up to
/// 32 bits.
pub(crate) fn encode(dtype: DataType, value: f64) -> Vec<u8> {
    match dtype {
        DataType::F16 => half::f16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::BF16 => half::bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        DataType::F64 => value.to_le_bytes().to_vec(),
        _ if value.is_nan() => vec![0x7f],
        DataType::F8E4M3 if value.abs() >= 448.0 => vec![0x7e | sign(value)],
        DataType::F8E4M3 => vec![nearest(value, 0x7e, |code| eight_bits(code, 3, 7))],
        DataType::F8E5M2 if value.abs() >= 61440.0 => vec![0x7c | sign(value)],
        DataType::F8E5M2 => vec![nearest(value, 0x7b, |code| eight_bits(code, 2, 15))],
        _ => panic!("{dtype} is no float"),
    }
}

/// A finite 8-bit float: sign, exponent, mantissa.
fn eight_bits(code: u8, mantissa_bits: u32, bias: i32) -> f64 {
    let (e, m) = ((code & 0x7f) >> mantissa_bits, f64::from(code & ((1 << mantissa_bits) - 1)));
    let m = m / f64::from(1 << mantissa_bits);
    let magnitude = if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(i32::from(e) - bias) };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The nearest of all codes up to `last`, ties to the even code.
fn nearest(value: f64, last: u8, meaning: impl Fn(u8) -> f64) -> u8 {
    let distance = |code: u8| (meaning(code) - value.abs()).abs();
    let best = (0..=last).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
    best.expect("not empty") | sign(value)
}

fn sign(value: f64) -> u8 {
    if value.is_sign_negative() { 0x80 } else { 0 }
}
