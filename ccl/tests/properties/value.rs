//! Elements as plain arithmetic sees them: an independent way from bytes to numbers and back.

use ccl::{DataType, Factor, ReduceOp, bf16, f16};

/// One element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
}

use Value::{Float, Int};

/// Bits of an element, and whether an integer of the type has a sign.
fn width(dtype: DataType) -> (u32, bool) {
    let signed = [DataType::I8, DataType::I16, DataType::I32, DataType::I64].contains(&dtype);
    (dtype.size() as u32 * 8, signed)
}

/// What is left of an integer in so many bits.
fn wrap(dtype: DataType, value: i128) -> i128 {
    let (bits, signed) = width(dtype);
    let low = value & ((1 << bits) - 1);
    if signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
}

/// The value of each code of an 8-bit float with so many bits of mantissa.
fn small_float(code: u8, mantissa: u32) -> f64 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let fraction = f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    let (exponent, bias) = (i32::from(code & 0x7f) >> mantissa, (1 << (6 - mantissa)) - 1);
    if mantissa == 3 && code & 0x7f == 0x7f {
        return f64::NAN;
    }
    if mantissa == 2 && exponent == 31 {
        return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// The code whose value this is; the tests use values that have one.
fn small_code(value: f64, mantissa: u32) -> u8 {
    let same = |code: &u8| {
        let other = small_float(*code, mantissa);
        other == value && other.is_sign_negative() == value.is_sign_negative()
            || other.is_nan() && value.is_nan()
    };
    (0..=255).find(same).unwrap_or_else(|| panic!("{value} has no code"))
}

pub(crate) fn encode(dtype: DataType, value: Value) -> Vec<u8> {
    match (dtype, value) {
        (DataType::F16, Float(x)) => f16::from_f64(x).to_ne_bytes().to_vec(),
        (DataType::BF16, Float(x)) => bf16::from_f64(x).to_ne_bytes().to_vec(),
        (DataType::F32, Float(x)) => (x as f32).to_ne_bytes().to_vec(),
        (DataType::F64, Float(x)) => x.to_ne_bytes().to_vec(),
        (DataType::F8E4M3, Float(x)) => vec![small_code(x, 3)],
        (DataType::F8E5M2, Float(x)) => vec![small_code(x, 2)],
        (_, Int(x)) => x.to_le_bytes()[..dtype.size()].to_vec(),
        (_, Float(x)) => unreachable!("{x} as {dtype}"),
    }
}

pub(crate) fn decode(dtype: DataType, bytes: &[u8]) -> Value {
    let word = || bytes.iter().rev().fold(0i128, |word, byte| word << 8 | i128::from(*byte));
    match dtype {
        DataType::F16 => Float(f16::from_bits(word() as u16).to_f64()),
        DataType::BF16 => Float(bf16::from_bits(word() as u16).to_f64()),
        DataType::F32 => Float(f32::from_bits(word() as u32).into()),
        DataType::F64 => Float(f64::from_bits(word() as u64)),
        DataType::F8E4M3 => Float(small_float(bytes[0], 3)),
        DataType::F8E5M2 => Float(small_float(bytes[0], 2)),
        _ => Int(wrap(dtype, word())),
    }
}

/// Whether two elements are the same, signs of zeros included; NaNs are all the same.
pub(crate) fn same(a: Value, b: Value) -> bool {
    match (a, b) {
        (Int(a), Int(b)) => a == b,
        (Float(a), Float(b)) => {
            a.is_nan() && b.is_nan() || a == b && a.is_sign_negative() == b.is_sign_negative()
        }
        _ => false,
    }
}

/// An input of which no order of combining rounds: small whole floats, any integer.
pub(crate) fn draw(dtype: DataType, op: ReduceOp, bits: u64) -> Value {
    if !dtype.is_float() {
        return Int(wrap(dtype, i128::from(bits)));
    }
    let pick = |values: &[f64]| Float(values[(bits % values.len() as u64) as usize]);
    if (bits >> 32).is_multiple_of(97) {
        return Float(f64::NAN);
    }
    match op {
        ReduceOp::Prod => pick(&[1.0, 1.0, 2.0, -1.0, 0.0, -0.0]),
        ReduceOp::Min | ReduceOp::Max => pick(&[-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0]),
        ReduceOp::PreMulSum(_) => pick(&[0.0, -0.0, 1.0]),
        _ => pick(&[-1.0, -0.0, 0.0, 1.0]),
    }
}

/// A scalar for a pre-multiplied sum, and its value.
pub(crate) fn factor(dtype: DataType, bits: u64) -> (Factor, Value) {
    let value = match dtype.is_float() {
        true => Float([0.0, 2.0, -2.0][(bits % 3) as usize]),
        false => Int(wrap(dtype, i128::from(bits))),
    };
    let factor = Factor::from_bytes(dtype, &encode(dtype, value)).expect("one element");
    (factor, value)
}

/// All ranks' contributions to one element, combined; with `factors`, each is multiplied by its rank's.
pub(crate) fn reduce(dtype: DataType, op: ReduceOp, terms: &[Value], factors: &[Value]) -> Value {
    let ranks = terms.len() as i128;
    let scaled = || {
        terms.iter().zip(factors).map(|(term, factor)| match (*term, *factor) {
            (Int(x), Int(by)) => Int(wrap(dtype, x.wrapping_mul(by))),
            (Float(x), Float(by)) => Float(x * by),
            _ => unreachable!("a factor of another kind"),
        })
    };
    let plain = || terms.iter().copied();
    match op {
        ReduceOp::PreMulSum(_) => fold(dtype, scaled(), |a, b| a + b, |a, b| a + b),
        ReduceOp::Sum => fold(dtype, plain(), |a, b| a + b, |a, b| a + b),
        ReduceOp::Prod => fold(dtype, plain(), |a, b| a.wrapping_mul(b), |a, b| a * b),
        ReduceOp::Band => fold(dtype, plain(), |a, b| a & b, |_, _| f64::NAN),
        ReduceOp::Bor => fold(dtype, plain(), |a, b| a | b, |_, _| f64::NAN),
        ReduceOp::Bxor => fold(dtype, plain(), |a, b| a ^ b, |_, _| f64::NAN),
        ReduceOp::Max => fold(dtype, plain(), i128::max, |a, b| -least(-a, -b)),
        ReduceOp::Min => fold(dtype, plain(), i128::min, least),
        ReduceOp::Avg => match fold(dtype, plain(), |a, b| a + b, |a, b| a + b) {
            Int(sum) => Int(sum / ranks),
            Float(sum) => Float(sum / ranks as f64),
        },
    }
}

/// The smaller one; a NaN is, and -0 is smaller than 0.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a < b || a == b && a.is_sign_negative() { a } else { b }
}

fn fold(
    dtype: DataType,
    terms: impl Iterator<Item = Value>,
    int: impl Fn(i128, i128) -> i128,
    float: impl Fn(f64, f64) -> f64,
) -> Value {
    let combined = terms.reduce(|a, b| match (a, b) {
        (Int(a), Int(b)) => Int(wrap(dtype, int(a, b))),
        (Float(a), Float(b)) => Float(float(a, b)),
        _ => unreachable!("elements of two kinds"),
    });
    combined.expect("at least one rank")
}
