//! The operators of reductions.

use super::{DataType, Factor};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How contributions are combined. `docs/arithmetic.md` has the rules, which hold for every algorithm and
/// every instruction set. Its kind is a word of its own: two are compared by that, and a copy is one of whole words, not of
/// bytes between them, which waits for the stores of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum ReduceOp {
    /// The sum of all contributions.
    Sum,
    /// The product of all contributions.
    Prod,
    /// The largest contribution.
    Max,
    /// The smallest contribution.
    Min,
    /// The mean. Floats: each contribution is multiplied by 1/n where it is read, then summed.
    /// Integers: the wrapped sum divided by n, rounded towards zero.
    Avg,
    /// The bits that all contributions have. Integers only, as the next two.
    Band,
    /// The bits that any contribution has.
    Bor,
    /// The bits that an odd number of contributions has.
    Bxor,
    /// The sum of all contributions, each multiplied by its own rank's factor where it is read.
    PreMulSum(Factor),
}

impl ReduceOp {
    /// The operators without a parameter, in the order of their [codes](ReduceOp::code).
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Avg,
        ReduceOp::Band,
        ReduceOp::Bor,
        ReduceOp::Bxor,
    ];

    /// The number of the operator's kind: what ranks must agree on. Up to 7 it is the C ABI's `cclRedOp_t`.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Max => 2,
            ReduceOp::Min => 3,
            ReduceOp::Avg => 4,
            ReduceOp::Band => 5,
            ReduceOp::Bor => 6,
            ReduceOp::Bxor => 7,
            ReduceOp::PreMulSum(_) => 8,
        }
    }

    /// The name that nccl-tests prints and takes, or one in its manner.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Avg => "avg",
            ReduceOp::Band => "band",
            ReduceOp::Bor => "bor",
            ReduceOp::Bxor => "bxor",
            ReduceOp::PreMulSum(_) => "mulsum",
        }
    }

    /// Refuses an operator that elements of `dtype` cannot be combined with: a bitwise one of floats, or a
    /// factor that was made for another type.
    pub fn check(self, dtype: DataType) -> Result<()> {
        match self {
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor if dtype.is_float() => Err(Error::invalid(
                format!("operator {self} on type {dtype}"),
                "bitwise operators want an integer type; pass the bits as one of the same size",
            )),
            ReduceOp::PreMulSum(factor) if factor.dtype() != dtype => Err(Error::invalid(
                format!("operator {self} on type {dtype} with a factor of type {}", factor.dtype()),
                format!("make the factor for {dtype}"),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads the name of an operator without a parameter.
impl FromStr for ReduceOp {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        ReduceOp::ALL.into_iter().find(|op| op.name() == s).ok_or_else(|| {
            let names: Vec<_> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
            format!("unknown operator '{s}': one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions_and_names_parse() {
        for (position, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.code()), position);
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert!("mulsum".parse::<ReduceOp>().unwrap_err().contains("sum, prod"));
    }

    #[test]
    fn what_does_not_fit_the_type_is_refused_by_name() {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                let bitwise = [ReduceOp::Band, ReduceOp::Bor, ReduceOp::Bxor].contains(&op);
                assert_eq!(op.check(dtype).is_err(), bitwise && dtype.is_float(), "{op} {dtype}");
            }
        }
        let text = ReduceOp::Bxor.check(DataType::BF16).unwrap_err().to_string();
        assert!(text.contains("bxor on type bfloat16") && text.contains("an integer type"), "{text}");
        let op = ReduceOp::PreMulSum(Factor::integer(DataType::I8, 2).expect("an integer type"));
        assert!(op.check(DataType::I8).is_ok());
        let text = op.check(DataType::U8).unwrap_err().to_string();
        assert!(text.contains("mulsum on type uint8 with a factor of type int8"), "{text}");
    }
}
