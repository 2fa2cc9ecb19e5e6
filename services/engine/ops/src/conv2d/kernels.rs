//! The two register-tile kernels that everything else addresses for.
//!
//! `gather` multiplies a few pixels by one panel of weights; `scatter` multiplies a few channels of many pixels
//! by one block of gradients. Both keep one accumulator block per tile row in registers and make one
//! broadcast and one fused multiply-add a row and step.
#![expect(
    unsafe_code,
    reason = "kernels address channel ranges of shared buffers"
)]

use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Simd};

/// Calls a function generic over the tile's rows with a number of rows known at run time.
macro_rules! with_rows {
    ($simd:ty, $rows:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $rows {
            1 => $function::<$simd, 1>($($argument),*),
            2 if <$simd>::TILE_ROWS >= 2 => $function::<$simd, 2>($($argument),*),
            3 if <$simd>::TILE_ROWS >= 3 => $function::<$simd, 3>($($argument),*),
            4 if <$simd>::TILE_ROWS >= 4 => $function::<$simd, 4>($($argument),*),
            5 if <$simd>::TILE_ROWS >= 5 => $function::<$simd, 5>($($argument),*),
            6 if <$simd>::TILE_ROWS >= 6 => $function::<$simd, 6>($($argument),*),
            7 if <$simd>::TILE_ROWS >= 7 => $function::<$simd, 7>($($argument),*),
            8 if <$simd>::TILE_ROWS >= 8 => $function::<$simd, 8>($($argument),*),
            9 if <$simd>::TILE_ROWS >= 9 => $function::<$simd, 9>($($argument),*),
            10 if <$simd>::TILE_ROWS >= 10 => $function::<$simd, 10>($($argument),*),
            11 if <$simd>::TILE_ROWS >= 11 => $function::<$simd, 11>($($argument),*),
            12 if <$simd>::TILE_ROWS >= 12 => $function::<$simd, 12>($($argument),*),
            13 if <$simd>::TILE_ROWS >= 13 => $function::<$simd, 13>($($argument),*),
            14 if <$simd>::TILE_ROWS >= 14 => $function::<$simd, 14>($($argument),*),
            15 if <$simd>::TILE_ROWS >= 15 => $function::<$simd, 15>($($argument),*),
            16 if <$simd>::TILE_ROWS >= 16 => $function::<$simd, 16>($($argument),*),
            rows => unreachable!("invariant: no tile has {rows} rows"),
        }
    };
}

/// Shares `len` rows out to as few tiles of at most `most` rows as possible, as evenly as possible.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    len: usize,
    count: usize,
    next: usize,
    done: usize,
}

impl Tiles {
    #[inline(always)]
    pub fn new(len: usize, most: usize) -> Self {
        Self {
            len,
            count: len.div_ceil(most),
            next: 0,
            done: 0,
        }
    }
}

impl Iterator for Tiles {
    /// The first row and the number of rows.
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.next == self.count {
            return None;
        }
        let rows = self.len / self.count + usize::from(self.next < self.len % self.count);
        let first = self.done;
        self.next += 1;
        self.done += rows;
        Some((first, rows))
    }
}

/// The operands of one gather tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatherTile {
    /// The first float of the first pixel's run.
    pub source: *const f32,
    /// Floats between the tile's pixels.
    pub source_stride: usize,
    pub segments: usize,
    pub segment_stride: usize,
    pub len: usize,
    /// `segments` × `len` rows of 16 weights.
    pub weights: *const f32,
    pub target: *mut f32,
    pub target_stride: usize,
    /// Adds to the target instead of overwriting it.
    pub accumulate: bool,
}

/// `target[m][0..16] (+)= Σ_k source[m][k] · weights[k][0..16]` for `rows` pixels.
///
/// # Safety
/// Every address named by the tile is valid, and the targets are the caller's alone.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd>(simd: S, rows: usize, tile: &GatherTile) {
    // SAFETY: the caller's promise.
    unsafe { with_rows!(S, rows, gather_rows(simd, tile)) }
}

#[inline(always)]
unsafe fn gather_rows<S: Simd, const M: usize>(simd: S, tile: &GatherTile) {
    let mut sums = [simd.zero(); M];
    let mut weights = tile.weights;
    // SAFETY: the caller's promise.
    unsafe {
        for segment in 0..tile.segments {
            let source = tile.source.add(segment * tile.segment_stride);
            let pixels: [*const f32; M] =
                std::array::from_fn(|m| source.add(m * tile.source_stride));
            let mut k = 0;
            while k + 4 <= tile.len {
                for step in 0..4 {
                    let weight = load(simd, weights.add(step * BLOCK));
                    for m in 0..M {
                        let value = simd.splat(*pixels[m].add(k + step));
                        sums[m] = simd.fma(value, weight, sums[m]);
                    }
                }
                weights = weights.add(4 * BLOCK);
                k += 4;
            }
            // Only images have runs that are no multiple of 4.
            while k < tile.len {
                let weight = load(simd, weights);
                for m in 0..M {
                    let value = simd.splat(*pixels[m].add(k));
                    sums[m] = simd.fma(value, weight, sums[m]);
                }
                weights = weights.add(BLOCK);
                k += 1;
            }
        }
        for (m, &sum) in sums.iter().enumerate() {
            let target = tile.target.add(m * tile.target_stride);
            let sum = if tile.accumulate {
                simd.add(sum, load(simd, target))
            } else {
                sum
            };
            store(simd, sum, target);
        }
    }
}

/// The operands of one scatter tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScatterTile {
    /// The first of the tile's channels, at the first pixel.
    pub source: *const f32,
    /// Floats between pixels.
    pub source_stride: usize,
    /// Floats between pixel rows.
    pub source_row: usize,
    /// The first pixel's block of 16 gradients; the next pixel's follows.
    pub gradient: *const f32,
    pub gradient_row: usize,
    pub pixel_rows: usize,
    pub pixels: usize,
    /// The first of the tile's rows of 16 sums; they follow one another.
    pub target: *mut f32,
}

/// `target[m][0..16] += Σ_p source[p][m] · gradient[p][0..16]` for `rows` channels.
///
/// # Safety
/// Every address named by the tile is valid, and the targets are the caller's alone.
#[inline(always)]
pub(super) unsafe fn scatter<S: Simd>(simd: S, rows: usize, tile: &ScatterTile) {
    // SAFETY: the caller's promise.
    unsafe { with_rows!(S, rows, scatter_rows(simd, tile)) }
}

#[inline(always)]
unsafe fn scatter_rows<S: Simd, const M: usize>(simd: S, tile: &ScatterTile) {
    let mut sums = [simd.zero(); M];
    // SAFETY: the caller's promise.
    unsafe {
        for row in 0..tile.pixel_rows {
            let mut source = tile.source.add(row * tile.source_row);
            let mut gradient = tile.gradient.add(row * tile.gradient_row);
            for _ in 0..tile.pixels / 2 {
                for _ in 0..2 {
                    let value = load(simd, gradient);
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = simd.fma(simd.splat(*source.add(m)), value, *sum);
                    }
                    source = source.add(tile.source_stride);
                    gradient = gradient.add(BLOCK);
                }
            }
            if tile.pixels % 2 == 1 {
                let value = load(simd, gradient);
                for (m, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.fma(simd.splat(*source.add(m)), value, *sum);
                }
            }
        }
        for (m, &sum) in sums.iter().enumerate() {
            let target = tile.target.add(m * BLOCK);
            store(simd, simd.add(sum, load(simd, target)), target);
        }
    }
}
