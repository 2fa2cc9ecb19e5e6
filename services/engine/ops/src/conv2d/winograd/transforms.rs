//! The transforms of F(4 × 4, 3 × 3) with the points 0, ±1, ±2 and infinity, sixteen channels at a time.
//!
//! With tiles of 6 × 6 inputs `d`, 4 × 4 outputs `y` and kernels `g`: `y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A`. The gradient of
//! the kernel is the transpose of the same: `dg = Gᵀ [(Bᵀ d B) ⊙ (A dy Aᵀ)] G`. See Lavin and Gray, "Fast Algorithms
//! for Convolutional Neural Networks", 2015.
#![expect(unsafe_code, reason = "tiles are addressed by pointer inside a pass")]
#![expect(
    clippy::needless_range_loop,
    reason = "columns are collected from rows, both named by their index"
)]

use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Simd};

/// Rows and columns of an output tile.
pub(super) const OUTPUT: usize = 4;
/// Rows and columns of an input tile and of its transform.
pub(super) const INPUT: usize = 6;
/// Points of the transform.
pub(super) const POINTS: usize = INPUT * INPUT;

/// Where a tile's pixels lie: floats between rows and between pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub pixels: *const f32,
    pub row_stride: usize,
    pub pixel_stride: usize,
}

/// Bᵀ of six values.
#[inline(always)]
fn input_line<S: Simd>(simd: S, d: [S::F16; 6]) -> [S::F16; 6] {
    let (two, four, five) = (simd.splat(2.0), simd.splat(4.0), simd.splat(5.0));
    let minus_four = simd.splat(-4.0);
    let even = simd.fma(minus_four, d[2], d[4]);
    let odd = simd.fma(minus_four, d[1], d[3]);
    let even_far = simd.sub(d[4], d[2]);
    let odd_far = simd.mul(two, simd.sub(d[3], d[1]));
    let first = simd.fma(four, d[0], simd.sub(d[4], simd.mul(five, d[2])));
    let last = simd.fma(four, d[1], simd.sub(d[5], simd.mul(five, d[3])));
    [
        first,
        simd.add(even, odd),
        simd.sub(even, odd),
        simd.add(even_far, odd_far),
        simd.sub(even_far, odd_far),
        last,
    ]
}

/// Aᵀ of six values.
#[inline(always)]
fn output_line<S: Simd>(simd: S, m: [S::F16; 6]) -> [S::F16; 4] {
    let (sum, difference) = (simd.add(m[1], m[2]), simd.sub(m[1], m[2]));
    let (far_sum, far_difference) = (simd.add(m[3], m[4]), simd.sub(m[3], m[4]));
    [
        simd.add(simd.add(m[0], sum), far_sum),
        simd.fma(simd.splat(2.0), far_difference, difference),
        simd.fma(simd.splat(4.0), far_sum, sum),
        simd.add(simd.fma(simd.splat(8.0), far_difference, difference), m[5]),
    ]
}

/// A of four values.
#[inline(always)]
fn gradient_line<S: Simd>(simd: S, y: [S::F16; 4]) -> [S::F16; 6] {
    let (even, odd) = (simd.add(y[0], y[2]), simd.add(y[1], y[3]));
    let even_far = simd.fma(simd.splat(4.0), y[2], y[0]);
    let odd_far = simd.fma(simd.splat(8.0), y[3], simd.add(y[1], y[1]));
    [
        y[0],
        simd.add(even, odd),
        simd.sub(even, odd),
        simd.add(even_far, odd_far),
        simd.sub(even_far, odd_far),
        y[3],
    ]
}

/// G of three values.
#[inline(always)]
fn kernel_line<S: Simd>(simd: S, g: [S::F16; 3]) -> [S::F16; 6] {
    let even = simd.mul(simd.splat(-1.0 / 6.0), simd.add(g[0], g[2]));
    let odd = simd.mul(simd.splat(-1.0 / 6.0), g[1]);
    let even_far = simd.mul(
        simd.splat(1.0 / 24.0),
        simd.fma(simd.splat(4.0), g[2], g[0]),
    );
    let odd_far = simd.mul(simd.splat(1.0 / 12.0), g[1]);
    [
        simd.mul(simd.splat(0.25), g[0]),
        simd.add(even, odd),
        simd.sub(even, odd),
        simd.add(even_far, odd_far),
        simd.sub(even_far, odd_far),
        g[2],
    ]
}

/// Gᵀ of six values.
#[inline(always)]
fn kernel_gradient_line<S: Simd>(simd: S, u: [S::F16; 6]) -> [S::F16; 3] {
    let sixth = simd.splat(1.0 / 6.0);
    let near = simd.mul(sixth, simd.add(u[1], u[2]));
    let far = simd.add(u[3], u[4]);
    let first = simd.sub(simd.mul(simd.splat(0.25), u[0]), near);
    let middle = simd.mul(sixth, simd.sub(u[2], u[1]));
    [
        simd.fma(simd.splat(1.0 / 24.0), far, first),
        simd.fma(simd.splat(1.0 / 12.0), simd.sub(u[3], u[4]), middle),
        simd.add(simd.fma(sixth, far, u[5]), simd.sub(simd.zero(), near)),
    ]
}

/// Writes `Bᵀ d B` of 6 × 6 pixels to `target[point * stride]`.
///
/// # Safety
/// The tile's pixels and the targets are valid blocks of 16.
#[inline(always)]
pub(super) unsafe fn input<S: Simd>(simd: S, tile: Tile, target: *mut f32, stride: usize) {
    let mut lines = [[simd.zero(); 6]; 6];
    // SAFETY: the caller's promise.
    unsafe {
        for x in 0..6 {
            let pixel = tile.pixels.add(x * tile.pixel_stride);
            let mut column = [simd.zero(); 6];
            for (y, value) in column.iter_mut().enumerate() {
                *value = load(simd, pixel.add(y * tile.row_stride));
            }
            let column = input_line(simd, column);
            for y in 0..6 {
                lines[y][x] = column[y];
            }
        }
        for (y, line) in lines.into_iter().enumerate() {
            let line = input_line(simd, line);
            for (x, value) in line.into_iter().enumerate() {
                store(simd, value, target.add((y * 6 + x) * stride));
            }
        }
    }
}

/// Returns `Aᵀ m A` of `source[point * stride]` as 4 × 4 pixels.
///
/// # Safety
/// The sources are valid blocks of 16.
#[inline(always)]
pub(super) unsafe fn output<S: Simd>(
    simd: S,
    source: *const f32,
    stride: usize,
) -> [[S::F16; 4]; 4] {
    let mut lines = [[simd.zero(); 6]; 4];
    for x in 0..6 {
        let mut column = [simd.zero(); 6];
        for (y, value) in column.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *value = unsafe { load(simd, source.add((y * 6 + x) * stride)) };
        }
        let column = output_line(simd, column);
        for y in 0..4 {
            lines[y][x] = column[y];
        }
    }
    let mut result = [[simd.zero(); 4]; 4];
    for (result, line) in result.iter_mut().zip(lines) {
        *result = output_line(simd, line);
    }
    result
}

/// Writes `A dy Aᵀ` of 4 × 4 pixels to `target[point * stride]`.
///
/// # Safety
/// The tile's pixels and the targets are valid blocks of 16.
#[inline(always)]
pub(super) unsafe fn gradient<S: Simd>(simd: S, tile: Tile, target: *mut f32, stride: usize) {
    let mut lines = [[simd.zero(); 4]; 6];
    // SAFETY: the caller's promise.
    unsafe {
        for x in 0..4 {
            let pixel = tile.pixels.add(x * tile.pixel_stride);
            let mut column = [simd.zero(); 4];
            for (y, value) in column.iter_mut().enumerate() {
                *value = load(simd, pixel.add(y * tile.row_stride));
            }
            let column = gradient_line(simd, column);
            for y in 0..6 {
                lines[y][x] = column[y];
            }
        }
        for (y, line) in lines.into_iter().enumerate() {
            let line = gradient_line(simd, line);
            for (x, value) in line.into_iter().enumerate() {
                store(simd, value, target.add((y * 6 + x) * stride));
            }
        }
    }
}

/// Writes `G g Gᵀ` to `target[point * stride]`.
///
/// # Safety
/// The targets are valid blocks of 16.
#[inline(always)]
pub(super) unsafe fn kernel<S: Simd>(
    simd: S,
    taps: &[[f32; BLOCK]; 9],
    target: *mut f32,
    stride: usize,
) {
    let mut lines = [[simd.zero(); 3]; 6];
    for x in 0..3 {
        let column = [0, 1, 2].map(|y| simd.load(&taps[y * 3 + x]));
        let column = kernel_line(simd, column);
        for y in 0..6 {
            lines[y][x] = column[y];
        }
    }
    for (y, line) in lines.into_iter().enumerate() {
        let line = kernel_line(simd, line);
        for (x, value) in line.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { store(simd, value, target.add((y * 6 + x) * stride)) };
        }
    }
}

/// Returns `Gᵀ u G` of the points' gradients.
#[inline(always)]
pub(super) fn kernel_gradient<S: Simd>(simd: S, points: &[S::F16; POINTS]) -> [[f32; BLOCK]; 9] {
    let mut lines = [[simd.zero(); 6]; 3];
    for x in 0..6 {
        let mut column = [simd.zero(); 6];
        for (y, value) in column.iter_mut().enumerate() {
            *value = points[y * 6 + x];
        }
        let column = kernel_gradient_line(simd, column);
        for y in 0..3 {
            lines[y][x] = column[y];
        }
    }
    let mut taps = [[0.0; BLOCK]; 9];
    for (y, line) in lines.into_iter().enumerate() {
        let line = kernel_gradient_line(simd, line);
        for (x, value) in line.into_iter().enumerate() {
            simd.store(value, &mut taps[y * 3 + x]);
        }
    }
    taps
}
