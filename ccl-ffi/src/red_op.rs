//! `cclRedOp_t`.

use crate::comm::{cclComm_t, face};
use crate::data_type::DataTypeArg;
use crate::pointers::store;
use crate::result::{cclResult_t, guard};
use ccl::{Error, Factor, ReduceOp, Result};
use std::ffi::{c_int, c_void};

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
    /// How many there are always; no operator. Those that a communicator makes have larger numbers.
    cclNumOps = 8,
    /// No operator: the largest number that the type can hold.
    cclMaxRedOp = 0x7fff_ffff,
}

/// Where the scalar of `cclRedOpCreatePreMulSum` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum cclScalarResidence_t {
    /// In device memory: not supported.
    cclScalarDevice = 0,
    /// In host memory, and read before the function returns.
    cclScalarHostImmediate = 1,
}

/// A `cclRedOp_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RedOpArg(i32);

/// A `cclScalarResidence_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ScalarResidenceArg(i32);

/// The first number of an operator that a communicator has made.
const FIRST_MADE: usize = cclRedOp_t::cclNumOps as usize;

impl RedOpArg {
    /// The operator of this number: one that there is always, or one that `comm` has made.
    #[inline]
    pub(crate) fn parse(self, comm: cclComm_t) -> Result<ReduceOp> {
        let number = usize::try_from(self.0).ok();
        match number.and_then(|number| ReduceOp::ALL.get(number)) {
            Some(op) => Ok(*op),
            None => self.made(comm),
        }
    }

    #[cold]
    fn made(self, comm: cclComm_t) -> Result<ReduceOp> {
        let face = face(comm)?;
        let operators = face.operators.lock();
        let made = self.place().and_then(|place| operators.get(place)).copied().flatten();
        made.ok_or_else(|| self.unknown())
    }

    fn place(self) -> Option<usize> {
        usize::try_from(self.0).ok()?.checked_sub(FIRST_MADE)
    }

    #[cold]
    fn unknown(self) -> Error {
        Error::invalid(
            format!("operator {}", self.0),
            "use a cclRedOp_t, or one that cclRedOpCreatePreMulSum has made for this communicator",
        )
    }
}

/// Makes an operator of this communicator: the sum, where each rank's contribution is first multiplied by the rank's own
/// `scalar`, one element of `datatype`. It is for calls with that type. Free it with `cclRedOpDestroy`.
///
/// # Safety
/// `op` is NULL or writable; `scalar` is NULL or one element of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclRedOpCreatePreMulSum(
    op: *mut RedOpArg,
    scalar: *mut c_void,
    datatype: DataTypeArg,
    residence: ScalarResidenceArg,
    comm: cclComm_t,
) -> cclResult_t {
    guard(|| {
        let dtype = datatype.parse()?;
        match residence.0 {
            0 => return Err(Error::unsupported("a scalar in device memory", "give cclScalarHostImmediate")),
            1 => {}
            other => {
                return Err(Error::invalid(format!("residence {other}"), "give cclScalarHostImmediate"));
            }
        }
        if scalar.is_null() {
            return Err(Error::invalid("scalar is NULL", "give the address of one element"));
        }
        let face = face(comm)?;
        face.usable()?;
        // SAFETY: not NULL, and one element by the function's contract.
        let bytes = unsafe { std::slice::from_raw_parts(scalar.cast::<u8>(), dtype.size()) };
        let made = ReduceOp::PreMulSum(Factor::from_bytes(dtype, bytes)?);
        let mut operators = face.operators.lock();
        let place = operators.iter().position(Option::is_none).unwrap_or(operators.len());
        let number = c_int::try_from(FIRST_MADE + place)
            .map_err(|_| Error::unsupported("that many operators", "destroy those that are not used"))?;
        // SAFETY: the function's contract.
        unsafe { store(op, RedOpArg(number), "op")? };
        if place == operators.len() {
            operators.push(None);
        }
        operators[place] = Some(made);
        Ok(())
    })
}

/// Frees an operator that `cclRedOpCreatePreMulSum` has made. Calls that were issued with it are not touched.
#[unsafe(no_mangle)]
pub extern "C" fn cclRedOpDestroy(op: RedOpArg, comm: cclComm_t) -> cclResult_t {
    guard(|| {
        let face = face(comm)?;
        let mut operators = face.operators.lock();
        let made = op.place().and_then(|place| operators.get_mut(place)).and_then(Option::take);
        made.map(drop).ok_or_else(|| op.unknown())
    })
}

const _: () = {
    let mut index = 0;
    while index < ReduceOp::ALL.len() {
        assert!(ReduceOp::ALL[index].code() as usize == index, "the C numbers are positions in ALL");
        index += 1;
    }
    assert!(index == cclRedOp_t::cclNumOps as usize, "every operator has a C number");
};
