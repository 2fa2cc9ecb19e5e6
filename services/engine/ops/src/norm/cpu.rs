//! The kernels of the norm: chunks of pixels, blocks of sixteen channels.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, pixels split over threads"
)]

use std::ops::Range;

use super::{BackwardActivation, Coefficients, Shape, Vectors};
use crate::conv2d::Write;
use crate::norm::Activation;
use crate::parallel::Threads;
use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd, sigmoid, silu};
use crate::view::{RawView, View};

/// Chunks are a fixed share of the pixels: at most this many, so that partial sums stay few.
const CHUNKS_MAX: usize = 64;
const CHUNK_PIXELS_MIN: usize = 256;
/// Pixels whose sums are made in single precision.
const TILE_PIXELS: usize = 32;
/// Outputs from this size on are written past the caches.
const LARGE_FLOATS: usize = 4 << 20;
/// Channel blocks whose sums are made side by side.
const STRIP: usize = 8;

fn chunk_pixels(pixels: usize) -> usize {
    pixels
        .div_ceil(CHUNKS_MAX)
        .max(CHUNK_PIXELS_MIN)
        .next_multiple_of(TILE_PIXELS)
}

/// Returns the number of chunks, which depends on the pixels only.
pub(super) fn chunk_count(pixels: usize) -> usize {
    pixels.div_ceil(chunk_pixels(pixels))
}

fn chunk_range(pixels: usize, chunk: usize) -> Range<usize> {
    let length = chunk_pixels(pixels);
    chunk * length..((chunk + 1) * length).min(pixels)
}

struct Apply<'a> {
    shape: Shape,
    /// The output will have left the caches when it is read.
    is_large: bool,
    pixels: Range<usize>,
    raw: RawView,
    vectors: Vectors<'a>,
    residual: Option<RawView>,
    output: RawView,
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match (self.shape.activation, self.residual) {
            (Activation::Silu, None) => self.pixels::<S, true, false>(simd, self.raw),
            (Activation::Silu, Some(residual)) => self.pixels::<S, true, true>(simd, residual),
            (Activation::Identity, None) => self.pixels::<S, false, false>(simd, self.raw),
            (Activation::Identity, Some(residual)) => {
                self.pixels::<S, false, true>(simd, residual);
            }
        }
    }
}

impl Apply<'_> {
    #[inline(always)]
    fn pixels<S: Simd, const SILU: bool, const SHORTCUT: bool>(&self, simd: S, residual: RawView) {
        let Vectors {
            mean, scale, bias, ..
        } = self.vectors;
        for pixel in self.pixels.clone() {
            for channel in (0..self.shape.channels).step_by(BLOCK) {
                // SAFETY: the caller has checked the extents; the pixel is this chunk's alone.
                unsafe {
                    let at = |vector: &[f32]| load(simd, vector.as_ptr().add(channel));
                    let y = load(simd, self.raw.pixel(pixel).add(channel));
                    let z = simd.fma(simd.sub(y, at(mean)), at(scale), at(bias));
                    let mut a = if SILU { silu(simd, z) } else { z };
                    if SHORTCUT {
                        a = simd.add(a, load(simd, residual.pixel(pixel).add(channel)));
                    }
                    let target = self.output.pixel(pixel).add(channel);
                    if self.is_large {
                        simd.stream(a, target);
                    } else {
                        store(simd, a, target);
                    }
                }
            }
        }
    }
}

pub(super) fn apply(
    threads: &Threads,
    level: Level,
    shape: Shape,
    raw: View<'_>,
    vectors: Vectors<'_>,
    residual: Option<View<'_>>,
    output: View<'_>,
) {
    check_vectors(shape, &[vectors.mean, vectors.scale, vectors.bias]);
    let raw = raw.raw(shape.pixels, shape.channels);
    let residual = residual.map(|view| view.raw(shape.pixels, shape.channels));
    let output = output.raw(shape.pixels, shape.channels);
    threads.run(chunk_count(shape.pixels), |chunk| {
        level.dispatch(Apply {
            shape,
            is_large: shape.pixels * shape.channels >= LARGE_FLOATS,
            pixels: chunk_range(shape.pixels, chunk),
            raw,
            vectors,
            residual,
            output,
        });
    });
}

fn check_vectors(shape: Shape, vectors: &[&[f32]]) {
    assert!(
        shape.channels.is_multiple_of(BLOCK)
            && vectors.iter().all(|vector| vector.len() == shape.channels),
        "invariant: one value per padded channel"
    );
}

/// Double-precision sums shared out to chunks.
#[derive(Clone, Copy)]
struct Sums(*mut f64);

// SAFETY: each chunk writes its own range of the sums, which nobody reads before all chunks are done.
unsafe impl Send for Sums {}
// SAFETY: as for `Send`.
unsafe impl Sync for Sums {}

impl Sums {
    /// Returns one chunk's sums.
    ///
    /// # Safety
    /// The range lies in the sums and no other thread uses it meanwhile.
    #[inline(always)]
    unsafe fn chunk<'a>(self, chunk: usize, length: usize) -> &'a mut [f64] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(chunk * length), length) }
    }
}

struct Reduce<'a> {
    shape: Shape,
    pixels: Range<usize>,
    raw: RawView,
    vectors: Vectors<'a>,
    gradient: RawView,
    residual: Option<(RawView, Write)>,
    /// Per channel: the gradients' sum, then their sum times the distance from the mean.
    sums: &'a mut [f64],
}

impl Kernel for Reduce<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        match self.shape.activation {
            Activation::Silu => self.tiles::<S, true>(simd),
            Activation::Identity => self.tiles::<S, false>(simd),
        }
    }
}

impl Reduce<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const SILU: bool>(&mut self, simd: S) {
        let channels = self.shape.channels;
        for first in self.pixels.clone().step_by(TILE_PIXELS) {
            let tile = first..(first + TILE_PIXELS).min(self.pixels.end);
            for strip in (0..channels).step_by(STRIP * BLOCK) {
                let blocks = (channels - strip).min(STRIP * BLOCK) / BLOCK;
                let mut sums = [[simd.zero(); 2]; STRIP];
                for pixel in tile.clone() {
                    for (block, sums) in sums[..blocks].iter_mut().enumerate() {
                        let channel = strip + block * BLOCK;
                        self.element::<S, SILU>(simd, pixel, channel, sums);
                    }
                }
                for (block, sums) in sums[..blocks].iter().enumerate() {
                    for (kind, &sum) in sums.iter().enumerate() {
                        let mut values = [0.0; BLOCK];
                        simd.store(sum, &mut values);
                        let start = kind * channels + strip + block * BLOCK;
                        for (total, value) in self.sums[start..][..BLOCK].iter_mut().zip(values) {
                            *total += f64::from(value);
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn element<S: Simd, const SILU: bool>(
        &self,
        simd: S,
        pixel: usize,
        channel: usize,
        sums: &mut [S::F16; 2],
    ) {
        // SAFETY: the caller has checked the extents; the pixel is this chunk's alone.
        unsafe {
            let at = |vector: &[f32]| load(simd, vector.as_ptr().add(channel));
            let target = self.gradient.pixel(pixel).add(channel);
            let output_gradient = load(simd, target);
            if let Some((residual, write)) = self.residual {
                let residual = residual.pixel(pixel).add(channel);
                let value = match write {
                    Write::Overwrite => output_gradient,
                    Write::Accumulate => simd.add(load(simd, residual), output_gradient),
                };
                store(simd, value, residual);
            }
            let y = load(simd, self.raw.pixel(pixel).add(channel));
            let distance = simd.sub(y, at(self.vectors.mean));
            let mut gradient = output_gradient;
            if SILU {
                let z = simd.fma(distance, at(self.vectors.scale), at(self.vectors.bias));
                let s = sigmoid(simd, z);
                // d(z·s)/dz = s + z·s·(1 - s)
                let one = simd.splat(1.0);
                let slope = simd.fma(simd.mul(z, s), simd.sub(one, s), s);
                gradient = simd.mul(output_gradient, slope);
                store(simd, gradient, target);
            }
            sums[0] = simd.add(sums[0], gradient);
            sums[1] = simd.fma(gradient, distance, sums[1]);
        }
    }
}

pub(super) fn backward_activation(
    threads: &Threads,
    level: Level,
    shape: Shape,
    pass: BackwardActivation<'_>,
) {
    let BackwardActivation { vectors, .. } = pass;
    check_vectors(shape, &[vectors.mean, vectors.scale, vectors.bias]);
    let raw = pass.raw.raw(shape.pixels, shape.channels);
    let gradient = pass.gradient.raw(shape.pixels, shape.channels);
    let residual = pass
        .residual
        .map(|(view, write)| (view.raw(shape.pixels, shape.channels), write));
    let length = 2 * shape.channels;
    let chunks = chunk_count(shape.pixels);
    let (totals, partials) = pass.sums[..length * (1 + chunks)].split_at_mut(length);
    let shared = Sums(partials.as_mut_ptr());
    threads.run(chunks, |chunk| {
        // SAFETY: `partials` has a range for every chunk, and only this call takes this one.
        let sums = unsafe { shared.chunk(chunk, length) };
        sums.fill(0.0);
        level.dispatch(Reduce {
            shape,
            pixels: chunk_range(shape.pixels, chunk),
            raw,
            vectors,
            gradient,
            residual,
            sums,
        });
    });
    totals.fill(0.0);
    for partial in partials.chunks_exact(length) {
        for (total, &value) in totals.iter_mut().zip(partial) {
            *total += value;
        }
    }

    let (slopes, offsets) = pass.coefficients.split_at_mut(shape.channels);
    slopes.fill(0.0);
    offsets.fill(0.0);
    let count = shape.pixels as f64;
    for (index, place) in pass.channels.places().enumerate() {
        let (sum, moment) = (totals[place], totals[shape.channels + place]);
        let inverse_deviation = f64::from(vectors.inverse_deviation[place]);
        let scale = f64::from(vectors.scale[place]);
        pass.bias_gradient[index] += sum as f32;
        pass.weight_gradient[index] += (moment * inverse_deviation) as f32;
        offsets[place] = (-scale * sum / count) as f32;
        slopes[place] = (-scale * inverse_deviation.powi(2) * moment / count) as f32;
    }
}

struct Through<'a> {
    shape: Shape,
    pixels: Range<usize>,
    raw: RawView,
    vectors: Vectors<'a>,
    coefficients: Coefficients<'a>,
    gradient: RawView,
}

impl Kernel for Through<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Coefficients { slope, offset } = self.coefficients;
        for pixel in self.pixels.clone() {
            for channel in (0..self.shape.channels).step_by(BLOCK) {
                // SAFETY: the caller has checked the extents; the pixel is this chunk's alone.
                unsafe {
                    let at = |vector: &[f32]| load(simd, vector.as_ptr().add(channel));
                    let target = self.gradient.pixel(pixel).add(channel);
                    let y = load(simd, self.raw.pixel(pixel).add(channel));
                    let distance = simd.sub(y, at(self.vectors.mean));
                    let rest = simd.fma(distance, at(slope), at(offset));
                    let value = simd.fma(load(simd, target), at(self.vectors.scale), rest);
                    store(simd, value, target);
                }
            }
        }
    }
}

pub(super) fn backward_norm(
    threads: &Threads,
    level: Level,
    shape: Shape,
    raw: View<'_>,
    vectors: Vectors<'_>,
    coefficients: Coefficients<'_>,
    gradient: View<'_>,
) {
    check_vectors(
        shape,
        &[
            vectors.mean,
            vectors.scale,
            coefficients.slope,
            coefficients.offset,
        ],
    );
    let raw = raw.raw(shape.pixels, shape.channels);
    let gradient = gradient.raw(shape.pixels, shape.channels);
    threads.run(chunk_count(shape.pixels), |chunk| {
        level.dispatch(Through {
            shape,
            pixels: chunk_range(shape.pixels, chunk),
            raw,
            vectors,
            coefficients,
            gradient,
        });
    });
}
