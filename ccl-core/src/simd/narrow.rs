//! Elements of 8 and 16 bits with fractions, which are combined as singles.

use super::number::Number;
use crate::element::format::{E4M3, E5M2, HALF, brain_to_single, single_to_brain};

macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident($code:ty), $widen:expr, $narrow:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(super) struct $name($code);

        impl Number for $name {
            type Value = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.0)
            }
            #[inline(always)]
            fn narrow(value: f32) -> $name {
                $name($narrow(value))
            }
        }
    };
}

narrow!(
    /// IEEE half precision.
    Half(u16), |code| HALF.decode(u32::from(code)), |value| HALF.encode(value) as u16
);
narrow!(
    /// bfloat16.
    Brain(u16), brain_to_single, single_to_brain
);
narrow!(
    /// OCP E4M3.
    E4m3(u8), |code| E4M3.decode(u32::from(code)), |value| E4M3.encode(value) as u8
);
narrow!(
    /// OCP E5M2.
    E5m2(u8), |code| E5M2.decode(u32::from(code)), |value| E5M2.encode(value) as u8
);

/// IEEE half precision on a CPU with F16C, whose conversions take many at a time. Only for kernels that are
/// compiled with F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct HalfF16c(Half);

#[cfg(target_arch = "x86_64")]
impl Number for HalfF16c {
    type Value = f32;
    const BLOCKS: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.0.widen()
    }
    #[inline(always)]
    fn narrow(value: f32) -> HalfF16c {
        HalfF16c(Half::narrow(value))
    }
    #[inline(always)]
    unsafe fn load<const W: usize>(from: *const HalfF16c) -> [f32; W] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut values = [0.0; W];
        if !W.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { from.cast::<[HalfF16c; W]>().read_unaligned() }.map(HalfF16c::widen);
        }
        for (i, eight) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: eight elements lie there, and the kernels that use this type are compiled with F16C.
            unsafe {
                let codes = _mm_loadu_si128(from.add(8 * i).cast());
                _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(codes));
            }
        }
        values
    }
    #[inline(always)]
    unsafe fn store<const W: usize>(into: *mut HalfF16c, values: &[f32; W]) {
        use std::arch::x86_64::{
            _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
        };
        if !W.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { into.cast::<[HalfF16c; W]>().write_unaligned(values.map(HalfF16c::narrow)) };
        }
        for (i, eight) in values.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(eight.as_ptr()));
                _mm_storeu_si128(into.add(8 * i).cast(), codes);
            }
        }
    }
}
