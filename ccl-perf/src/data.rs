//! Inputs whose exact result is known, whatever the order in which they are combined.
//!
//! Every value depends on the seed, the rank and the position, so that data of another call, rank or place
//! is noticed; and every result is compared bit by bit. What makes that possible:
//!
//! - *Integers* wrap, and wrapping sums and products do not depend on order: any bits will do.
//! - *Float sums* are whole numbers times one power of two per position, small enough in total that
//!   every partial sum is exact in the type itself.
//! - *Float products* are powers of two, except for one rank per position that adds a full mantissa.
//! - *Float means* over a power of two of ranks are sums with exact scaling; over other numbers 1/n is not
//!   exact, so one rank per position contributes and the others add zero: one rounding, in any order.
//! - *Pre-multiplied sums* are float sums of half the size with factors of 1 and 2.
//! - *Least and largest* never round.
//! - *Bitwise and, or* get bits that are set (or not) on about one rank of all, so that every rank shows.
//!
//! Data repeats after [`PERIOD`] elements, a prime, so that large buffers are filled and compared at the
//! speed of memory and nothing that is displaced by a chunk or a tile looks right.

use crate::encode;
use crate::operator::factor;
use ccl::{DataType, ReduceOp};

/// Elements after which a buffer's contents repeat: the largest prime below 2^20.
pub(crate) const PERIOD: usize = 1_048_573;

/// What every rank sends in one call.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    dtype: DataType,
    /// None where values are only moved.
    op: Option<ReduceOp>,
    ranks: u32,
    seed: u64,
    elements: usize,
}

impl Inputs {
    /// The inputs of a call whose send buffers have `elements` elements.
    pub(crate) fn new(
        dtype: DataType,
        op: Option<ReduceOp>,
        ranks: u32,
        seed: u64,
        elements: usize,
    ) -> Inputs {
        Inputs { dtype, op, ranks, seed, elements: elements.min(PERIOD) }
    }

    /// One period of what `rank` sends, as bytes.
    pub(crate) fn of(&self, rank: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.elements * self.dtype.size());
        for index in 0..self.elements as u64 {
            match self.op {
                Some(op) if self.dtype.is_float() => {
                    encode::float(self.dtype, self.float(op, rank, index), &mut out);
                }
                op => encode::integer(self.dtype, self.integer(op, rank, index), &mut out),
            }
        }
        out
    }

    /// One period of the reduction of what all ranks send, as bytes.
    pub(crate) fn reduced(&self, op: ReduceOp) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.elements * self.dtype.size());
        for index in 0..self.elements as u64 {
            if self.dtype.is_float() {
                let scale = |rank| if multiplies(op) { factor(rank).into() } else { 1.0 };
                let values = (0..self.ranks).map(|rank| self.float(op, rank, index) * scale(rank));
                encode::float(self.dtype, reduce_floats(op, self.ranks, values), &mut out);
            } else {
                let scale = |rank| if multiplies(op) { factor(rank).into() } else { 1 };
                let values =
                    (0..self.ranks).map(|rank| self.integer(Some(op), rank, index).wrapping_mul(scale(rank)));
                encode::integer(self.dtype, reduce_integers(self.dtype, op, self.ranks, values), &mut out);
            }
        }
        out
    }

    fn integer(&self, op: Option<ReduceOp>, rank: u32, index: u64) -> u64 {
        let bits = self.random(rank, index);
        match op {
            // Even factors would soon leave nothing but zeros.
            Some(ReduceOp::Prod) => bits | 1,
            Some(ReduceOp::Band) => !self.sparse(rank, index),
            Some(ReduceOp::Bor) => self.sparse(rank, index),
            _ => bits,
        }
    }

    /// Bits each of which one rank has, more or less.
    fn sparse(&self, rank: u32, index: u64) -> u64 {
        let words = (0..=u64::from(self.ranks.ilog2())).map(|word| self.random(rank, index | word << 32));
        words.fold(u64::MAX, |bits, word| bits & word)
    }

    fn float(&self, op: ReduceOp, rank: u32, index: u64) -> f64 {
        let common = self.random(u32::MAX, index);
        let scale = (2u64 << (common >> 62)) as f64;
        let chosen = (common % u64::from(self.ranks)) as u32 == rank;
        let own = self.random(rank, index);
        let sign = if own >> 63 == 1 { -1.0 } else { 1.0 };
        match op {
            ReduceOp::Avg if !exact_mean(self.ranks) => {
                if chosen {
                    sign * scale
                } else {
                    0.0
                }
            }
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
                let total = whole_numbers(self.dtype) / if multiplies(op) { 2 } else { 1 };
                self.share(common, own, rank, total) as f64 * scale
            }
            ReduceOp::Prod => {
                let power = 2f64.powi(self.share(common, own, rank, 4) as i32);
                let mantissa = if chosen { 1.0 + ((own >> 40) % 4) as f64 / 4.0 } else { 1.0 };
                sign * power * mantissa
            }
            ReduceOp::Min | ReduceOp::Max => {
                let limit = whole_numbers(self.dtype) as i64;
                ((own >> 8) % (2 * limit as u64 + 1)) as i64 as f64 - limit as f64
            }
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => no_bits(op),
        }
    }

    /// This rank's part of a sum whose parts come to at most `total` in absolute value.
    fn share(&self, common: u64, own: u64, rank: u32, total: u64) -> i64 {
        let ranks = u64::from(self.ranks);
        let each = total / ranks;
        if each > 0 {
            return ((own >> 8) % (2 * each + 1)) as i64 - each as i64;
        }
        // More ranks than units: every `stride`-th rank has one.
        let stride = ranks.div_ceil(total);
        match (u64::from(rank) + (common >> 8)) % stride {
            0 if own & 1 == 1 => 1,
            0 => -1,
            _ => 0,
        }
    }

    /// SplitMix64's finaliser over all that a value depends on.
    fn random(&self, rank: u32, index: u64) -> u64 {
        let mut x = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (u64::from(rank) << 40).wrapping_add(index).wrapping_mul(0xd134_2543_de82_ef95);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// Whether contributions are multiplied by their ranks' factors.
fn multiplies(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::PreMulSum(_))
}

/// The library refuses such a call before there is data for it.
fn no_bits(op: ReduceOp) -> f64 {
    unreachable!("{op} of floats")
}

/// The largest number up to which the float type holds every whole number, or less.
fn whole_numbers(dtype: DataType) -> u64 {
    match dtype {
        DataType::F8E5M2 => 8,
        DataType::F8E4M3 => 16,
        DataType::BF16 => 256,
        DataType::F16 => 2048,
        DataType::F32 => 1 << 24,
        _ => 1 << 50,
    }
}

/// Whether scaling by 1/n loses nothing: a power of two, and not below what eight bits can hold.
fn exact_mean(ranks: u32) -> bool {
    ranks.is_power_of_two() && ranks <= 1024
}

fn reduce_floats(op: ReduceOp, ranks: u32, values: impl Iterator<Item = f64>) -> f64 {
    match op {
        ReduceOp::Sum | ReduceOp::PreMulSum(_) => values.sum(),
        ReduceOp::Prod => values.product(),
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Avg => values.sum::<f64>() / f64::from(ranks),
        ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => no_bits(op),
    }
}

fn reduce_integers(dtype: DataType, op: ReduceOp, ranks: u32, values: impl Iterator<Item = u64>) -> u64 {
    match op {
        ReduceOp::Sum | ReduceOp::PreMulSum(_) => values.fold(0, u64::wrapping_add),
        ReduceOp::Prod => values.fold(1, u64::wrapping_mul),
        ReduceOp::Max => values.max_by_key(|&v| encode::meaning(dtype, v)).unwrap_or(0),
        ReduceOp::Min => values.min_by_key(|&v| encode::meaning(dtype, v)).unwrap_or(0),
        ReduceOp::Avg => {
            let sum = values.fold(0, u64::wrapping_add);
            (encode::meaning(dtype, sum) / i128::from(ranks)) as u64
        }
        ReduceOp::Band => values.fold(u64::MAX, std::ops::BitAnd::bitand),
        ReduceOp::Bor => values.fold(0, std::ops::BitOr::bitor),
        ReduceOp::Bxor => values.fold(0, std::ops::BitXor::bitxor),
    }
}

/// Fills `buffer`, which starts `first` bytes into data that repeats `period`.
pub(crate) fn fill(buffer: &mut [u8], period: &[u8], first: usize) {
    for_each_run(buffer.len(), period.len(), first, |at, from, len| {
        buffer[at..at + len].copy_from_slice(&period[from..from + len]);
    });
}

/// Counts elements of `buffer` that differ from data as [`fill`] would have written it.
pub(crate) fn count_wrong(buffer: &[u8], period: &[u8], first: usize, element: usize) -> u64 {
    let mut wrong = 0;
    for_each_run(buffer.len(), period.len(), first, |at, from, len| {
        let (got, want) = (&buffer[at..at + len], &period[from..from + len]);
        if got != want {
            let pairs = got.chunks_exact(element).zip(want.chunks_exact(element));
            wrong += pairs.filter(|(g, w)| g != w).count() as u64;
        }
    });
    wrong
}

/// Cuts `len` bytes, the first of which is byte `first` of repeating data, where the data repeats.
fn for_each_run(len: usize, period: usize, first: usize, mut run: impl FnMut(usize, usize, usize)) {
    let mut at = 0;
    while at < len {
        let from = (first + at) % period;
        let part = (period - from).min(len - at);
        run(at, from, part);
        at += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Operator;

    const RANKS: [u32; 14] = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 64, 100, 257];

    /// The operators of a type, as rank 0 gives them.
    fn fitting(dtype: DataType) -> impl Iterator<Item = ReduceOp> {
        Operator::all().filter_map(move |op| op.on(dtype, 0).ok())
    }

    /// What an honest implementation does: rounds to the type wherever it stores.
    fn rounded(dtype: DataType, value: f64) -> f64 {
        let mut bytes = Vec::new();
        encode::float(dtype, value, &mut bytes);
        decode(dtype, &bytes)
    }

    fn decode(dtype: DataType, bytes: &[u8]) -> f64 {
        let small = |bits: u32, exponent: u32, mantissa: u32| {
            let bias = (1 << (exponent - 1)) - 1;
            let e = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
            let m = f64::from(bits & ((1 << mantissa) - 1)) / f64::from(1u32 << mantissa);
            let size = if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e - bias) };
            if bits >> (exponent + mantissa) & 1 == 1 { -size } else { size }
        };
        let word = || u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        match dtype {
            DataType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            DataType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
            DataType::F16 => small(word(), 5, 10),
            DataType::BF16 => small(word(), 8, 7),
            DataType::F8E4M3 => small(bytes[0].into(), 4, 3),
            DataType::F8E5M2 => small(bytes[0].into(), 5, 2),
            other => panic!("{other} is no float"),
        }
    }

    fn combine(dtype: DataType, op: ReduceOp, a: f64, b: f64) -> f64 {
        let exact = match op {
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            _ => a + b,
        };
        rounded(dtype, exact)
    }

    /// A chain up, a chain down, a balanced tree: with rounding after every step.
    fn in_three_orders(dtype: DataType, op: ReduceOp, values: &[f64]) -> [f64; 3] {
        let fold = |a: f64, b: f64| combine(dtype, op, a, b);
        let up = values.iter().copied().reduce(fold).unwrap();
        let down = values.iter().rev().copied().reduce(fold).unwrap();
        let mut tree = values.to_vec();
        while tree.len() > 1 {
            tree = tree.chunks(2).map(|pair| pair.iter().copied().reduce(fold).unwrap()).collect();
        }
        [up, down, tree[0]]
    }

    #[test]
    fn floats_come_out_exactly_in_any_order() {
        let floats = DataType::ALL.into_iter().filter(|d| d.is_float());
        for (dtype, op, ranks) in
            floats.flat_map(|d| fitting(d).map(move |o| (d, o))).flat_map(|(d, o)| RANKS.map(|n| (d, o, n)))
        {
            let inputs = Inputs::new(dtype, Some(op), ranks, 11, 200);
            let sent: Vec<_> = (0..ranks).map(|rank| inputs.of(rank)).collect();
            let expected = inputs.reduced(op);
            for (index, want) in expected.chunks_exact(dtype.size()).enumerate() {
                let at = index * dtype.size()..(index + 1) * dtype.size();
                let mut values: Vec<_> = sent.iter().map(|bytes| decode(dtype, &bytes[at.clone()])).collect();
                if op == ReduceOp::Avg {
                    let reciprocal = 1.0 / ranks as f32;
                    for value in &mut values {
                        *value = match dtype {
                            DataType::F64 => *value * (1.0 / f64::from(ranks)),
                            _ => rounded(dtype, f64::from(*value as f32 * reciprocal)),
                        };
                    }
                }
                if multiplies(op) {
                    for (rank, value) in values.iter_mut().enumerate() {
                        *value *= if rank % 2 == 0 { 1.0 } else { 2.0 };
                    }
                }
                for got in in_three_orders(dtype, op, &values) {
                    let mut bytes = Vec::new();
                    encode::float(dtype, got, &mut bytes);
                    assert_eq!(bytes, want, "{dtype} {op} of {ranks} at {index}: {values:?} gave {got}");
                }
            }
        }
    }

    #[test]
    fn integers_agree_with_wide_arithmetic() {
        for dtype in DataType::ALL.into_iter().filter(|d| !d.is_float()) {
            let width = 8 * dtype.size();
            for op in fitting(dtype) {
                let inputs = Inputs::new(dtype, Some(op), 5, 3, 100);
                let sent: Vec<_> = (0..5).map(|rank| inputs.of(rank)).collect();
                let element = |bytes: &[u8], index: usize| {
                    let mut wide = [0; 8];
                    wide[..dtype.size()].copy_from_slice(&bytes[index * dtype.size()..][..dtype.size()]);
                    encode::meaning(dtype, u64::from_le_bytes(wide))
                };
                let expected = inputs.reduced(op);
                for index in 0..100 {
                    let values = sent.iter().map(|bytes| element(bytes, index));
                    let wrap = |v: i128| encode::meaning(dtype, (v & ((1 << width) - 1)) as u64);
                    let want = match op {
                        ReduceOp::Sum => values.fold(0, |a, b| wrap(a + b)),
                        ReduceOp::Prod => values.fold(1, |a: i128, b| wrap(a.wrapping_mul(b))),
                        ReduceOp::Min => values.min().unwrap(),
                        ReduceOp::Max => values.max().unwrap(),
                        ReduceOp::Avg => values.fold(0, |a, b| wrap(a + b)) / 5,
                        ReduceOp::PreMulSum(_) => {
                            values.zip([1, 2, 1, 2, 1]).fold(0, |sum, (v, factor)| wrap(sum + v * factor))
                        }
                        ReduceOp::Band => values.reduce(|a, b| a & b).unwrap(),
                        ReduceOp::Bor => values.reduce(|a, b| a | b).unwrap(),
                        ReduceOp::Bxor => values.reduce(|a, b| a ^ b).unwrap(),
                    };
                    assert_eq!(element(&expected, index), want, "{dtype} {op} at {index}");
                }
            }
        }
    }

    /// If one rank's bits were left out, or taken twice for an exclusive or, it would show.
    #[test]
    fn every_rank_shows_in_bitwise_results() {
        for (op, ranks) in
            [ReduceOp::Band, ReduceOp::Bor, ReduceOp::Bxor].into_iter().flat_map(|op| RANKS.map(|n| (op, n)))
        {
            let inputs = Inputs::new(DataType::U8, Some(op), ranks, 1, 2000);
            let sent: Vec<_> = (0..ranks).map(|rank| inputs.of(rank)).collect();
            let without = |left_out: usize, at: usize| {
                let others = sent.iter().enumerate().filter(|(rank, _)| *rank != left_out);
                let values = others.map(|(_, bytes)| u64::from(bytes[at]));
                reduce_integers(DataType::U8, op, ranks, values) as u8
            };
            let result = inputs.reduced(op);
            for rank in 0..ranks as usize {
                assert!((0..2000).any(|at| without(rank, at) != result[at]), "{op} of {ranks}: rank {rank}");
            }
        }
    }

    #[test]
    fn ranks_positions_and_seeds_differ() {
        for dtype in DataType::ALL {
            let make = |seed| Inputs::new(dtype, Some(ReduceOp::Sum), 4, seed, 512);
            let (one, other) = (make(1), make(2));
            assert_ne!(one.of(0), one.of(1), "{dtype}: ranks");
            assert_ne!(one.reduced(ReduceOp::Sum), other.reduced(ReduceOp::Sum), "{dtype}: seeds");
            let result = one.reduced(ReduceOp::Sum);
            let half = result.len() / 2;
            assert_ne!(result[..half], result[half..], "{dtype}: positions");
        }
    }

    #[test]
    fn filling_and_counting_agree_and_see_every_wrong_element() {
        let period = Inputs::new(DataType::I32, None, 2, 5, 101).of(1);
        let mut buffer = vec![0; 4 * 1000];
        fill(&mut buffer, &period, 4 * 77);
        assert_eq!(buffer[..4], period[4 * 77..4 * 78]);
        assert_eq!(count_wrong(&buffer, &period, 4 * 77, 4), 0);
        for index in [0, 23, 24, 999] {
            buffer[4 * index + 1] ^= 1;
        }
        assert_eq!(count_wrong(&buffer, &period, 4 * 77, 4), 4);
        assert!(count_wrong(&buffer, &period, 0, 4) > 900, "data of another place is wrong");
        fill(&mut [], &[], 0);
    }
}
