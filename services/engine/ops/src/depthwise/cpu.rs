//! The depthwise kernels: sixteen channels at a time, a few pixels in registers.
#![expect(
    unsafe_code,
    reason = "rows of one buffer are written by several threads"
)]

use std::cell::Cell;

use super::{Epilogue, Pass, Shape, Write};
use crate::parallel::Threads;
use crate::simd::pointer::{clear, load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd, silu};
use crate::view::{RawView, View, as_cells};

/// Partial sums of the weights' gradient; fixed, so that results do not depend on the threads.
const PARTIALS_MAX: usize = 32;

/// Pixels whose sums are in registers at once.
const TILE: usize = 8;

/// Pixels of a row whose gradients of the weights are summed in registers.
const STRETCH: usize = 20;

/// Taps whose weight gradients are in registers at once.
const TAPS: usize = 3;

pub(super) fn scratch_len(shape: &Shape, pass: Pass) -> usize {
    let channels = shape.channels.padded();
    match pass {
        Pass::Forward => shape.batch * shape.height * 2 * channels,
        Pass::BackwardData => 0,
        Pass::BackwardWeights => partial_count(shape) * shape.kernel * shape.kernel * channels,
    }
}

fn partial_count(shape: &Shape) -> usize {
    (shape.batch * shape.height).min(PARTIALS_MAX)
}

/// Sums over the taps of one row: `target[x] = Σ source[x + d] · weights[d]`.
struct Row<'a> {
    shape: &'a Shape,
    source: RawView,
    target: RawView,
    weights: &'a [f32],
    /// The taps run backwards, for the gradient of the input.
    is_flipped: bool,
    accumulate: bool,
    bias: Option<&'a [f32]>,
    silu: bool,
    residual: Option<RawView>,
    /// Where this row's sums and sums of squares go.
    statistics: Option<RawView>,
    row: usize,
}

impl Row<'_> {
    /// Computes `N` pixels inside of the row with a kernel of three, whose loops are unrolled: each of three lines is
    /// read once, every pixel of it for up to three sums.
    #[inline(always)]
    fn inner_tile<S: Simd, const N: usize>(
        &self,
        simd: S,
        x: usize,
        channel: usize,
    ) -> [S::F16; N] {
        let shape = self.shape;
        let channels = shape.channels.padded();
        let (image, y) = (self.row / shape.height, self.row % shape.height);
        let mut sums = [simd.zero(); N];
        for ky in 0..3 {
            let Some(source_y) = (y + ky).checked_sub(1).filter(|&y| y < shape.height) else {
                continue;
            };
            let line = (image * shape.height + source_y) * shape.width + x - 1;
            // SAFETY: the caller has checked the extents, and that the taps lie in the row.
            unsafe {
                let source = self.source.pixel(line).add(channel);
                let taps: [S::F16; 3] = std::array::from_fn(|kx| {
                    let tap = if self.is_flipped {
                        8 - 3 * ky - kx
                    } else {
                        3 * ky + kx
                    };
                    load(simd, self.weights.as_ptr().add(tap * channels + channel))
                });
                for column in 0..N + 2 {
                    let value = load(simd, source.add(column * self.source.pixel_stride));
                    for (kx, &tap) in taps.iter().enumerate() {
                        if column >= kx && column - kx < N {
                            sums[column - kx] = simd.fma(value, tap, sums[column - kx]);
                        }
                    }
                }
            }
        }
        sums
    }

    /// Computes `N` pixels of one channel block; `x..x + N` see every tap, or `N` is 1.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&self, simd: S, x: usize, channel: usize) -> [S::F16; N] {
        let shape = self.shape;
        let (kernel, half) = (shape.kernel, shape.kernel / 2);
        let channels = shape.channels.padded();
        let (image, y) = (self.row / shape.height, self.row % shape.height);
        let mut sums = [simd.zero(); N];
        for ky in 0..kernel {
            let source_y = y + ky;
            if source_y < half || source_y - half >= shape.height {
                continue;
            }
            let line = (image * shape.height + source_y - half) * shape.width;
            for kx in 0..kernel {
                let source_x = x + kx;
                if source_x < half || source_x - half >= shape.width {
                    continue;
                }
                let tap = ky * kernel + kx;
                let tap = if self.is_flipped {
                    kernel * kernel - 1 - tap
                } else {
                    tap
                };
                // SAFETY: the caller has checked the extents; the weights have `channels` floats a tap.
                unsafe {
                    let weight = load(simd, self.weights.as_ptr().add(tap * channels + channel));
                    for (index, sum) in sums.iter_mut().enumerate() {
                        let pixel = self.source.pixel(line + source_x - half + index);
                        *sum = simd.fma(load(simd, pixel.add(channel)), weight, *sum);
                    }
                }
            }
        }
        sums
    }

    /// Writes a tile and adds it to the statistics.
    #[inline(always)]
    fn finish<S: Simd, const N: usize>(
        &self,
        simd: S,
        x: usize,
        channel: usize,
        sums: [S::F16; N],
        statistics: &mut [S::F16; 2],
    ) {
        for (index, mut value) in sums.into_iter().enumerate() {
            let pixel = self.row * self.shape.width + x + index;
            // SAFETY: the caller has checked the extents; the row is this chunk's alone.
            unsafe {
                let target = self.target.pixel(pixel).add(channel);
                if let Some(bias) = self.bias {
                    value = simd.add(value, load(simd, bias.as_ptr().add(channel)));
                }
                if self.silu {
                    value = silu(simd, value);
                }
                if let Some(residual) = self.residual {
                    value = simd.add(value, load(simd, residual.pixel(pixel).add(channel)));
                }
                if self.accumulate {
                    value = simd.add(value, load(simd, target));
                }
                store(simd, value, target);
            }
            statistics[0] = simd.add(statistics[0], value);
            statistics[1] = simd.fma(value, value, statistics[1]);
        }
    }
}

impl Kernel for Row<'_> {
    type Output = ();

    /// Walks along the row, all channels of a tile before the next tile, as memory lies.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (width, half) = (self.shape.width, self.shape.kernel / 2);
        if let Some(partials) = self.statistics {
            // SAFETY: each row has its own 2 × `channels` floats.
            unsafe { clear(partials.pixel(self.row), 2 * self.shape.channels.padded()) };
        }
        let mut x = 0;
        while x < width {
            if x >= half && x + TILE + half <= width {
                self.channels::<S, TILE>(simd, x);
                x += TILE;
            } else {
                self.channels::<S, 1>(simd, x);
                x += 1;
            }
        }
    }
}

impl Row<'_> {
    #[inline(always)]
    fn channels<S: Simd, const N: usize>(&self, simd: S, x: usize) {
        let channels = self.shape.channels.padded();
        for channel in (0..channels).step_by(BLOCK) {
            let mut sums = [simd.zero(); 2];
            let tile = if N > 1 && self.shape.kernel == 3 {
                self.inner_tile::<S, N>(simd, x, channel)
            } else {
                self.tile::<S, N>(simd, x, channel)
            };
            self.finish(simd, x, channel, tile, &mut sums);
            if let Some(partials) = self.statistics {
                for (kind, sum) in sums.into_iter().enumerate() {
                    // SAFETY: as in `run`.
                    unsafe {
                        let target = partials.pixel(self.row).add(kind * channels + channel);
                        store(simd, simd.add(load(simd, target), sum), target);
                    }
                }
            }
        }
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the pass's operands, already checked"
)]
pub(super) fn forward(
    shape: &Shape,
    level: Level,
    threads: &Threads,
    input: View<'_>,
    packed: &[f32],
    output: View<'_>,
    epilogue: Epilogue<'_>,
    scratch: &[Cell<f32>],
) {
    let channels = shape.channels.padded();
    let rows = shape.batch * shape.height;
    let source = input.raw(shape.pixels(), channels);
    let target = output.raw(shape.pixels(), channels);
    let residual = epilogue
        .residual
        .map(|view| view.raw(shape.pixels(), channels));
    let partials = View::dense(scratch, 2 * channels);
    let raw_partials = epilogue
        .statistics
        .is_some()
        .then(|| partials.raw(rows, 2 * channels));
    let (bias, silu) = (epilogue.bias, epilogue.silu);
    threads.run(rows, |row| {
        level.dispatch(Row {
            shape,
            source,
            target,
            weights: packed,
            is_flipped: false,
            accumulate: false,
            bias,
            silu,
            residual,
            statistics: raw_partials,
            row,
        });
    });
    if let Some(statistics) = epilogue.statistics {
        statistics.fill(0.0);
        for row in 0..rows {
            for (channel, sum) in statistics.iter_mut().enumerate() {
                *sum += f64::from(partials.get(row, channel));
            }
        }
    }
}

pub(super) fn backward_data(
    shape: &Shape,
    level: Level,
    threads: &Threads,
    output_gradient: View<'_>,
    packed: &[f32],
    input_gradient: View<'_>,
    write: Write,
) {
    let channels = shape.channels.padded();
    let source = output_gradient.raw(shape.pixels(), channels);
    let target = input_gradient.raw(shape.pixels(), channels);
    threads.run(shape.batch * shape.height, |row| {
        level.dispatch(Row {
            shape,
            source,
            target,
            weights: packed,
            is_flipped: true,
            accumulate: write == Write::Accumulate,
            bias: None,
            silu: false,
            residual: None,
            statistics: None,
            row,
        });
    });
}

/// The weights' gradient over some rows: `partial[tap][c] = Σ source[x + tap][c] · gradient[x][c]`.
struct WeightRows<'a> {
    shape: &'a Shape,
    source: RawView,
    gradient: RawView,
    partial: *mut f32,
    rows: std::ops::Range<usize>,
}

impl WeightRows<'_> {
    /// Adds `N` neighbouring taps of one kernel row for one channel block of a stretch of pixels.
    #[inline(always)]
    fn taps<S: Simd, const N: usize>(
        &self,
        simd: S,
        (line, row): (usize, usize),
        stretch: std::ops::Range<usize>,
        tap: usize,
        channel: usize,
    ) {
        let (half, width) = (self.shape.kernel / 2, self.shape.width);
        let channels = self.shape.channels.padded();
        let first = tap % self.shape.kernel;
        let mut sums = [simd.zero(); N];
        for x in stretch {
            // SAFETY: the caller has checked the extents; taps outside the row are skipped.
            unsafe {
                let gradient = load(simd, self.gradient.pixel(row * width + x).add(channel));
                for (index, sum) in sums.iter_mut().enumerate() {
                    let source_x = x + first + index;
                    if source_x >= half && source_x - half < width {
                        let source = self.source.pixel(line + source_x - half).add(channel);
                        *sum = simd.fma(load(simd, source), gradient, *sum);
                    }
                }
            }
        }
        for (index, sum) in sums.into_iter().enumerate() {
            // SAFETY: the partial has `channels` floats a tap and belongs to this chunk.
            unsafe {
                let target = self.partial.add((tap + index) * channels + channel);
                store(simd, simd.add(load(simd, target), sum), target);
            }
        }
    }

    /// Adds all taps of a kernel of three for one channel block of a stretch whose windows lie inside of the image:
    /// every gradient is read once, every source three times.
    #[inline(always)]
    fn inner_taps<S: Simd>(
        &self,
        simd: S,
        row: usize,
        stretch: std::ops::Range<usize>,
        channel: usize,
    ) {
        let width = self.shape.width;
        let channels = self.shape.channels.padded();
        let mut sums = [simd.zero(); 9];
        // SAFETY: the caller has checked that the windows lie in the image; the partial belongs to this chunk.
        unsafe {
            let lines: [*const f32; 3] = std::array::from_fn(|ky| {
                let pixel = (row + ky - 1) * width + stretch.start - 1;
                self.source.pixel(pixel).add(channel).cast_const()
            });
            for (index, x) in stretch.enumerate() {
                let gradient = load(simd, self.gradient.pixel(row * width + x).add(channel));
                for (ky, line) in lines.iter().enumerate() {
                    let first = line.add(index * self.source.pixel_stride);
                    for kx in 0..3 {
                        let source = load(simd, first.add(kx * self.source.pixel_stride));
                        sums[3 * ky + kx] = simd.fma(source, gradient, sums[3 * ky + kx]);
                    }
                }
            }
            for (tap, sum) in sums.into_iter().enumerate() {
                let target = self.partial.add(tap * channels + channel);
                store(simd, simd.add(load(simd, target), sum), target);
            }
        }
    }

    /// Adds a stretch of pixels, whose windows may reach outside of the image.
    #[inline(always)]
    fn any_taps<S: Simd>(
        &self,
        simd: S,
        row: usize,
        stretch: std::ops::Range<usize>,
        channel: usize,
    ) {
        let Shape { height, width, .. } = *self.shape;
        let (kernel, half) = (self.shape.kernel, self.shape.kernel / 2);
        let (image, y) = (row / height, row % height);
        for ky in 0..kernel {
            if y + ky < half || y + ky - half >= height {
                continue;
            }
            let lines = ((image * height + y + ky - half) * width, row);
            let mut tap = ky * kernel;
            while tap < (ky + 1) * kernel {
                if tap + TAPS <= (ky + 1) * kernel {
                    self.taps::<S, TAPS>(simd, lines, stretch.clone(), tap, channel);
                    tap += TAPS;
                } else {
                    self.taps::<S, 1>(simd, lines, stretch.clone(), tap, channel);
                    tap += 1;
                }
            }
        }
    }
}

impl Kernel for WeightRows<'_> {
    type Output = ();

    /// Walks along the rows in stretches, all channels of one before the next, as memory lies.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Shape { height, width, .. } = *self.shape;
        let kernel = self.shape.kernel;
        let channels = self.shape.channels.padded();
        // SAFETY: the partial belongs to this chunk.
        unsafe { clear(self.partial, kernel * kernel * channels) };
        for row in self.rows.clone() {
            let y = row % height;
            let inside = if kernel == 3 && y > 0 && y + 1 < height {
                1..width.saturating_sub(1).max(1)
            } else {
                0..0
            };
            for start in (0..width).step_by(STRETCH) {
                let end = (start + STRETCH).min(width);
                let inner = start.max(inside.start)..end.min(inside.end);
                for channel in (0..channels).step_by(BLOCK) {
                    if inner.is_empty() {
                        self.any_taps(simd, row, start..end, channel);
                        continue;
                    }
                    self.any_taps(simd, row, start..inner.start, channel);
                    self.inner_taps(simd, row, inner.clone(), channel);
                    self.any_taps(simd, row, inner.end..end, channel);
                }
            }
        }
    }
}

pub(super) fn backward_weights(
    shape: &Shape,
    level: Level,
    threads: &Threads,
    input: View<'_>,
    output_gradient: View<'_>,
    weight_gradient: &mut [f32],
    scratch: &[Cell<f32>],
) {
    let channels = shape.channels.padded();
    let source = input.raw(shape.pixels(), channels);
    let gradient = output_gradient.raw(shape.pixels(), channels);
    let taps = shape.kernel * shape.kernel;
    let count = partial_count(shape);
    let rows = shape.batch * shape.height;
    let partials = View::dense(scratch, taps * channels);
    let raw_partials = partials.raw(count, taps * channels);
    threads.run(count, |index| {
        level.dispatch(WeightRows {
            shape,
            source,
            gradient,
            // SAFETY: each chunk has its own partial.
            partial: unsafe { raw_partials.pixel(index) },
            rows: index * rows / count..(index + 1) * rows / count,
        });
    });
    let target = View::dense(as_cells(weight_gradient), taps);
    for (channel, place) in shape.channels.places().enumerate() {
        for tap in 0..taps {
            let sum: f32 = (0..count)
                .map(|index| partials.get(index, tap * channels + place))
                .sum();
            target.set(channel, tap, target.get(channel, tap) + sum);
        }
    }
}
