//! What happens to finished target elements, shared by the algorithms.
#![expect(
    unsafe_code,
    reason = "kernels address channel ranges of shared buffers"
)]

use crate::simd::pointer::{load, store};
use crate::simd::{Simd, silu};
use crate::view::RawView;

/// A checked [`super::Epilogue`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Finish<'a> {
    pub bias: Option<&'a [f32]>,
    pub silu: bool,
    pub residual: Option<RawView>,
    /// Sums, then sums of squares, of each chunk.
    pub statistics: Option<RawView>,
    pub channels: usize,
}

/// Sums and sums of squares of one block of channels; two of each, so that an addition need not wait for the one
/// before.
pub(super) type Sums<S> = [[<S as Simd>::F16; 2]; 2];

impl Finish<'_> {
    /// Returns whether values change.
    #[inline(always)]
    pub fn has_values(&self) -> bool {
        self.bias.is_some() || self.silu || self.residual.is_some()
    }

    /// Returns sums of nothing.
    #[inline(always)]
    pub fn sums<S: Simd>(&self, simd: S) -> Sums<S> {
        [[simd.zero(); 2]; 2]
    }

    /// Returns the finished value of a block of a pixel's channels.
    ///
    /// # Safety
    /// The pixel and the channels are the target's.
    #[inline(always)]
    pub unsafe fn value<S: Simd>(
        &self,
        simd: S,
        mut value: S::F16,
        pixel: usize,
        channel: usize,
    ) -> S::F16 {
        // SAFETY: the caller's promise; bias and residual have been checked by the pass.
        unsafe {
            if let Some(bias) = self.bias {
                value = simd.add(value, load(simd, bias.as_ptr().add(channel)));
            }
            if self.silu {
                value = silu(simd, value);
            }
            if let Some(residual) = self.residual {
                value = simd.add(value, load(simd, residual.pixel(pixel).add(channel)));
            }
        }
        value
    }

    /// Adds a finished value to one set of sums.
    #[inline(always)]
    pub fn count<S: Simd>(&self, simd: S, value: S::F16, [sum, square]: &mut [S::F16; 2]) {
        *sum = simd.add(*sum, value);
        *square = simd.fma(value, value, *square);
    }

    /// Writes a chunk's sums of one block of channels.
    #[inline(always)]
    pub fn start_statistics<S: Simd>(&self, simd: S, chunk: usize, channel: usize, sums: Sums<S>) {
        if let Some(partials) = self.statistics {
            // SAFETY: each chunk has its own 2 × `channels` floats.
            unsafe {
                let target = partials.pixel(chunk).add(channel);
                store(simd, simd.add(sums[0][0], sums[1][0]), target);
                store(
                    simd,
                    simd.add(sums[0][1], sums[1][1]),
                    target.add(self.channels),
                );
            }
        }
    }

    /// Adds to a chunk's sums of one block of channels.
    #[inline(always)]
    pub fn add_statistics<S: Simd>(&self, simd: S, chunk: usize, channel: usize, sums: Sums<S>) {
        if let Some(partials) = self.statistics {
            // SAFETY: each chunk has its own 2 × `channels` floats.
            let before = unsafe {
                let target = partials.pixel(chunk).add(channel);
                [load(simd, target), load(simd, target.add(self.channels))]
            };
            let sums = [
                [
                    simd.add(sums[0][0], before[0]),
                    simd.add(sums[0][1], before[1]),
                ],
                sums[1],
            ];
            self.start_statistics(simd, chunk, channel, sums);
        }
    }
}
