//! Depthwise convolution: one odd kernel per channel, stride 1, padding `k / 2`, NHWC, in three passes.
//!
//! Results are the same bits for any number of threads.

mod cpu;
pub mod cuda;

use std::cell::Cell;

pub use crate::conv2d::{Epilogue, Pass, Write};
use crate::parallel::Threads;
use crate::simd::Level;
use crate::view::{Channels, View};

/// What a depthwise convolution is applied to; input and output have the same shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub channels: Channels,
    /// Odd.
    pub kernel: usize,
}

impl Shape {
    /// Returns the pixels of the whole batch.
    pub fn pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Returns the elements of the canonical `[C][1][k][k]` weights.
    pub fn weight_len(&self) -> usize {
        self.channels.count() * self.kernel * self.kernel
    }

    /// Returns the useful floating-point operations of one pass.
    pub fn flops(&self) -> u64 {
        2 * self.weight_len() as u64 * self.pixels() as u64
    }
}

/// A depthwise convolution made ready for one shape.
#[derive(Debug, Clone)]
pub struct Depthwise {
    shape: Shape,
    level: Level,
}

impl Depthwise {
    /// Makes the choices for a shape; the default level is the best of the machine.
    pub fn new(shape: Shape, level: Option<Level>) -> Self {
        assert!(shape.kernel % 2 == 1, "invariant: kernels are odd");
        assert!(shape.pixels() > 0, "invariant: a convolution has pixels");
        Self {
            shape,
            level: level.unwrap_or_else(Level::best),
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the floats of the packed weights, which serve both passes.
    pub fn packed_len(&self) -> usize {
        self.shape.kernel * self.shape.kernel * self.shape.channels.padded()
    }

    /// Returns the floats of scratch memory that a pass needs.
    pub fn scratch_len(&self, pass: Pass) -> usize {
        cpu::scratch_len(&self.shape, pass)
    }

    /// Packs canonical weights as `[ky][kx][c]`.
    pub fn pack(&self, weights: &[f32], packed: &mut [f32]) {
        assert_eq!(weights.len(), self.shape.weight_len(), "invariant: weights");
        assert_eq!(packed.len(), self.packed_len(), "invariant: packed");
        packed.fill(0.0);
        let taps = self.shape.kernel * self.shape.kernel;
        let channels = self.shape.channels.padded();
        for (place, kernel) in self.shape.channels.places().zip(weights.chunks_exact(taps)) {
            for (tap, &weight) in kernel.iter().enumerate() {
                packed[tap * channels + place] = weight;
            }
        }
    }

    /// Computes `output = input * weights`, overwriting it, padding included.
    pub fn forward(
        &self,
        threads: &Threads,
        input: View<'_>,
        packed: &[f32],
        output: View<'_>,
        epilogue: Epilogue<'_>,
        scratch: &[Cell<f32>],
    ) {
        self.check(input, output, packed, Pass::Forward, scratch);
        let channels = self.shape.channels.padded();
        if let Some(bias) = epilogue.bias {
            assert_eq!(bias.len(), channels, "invariant: bias");
        }
        if let Some(statistics) = &epilogue.statistics {
            assert_eq!(statistics.len(), 2 * channels, "invariant: statistics");
        }
        cpu::forward(
            &self.shape,
            self.level,
            threads,
            input,
            packed,
            output,
            epilogue,
            scratch,
        );
    }

    /// Computes the gradient of the input from that of the output.
    pub fn backward_data(
        &self,
        threads: &Threads,
        output_gradient: View<'_>,
        packed: &[f32],
        input_gradient: View<'_>,
        write: Write,
    ) {
        self.check(
            output_gradient,
            input_gradient,
            packed,
            Pass::BackwardData,
            &[],
        );
        cpu::backward_data(
            &self.shape,
            self.level,
            threads,
            output_gradient,
            packed,
            input_gradient,
            write,
        );
    }

    /// Adds the gradient of the canonical weights.
    pub fn backward_weights(
        &self,
        threads: &Threads,
        input: View<'_>,
        output_gradient: View<'_>,
        weight_gradient: &mut [f32],
        scratch: &[Cell<f32>],
    ) {
        assert_eq!(
            weight_gradient.len(),
            self.shape.weight_len(),
            "invariant: weights"
        );
        assert!(
            scratch.len() >= self.scratch_len(Pass::BackwardWeights),
            "invariant: scratch memory is as long as asked for"
        );
        cpu::backward_weights(
            &self.shape,
            self.level,
            threads,
            input,
            output_gradient,
            weight_gradient,
            scratch,
        );
    }

    fn check(
        &self,
        source: View<'_>,
        target: View<'_>,
        packed: &[f32],
        pass: Pass,
        scratch: &[Cell<f32>],
    ) {
        assert_eq!(packed.len(), self.packed_len(), "invariant: packed");
        let extent = (self.shape.pixels(), self.shape.channels.padded());
        source.check(extent.0, extent.1);
        assert!(
            source.is_disjoint(extent, &target, extent),
            "invariant: a convolution does not overwrite what it reads"
        );
        assert!(
            scratch.len() >= self.scratch_len(pass),
            "invariant: scratch memory is as long as asked for"
        );
    }
}

#[cfg(test)]
mod tests;
