//! Self-attention over the pixels of an image: `o = v · softmax(scale · qᵀk)ᵀ`, head by head.
//!
//! A head's queries, keys and values are neighbouring channels of the input. The table of probabilities is made
//! a few rows at a time and made again on the way back from the logarithms of the sums, so memory grows with
//! the pixels and not with their square.

mod cpu;
pub mod cuda;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use crate::parallel::Threads;
use crate::simd::{BLOCK, Level};
use crate::view::View;

/// Query rows whose probabilities exist at once.
const ROWS: usize = 4;

/// What attention is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    pub batch: usize,
    pub pixels: usize,
    pub heads: usize,
    pub key_channels: usize,
    pub value_channels: usize,
}

impl AttentionShape {
    /// Channels of the input that belong to one head.
    fn head_channels(&self) -> usize {
        2 * self.key_channels + self.value_channels
    }

    fn chunks(&self) -> usize {
        self.batch * self.heads
    }

    fn padded_pixels(&self) -> usize {
        self.pixels.next_multiple_of(BLOCK)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.key_channels as f32).sqrt()
    }

    fn check(&self) {
        assert!(
            self.key_channels.is_multiple_of(BLOCK) && self.value_channels.is_multiple_of(BLOCK),
            "invariant: a head's queries, keys and values fill whole blocks"
        );
    }
}

/// Returns the floats of the logarithms of the softmax's sums.
pub fn normalisers_len(shape: &AttentionShape) -> usize {
    shape.chunks() * shape.pixels
}

/// Returns the floats of scratch memory of the forward pass, for each thread: the keys transposed, some rows of
/// probabilities.
pub fn scratch_len(shape: &AttentionShape, thread_count: usize) -> usize {
    thread_count * shape.padded_pixels() * (shape.key_channels + ROWS)
}

/// Returns the floats of scratch memory of the backward pass, for each thread: keys and values transposed, rows
/// of probabilities and of their gradients.
pub fn backward_scratch_len(shape: &AttentionShape, thread_count: usize) -> usize {
    let channels = shape.key_channels + shape.value_channels;
    thread_count * shape.padded_pixels() * (channels + 2 * ROWS)
}

/// Returns the floating-point operations of the two products of matrices.
pub fn flops(shape: &AttentionShape) -> u64 {
    let pairs = (shape.chunks() * shape.pixels * shape.pixels) as u64;
    2 * pairs * (shape.key_channels + shape.value_channels) as u64
}

/// Returns the floating-point operations of the backward pass: five products, one of them made again.
pub fn backward_flops(shape: &AttentionShape) -> u64 {
    let pairs = (shape.chunks() * shape.pixels * shape.pixels) as u64;
    2 * pairs * (3 * shape.key_channels + 2 * shape.value_channels) as u64
}

/// The operands of the forward pass.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    pub input: View<'a>,
    pub attended: View<'a>,
    /// Receives the values as an image.
    pub values: View<'a>,
    pub normalisers: Option<&'a [Cell<f32>]>,
    pub scratch: &'a [Cell<f32>],
}

/// Attends.
pub fn forward(threads: &Threads, shape: &AttentionShape, pass: Forward<'_>) {
    shape.check();
    cpu::forward(threads, Level::best(), shape, pass);
}

/// The operands of the backward pass.
#[derive(Debug, Clone, Copy)]
pub struct Backward<'a> {
    pub input: View<'a>,
    pub attended: View<'a>,
    pub normalisers: &'a [Cell<f32>],
    pub attended_gradient: View<'a>,
    /// The gradient of the values as an image.
    pub values_gradient: View<'a>,
    /// Overwritten.
    pub input_gradient: View<'a>,
    pub scratch: &'a [Cell<f32>],
}

/// Computes the input's gradient.
pub fn backward(threads: &Threads, shape: &AttentionShape, pass: Backward<'_>) {
    shape.check();
    cpu::backward(threads, Level::best(), shape, pass);
}
