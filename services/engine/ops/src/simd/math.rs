//! Functions of sixteen floats, the same on every level.

use super::Simd;

/// Beyond this `exp` would overflow.
const EXP_INPUT_MAX: f32 = 87.3;

/// The polynomial of degree 6 that is nearest to e^x for |x| ≤ ln 2 / 2, as f32: relative error below 2e-8.
const COEFFICIENTS: [f32; 7] = [
    1.0,
    1.0,
    0.499_999_911,
    0.166_664_198,
    0.041_668_229,
    0.008_374_857,
    0.001_383_679_3,
];

/// Returns e^x, relative error below 3e-7 for |x| ≤ 87, and clamped above.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    exp_signed(simd, x, 1.0)
}

/// Returns e^(sign · x) for a sign of 1 or -1.
#[inline(always)]
fn exp_signed<S: Simd>(simd: S, x: S::F16, sign: f32) -> S::F16 {
    // sign · x = n ln 2 + r with |r| ≤ ln 2 / 2; ln 2 is split so that n times the first part is exact.
    let bound = simd.splat(sign * EXP_INPUT_MAX);
    let x = if sign > 0.0 {
        simd.min(x, bound)
    } else {
        simd.max(x, bound)
    };
    let n = simd.round(simd.mul(x, simd.splat(sign * std::f32::consts::LOG2_E)));
    let r = simd.fma(n, simd.splat(sign * -0.693_359_4), x);
    let r = simd.fma(n, simd.splat(sign * 2.121_944_4e-4), r);
    let mut p = simd.splat(COEFFICIENTS[6]);
    for (power, coefficient) in COEFFICIENTS.into_iter().enumerate().take(6).rev() {
        let flip = if power % 2 == 1 { sign } else { 1.0 };
        p = simd.fma(p, r, simd.splat(flip * coefficient));
    }
    simd.scale(p, n)
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    simd.reciprocal(simd.add(simd.splat(1.0), exp_signed(simd, x, -1.0)))
}

/// Returns x / (1 + e^-x).
#[inline(always)]
pub fn silu<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    simd.mul(x, sigmoid(simd, x))
}
