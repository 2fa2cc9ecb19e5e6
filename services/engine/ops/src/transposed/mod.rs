//! Transposed convolution with a 2 × 2 kernel and stride 2: every pixel becomes four, none of which two inputs
//! share. That is one dense 1 × 1 convolution to four times the channels, one group for each corner, whose
//! groups then move to interleaved pixels; all passes stand on the dense kernels.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, rows and channels split over threads"
)]

#[cfg(test)]
mod tests;

use std::cell::Cell;

use crate::conv2d::{self, Conv2d, Epilogue, Input, Pass, Write};
use crate::elementwise::{row, row_mut};
use crate::parallel::Threads;
use crate::upsample::corners;
use crate::view::{Channels, Extent, View, as_cells};

/// Pixels that one becomes.
const CORNERS: usize = 4;

/// What a transposed convolution is applied to; height and width are the input's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub input: Channels,
    pub output: Channels,
}

impl Shape {
    /// Returns the elements of the canonical weights: input channel, output channel, row, column.
    pub fn weight_len(&self) -> usize {
        CORNERS * self.input.count() * self.output.count()
    }

    /// Returns the useful floating-point operations of one pass (each pass has the same number).
    pub fn flops(&self) -> u64 {
        2 * (self.weight_len() * self.batch * self.height * self.width) as u64
    }

    fn pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Floats of a pixel before its corners are moved.
    fn corner_channels(&self) -> usize {
        CORNERS * self.output.padded()
    }

    /// Floats of the tensor before its corners are moved.
    fn corners_len(&self) -> usize {
        self.pixels() * self.corner_channels()
    }
}

/// A transposed convolution made ready for one shape.
#[derive(Debug, Clone)]
pub struct Transposed {
    shape: Shape,
    dense: Conv2d,
}

impl Transposed {
    /// Makes the choices for a shape.
    pub fn new(shape: Shape, options: conv2d::Options) -> Self {
        let dense = conv2d::Shape {
            batch: shape.batch,
            height: shape.height,
            width: shape.width,
            input: shape.input.clone(),
            output: Channels::groups(vec![shape.output.count(); CORNERS]),
            kernel: 1,
            stride: 1,
            is_image: false,
        };
        assert_eq!(
            dense.output.padded(),
            shape.corner_channels(),
            "invariant: the output is one group of channels"
        );
        Self {
            dense: Conv2d::new(dense, options),
            shape,
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the floats of a pass's packed weights: those of the dense convolution, then the weights turned
    /// into its order.
    pub fn packed_len(&self, pass: Pass) -> usize {
        match pass {
            Pass::BackwardWeights => 0,
            pass => self.dense.packed_len(pass) + self.shape.weight_len(),
        }
    }

    /// Returns the floats of scratch memory that a pass needs with a number of threads.
    pub fn scratch_len(&self, pass: Pass, thread_count: usize) -> usize {
        let own = match pass {
            Pass::Forward => self.shape.corner_channels(),
            Pass::BackwardData => 0,
            Pass::BackwardWeights => self.shape.weight_len(),
        };
        self.shape.corners_len() + own + self.dense.scratch_len(pass, thread_count)
    }

    /// Packs canonical weights for a pass.
    pub fn pack(&self, threads: &Threads, pass: Pass, weights: &[f32], packed: &mut [f32]) {
        assert_eq!(packed.len(), self.packed_len(pass), "invariant: packed");
        let (packed, turned) = packed.split_at_mut(self.dense.packed_len(pass));
        for (index, &weight) in weights.iter().enumerate() {
            turned[self.turned(index)] = weight;
        }
        self.dense.pack(threads, pass, turned, packed);
    }

    /// Computes the output, overwriting it, padding included. `bias` has a value per padded output channel.
    pub fn forward(
        &self,
        threads: &Threads,
        input: View<'_>,
        packed: &[f32],
        bias: &[f32],
        output: View<'_>,
        scratch: &[Cell<f32>],
    ) {
        let shape = &self.shape;
        assert_eq!(bias.len(), shape.output.padded(), "invariant: bias");
        let (parts, rest) = scratch.split_at(shape.corners_len());
        let (biases, rest) = rest.split_at(shape.corner_channels());
        for (target, &value) in biases.iter().zip(bias.iter().cycle()) {
            target.set(value);
        }
        // SAFETY: this call owns its scratch memory and writes the biases no more.
        let biases = unsafe { std::slice::from_raw_parts(biases.as_ptr().cast(), biases.len()) };
        let parts = View::dense(parts, shape.corner_channels());
        let epilogue = Epilogue {
            bias: Some(biases),
            ..Epilogue::default()
        };
        self.dense.forward(
            threads,
            Input::View(input),
            &packed[..self.dense.packed_len(Pass::Forward)],
            parts,
            epilogue,
            rest,
        );
        move_corners(threads, shape, parts, output, Direction::Apart);
    }

    /// Computes the gradient of the input from that of the output.
    pub fn backward_data(
        &self,
        threads: &Threads,
        gradient: View<'_>,
        packed: &[f32],
        input_gradient: View<'_>,
        write: Write,
        scratch: &[Cell<f32>],
    ) {
        let (parts, rest) = scratch.split_at(self.shape.corners_len());
        let parts = View::dense(parts, self.shape.corner_channels());
        move_corners(threads, &self.shape, parts, gradient, Direction::Together);
        self.dense.backward_data(
            threads,
            parts,
            &packed[..self.dense.packed_len(Pass::BackwardData)],
            input_gradient,
            write,
            rest,
        );
    }

    /// Adds the gradient of the canonical weights.
    pub fn backward_weights(
        &self,
        threads: &Threads,
        input: View<'_>,
        gradient: View<'_>,
        weight_gradient: &mut [f32],
        scratch: &[Cell<f32>],
    ) {
        let (parts, rest) = scratch.split_at(self.shape.corners_len());
        let (turned, rest) = rest.split_at(self.shape.weight_len());
        let parts = View::dense(parts, self.shape.corner_channels());
        move_corners(threads, &self.shape, parts, gradient, Direction::Together);
        // SAFETY: this call owns its scratch memory, and the rest of it is another part.
        let turned = unsafe {
            std::slice::from_raw_parts_mut(turned.as_ptr().cast_mut().cast(), turned.len())
        };
        turned.fill(0.0);
        let input = Input::View(input);
        self.dense
            .backward_weights(threads, input, parts, turned, rest);
        for (index, target) in weight_gradient.iter_mut().enumerate() {
            *target += turned[self.turned(index)];
        }
    }

    /// Adds the gradient of the bias, one value per real output channel: the sum of the output's gradient.
    pub fn backward_bias(&self, threads: &Threads, gradient: View<'_>, bias_gradient: &mut [f32]) {
        let pixels = CORNERS * self.shape.pixels();
        let count = self.shape.output.count();
        assert_eq!(
            bias_gradient.len(),
            count,
            "invariant: one bias per output channel"
        );
        let gradient = gradient.raw(pixels, self.shape.output.padded());
        let target = View::dense(as_cells(bias_gradient), 1).raw(count, 1);
        threads.run(count, |channel| {
            // SAFETY: the extents are checked; each chunk has its own channel.
            unsafe {
                let values = (0..pixels).map(|pixel| *gradient.pixel(pixel).add(channel));
                *target.pixel(channel) += values.map(f64::from).sum::<f64>() as f32;
            }
        });
    }

    /// Returns the dense convolution's place of a canonical weight.
    fn turned(&self, index: usize) -> usize {
        let (inputs, outputs) = (self.shape.input.count(), self.shape.output.count());
        let corner = index % CORNERS;
        let output = index / CORNERS % outputs;
        let input = index / CORNERS / outputs;
        (corner * outputs + output) * inputs + input
    }
}

/// Which way corners move.
#[derive(Clone, Copy)]
enum Direction {
    /// From channel groups to pixels of their own.
    Apart,
    /// Back.
    Together,
}

/// Moves between `parts`, a pixel of which holds the four corners one after another, and the pixels of `whole`.
fn move_corners(
    threads: &Threads,
    shape: &Shape,
    parts: View<'_>,
    whole: View<'_>,
    direction: Direction,
) {
    let Shape {
        batch,
        height,
        width,
        ..
    } = *shape;
    let channels = shape.output.padded();
    let pixels = Extent {
        batch,
        height,
        width,
        channels,
    }
    .pixels();
    let parts: [_; CORNERS] =
        std::array::from_fn(|corner| parts.from_channel(corner * channels).raw(pixels, channels));
    let whole = whole.raw(CORNERS * pixels, channels);
    threads.run(batch * height, |line| {
        for x in 0..width {
            for (part, pixel) in parts.iter().zip(corners(line, x, width)) {
                let inner = line * width + x;
                // SAFETY: the extents are checked; both rows are this line's alone.
                unsafe {
                    match direction {
                        Direction::Apart => row_mut(whole, pixel, channels)
                            .copy_from_slice(row(*part, inner, channels)),
                        Direction::Together => row_mut(*part, inner, channels)
                            .copy_from_slice(row(whole, pixel, channels)),
                    }
                }
            }
        }
    });
}
