//! What the calls should give, by plain arithmetic on whole numbers: no part of the library takes part in it.

use crate::random::mix;
use ccl::{DataType, ReduceOp, bf16, f16};

/// Writes the block that a rank sends: so many elements that depend on all these numbers.
///
/// Where `op` combines them, floats are small whole numbers, so that no order of combining rounds.
pub(crate) fn block(dtype: DataType, op: Option<ReduceOp>, seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * dtype.size()];
    for (i, element) in (0..).zip(bytes.chunks_exact_mut(dtype.size())) {
        let word = mix(seed, i);
        match op {
            Some(op) => encode(dtype, operand(dtype, op, word), element),
            None => element.copy_from_slice(&word.to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}

/// The blocks of these seeds, combined.
pub(crate) fn reduced(dtype: DataType, op: ReduceOp, seeds: &[u64], count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * dtype.size()];
    for (i, element) in (0..).zip(bytes.chunks_exact_mut(dtype.size())) {
        let mut terms = seeds.iter().map(|seed| operand(dtype, op, mix(*seed, i)));
        let first = terms.next().unwrap_or_default();
        let all = terms.fold(first, |a, b| combined(op, a, b));
        let result = match op {
            ReduceOp::Avg => wrapped(dtype, all) / seeds.len() as i128,
            _ => all,
        };
        encode(dtype, result, element);
    }
    bytes
}

/// Whether the arithmetic here is exact for it, whatever the order.
pub(crate) fn is_exact(dtype: DataType, op: ReduceOp) -> bool {
    let small_float = matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2);
    let integers_only = matches!(op, ReduceOp::Avg | ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor);
    !(small_float || dtype.is_float() && integers_only)
}

fn operand(dtype: DataType, op: ReduceOp, word: u64) -> i128 {
    if !dtype.is_float() {
        return wrapped(dtype, word.into());
    }
    match op {
        ReduceOp::Prod => [1, -1][(word % 2) as usize],
        ReduceOp::Sum => (word % 3) as i128 - 1,
        _ => (word % 17) as i128 + 1,
    }
}

fn combined(op: ReduceOp, a: i128, b: i128) -> i128 {
    match op {
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Band => a & b,
        ReduceOp::Bor => a | b,
        ReduceOp::Bxor => a ^ b,
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => a + b,
    }
}

/// What is left of an integer in the type's bits.
fn wrapped(dtype: DataType, value: i128) -> i128 {
    let signed = matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64);
    let bits = dtype.size() as u32 * 8;
    let low = value & ((1 << bits) - 1);
    if signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
}

fn encode(dtype: DataType, value: i128, bytes: &mut [u8]) {
    match dtype {
        DataType::F16 => bytes.copy_from_slice(&f16::from_f64(value as f64).to_le_bytes()),
        DataType::BF16 => bytes.copy_from_slice(&bf16::from_f64(value as f64).to_le_bytes()),
        DataType::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
        DataType::F64 => bytes.copy_from_slice(&(value as f64).to_le_bytes()),
        _ => bytes.copy_from_slice(&value.to_le_bytes()[..dtype.size()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_means_are_of_what_is_left() {
        assert_eq!(wrapped(DataType::I8, 200), -56);
        assert_eq!(wrapped(DataType::U8, 300), 44);
        let (seeds, dtype) = ([1, 2, 3], DataType::I8);
        let terms = seeds.map(|seed| i32::from(block(dtype, Some(ReduceOp::Avg), seed, 1)[0] as i8));
        let sum = terms.iter().sum::<i32>() as i8;
        assert_eq!(reduced(dtype, ReduceOp::Avg, &seeds, 1), [(sum / 3) as u8]);
    }

    #[test]
    fn floats_are_whole_numbers() {
        let sums = reduced(DataType::F32, ReduceOp::Sum, &[7, 8], 100);
        let sums = sums.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        assert!(sums.clone().all(|sum| sum.fract() == 0.0 && sum.abs() <= 2.0));
        assert!(sums.clone().any(|sum| sum != 0.0));
    }
}
