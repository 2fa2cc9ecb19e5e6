//! The kernels of attention: one image's head is one piece of work.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, heads split over threads"
)]

use std::cell::Cell;

use super::{Backward, Forward, ROWS};
use crate::attention::AttentionShape;
use crate::parallel::Threads;
use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd, exp};
use crate::view::{RawView, View};

/// A matrix in memory: `columns` floats a row, every `stride` floats.
#[derive(Clone, Copy)]
struct Matrix {
    pointer: *mut f32,
    stride: usize,
}

impl Matrix {
    /// # Safety
    /// The row lies in the matrix.
    #[inline(always)]
    unsafe fn row(self, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.pointer.add(index * self.stride) }
    }

    /// # Safety
    /// The column lies in the matrix.
    #[inline(always)]
    unsafe fn after_columns(self, index: usize) -> Self {
        Self {
            // SAFETY: the caller's promise.
            pointer: unsafe { self.pointer.add(index) },
            ..self
        }
    }
}

/// Writes `target[r] = factor · (rows[r] · columns)` for `R` rows; `columns` is `depth` rows of `width` floats.
///
/// # Safety
/// The operands have those sizes, `width` is a multiple of 16, and nobody else uses the target.
#[inline(always)]
unsafe fn product<S: Simd, const R: usize>(
    simd: S,
    factor: f32,
    rows: [*const f32; R],
    columns: Matrix,
    (depth, width): (usize, usize),
    target: [*mut f32; R],
) {
    let factor = simd.splat(factor);
    for column in (0..width).step_by(BLOCK) {
        let mut sums = [simd.zero(); R];
        for index in 0..depth {
            // SAFETY: the caller's promise.
            unsafe {
                let block = load(simd, columns.row(index).add(column));
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = simd.fma(simd.splat(*row.add(index)), block, *sum);
                }
            }
        }
        for (sum, target) in sums.into_iter().zip(target) {
            // SAFETY: the caller's promise.
            unsafe { store(simd, simd.mul(sum, factor), target.add(column)) };
        }
    }
}

/// Adds `factor · weights[r][i] · rows[r]` to row `i` of the target, for all `R` rows and `count` targets.
///
/// # Safety
/// The operands have those sizes, `width` is a multiple of 16, and nobody else uses the target.
#[inline(always)]
unsafe fn outer<S: Simd, const R: usize>(
    simd: S,
    factor: f32,
    weights: [*const f32; R],
    rows: [*const f32; R],
    target: Matrix,
    (count, width): (usize, usize),
) {
    let factor = simd.splat(factor);
    for column in (0..width).step_by(BLOCK) {
        // SAFETY: the caller's promise.
        let blocks = rows.map(|row| unsafe { simd.mul(load(simd, row.add(column)), factor) });
        for index in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let place = target.row(index).add(column);
                let mut sum = load(simd, place);
                for (block, weight) in blocks.iter().zip(weights) {
                    sum = simd.fma(simd.splat(*weight.add(index)), *block, sum);
                }
                store(simd, sum, place);
            }
        }
    }
}

/// Transposes `rows` × `columns`; the target has `padded` floats a row, zero beyond `rows`.
///
/// # Safety
/// The operands have those sizes, and nobody else uses the target.
#[inline(always)]
unsafe fn transpose(
    source: Matrix,
    (rows, columns): (usize, usize),
    target: *mut f32,
    padded: usize,
) {
    for column in 0..columns {
        for row in 0..padded {
            // SAFETY: the caller's promise.
            unsafe {
                let value = if row < rows {
                    *source.row(row).add(column)
                } else {
                    0.0
                };
                *target.add(column * padded + row) = value;
            }
        }
    }
}

/// Memory shared out in equal parts: a chunk's normalisers, a thread's scratch.
struct Scratch {
    pointer: *mut f32,
    length: usize,
}

// SAFETY: each chunk or thread takes its own part.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn new(cells: &[Cell<f32>], parts: usize, total: usize) -> Self {
        assert!(
            cells.len() >= total,
            "invariant: scratch memory is as long as asked for"
        );
        Self {
            pointer: cells.as_ptr().cast_mut().cast(),
            length: total / parts,
        }
    }

    /// # Safety
    /// Each part is used by one call at a time.
    unsafe fn part(&self, index: usize) -> *mut f32 {
        // SAFETY: `new` has seen that all parts fit.
        unsafe { self.pointer.add(index * self.length) }
    }
}

/// The part of a view that belongs to one head of one image.
fn head_matrix(view: RawView, shape: &AttentionShape, chunk: usize, channels: usize) -> Matrix {
    let (image, head) = (chunk / shape.heads, chunk % shape.heads);
    Matrix {
        // SAFETY: the caller has checked that the view holds all images and heads.
        pointer: unsafe { view.pixel(image * shape.pixels).add(head * channels) },
        stride: view.pixel_stride,
    }
}

struct ForwardHead<'a> {
    shape: &'a AttentionShape,
    input: Matrix,
    attended: Matrix,
    values: Matrix,
    normalisers: Option<*mut f32>,
    scratch: *mut f32,
}

impl Kernel for ForwardHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let shape = self.shape;
        let padded = shape.padded_pixels();
        // SAFETY: `forward` has checked the extents; the head is this chunk's alone.
        unsafe {
            let keys = self.input.after_columns(shape.key_channels);
            transpose(
                keys,
                (shape.pixels, shape.key_channels),
                self.scratch,
                padded,
            );
            for first in (0..shape.pixels).step_by(ROWS) {
                if first + ROWS <= shape.pixels {
                    self.rows::<S, ROWS>(simd, first);
                } else {
                    for row in first..shape.pixels {
                        self.rows::<S, 1>(simd, row);
                    }
                }
            }
            let values = self.input.after_columns(2 * shape.key_channels);
            for pixel in 0..shape.pixels {
                let source = values.row(pixel);
                self.values
                    .row(pixel)
                    .copy_from_nonoverlapping(source, shape.value_channels);
            }
        }
    }
}

impl ForwardHead<'_> {
    /// # Safety
    /// The extents are checked; the head is this call's alone; the keys are transposed.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, simd: S, first: usize) {
        let shape = self.shape;
        let padded = shape.padded_pixels();
        // SAFETY: the caller's promise, here and below.
        unsafe {
            let keys = Matrix {
                pointer: self.scratch,
                stride: padded,
            };
            let probabilities = self.scratch.add(padded * shape.key_channels);
            let targets: [*mut f32; R] = std::array::from_fn(|r| probabilities.add(r * padded));
            let queries = std::array::from_fn(|r| self.input.row(first + r).cast_const());
            product(
                simd,
                shape.scale(),
                queries,
                keys,
                (shape.key_channels, padded),
                targets,
            );
            for (r, target) in targets.into_iter().enumerate() {
                let logits = std::slice::from_raw_parts_mut(target, padded);
                let normaliser = softmax(simd, logits, shape.pixels);
                if let Some(normalisers) = self.normalisers {
                    *normalisers.add(first + r) = normaliser;
                }
            }
            let attended = std::array::from_fn(|r| self.attended.row(first + r));
            let values = self.input.after_columns(2 * shape.key_channels);
            product(
                simd,
                1.0,
                targets.map(|row| row.cast_const()),
                values,
                (shape.pixels, shape.value_channels),
                attended,
            );
        }
    }
}

/// Turns the first `count` logits into probabilities, the rest into zero; returns the logarithm of the sum.
#[inline(always)]
fn softmax<S: Simd>(simd: S, logits: &mut [f32], count: usize) -> f32 {
    let maximum = logits[..count]
        .iter()
        .copied()
        .fold(f32::NEG_INFINITY, f32::max);
    exp_minus(simd, logits, count, maximum);
    let mut sum = 0.0;
    for block in logits.chunks_exact(BLOCK) {
        let block: &[f32; BLOCK] = block.try_into().expect("invariant: chunks are blocks");
        sum += simd.sum(simd.load(block));
    }
    let inverse = 1.0 / sum;
    logits[..count]
        .iter_mut()
        .for_each(|value| *value *= inverse);
    maximum + sum.ln()
}

/// Turns the first `count` values into `e^(value - shift)`, the rest into zero.
#[inline(always)]
fn exp_minus<S: Simd>(simd: S, values: &mut [f32], count: usize, shift: f32) {
    let shift = simd.splat(shift);
    for block in values.chunks_exact_mut(BLOCK) {
        let block: &mut [f32; BLOCK] = block.try_into().expect("invariant: chunks are blocks");
        simd.store(exp(simd, simd.sub(simd.load(block), shift)), block);
    }
    values[count..].fill(0.0);
}

pub(super) fn forward(threads: &Threads, level: Level, shape: &AttentionShape, pass: Forward<'_>) {
    let pixels = shape.batch * shape.pixels;
    let channels = shape.heads * shape.value_channels;
    let raw = |view: View<'_>, channels| view.raw(pixels, channels);
    let input = raw(pass.input, shape.heads * shape.head_channels());
    let [attended, values] = [pass.attended, pass.values].map(|view| raw(view, channels));
    let scratch = Scratch::new(
        pass.scratch,
        threads.count(),
        super::scratch_len(shape, threads.count()),
    );
    let normalisers = pass
        .normalisers
        .map(|cells| Scratch::new(cells, shape.chunks(), super::normalisers_len(shape)));
    threads.run_lanes(shape.chunks(), |lane, chunk| {
        let kernel = ForwardHead {
            shape,
            input: head_matrix(input, shape, chunk, shape.head_channels()),
            attended: head_matrix(attended, shape, chunk, shape.value_channels),
            values: head_matrix(values, shape, chunk, shape.value_channels),
            // SAFETY: this chunk's own part.
            normalisers: normalisers.as_ref().map(|n| unsafe { n.part(chunk) }),
            // SAFETY: this thread's own part.
            scratch: unsafe { scratch.part(lane) },
        };
        level.dispatch(kernel);
    });
}

struct BackwardHead<'a> {
    shape: &'a AttentionShape,
    input: Matrix,
    attended: Matrix,
    normalisers: *const f32,
    attended_gradient: Matrix,
    values_gradient: Matrix,
    input_gradient: Matrix,
    scratch: *mut f32,
}

impl Kernel for BackwardHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let shape = self.shape;
        let padded = shape.padded_pixels();
        // SAFETY: `backward` has checked the extents; the head is this chunk's alone.
        unsafe {
            let keys_and_values = self.input.after_columns(shape.key_channels);
            let columns = shape.key_channels + shape.value_channels;
            transpose(
                keys_and_values,
                (shape.pixels, columns),
                self.scratch,
                padded,
            );
            for pixel in 0..shape.pixels {
                let target = self.input_gradient.row(pixel);
                target.write_bytes(0, 2 * shape.key_channels);
                target.add(2 * shape.key_channels).copy_from_nonoverlapping(
                    self.values_gradient.row(pixel),
                    shape.value_channels,
                );
            }
            for first in (0..shape.pixels).step_by(ROWS) {
                if first + ROWS <= shape.pixels {
                    self.rows::<S, ROWS>(simd, first);
                } else {
                    for row in first..shape.pixels {
                        self.rows::<S, 1>(simd, row);
                    }
                }
            }
        }
    }
}

impl BackwardHead<'_> {
    /// # Safety
    /// The extents are checked; the head is this call's alone; keys and values are transposed.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, simd: S, first: usize) {
        let shape = self.shape;
        let padded = shape.padded_pixels();
        let (keys, values) = (shape.key_channels, shape.value_channels);
        // SAFETY: the caller's promise, here and below.
        unsafe {
            let transposed = |row: usize| Matrix {
                pointer: self.scratch.add(row * padded),
                stride: padded,
            };
            let rows = self.scratch.add((keys + values) * padded);
            let probabilities: [*mut f32; R] = std::array::from_fn(|r| rows.add(r * padded));
            let slopes: [*mut f32; R] = std::array::from_fn(|r| rows.add((ROWS + r) * padded));
            let queries = std::array::from_fn(|r| self.input.row(first + r).cast_const());
            let gradients: [*const f32; R] =
                std::array::from_fn(|r| self.attended_gradient.row(first + r).cast_const());

            let size = (keys, padded);
            product(
                simd,
                shape.scale(),
                queries,
                transposed(0),
                size,
                probabilities,
            );
            product(
                simd,
                1.0,
                gradients,
                transposed(keys),
                (values, padded),
                slopes,
            );
            let rows = probabilities.into_iter().zip(slopes).zip(gradients);
            for (r, ((probabilities, slopes), gradient)) in rows.enumerate() {
                let probabilities = std::slice::from_raw_parts_mut(probabilities, padded);
                let slopes = std::slice::from_raw_parts_mut(slopes, padded);
                let normaliser = *self.normalisers.add(first + r);
                exp_minus(simd, probabilities, shape.pixels, normaliser);
                let attended = self.attended.row(first + r);
                let mut mean = 0.0;
                for channel in 0..values {
                    mean += *attended.add(channel) * *gradient.add(channel);
                }
                for (slope, probability) in slopes.iter_mut().zip(probabilities) {
                    *slope = *probability * (*slope - mean);
                }
            }

            let count = shape.pixels;
            let probabilities = probabilities.map(|row| row.cast_const());
            let slopes = slopes.map(|row| row.cast_const());
            let value_target = self.input_gradient.after_columns(2 * keys);
            outer(
                simd,
                1.0,
                probabilities,
                gradients,
                value_target,
                (count, values),
            );
            let key_target = self.input_gradient.after_columns(keys);
            outer(
                simd,
                shape.scale(),
                slopes,
                queries,
                key_target,
                (count, keys),
            );
            let query_targets = std::array::from_fn(|r| self.input_gradient.row(first + r));
            let key_rows = self.input.after_columns(keys);
            product(
                simd,
                shape.scale(),
                slopes,
                key_rows,
                (count, keys),
                query_targets,
            );
        }
    }
}

pub(super) fn backward(
    threads: &Threads,
    level: Level,
    shape: &AttentionShape,
    pass: Backward<'_>,
) {
    let pixels = shape.batch * shape.pixels;
    let channels = shape.heads * shape.value_channels;
    let mixed = shape.heads * shape.head_channels();
    let [input, input_gradient] =
        [pass.input, pass.input_gradient].map(|view| view.raw(pixels, mixed));
    let [attended, attended_gradient, values_gradient] =
        [pass.attended, pass.attended_gradient, pass.values_gradient]
            .map(|view| view.raw(pixels, channels));
    let scratch = Scratch::new(
        pass.scratch,
        threads.count(),
        super::backward_scratch_len(shape, threads.count()),
    );
    let normalisers = Scratch::new(
        pass.normalisers,
        shape.chunks(),
        super::normalisers_len(shape),
    );
    threads.run_lanes(shape.chunks(), |lane, chunk| {
        let own = |view| head_matrix(view, shape, chunk, shape.value_channels);
        let kernel = BackwardHead {
            shape,
            input: head_matrix(input, shape, chunk, shape.head_channels()),
            attended: own(attended),
            // SAFETY: this chunk's own part.
            normalisers: unsafe { normalisers.part(chunk) },
            attended_gradient: own(attended_gradient),
            values_gradient: own(values_gradient),
            input_gradient: head_matrix(input_gradient, shape, chunk, shape.head_channels()),
            // SAFETY: this thread's own part.
            scratch: unsafe { scratch.part(lane) },
        };
        level.dispatch(kernel);
    });
}
