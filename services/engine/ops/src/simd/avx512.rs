//! Sixteen floats in one AVX-512 register.
#![expect(
    unsafe_code,
    reason = "intrinsics, guarded by a token that only detection makes"
)]

use std::arch::x86_64::*;

use super::{BLOCK, Kernel, Level, Simd};

/// Proof that the machine has AVX-512F, and AVX2 and FMA with it.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// Returns the proof, if the machine gives it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma"))
        .then_some(Self(()))
    }

    /// Runs `kernel` compiled with AVX-512F.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn with_features<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
    }
}

/// Calls an intrinsic.
macro_rules! call {
    ($intrinsic:expr, $($argument:expr),*) => {{
        // SAFETY: the token proves that the machine has AVX-512F.
        unsafe { $intrinsic($($argument),*) }
    }};
}

impl Simd for Avx512 {
    type F16 = __m512;
    const LEVEL: Level = Level::Avx512;
    const TILE_BLOCKS: usize = 24;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn with_features<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
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
