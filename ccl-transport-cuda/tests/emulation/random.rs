//! Numbers from a seed, and elements of every type that a sum can be compared by.

use ccl_core::{DataType, ReduceOp};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A buffer of so many elements. Any bits where they are compared or combined as bits. Where floats are added or
    /// multiplied, no result is NaN, whose payload is nobody's promise; some are subnormal, and products overflow.
    pub(crate) fn elements(&mut self, dtype: DataType, op: Option<ReduceOp>, count: usize) -> Vec<u8> {
        let arithmetic = op.is_some_and(|op| !matches!(op, ReduceOp::Min | ReduceOp::Max));
        let format = match dtype {
            DataType::F16 => Some((10, 15)),
            DataType::BF16 => Some((7, 127)),
            DataType::F32 => Some((23, 127)),
            DataType::F64 => Some((52, 1023)),
            DataType::F8E4M3 => Some((3, 7)),
            DataType::F8E5M2 => Some((2, 15)),
            _ => None,
        };
        let mut buffer = Vec::with_capacity(count * dtype.size());
        for _ in 0..count {
            let mut code = self.bits();
            if let Some((mantissa, bias)) = format.filter(|_| arithmetic) {
                let fraction = code & ((1 << mantissa) - 1);
                let sign = (code >> 63) << (8 * dtype.size() - 1);
                let exponent = if self.below(8) == 0 { 0 } else { bias - 4 + self.bits() % 8 };
                code = sign | exponent << mantissa | fraction | 1;
            }
            buffer.extend_from_slice(&code.to_le_bytes()[..dtype.size()]);
        }
        buffer
    }
}
