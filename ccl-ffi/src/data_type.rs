//! `cclDataType_t`.

use ccl::{DataType, Error, Result};

/// Types of elements. The numbers are NCCL's, where it has the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum cclDataType_t {
    /// Signed 8-bit integer.
    cclInt8 = 0,
    /// Unsigned 8-bit integer.
    cclUint8 = 1,
    /// Signed 32-bit integer.
    cclInt32 = 2,
    /// Unsigned 32-bit integer.
    cclUint32 = 3,
    /// Signed 64-bit integer.
    cclInt64 = 4,
    /// Unsigned 64-bit integer.
    cclUint64 = 5,
    /// IEEE half precision.
    cclFloat16 = 6,
    /// IEEE single precision.
    cclFloat32 = 7,
    /// IEEE double precision.
    cclFloat64 = 8,
    /// bfloat16.
    cclBfloat16 = 9,
    /// 8-bit float E4M3.
    cclFloat8e4m3 = 10,
    /// 8-bit float E5M2.
    cclFloat8e5m2 = 11,
    /// Signed 16-bit integer (not in NCCL).
    cclInt16 = 12,
    /// Unsigned 16-bit integer (not in NCCL).
    cclUint16 = 13,
}

/// A `cclDataType_t` as C passes it: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct DataTypeArg(i32);

impl DataTypeArg {
    #[inline]
    pub(crate) fn parse(self) -> Result<DataType> {
        let known = DataType::ALL.get(self.0 as usize).copied();
        known.ok_or_else(|| Error::invalid(format!("data type {}", self.0), "use a cclDataType_t"))
    }
}

const _: () = {
    let mut index = 0;
    while index < DataType::ALL.len() {
        assert!(DataType::ALL[index] as usize == index, "the C numbers are positions in ALL");
        index += 1;
    }
};
