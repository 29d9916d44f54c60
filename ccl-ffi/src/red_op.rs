//! `cclRedOp_t`.

use ccl::{Error, ReduceOp, Result};

/// Operators of reductions. The numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum cclRedOp_t {
    /// Sum.
    cclSum = 0,
    /// Product.
    cclProd = 1,
    /// Maximum.
    cclMax = 2,
    /// Minimum.
    cclMin = 3,
    /// Mean.
    cclAvg = 4,
    /// Bitwise and, of integers (not in NCCL).
    cclBand = 5,
    /// Bitwise or, of integers (not in NCCL).
    cclBor = 6,
    /// Bitwise exclusive or, of integers (not in NCCL).
    cclBxor = 7,
    /// How many there are; no operator.
    cclNumOps = 8,
}

/// A `cclRedOp_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RedOpArg(i32);

impl RedOpArg {
    #[inline]
    pub(crate) fn parse(self) -> Result<ReduceOp> {
        let known = usize::try_from(self.0).ok().and_then(|code| ReduceOp::ALL.get(code).copied());
        known.ok_or_else(|| Error::invalid(format!("operator {}", self.0), "use a cclRedOp_t"))
    }
}

const _: () = {
    let mut index = 0;
    while index < ReduceOp::ALL.len() {
        assert!(ReduceOp::ALL[index].code() as usize == index, "the C numbers are positions in ALL");
        index += 1;
    }
    assert!(index == cclRedOp_t::cclNumOps as usize, "every operator has a C number");
};
