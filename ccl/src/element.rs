//! Types that buffers may hold.

use bytemuck::{Pod, Zeroable};
use ccl_core::DataType;

/// An element of a typed buffer.
///
/// Implemented for the integers of 8 to 64 bits, `f32`, `f64`, [`half::f16`], [`half::bf16`] and the two
/// 8-bit floats; there is nothing to implement elsewhere.
pub trait Element: Pod + sealed::Sealed {
    /// How the library calls it.
    const TYPE: DataType;
}

/// An 8-bit float with 4 exponent and 3 mantissa bits (OCP E4M3), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// An 8-bit float with 5 exponent and 2 mantissa bits (OCP E5M2), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty => $data_type:ident),* $(,)?) => {
        $(impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const TYPE: DataType = DataType::$data_type;
        })*
    };
}

elements! {
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f32 => F32,
    f64 => F64,
    half::f16 => F16,
    half::bf16 => BF16,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
}
