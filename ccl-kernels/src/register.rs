//! The vector registers of x86-64, with the few instructions that conversions of narrow floats are made of.

use std::arch::x86_64::*;

/// A register of 32-bit words, each the bits of a single or an integer.
///
/// # Safety
/// Of every function: the code is compiled with the instructions of the register's level.
pub(crate) trait Register: Copy + 'static {
    /// As many halves as the register has words.
    type Halves: Copy + 'static;

    /// The `len` bytes at `from`, fewer than a register has, then zeros.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn part(from: *const u8, len: usize) -> Self;
    /// The two halves of a register's bytes.
    unsafe fn halves(a: Self) -> [Self::Halves; 2];
    unsafe fn splat(bits: u32) -> Self;
    unsafe fn and(a: Self, b: Self) -> Self;
    unsafe fn or(a: Self, b: Self) -> Self;
    unsafe fn shift_left<const BITS: u32>(a: Self) -> Self;
    /// Zeros come in.
    unsafe fn shift_right<const BITS: u32>(a: Self) -> Self;
    /// Of integers.
    unsafe fn plus(a: Self, b: Self) -> Self;
    /// Of singles.
    unsafe fn add(a: Self, b: Self) -> Self;
    /// Of singles.
    unsafe fn multiply(a: Self, b: Self) -> Self;
    /// `code`, or `nan` where `value` is one.
    unsafe fn unless_nan(value: Self, code: Self, nan: Self) -> Self;
    /// The singles that halves stand for.
    unsafe fn from_halves(halves: Self::Halves) -> Self;
    /// The nearest halves, ties to even.
    unsafe fn to_halves(a: Self) -> Self::Halves;
}

/// The functions of a register, each with the instructions that do it.
macro_rules! instructions {
    ($($name:ident $(<const $bits:ident>)? ($($a:ident: $t:ty),*) -> $result:ty = $do:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $bits: u32>)? ($($a: $t),*) -> $result {
            // SAFETY: nothing is asked for but the instructions, which the caller promises.
            unsafe { $do }
        }
    )*};
}

/// Of AVX2 with F16C.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ymm(__m256i);

/// The bits of singles.
#[inline(always)]
unsafe fn ymm(singles: __m256) -> Ymm {
    // SAFETY: both are 32 bytes without meaning of their own.
    Ymm(unsafe { std::mem::transmute::<__m256, __m256i>(singles) })
}

impl Ymm {
    #[inline(always)]
    fn singles(self) -> __m256 {
        // SAFETY: both are 32 bytes without meaning of their own.
        unsafe { std::mem::transmute::<__m256i, __m256>(self.0) }
    }
}

impl Register for Ymm {
    type Halves = __m128i;

    #[inline(always)]
    unsafe fn part(from: *const u8, len: usize) -> Ymm {
        let words = len / 4;
        // SAFETY: the caller's promise; words beyond the mask are not read.
        unsafe {
            let places = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
            let place = _mm256_set1_epi32(words as i32);
            let whole = _mm256_maskload_epi32(from.cast(), _mm256_cmpgt_epi32(place, places));
            let mut last = 0;
            for at in (4 * words..len).rev() {
                last = last << 8 | i32::from(from.add(at).read());
            }
            let last = _mm256_and_si256(_mm256_set1_epi32(last), _mm256_cmpeq_epi32(place, places));
            Ymm(_mm256_or_si256(whole, last))
        }
    }

    instructions! {
        halves(a: Ymm) -> [__m128i; 2] = [_mm256_castsi256_si128(a.0), _mm256_extracti128_si256::<1>(a.0)];
        splat(bits: u32) -> Ymm = Ymm(_mm256_set1_epi32(bits as i32));
        and(a: Ymm, b: Ymm) -> Ymm = Ymm(_mm256_and_si256(a.0, b.0));
        or(a: Ymm, b: Ymm) -> Ymm = Ymm(_mm256_or_si256(a.0, b.0));
        shift_left<const BITS>(a: Ymm) -> Ymm = Ymm(_mm256_sll_epi32(a.0, _mm_cvtsi32_si128(BITS as i32)));
        shift_right<const BITS>(a: Ymm) -> Ymm = Ymm(_mm256_srl_epi32(a.0, _mm_cvtsi32_si128(BITS as i32)));
        plus(a: Ymm, b: Ymm) -> Ymm = Ymm(_mm256_add_epi32(a.0, b.0));
        add(a: Ymm, b: Ymm) -> Ymm = ymm(_mm256_add_ps(a.singles(), b.singles()));
        multiply(a: Ymm, b: Ymm) -> Ymm = ymm(_mm256_mul_ps(a.singles(), b.singles()));
        unless_nan(value: Ymm, code: Ymm, nan: Ymm) -> Ymm = {
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(value.singles(), value.singles());
            ymm(_mm256_blendv_ps(code.singles(), nan.singles(), is_nan))
        };
        from_halves(halves: __m128i) -> Ymm = ymm(_mm256_cvtph_ps(halves));
        to_halves(a: Ymm) -> __m128i = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a.singles());
    }
}

/// Of AVX-512 F with BW.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Zmm(__m512i);

/// The bits of singles.
#[inline(always)]
unsafe fn zmm(singles: __m512) -> Zmm {
    // SAFETY: both are 64 bytes without meaning of their own.
    Zmm(unsafe { std::mem::transmute::<__m512, __m512i>(singles) })
}

impl Zmm {
    #[inline(always)]
    fn singles(self) -> __m512 {
        // SAFETY: both are 64 bytes without meaning of their own.
        unsafe { std::mem::transmute::<__m512i, __m512>(self.0) }
    }
}

impl Register for Zmm {
    type Halves = __m256i;

    #[inline(always)]
    unsafe fn part(from: *const u8, len: usize) -> Zmm {
        // SAFETY: the caller's promise; bytes beyond the mask are not read.
        Zmm(unsafe { _mm512_maskz_loadu_epi8((1 << len) - 1, from.cast()) })
    }

    instructions! {
        halves(a: Zmm) -> [__m256i; 2] = [_mm512_castsi512_si256(a.0), _mm512_extracti64x4_epi64::<1>(a.0)];
        splat(bits: u32) -> Zmm = Zmm(_mm512_set1_epi32(bits as i32));
        and(a: Zmm, b: Zmm) -> Zmm = Zmm(_mm512_and_si512(a.0, b.0));
        or(a: Zmm, b: Zmm) -> Zmm = Zmm(_mm512_or_si512(a.0, b.0));
        shift_left<const BITS>(a: Zmm) -> Zmm = Zmm(_mm512_slli_epi32::<BITS>(a.0));
        shift_right<const BITS>(a: Zmm) -> Zmm = Zmm(_mm512_srli_epi32::<BITS>(a.0));
        plus(a: Zmm, b: Zmm) -> Zmm = Zmm(_mm512_add_epi32(a.0, b.0));
        add(a: Zmm, b: Zmm) -> Zmm = zmm(_mm512_add_ps(a.singles(), b.singles()));
        multiply(a: Zmm, b: Zmm) -> Zmm = zmm(_mm512_mul_ps(a.singles(), b.singles()));
        unless_nan(value: Zmm, code: Zmm, nan: Zmm) -> Zmm = {
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value.singles(), value.singles());
            Zmm(_mm512_mask_mov_epi32(code.0, is_nan, nan.0))
        };
        from_halves(halves: __m256i) -> Zmm = zmm(_mm512_cvtph_ps(halves));
        to_halves(a: Zmm) -> __m256i = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a.singles());
    }
}
