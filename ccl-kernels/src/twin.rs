//! Every kernel against plain arithmetic, and against the scalar twin, bit for bit.

use super::element::reference;
use super::{DataType, Direction, Factor, Level, Merge, Piece, PieceMut, ReduceOp, Reducer, Source};

/// Random bits that are the same in every run: SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Bytes that make elements of all kinds: any bits, small numbers, zeros of both signs, subnormal numbers,
/// infinities and NaN.
fn element(dtype: DataType, random: &mut Random) -> Vec<u8> {
    let bits = random.bits();
    let size = dtype.size();
    let special = [0u64, 1, 2, 3, 0x80, 0x8000, 0x8000_0000, 1 << 63, u64::MAX, u64::MAX >> 1];
    let value = match bits >> 60 {
        0 => special[random.bits() as usize % special.len()],
        1 => special[bits as usize % special.len()] << (64 - 8 * size),
        2 => {
            [0x7c00, 0xfc00, 0x7f80, 0xff80, 0x7e00, 0x7fc0][bits as usize % 6]
                << (8 * size).saturating_sub(16)
        }
        3 => u64::from((bits as u32 as f32 / 1e6).to_bits()) >> 32u32.saturating_sub(8 * size as u32),
        _ => bits,
    };
    value.to_le_bytes()[..size].to_vec()
}

/// Makes all NaN equal: their sign and payload are not specified.
fn canonical(dtype: DataType, bytes: &[u8]) -> Vec<u8> {
    let each = bytes.chunks(dtype.size()).map(|e| {
        let bits = e.iter().rev().fold(0u64, |bits, b| bits << 8 | u64::from(*b));
        let top = match dtype {
            DataType::F16 => 0x7c00,
            DataType::BF16 => 0x7f80,
            DataType::F32 => 0x7f80_0000,
            DataType::F64 => 0x7ff0_0000_0000_0000,
            DataType::F8E5M2 => 0x7c,
            DataType::F8E4M3 => 0x7e,
            _ => return bits,
        };
        let magnitude = bits & (u64::MAX >> (65 - 8 * dtype.size()));
        if magnitude > top { top + 1 } else { bits }
    });
    each.flat_map(u64::to_le_bytes).collect()
}

/// A call of a kernel, with the memory of its sources and sinks.
#[derive(Clone)]
struct Case {
    sources: Vec<Vec<u8>>,
    scaled: Vec<bool>,
    sinks: Vec<Vec<u8>>,
    /// The source that is the first sink too.
    in_place: Option<usize>,
    /// Bytes before each piece: no alignment is promised.
    skew: usize,
    bytes: usize,
}

impl Case {
    fn draw(dtype: DataType, random: &mut Random, sources: usize, sinks: usize, elements: usize) -> Case {
        let skew = random.bits() as usize % 5;
        let piece = |random: &mut Random| {
            let elements = (0..elements).flat_map(|_| element(dtype, random));
            [vec![0; skew], elements.collect(), vec![0xa5; 8]].concat()
        };
        Case {
            sources: (0..sources).map(|_| piece(random)).collect(),
            scaled: (0..sources).map(|_| random.bits().is_multiple_of(2)).collect(),
            sinks: vec![vec![0xa5; skew + elements * dtype.size() + 8]; sinks],
            in_place: random.bits().is_multiple_of(2).then(|| random.bits() as usize % sources),
            skew,
            bytes: elements * dtype.size(),
        }
    }

    /// What the sinks hold afterwards, with what lies around them.
    fn run(self, reducer: &Reducer) -> Vec<Vec<u8>> {
        self.run_with(reducer, |reducer, from, into| reducer.apply(from, into, Direction::Forwards))
    }

    fn run_with(
        mut self,
        reducer: &Reducer,
        apply: impl Fn(&Reducer, &[Source], &[PieceMut]),
    ) -> Vec<Vec<u8>> {
        // SAFETY: vectors of this case, each as long as its piece with what lies around it, and apart.
        unsafe {
            let at = |v: &mut Vec<u8>| PieceMut::new(v.as_mut_ptr().add(self.skew), self.bytes);
            let from: Vec<_> = self.sources.iter_mut().map(at).collect();
            let mut into: Vec<_> = self.sinks.iter_mut().map(at).collect();
            if let Some(same) = self.in_place {
                into[0] = from[same];
            }
            let from = from.iter().map(PieceMut::as_piece).zip(&self.scaled);
            let from: Vec<_> = from.map(|(piece, scaled)| Source { piece, scaled: *scaled }).collect();
            apply(reducer, &from, &into);
            into.iter().for_each(|sink| reducer.finish(*sink));
        }
        if let Some(same) = self.in_place {
            self.sinks[0] = self.sources.swap_remove(same);
        }
        for sink in &self.sinks {
            assert!(sink[self.skew + self.bytes..].iter().all(|b| *b == 0xa5), "wrote past the end");
        }
        self.sinks.into_iter().map(|s| s[self.skew..self.skew + self.bytes].to_vec()).collect()
    }
}

/// How many ranks a mean is over.
const RANKS: u8 = 3;

/// An operator, with its factor as an element.
struct Operator {
    op: ReduceOp,
    factor: Vec<u8>,
}

/// All that fit the type; factors of all kinds.
fn operators(dtype: DataType, random: &mut Random) -> Vec<Operator> {
    let plain = ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok());
    let mut all: Vec<_> = plain.map(|op| Operator { op, factor: Vec::new() }).collect();
    for _ in 0..4 {
        let factor = element(dtype, random);
        let op = ReduceOp::PreMulSum(Factor::from_bytes(dtype, &factor).expect("one element"));
        all.push(Operator { op, factor });
    }
    all
}

/// What one element of the finished output must be, by the rules of `docs/arithmetic.md`.
fn by_the_rules(dtype: DataType, operator: &Operator, sources: &[&[u8]], scaled: &[bool]) -> Vec<u8> {
    let multiplies = matches!(operator.op, ReduceOp::PreMulSum(_));
    if !dtype.is_float() {
        let values = sources.iter().zip(scaled).map(|(bytes, scaled)| {
            let factor = if *scaled && multiplies { integer(dtype, &operator.factor) } else { 1 };
            integer(dtype, bytes).wrapping_mul(factor)
        });
        return combine_integers(dtype, operator.op, values);
    }
    let factor = match operator.op {
        ReduceOp::Avg if dtype == DataType::F64 => Some(1.0 / f64::from(RANKS)),
        ReduceOp::Avg => Some(f64::from(1.0 / f32::from(RANKS))),
        _ => multiplies.then(|| reference::decode(dtype, &operator.factor)),
    };
    if sources.len() == 1 && !(scaled[0] && factor.is_some()) {
        return sources[0].to_vec();
    }
    // Double precision is enough that rounding its results to single is the same as rounding once.
    let round = |x: f64| if dtype == DataType::F64 { x } else { f64::from(x as f32) };
    let values = sources.iter().zip(scaled).map(|(bytes, scaled)| {
        let value = reference::decode(dtype, bytes);
        factor.filter(|_| *scaled).map_or(value, |factor| round(value * factor))
    });
    let combined = values.reduce(|a, b| match operator.op {
        ReduceOp::Prod => round(a * b),
        ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min => std::cmp::min_by(a, b, f64::total_cmp),
        ReduceOp::Max => std::cmp::max_by(a, b, f64::total_cmp),
        _ => round(a + b),
    });
    reference::encode(dtype, combined.expect("a source"))
}

fn integer(dtype: DataType, bytes: &[u8]) -> i128 {
    let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | i128::from(*byte));
    let signed = [DataType::I8, DataType::I16, DataType::I32, DataType::I64].contains(&dtype);
    let width = 8 * bytes.len();
    if signed && bits >> (width - 1) == 1 { bits - (1 << width) } else { bits }
}

fn combine_integers(dtype: DataType, op: ReduceOp, values: impl Iterator<Item = i128>) -> Vec<u8> {
    let wrapped = |value: i128| value.to_le_bytes()[..dtype.size()].to_vec();
    let combined = values.reduce(|a, b| match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => a.wrapping_add(b),
        ReduceOp::Prod => integer(dtype, &wrapped(a.wrapping_mul(b))),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Band => a & b,
        ReduceOp::Bor => a | b,
        ReduceOp::Bxor => a ^ b,
    });
    let combined = wrapped(combined.expect("a source"));
    match op {
        ReduceOp::Avg => wrapped(integer(dtype, &combined) / i128::from(RANKS)),
        _ => combined,
    }
}

#[test]
fn every_level_does_what_is_written() {
    let mut random = Random(5);
    for dtype in DataType::ALL {
        for operator in operators(dtype, &mut random) {
            for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
                let reducer = Reducer::at(level, dtype, operator.op, RANKS.into()).expect("valid");
                for sources in 1..=5 {
                    for elements in [1, 2, 3, 17, 31, 70, 129, 257] {
                        let case = Case::draw(dtype, &mut random, sources, 1, elements);
                        let ours = case.clone().run(&reducer).swap_remove(0);
                        for at in (0..case.bytes).step_by(dtype.size()) {
                            let sources: Vec<_> =
                                case.sources.iter().map(|s| &s[case.skew + at..][..dtype.size()]).collect();
                            let right = by_the_rules(dtype, &operator, &sources, &case.scaled);
                            assert_eq!(
                                canonical(dtype, &ours[at..][..dtype.size()]),
                                canonical(dtype, &right),
                                "{level} {dtype} {:?}: {sources:02x?} scaled {:?}",
                                operator.op,
                                case.scaled
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_level_gives_the_bits_of_the_scalar_twin() {
    let mut random = Random(7);
    let levels = Level::ALL.into_iter().filter(|l| l.is_available() && *l != Level::Scalar);
    for level in levels {
        for dtype in DataType::ALL {
            for Operator { op, .. } in operators(dtype, &mut random) {
                let twin = Reducer::at(Level::Scalar, dtype, op, RANKS.into()).expect("valid");
                let fast = Reducer::at(level, dtype, op, RANKS.into()).expect("available");
                for sources in 1..=9 {
                    for round in 0..12 {
                        let elements = if round < 4 { round } else { random.bits() as usize % 300 };
                        let case = Case::draw(dtype, &mut random, sources, 1 + round % 3, elements);
                        let (ours, right) = (case.clone().run(&fast), case.run(&twin));
                        for (ours, right) in ours.iter().zip(&right) {
                            assert_eq!(
                                canonical(dtype, ours),
                                canonical(dtype, right),
                                "{level} {dtype} {op}: {sources} sources, {elements} elements"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_pair_gives_the_bits_of_any_two_sources() {
    let mut random = Random(11);
    let own_first = |reducer: &Reducer, from: &[Source], into: &[PieceMut]| {
        Merge::combine(reducer, from[0], true, Direction::Forwards, into[0]).apply(from[1].piece);
    };
    let own_second = |reducer: &Reducer, from: &[Source], into: &[PieceMut]| {
        Merge::combine(reducer, from[1], false, Direction::Backwards, into[0]).apply(from[0].piece);
    };
    for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
        for dtype in DataType::ALL {
            for Operator { op, .. } in operators(dtype, &mut random) {
                let reducer = Reducer::at(level, dtype, op, RANKS.into()).expect("valid");
                for bytes in [0, 8, 16, 24, 56, 64, 72, 136, 248, 1000, 8184, 8200] {
                    let mut case = Case::draw(dtype, &mut random, 2, 1, bytes / dtype.size());
                    // What comes in was scaled by its owner.
                    case.scaled[1] = false;
                    let (ours, right) =
                        (case.clone().run_with(&reducer, own_first), case.clone().run(&reducer));
                    let what = format!("{level} {dtype} {op}: {bytes} bytes");
                    assert_eq!(canonical(dtype, &ours[0]), canonical(dtype, &right[0]), "{what}");
                    case.scaled.swap(0, 1);
                    let (ours, right) = (case.clone().run_with(&reducer, own_second), case.run(&reducer));
                    assert_eq!(canonical(dtype, &ours[0]), canonical(dtype, &right[0]), "{what}, own second");
                }
            }
        }
    }
}

/// Examples to read.
#[test]
fn examples_of_the_rules() {
    let apply = |dtype, op, ranks, sources: &[&[u8]]| {
        let reducer = Reducer::at(Level::Scalar, dtype, op, ranks).expect("valid");
        let mut result = vec![0; sources[0].len()];
        // SAFETY: slices and a vector of this test.
        unsafe {
            let from =
                sources.iter().map(|s| Source { piece: Piece::new(s.as_ptr(), s.len()), scaled: true });
            let into = PieceMut::new(result.as_mut_ptr(), result.len());
            reducer.apply(&from.collect::<Vec<_>>(), &[into], Direction::Forwards);
            reducer.finish(into);
        }
        result
    };
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    // In single precision 2048 + 1 + 1 = 2050, which a half holds; rounded after each addition it were 2048.
    let sum = apply(DataType::F16, ReduceOp::Sum, 3, &[&half(2048.0), &half(1.0), &half(1.0)]);
    assert_eq!(sum, half(2050.0));
    let mean = apply(DataType::F32, ReduceOp::Avg, 4, &[&8f32.to_le_bytes(), &4f32.to_le_bytes()]);
    assert_eq!(mean, 3f32.to_le_bytes());
    let mean = apply(DataType::F32, ReduceOp::Avg, 4, &[&8f32.to_le_bytes()]);
    assert_eq!(mean, 2f32.to_le_bytes(), "one source is scaled too");
    let mean = apply(DataType::I8, ReduceOp::Avg, 3, &[&[-7i8 as u8], &[0], &[0]]);
    assert_eq!(mean, [-2i8 as u8], "integer means round towards zero");
    let wrapped = apply(DataType::I8, ReduceOp::Sum, 2, &[&[127], &[1]]);
    assert_eq!(wrapped, [128]);
    let signs = apply(DataType::I16, ReduceOp::Min, 2, &[&(-1i16).to_le_bytes(), &1i16.to_le_bytes()]);
    assert_eq!(signs, (-1i16).to_le_bytes());
    let signs = apply(DataType::U16, ReduceOp::Min, 2, &[&u16::MAX.to_le_bytes(), &1u16.to_le_bytes()]);
    assert_eq!(signs, 1u16.to_le_bytes());
    for op in ReduceOp::ALL.into_iter().filter(|op| op.check(DataType::F64).is_ok()) {
        let nan = apply(DataType::F64, op, 2, &[&1f64.to_le_bytes(), &f64::NAN.to_le_bytes()]);
        assert!(f64::from_le_bytes(nan.try_into().expect("eight bytes")).is_nan(), "{op} lost a NaN");
    }
}
