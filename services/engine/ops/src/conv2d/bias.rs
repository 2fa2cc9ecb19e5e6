//! The gradient of a bias: the sum of the output's gradient over all pixels, channel by channel.
#![expect(
    unsafe_code,
    reason = "kernels address channel ranges of shared buffers"
)]

use std::ops::Range;

use super::Shape;
use crate::parallel::Threads;
use crate::simd::pointer::load;
use crate::simd::{BLOCK, Kernel, Level, Simd};
use crate::view::{RawView, View};

/// The pixels are cut into this many chunks at most, so that partial sums stay few.
const CHUNKS_MAX: usize = 32;
const CHUNK_PIXELS_MIN: usize = 256;
/// Pixels whose sums are made in single precision.
const TILE_PIXELS: usize = 32;

/// Adds the sums, in the order of the chunks.
pub(super) fn backward(
    shape: &Shape,
    level: Level,
    threads: &Threads,
    output_gradient: View<'_>,
    bias_gradient: &mut [f32],
) {
    let channels = shape.output.padded();
    let pixels = shape.output_pixels();
    let gradient = output_gradient.raw(pixels, channels);
    let chunk_len = pixels.div_ceil(CHUNKS_MAX).max(CHUNK_PIXELS_MIN);
    let mut partials = vec![0.0; pixels.div_ceil(chunk_len) * channels];
    threads.run_each(partials.chunks_exact_mut(channels), |chunk, sums| {
        let first = chunk * chunk_len;
        level.dispatch(Sum {
            gradient,
            pixels: first..(first + chunk_len).min(pixels),
            sums,
        });
    });
    for (index, place) in shape.output.places().enumerate() {
        let sums = partials.chunks_exact(channels).map(|sums| sums[place]);
        bias_gradient[index] += sums.sum::<f64>() as f32;
    }
}

struct Sum<'a> {
    gradient: RawView,
    pixels: Range<usize>,
    /// One per padded channel.
    sums: &'a mut [f64],
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for first in self.pixels.clone().step_by(TILE_PIXELS) {
            for (block, totals) in self.sums.chunks_exact_mut(BLOCK).enumerate() {
                let mut sum = simd.zero();
                for pixel in first..(first + TILE_PIXELS).min(self.pixels.end) {
                    // SAFETY: the caller has checked the extents, and nobody writes gradients meanwhile.
                    let value =
                        unsafe { load(simd, self.gradient.pixel(pixel).add(block * BLOCK)) };
                    sum = simd.add(sum, value);
                }
                let mut values = [0.0; BLOCK];
                simd.store(sum, &mut values);
                for (total, value) in totals.iter_mut().zip(values) {
                    *total += f64::from(value);
                }
            }
        }
    }
}
