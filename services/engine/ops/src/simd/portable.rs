//! Sixteen floats in an array: what the compiler makes of it on any machine.

use super::{BLOCK, Kernel, Level, Simd};

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

/// Applies `f` lane by lane.
#[inline(always)]
fn zip(a: [f32; BLOCK], b: [f32; BLOCK], f: impl Fn(f32, f32) -> f32) -> [f32; BLOCK] {
    let mut result = a;
    for (left, right) in result.iter_mut().zip(b) {
        *left = f(*left, right);
    }
    result
}

impl Simd for Portable {
    type F16 = [f32; BLOCK];
    const LEVEL: Level = Level::Portable;
    const TILE_BLOCKS: usize = 2;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn zero(self) -> Self::F16 {
        [0.0; BLOCK]
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F16 {
        [value; BLOCK]
    }

    #[inline(always)]
    fn load(self, source: &[f32; BLOCK]) -> Self::F16 {
        *source
    }

    #[inline(always)]
    fn store(self, value: Self::F16, target: &mut [f32; BLOCK]) {
        *target = value;
    }

    #[inline(always)]
    fn add(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| a / b)
    }

    // Two roundings: `mul_add` is a library call on machines without the instruction.
    #[inline(always)]
    fn fma(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn min(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Self::F16, b: Self::F16) -> Self::F16 {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn where_equal(self, a: Self::F16, b: Self::F16, value: Self::F16) -> Self::F16 {
        std::array::from_fn(|lane| if a[lane] == b[lane] { value[lane] } else { 0.0 })
    }

    #[inline(always)]
    fn round(self, a: Self::F16) -> Self::F16 {
        let mut result = a;
        for value in &mut result {
            *value = value.round_ties_even();
        }
        result
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::F16) -> Self::F16 {
        let mut result = a;
        for value in &mut result {
            *value = f32::from_bits((((*value as i32) + 127) as u32) << 23);
        }
        result
    }

    #[inline(always)]
    fn sum(self, a: Self::F16) -> f32 {
        let mut width = BLOCK / 2;
        let mut values = a;
        while width > 0 {
            for index in 0..width {
                values[index] += values[index + width];
            }
            width /= 2;
        }
        values[0]
    }
}
