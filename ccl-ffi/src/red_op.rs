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
}

/// A `cclRedOp_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RedOpArg(i32);

impl RedOpArg {
    #[inline]
    pub(crate) fn parse(self) -> Result<ReduceOp> {
        let known = ReduceOp::ALL.get(self.0 as usize).copied();
        known.ok_or_else(|| Error::invalid(format!("operator {}", self.0), "use a cclRedOp_t"))
    }
}

const _: () = {
    let mut index = 0;
    while index < ReduceOp::ALL.len() {
        assert!(ReduceOp::ALL[index] as usize == index, "the C numbers are positions in ALL");
        index += 1;
    }
};
