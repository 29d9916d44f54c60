//! The types of elements.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The type of a buffer's elements. The discriminants are the C ABI's `cclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// bfloat16: the upper half of a single.
    BF16 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinity (OCP E4M3).
    F8E4M3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits (OCP E5M2).
    F8E5M2 = 11,
    /// Signed 16-bit integer (not in NCCL).
    I16 = 12,
    /// Unsigned 16-bit integer (not in NCCL).
    U16 = 13,
}

impl DataType {
    /// Every type, in the order of the C ABI.
    pub const ALL: [DataType; 14] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::BF16,
        DataType::F8E4M3,
        DataType::F8E5M2,
        DataType::I16,
        DataType::U16,
    ];

    /// Size of one element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::I16 | DataType::U16 | DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Whether the type has fractions; integers wrap on overflow, floats round.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16
                | DataType::F32
                | DataType::F64
                | DataType::BF16
                | DataType::F8E4M3
                | DataType::F8E5M2
        )
    }

    /// The name that nccl-tests prints and takes (`float`, `bfloat16`, …).
    pub const fn name(self) -> &'static str {
        match self {
            DataType::I8 => "int8",
            DataType::U8 => "uint8",
            DataType::I16 => "int16",
            DataType::U16 => "uint16",
            DataType::I32 => "int32",
            DataType::U32 => "uint32",
            DataType::I64 => "int64",
            DataType::U64 => "uint64",
            DataType::F16 => "half",
            DataType::F32 => "float",
            DataType::F64 => "double",
            DataType::BF16 => "bfloat16",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = DataType::ALL.into_iter().find(|d| d.name() == s);
        known.ok_or_else(|| {
            let names: Vec<_> = DataType::ALL.iter().map(|d| d.name()).collect();
            format!("unknown data type '{s}': one of {}", names.join(", "))
        })
    }
}
