//! Sixteen floats in two AVX2 registers.
#![expect(
    unsafe_code,
    reason = "intrinsics, guarded by a token that only detection makes"
)]

use std::arch::x86_64::*;

use super::{BLOCK, Kernel, Level, Simd};

/// Proof that the machine has AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the proof, if the machine gives it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    /// Runs `kernel` compiled with AVX2 and FMA.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn with_features<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
    }
}

/// Applies a two-operand intrinsic to both halves.
macro_rules! both {
    ($intrinsic:ident, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe { [$intrinsic(a[0], b[0]), $intrinsic(a[1], b[1])] }
    }};
}

impl Simd for Avx2 {
    type F16 = [__m256; 2];
    const LEVEL: Level = Level::Avx2;
    // 12 accumulators of 16 registers: two hold the weights, one the broadcast activation.
    const TILE_BLOCKS: usize = 6;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        fn with_features<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    fn zero(self) -> Self::F16 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe { [_mm256_setzero_ps(), _mm256_setzero_ps()] }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F16 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        let register = unsafe { _mm256_set1_ps(value) };
        [register, register]
    }

    #[inline(always)]
    fn load(self, source: &[f32; BLOCK]) -> Self::F16 {
        let pointer = source.as_ptr();
        // SAFETY: the token proves the features; both halves lie in the array.
        unsafe { [_mm256_loadu_ps(pointer), _mm256_loadu_ps(pointer.add(8))] }
    }

    #[inline(always)]
    fn store(self, value: Self::F16, target: &mut [f32; BLOCK]) {
        let pointer = target.as_mut_ptr();
        // SAFETY: the token proves the features; both halves lie in the array.
        unsafe {
            _mm256_storeu_ps(pointer, value[0]);
            _mm256_storeu_ps(pointer.add(8), value[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }

    #[inline(always)]
    fn min(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn max(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn where_equal(self, a: Self::F16, b: Self::F16, value: Self::F16) -> Self::F16 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        let is_equal = unsafe {
            [
                _mm256_cmp_ps::<_CMP_EQ_OQ>(a[0], b[0]),
                _mm256_cmp_ps::<_CMP_EQ_OQ>(a[1], b[1]),
            ]
        };
        both!(_mm256_and_ps, is_equal, value)
    }

    #[inline(always)]
    fn round(self, a: Self::F16) -> Self::F16 {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe { [_mm256_round_ps::<MODE>(a[0]), _mm256_round_ps::<MODE>(a[1])] }
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::F16) -> Self::F16 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let half = |x| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), bias);
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            };
            [half(a[0]), half(a[1])]
        }
    }

    #[inline(always)]
    fn sum(self, a: Self::F16) -> f32 {
        // SAFETY: the token proves that the machine has AVX2 and FMA.
        unsafe {
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // SAFETY: a prefetch of any address is a hint and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
}
