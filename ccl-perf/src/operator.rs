//! What `-o` names: an operator of the library, or a sum with a factor for every rank.

use ccl::{DataType, Factor, ReduceOp, Result};
use std::str::FromStr;

/// An operator before it is known for which type and rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    /// One without a parameter.
    Plain(ReduceOp),
    /// The sum of what the ranks send, each times its [`factor`].
    MulSum,
}

/// What `rank` multiplies by: 1 or 2, as in nccl-tests.
pub(crate) fn factor(rank: u32) -> u8 {
    1 + (rank % 2) as u8
}

impl Operator {
    pub(crate) fn all() -> impl Iterator<Item = Operator> {
        ReduceOp::ALL.into_iter().map(Operator::Plain).chain([Operator::MulSum])
    }

    /// The operator for elements of `dtype` on `rank`.
    pub(crate) fn on(self, dtype: DataType, rank: u32) -> Result<ReduceOp> {
        let op = match self {
            Operator::Plain(op) => op,
            Operator::MulSum if dtype.is_float() => {
                ReduceOp::PreMulSum(Factor::float(dtype, factor(rank).into())?)
            }
            Operator::MulSum => ReduceOp::PreMulSum(Factor::integer(dtype, factor(rank).into())?),
        };
        op.check(dtype)?;
        Ok(op)
    }
}

impl FromStr for Operator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mulsum" => Ok(Operator::MulSum),
            _ => text.parse().map(Operator::Plain).map_err(|e| format!("{e}, mulsum")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_factor_and_what_does_not_fit_is_refused() {
        for dtype in DataType::ALL {
            let on = |rank| Operator::MulSum.on(dtype, rank).unwrap();
            assert_ne!(on(0), on(1));
            assert_eq!(on(0), on(2));
        }
        let bitwise = Operator::Plain(ReduceOp::Bor);
        assert!(bitwise.on(DataType::F16, 0).is_err() && bitwise.on(DataType::I16, 0).is_ok());
        assert_eq!("mulsum".parse(), Ok(Operator::MulSum));
        assert!("mean".parse::<Operator>().unwrap_err().ends_with("bxor, mulsum"));
    }
}
