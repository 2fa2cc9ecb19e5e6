//! Sixteen floats in four NEON registers.
#![expect(
    unsafe_code,
    reason = "intrinsics, guarded by a token that only detection makes"
)]

use std::arch::aarch64::*;

use super::{BLOCK, Kernel, Level, Simd};

/// Proof that the machine has NEON.
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// Returns the proof, if the machine gives it.
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// Runs `kernel` compiled with NEON.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn with_features<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
    }
}

/// Builds four registers from an expression of the register's index.
macro_rules! four {
    (|$index:ident| $value:expr) => {{
        // SAFETY: the token proves that the machine has NEON; indices stay below 4.
        unsafe {
            [
                {
                    let $index = 0;
                    $value
                },
                {
                    let $index = 1;
                    $value
                },
                {
                    let $index = 2;
                    $value
                },
                {
                    let $index = 3;
                    $value
                },
            ]
        }
    }};
}

impl Simd for Neon {
    type F16 = [float32x4_t; 4];
    const LEVEL: Level = Level::Neon;
    // 20 accumulators of 32 registers.
    const TILE_BLOCKS: usize = 5;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        fn with_features<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    fn zero(self) -> Self::F16 {
        self.splat(0.0)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F16 {
        // SAFETY: the token proves that the machine has NEON.
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, source: &[f32; BLOCK]) -> Self::F16 {
        let pointer = source.as_ptr();
        four!(|i| vld1q_f32(pointer.add(4 * i)))
    }

    #[inline(always)]
    fn store(self, value: Self::F16, target: &mut [f32; BLOCK]) {
        let pointer = target.as_mut_ptr();
        four!(|i| vst1q_f32(pointer.add(4 * i), value[i]));
    }

    #[inline(always)]
    fn add(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vaddq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn sub(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vsubq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vmulq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn div(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vdivq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn fma(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        four!(|i| vfmaq_f32(c[i], a[i], b[i]))
    }

    #[inline(always)]
    fn min(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        four!(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn where_equal(self, a: Self::F16, b: Self::F16, value: Self::F16) -> Self::F16 {
        four!(|i| vbslq_f32(vceqq_f32(a[i], b[i]), value[i], vdupq_n_f32(0.0)))
    }

    #[inline(always)]
    fn round(self, a: Self::F16) -> Self::F16 {
        four!(|i| vrndnq_f32(a[i]))
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::F16) -> Self::F16 {
        four!(|i| {
            let biased = vaddq_s32(vcvtnq_s32_f32(a[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }

    #[inline(always)]
    fn sum(self, a: Self::F16) -> f32 {
        // SAFETY: the token proves that the machine has NEON.
        unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(a[2], a[3]))) }
    }
}
