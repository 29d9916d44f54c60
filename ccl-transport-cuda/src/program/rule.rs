//! How a call's contributions are combined, and by which kernel.

use super::layout::pair;
use ccl_core::Factor;
use ccl_core::{DataType, ReduceOp, Result};

/// A type of elements with the operators that share its kernel: each is a module of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Sums and products of integers of this many bytes.
    Integer(u8),
    /// Sums and products of a type of floats.
    Float(DataType),
    /// The least and the largest of any type of this many bytes.
    Order(u8),
    /// Bits of any type. What only moves data uses it too.
    Bits,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 15] = [
        Family::Integer(1),
        Family::Integer(2),
        Family::Integer(4),
        Family::Integer(8),
        Family::Float(DataType::F16),
        Family::Float(DataType::F32),
        Family::Float(DataType::F64),
        Family::Float(DataType::BF16),
        Family::Float(DataType::F8E4M3),
        Family::Float(DataType::F8E5M2),
        Family::Order(1),
        Family::Order(2),
        Family::Order(4),
        Family::Order(8),
        Family::Bits,
    ];

    /// What combines this type with this operator.
    pub fn of(dtype: DataType, op: ReduceOp) -> Family {
        match op {
            ReduceOp::Min | ReduceOp::Max => Family::Order(dtype.size() as u8),
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => Family::Bits,
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg | ReduceOp::PreMulSum(_) if dtype.is_float() => {
                Family::Float(dtype)
            }
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
                Family::Integer(dtype.size() as u8)
            }
        }
    }

    /// Its name in the names of modules, `interpret-bf16.ptx`, and, in capitals, in the kernels.
    pub fn name(self) -> &'static str {
        match self {
            Family::Integer(1) => "i8",
            Family::Integer(2) => "i16",
            Family::Integer(4) => "i32",
            Family::Integer(_) => "i64",
            Family::Float(DataType::F16) => "f16",
            Family::Float(DataType::BF16) => "bf16",
            Family::Float(DataType::F32) => "f32",
            Family::Float(DataType::F8E4M3) => "e4m3",
            Family::Float(DataType::F8E5M2) => "e5m2",
            Family::Float(_) => "f64",
            Family::Order(1) => "order8",
            Family::Order(2) => "order16",
            Family::Order(4) => "order32",
            Family::Order(_) => "order64",
            Family::Bits => "bits",
        }
    }
}

/// How the contributions of a call are combined: what the kernel of its [`Family`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    family: Family,
    op: u32,
    factor: Option<u64>,
    turn: u64,
    shift: u64,
    flip: u64,
    finish: Option<(u32, u32)>,
}

impl Rule {
    /// The rule for a call among so many ranks. Refuses an operator that does not fit the type.
    pub fn new(dtype: DataType, op: ReduceOp, ranks: u32) -> Result<Rule> {
        op.check(dtype)?;
        let mean = op == ReduceOp::Avg && ranks > 1;
        let factor = match op {
            ReduceOp::PreMulSum(factor) => Some(factor.bits()),
            _ if mean && dtype.is_float() => Some(Factor::float(dtype, 1.0 / f64::from(ranks))?.bits()),
            _ => None,
        };
        let size = dtype.size() as u32;
        let finish = (mean && !dtype.is_float()).then_some((ranks, size + 16 * u32::from(is_signed(dtype))));
        let family = Family::of(dtype, op);
        let (turn, shift, flip) = match family {
            Family::Order(_) => order(dtype, op == ReduceOp::Max),
            _ => (0, 0, 0),
        };
        let op = match op {
            ReduceOp::Prod | ReduceOp::Bor => 1,
            ReduceOp::Bxor => 2,
            _ => 0,
        };
        Ok(Rule { family, op, factor, turn, shift, flip, finish })
    }

    /// The rule of a call that only moves data, of any type.
    pub fn copies() -> Rule {
        Rule { family: Family::Bits, op: 0, factor: None, turn: 0, shift: 0, flip: 0, finish: None }
    }

    /// Which kernel does it.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether contributions are multiplied where they are read.
    pub fn scales(&self) -> bool {
        self.factor.is_some()
    }

    /// What finished sums are divided by in a launch of its own behind the call's, and the kind of elements that this kernel is
    /// told: for means of integers.
    pub fn finish(&self) -> Option<(u32, u32)> {
        self.finish
    }

    /// What the kernel reads.
    pub fn words(&self) -> [u64; 5] {
        [
            pair(self.op, self.factor.is_some().into()),
            self.factor.unwrap_or(0),
            self.turn,
            self.shift,
            self.flip,
        ]
    }
}

fn is_signed(dtype: DataType) -> bool {
    matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64)
}

/// What turns codes into signed integers whose least is wanted: the bits in which negative codes are turned round, what is added
/// so that all NaN lie below the rest, and the bits that are flipped then.
fn order(dtype: DataType, largest: bool) -> (u64, u64, u64) {
    let bits = 8 * dtype.size() as u32;
    let (all, sign) = (u64::MAX >> (64 - bits), 1 << (bits - 1));
    // Codes of one sign that are NaN.
    let nans: u64 = match dtype {
        DataType::F16 => 0x3ff,
        DataType::BF16 => 0x7f,
        DataType::F32 => 0x7f_ffff,
        DataType::F64 => 0xf_ffff_ffff_ffff,
        DataType::F8E4M3 => 1,
        DataType::F8E5M2 => 3,
        _ => 0,
    };
    let unsigned = !dtype.is_float() && !is_signed(dtype);
    let turn = if dtype.is_float() { sign - 1 } else { 0 };
    let shift = if largest { nans.wrapping_neg() & all } else { nans };
    let flip = if unsigned { sign } else { 0 } ^ if largest { all } else { 0 };
    (turn, shift, flip)
}
