//! Functions of sixteen floats, the same on every level.

use super::Simd;

/// Below this `exp` is 0 to f32's normal numbers, above its negative it overflows.
const EXP_INPUT_MAX: f32 = 87.3;

/// Returns e^x, relative error below 2e-7 for |x| ≤ 87.3, clamped beyond.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    let x = simd.min(
        simd.max(x, simd.splat(-EXP_INPUT_MAX)),
        simd.splat(EXP_INPUT_MAX),
    );
    // x = n ln 2 + r with |r| ≤ ln 2 / 2; ln 2 is split so that n times the first part is exact.
    let n = simd.round(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fma(n, simd.splat(-0.693_359_4), x);
    let r = simd.fma(n, simd.splat(2.121_944_4e-4), r);
    // Taylor to degree 7: the remainder is r^8/8! < 6e-9.
    let mut p = simd.splat(1.0 / 5040.0);
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = simd.fma(p, r, simd.splat(coefficient));
    }
    simd.mul(p, simd.exp2_integer(n))
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    let one = simd.splat(1.0);
    simd.reciprocal(simd.add(one, exp(simd, simd.sub(simd.zero(), x))))
}

/// Returns x / (1 + e^-x).
#[inline(always)]
pub fn silu<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    simd.mul(x, sigmoid(simd, x))
}
