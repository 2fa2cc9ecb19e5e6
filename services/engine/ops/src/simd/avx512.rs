//! Sixteen floats in one AVX-512 register.
#![expect(
    unsafe_code,
    reason = "intrinsics, guarded by a token that only detection makes"
)]

use std::arch::x86_64::*;

use super::{BLOCK, Kernel, Level, Simd};

/// Proof that the machine has AVX-512F, and AVX2 and FMA with it; and with `DOT` AVX-512 BF16, too.
#[derive(Debug, Clone, Copy)]
pub struct Avx512<const DOT: bool>(());

impl<const DOT: bool> Avx512<DOT> {
    /// Returns the proof, if the machine gives it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && (!DOT || is_x86_feature_detected!("avx512bf16")))
        .then_some(Self(()))
    }

    /// Runs `kernel` compiled with these features.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn with_features<K: Kernel, const DOT: bool>(simd: Avx512<DOT>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]
        fn with_dot<K: Kernel, const DOT: bool>(simd: Avx512<DOT>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe {
            if const { DOT } {
                with_dot(self, kernel)
            } else {
                with_features(self, kernel)
            }
        }
    }
}

/// Calls an intrinsic.
macro_rules! call {
    ($intrinsic:expr, $($argument:expr),*) => {{
        // SAFETY: the token proves that the machine has AVX-512F.
        unsafe { $intrinsic($($argument),*) }
    }};
}

impl<const DOT: bool> Simd for Avx512<DOT> {
    type F16 = __m512;
    const LEVEL: Level = Level::Avx512;
    const TILE_BLOCKS: usize = 24;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn with_features<K: Kernel, const DOT: bool>(simd: Avx512<DOT>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]
        fn with_dot<K: Kernel, const DOT: bool>(simd: Avx512<DOT>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe {
            if const { DOT } {
                with_dot(self, kernel)
            } else {
                with_features(self, kernel)
            }
        }
    }

    #[inline(always)]
    fn dot(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        assert!(
            const { DOT },
            "invariant: pairs go where they are multiplied"
        );
        // SAFETY: both are 512 bits, of which the instruction takes pairs of bf16; the token proves that it is there.
        unsafe {
            let [a, b] = [a, b].map(|pairs| std::mem::transmute::<__m512, __m512bh>(pairs));
            _mm512_dpbf16_ps(c, a, b)
        }
    }

    #[inline(always)]
    fn pair(self, low: Self::F16, high: Self::F16) -> Self::F16 {
        assert!(
            const { DOT },
            "invariant: pairs go where they are multiplied"
        );
        // SAFETY: as in `dot`.
        unsafe {
            let [low, high] = [low, high].map(|half| {
                let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(half));
                _mm512_cvtepu16_epi32(rounded)
            });
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
        }
    }

    #[inline(always)]
    unsafe fn store_rounded(self, value: Self::F16, target: *mut f32) {
        assert!(
            const { DOT },
            "invariant: pairs go where they are multiplied"
        );
        // SAFETY: as in `dot`; the caller promises room for eight floats.
        unsafe {
            let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
            _mm256_storeu_si256(target.cast(), rounded);
        }
    }

    #[inline(always)]
    fn zero(self) -> Self::F16 {
        call!(_mm512_setzero_ps,)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F16 {
        call!(_mm512_set1_ps, value)
    }

    #[inline(always)]
    fn load(self, source: &[f32; BLOCK]) -> Self::F16 {
        // The array is exactly one register.
        call!(_mm512_loadu_ps, source.as_ptr())
    }

    #[inline(always)]
    fn store(self, value: Self::F16, target: &mut [f32; BLOCK]) {
        // The array is exactly one register.
        call!(_mm512_storeu_ps, target.as_mut_ptr(), value);
    }

    #[inline(always)]
    unsafe fn stream(self, value: Self::F16, target: *mut f32) {
        call!(_mm512_stream_ps, target, value);
    }

    #[inline(always)]
    fn add(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_div_ps, a, b)
    }

    // A division keeps the machine for as long as eight multiplications; an estimate of 14 bits and one step of
    // Newton's method take three.
    #[inline(always)]
    fn reciprocal(self, a: Self::F16) -> Self::F16 {
        let estimate = call!(_mm512_rcp14_ps, a);
        let error = call!(_mm512_fnmadd_ps, a, estimate, self.splat(1.0));
        self.fma(estimate, error, estimate)
    }

    #[inline(always)]
    fn fma(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        call!(_mm512_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn min(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_min_ps, a, b)
    }

    #[inline(always)]
    fn max(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        call!(_mm512_max_ps, a, b)
    }

    #[inline(always)]
    fn where_equal(self, a: Self::F16, b: Self::F16, value: Self::F16) -> Self::F16 {
        let is_equal = call!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>, a, b);
        call!(_mm512_maskz_mov_ps, is_equal, value)
    }

    #[inline(always)]
    fn round(self, a: Self::F16) -> Self::F16 {
        call!(
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>,
            a
        )
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::F16) -> Self::F16 {
        let integers = call!(_mm512_cvtps_epi32, a);
        let bias = call!(_mm512_set1_epi32, 127);
        let biased = call!(_mm512_add_epi32, integers, bias);
        let shifted = call!(_mm512_slli_epi32::<23>, biased);
        call!(_mm512_castsi512_ps, shifted)
    }

    #[inline(always)]
    fn scale(self, a: Self::F16, n: Self::F16) -> Self::F16 {
        call!(_mm512_scalef_ps, a, n)
    }

    #[inline(always)]
    fn sum(self, a: Self::F16) -> f32 {
        call!(_mm512_reduce_add_ps, a)
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // SAFETY: a prefetch of any address is a hint and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
}
