//! The two register-tile kernels that everything else addresses for.
//!
//! `gather` multiplies a few pixels by panels of weights; `scatter` multiplies a few channels of many pixels by
//! blocks of gradients. A tile is rows × panels: one accumulator block each stays in a register, and a step makes
//! one broadcast a row, one load a panel, and one fused multiply-add for each of both. With `DOT` every float of both
//! operands is a pair of bf16, neighbours in the direction of the sum, and the sums are f32 all the same. Two panels at a time, where
//! the registers suffice, nearly halve the loads, which otherwise keep the multipliers waiting.
#![expect(
    unsafe_code,
    reason = "kernels address channel ranges of shared buffers"
)]

use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Kernel, Simd};

/// The most rows of a tile.
const TILE_ROWS_MAX: usize = 12;

/// The most pixels of a gather's tile: the place of each is kept in a general register, of which there are sixteen.
const TILE_PIXELS_MAX: usize = 10;

/// Runs the kernel of a tile whose rows are known at run time only, as a function of its own: inlined into its
/// callers, its accumulators would compete with their variables for registers.
macro_rules! with_rows {
    ($simd:expr, $panels:expr, $rows:expr, $kernel:ident($tile:expr)) => {
        match $rows {
            1 => $simd.apart($kernel::<1, $panels, DOT>($tile)),
            2 if const { tile_rows::<S>($panels) >= 2 } => {
                $simd.apart($kernel::<2, $panels, DOT>($tile))
            }
            3 if const { tile_rows::<S>($panels) >= 3 } => {
                $simd.apart($kernel::<3, $panels, DOT>($tile))
            }
            4 if const { tile_rows::<S>($panels) >= 4 } => {
                $simd.apart($kernel::<4, $panels, DOT>($tile))
            }
            5 if const { tile_rows::<S>($panels) >= 5 } => {
                $simd.apart($kernel::<5, $panels, DOT>($tile))
            }
            6 if const { tile_rows::<S>($panels) >= 6 } => {
                $simd.apart($kernel::<6, $panels, DOT>($tile))
            }
            7 if const { tile_rows::<S>($panels) >= 7 } => {
                $simd.apart($kernel::<7, $panels, DOT>($tile))
            }
            8 if const { tile_rows::<S>($panels) >= 8 } => {
                $simd.apart($kernel::<8, $panels, DOT>($tile))
            }
            9 if const { tile_rows::<S>($panels) >= 9 } => {
                $simd.apart($kernel::<9, $panels, DOT>($tile))
            }
            10 if const { tile_rows::<S>($panels) >= 10 } => {
                $simd.apart($kernel::<10, $panels, DOT>($tile))
            }
            11 if const { tile_rows::<S>($panels) >= 11 } => {
                $simd.apart($kernel::<11, $panels, DOT>($tile))
            }
            12 if const { tile_rows::<S>($panels) >= 12 } => {
                $simd.apart($kernel::<12, $panels, DOT>($tile))
            }
            rows => unreachable!("invariant: no tile has {rows} rows"),
        }
    };
}

/// The most panels of a tile, of any level.
pub(super) const PANELS_MAX: usize = 2;

/// Returns the most rows of a tile of so many panels.
#[inline(always)]
pub(super) const fn tile_rows<S: Simd>(panels: usize) -> usize {
    let rows = S::TILE_BLOCKS / panels;
    if rows < TILE_ROWS_MAX {
        rows
    } else {
        TILE_ROWS_MAX
    }
}

/// Returns the most pixels of a gather's tile of so many panels.
#[inline(always)]
pub(super) const fn tile_pixels<S: Simd>(panels: usize) -> usize {
    let rows = tile_rows::<S>(panels);
    if rows < TILE_PIXELS_MAX {
        rows
    } else {
        TILE_PIXELS_MAX
    }
}

/// Returns how many of the panels that are left are computed together.
#[inline(always)]
pub(super) fn tile_panels<S: Simd>(left: usize) -> usize {
    if S::TILE_BLOCKS >= TILE_ROWS_MAX * PANELS_MAX {
        left.min(PANELS_MAX)
    } else {
        1
    }
}

/// One product of f32, or both of a pair of bf16, added.
#[inline(always)]
fn multiply<S: Simd, const DOT: bool>(simd: S, a: S::F16, b: S::F16, sum: S::F16) -> S::F16 {
    if DOT {
        simd.dot(a, b, sum)
    } else {
        simd.fma(a, b, sum)
    }
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
    /// Floats from a panel's weights to the next panel's.
    pub weights_panel: usize,
    pub target: *mut f32,
    pub target_stride: usize,
    /// Floats from a panel's targets to the next panel's.
    pub target_panel: usize,
    /// Adds to the target instead of overwriting it.
    pub accumulate: bool,
}

/// `target[v][m][0..16] (+)= Σ_k source[m][k] · weights[v][k][0..16]` for `rows` pixels and `panels` panels.
///
/// # Safety
/// Every address named by the tile is valid, and the targets are the caller's alone.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd, const DOT: bool>(
    simd: S,
    rows: usize,
    panels: usize,
    tile: &GatherTile,
) {
    if panels == 2 && tile_panels::<S>(2) == 2 {
        with_rows!(simd, 2, rows, Gather(tile));
    } else {
        with_rows!(simd, 1, rows, Gather(tile));
    }
}

/// M pixels times V panels.
struct Gather<'a, const M: usize, const V: usize, const DOT: bool>(&'a GatherTile);

impl<const M: usize, const V: usize, const DOT: bool> Kernel for Gather<'_, M, V, DOT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: who makes one promises what `gather` asks for.
        unsafe { gather_tile::<S, M, V, DOT>(simd, self.0) }
    }
}

#[inline(always)]
unsafe fn gather_tile<S: Simd, const M: usize, const V: usize, const DOT: bool>(
    simd: S,
    tile: &GatherTile,
) {
    let mut sums = [[simd.zero(); V]; M];
    let mut weights = tile.weights;
    // SAFETY: the caller's promise.
    unsafe {
        for segment in 0..tile.segments {
            let source = tile.source.add(segment * tile.segment_stride);
            let pixels: [*const f32; M] =
                std::array::from_fn(|m| source.add(m * tile.source_stride));
            let mut k = 0;
            while k + 4 <= tile.len {
                for ahead in 0..4 {
                    let panels = weights.add(ahead * BLOCK);
                    gather_step::<S, M, V, DOT>(
                        simd,
                        &pixels,
                        k + ahead,
                        panels,
                        tile.weights_panel,
                        &mut sums,
                    );
                }
                weights = weights.add(4 * BLOCK);
                k += 4;
            }
            // Only images have runs that are no multiple of 4.
            while k < tile.len {
                gather_step::<S, M, V, DOT>(
                    simd,
                    &pixels,
                    k,
                    weights,
                    tile.weights_panel,
                    &mut sums,
                );
                weights = weights.add(BLOCK);
                k += 1;
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let target = tile
                    .target
                    .add(m * tile.target_stride + v * tile.target_panel);
                let sum = if tile.accumulate {
                    simd.add(sum, load(simd, target))
                } else {
                    sum
                };
                store(simd, sum, target);
            }
        }
    }
}

/// Multiplies one float of each pixel by a row of weights of each panel. A function, because a closure is not surely
/// inlined, and without its caller's target features it would be useless.
///
/// # Safety
/// As for `gather`.
#[inline(always)]
unsafe fn gather_step<S: Simd, const M: usize, const V: usize, const DOT: bool>(
    simd: S,
    pixels: &[*const f32; M],
    k: usize,
    weights: *const f32,
    weights_panel: usize,
    sums: &mut [[S::F16; V]; M],
) {
    let mut rows = [simd.zero(); V];
    // SAFETY: the caller's promise.
    unsafe {
        for (v, row) in rows.iter_mut().enumerate() {
            *row = load(simd, weights.add(v * weights_panel));
        }
        for m in 0..M {
            let value = simd.splat(*pixels[m].add(k));
            for v in 0..V {
                sums[m][v] = multiply::<S, DOT>(simd, value, rows[v], sums[m][v]);
            }
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
    /// The first pixel's block of 16 gradients.
    pub gradient: *const f32,
    /// Floats from a pixel's gradients to the next pixel's.
    pub gradient_stride: usize,
    pub gradient_row: usize,
    /// Floats from a panel's gradients to the next panel's.
    pub gradient_panel: usize,
    pub pixel_rows: usize,
    pub pixels: usize,
    /// The first of the tile's rows of 16 sums; they follow one another.
    pub target: *mut f32,
    /// Floats from a panel's sums to the next panel's.
    pub target_panel: usize,
}

/// `target[v][m][0..16] += Σ_p source[p][m] · gradient[v][p][0..16]` for `rows` channels and `panels` panels.
///
/// # Safety
/// Every address named by the tile is valid, and the targets are the caller's alone.
#[inline(always)]
pub(super) unsafe fn scatter<S: Simd, const DOT: bool>(
    simd: S,
    rows: usize,
    panels: usize,
    tile: &ScatterTile,
) {
    if panels == 2 && tile_panels::<S>(2) == 2 {
        with_rows!(simd, 2, rows, Scatter(tile));
    } else {
        with_rows!(simd, 1, rows, Scatter(tile));
    }
}

/// M channels times V panels.
struct Scatter<'a, const M: usize, const V: usize, const DOT: bool>(&'a ScatterTile);

impl<const M: usize, const V: usize, const DOT: bool> Kernel for Scatter<'_, M, V, DOT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: who makes one promises what `scatter` asks for.
        unsafe { scatter_tile::<S, M, V, DOT>(simd, self.0) }
    }
}

#[inline(always)]
unsafe fn scatter_tile<S: Simd, const M: usize, const V: usize, const DOT: bool>(
    simd: S,
    tile: &ScatterTile,
) {
    let mut sums = [[simd.zero(); V]; M];
    // SAFETY: the caller's promise.
    unsafe {
        for row in 0..tile.pixel_rows {
            let mut source = tile.source.add(row * tile.source_row);
            let mut gradient = tile.gradient.add(row * tile.gradient_row);
            for _ in 0..tile.pixels / 2 {
                let next = source.add(tile.source_stride);
                scatter_step::<S, M, V, DOT>(
                    simd,
                    source,
                    gradient,
                    tile.gradient_panel,
                    &mut sums,
                );
                scatter_step::<S, M, V, DOT>(
                    simd,
                    next,
                    gradient.add(tile.gradient_stride),
                    tile.gradient_panel,
                    &mut sums,
                );
                source = source.add(2 * tile.source_stride);
                gradient = gradient.add(2 * tile.gradient_stride);
            }
            if tile.pixels % 2 == 1 {
                scatter_step::<S, M, V, DOT>(
                    simd,
                    source,
                    gradient,
                    tile.gradient_panel,
                    &mut sums,
                );
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let target = tile.target.add(m * BLOCK + v * tile.target_panel);
                store(simd, simd.add(sum, load(simd, target)), target);
            }
        }
    }
}

/// Multiplies the tile's channels of one pixel by its gradients of each panel.
///
/// # Safety
/// As for `scatter`.
#[inline(always)]
unsafe fn scatter_step<S: Simd, const M: usize, const V: usize, const DOT: bool>(
    simd: S,
    source: *const f32,
    gradient: *const f32,
    gradient_panel: usize,
    sums: &mut [[S::F16; V]; M],
) {
    let mut values = [simd.zero(); V];
    // SAFETY: the caller's promise.
    unsafe {
        for (v, value) in values.iter_mut().enumerate() {
            *value = load(simd, gradient.add(v * gradient_panel));
        }
        for (m, sums) in sums.iter_mut().enumerate() {
            let factor = simd.splat(*source.add(m));
            for v in 0..V {
                sums[v] = multiply::<S, DOT>(simd, factor, values[v], sums[v]);
            }
        }
    }
}
