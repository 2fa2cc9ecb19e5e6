//! Plain loops: what the fast kernels must agree with.
#![expect(
    unsafe_code,
    reason = "rows of one buffer are written by several threads"
)]

use super::{Epilogue, Input, Pass, Shape, Write};
use crate::parallel::Threads;
use crate::view::{RawView, View};

/// Weights are packed as `[ky][kx][c][oc]`, padded, for both passes that need them.
pub(super) fn packed_len(shape: &Shape, pass: Pass) -> usize {
    match pass {
        Pass::Forward | Pass::BackwardData => {
            shape.kernel * shape.kernel * shape.input.padded() * shape.output.padded()
        }
        Pass::BackwardWeights => 0,
    }
}

pub(super) fn pack(shape: &Shape, weights: &[f32], packed: &mut [f32]) {
    packed.fill(0.0);
    let taps = shape.kernel * shape.kernel;
    let (inputs, outputs) = (shape.input.padded(), shape.output.padded());
    let mut source = weights.iter();
    for out in shape.output.places() {
        for channel in shape.input.places() {
            for (tap, &weight) in (0..taps).zip(&mut source) {
                packed[(tap * inputs + channel) * outputs + out] = weight;
            }
        }
    }
}

/// A pixel's channels, whatever the input is.
enum Source<'a> {
    View(RawView),
    Bytes(&'a [u8]),
    Floats(&'a [f32]),
}

impl<'a> Source<'a> {
    fn new(shape: &Shape, input: Input<'a>) -> Self {
        match input {
            Input::View(view) => Self::View(view.raw(shape.input_pixels(), shape.input.padded())),
            Input::Bytes(bytes) => Self::Bytes(bytes),
            Input::Floats(floats) => Self::Floats(floats),
        }
    }

    fn get(&self, pixel: usize, channel: usize) -> f32 {
        match self {
            // SAFETY: callers stay within the shape that made the view; nothing writes inputs.
            Self::View(view) => unsafe { *view.pixel(pixel).add(channel) },
            Self::Bytes(bytes) => {
                let index = pixel * super::IMAGE_CHANNELS + channel;
                f32::from(bytes[index]) / 255.0
            }
            Self::Floats(floats) => floats[pixel * super::IMAGE_CHANNELS + channel],
        }
    }

    fn channels(&self, shape: &Shape) -> usize {
        match self {
            Self::View(_) => shape.input.padded(),
            _ => super::IMAGE_CHANNELS,
        }
    }
}

/// Returns the input row or column that a tap of an output row or column reads, if it is not padding.
fn tap(shape: &Shape, output: usize, tap: usize, len: usize) -> Option<usize> {
    (output * shape.stride + tap)
        .checked_sub(shape.kernel / 2)
        .filter(|&place| place < len)
}

pub(super) fn forward(
    shape: &Shape,
    threads: &Threads,
    input: Input<'_>,
    packed: &[f32],
    output: View<'_>,
    epilogue: Epilogue<'_>,
) {
    let source = Source::new(shape, input);
    let channels = shape.output.padded();
    let target = output.raw(shape.output_pixels(), channels);
    let residual = epilogue
        .residual
        .map(|view| view.raw(shape.output_pixels(), channels));
    let (rows, columns) = (shape.output_height(), shape.output_width());
    threads.run(shape.batch * rows, |chunk| {
        let (image, y) = (chunk / rows, chunk % rows);
        for x in 0..columns {
            let pixel = chunk * columns + x;
            // SAFETY: the pixel is one of this chunk's row, which no other chunk touches.
            let out = unsafe { std::slice::from_raw_parts_mut(target.pixel(pixel), channels) };
            out.fill(0.0);
            for ky in 0..shape.kernel {
                let Some(input_y) = tap(shape, y, ky, shape.height) else {
                    continue;
                };
                for kx in 0..shape.kernel {
                    let Some(input_x) = tap(shape, x, kx, shape.width) else {
                        continue;
                    };
                    let input_pixel = (image * shape.height + input_y) * shape.width + input_x;
                    let first = (ky * shape.kernel + kx) * shape.input.padded();
                    for channel in 0..source.channels(shape) {
                        let value = source.get(input_pixel, channel);
                        let weights = &packed[(first + channel) * channels..][..channels];
                        for (sum, weight) in out.iter_mut().zip(weights) {
                            *sum += value * weight;
                        }
                    }
                }
            }
            for (channel, value) in out.iter_mut().enumerate() {
                if let Some(bias) = epilogue.bias {
                    *value += bias[channel];
                }
                if epilogue.silu {
                    *value /= 1.0 + (-*value).exp();
                }
                if let Some(residual) = residual {
                    // SAFETY: `raw` has checked the extent.
                    *value += unsafe { *residual.pixel(pixel).add(channel) };
                }
            }
        }
    });
    if let Some(statistics) = epilogue.statistics {
        let (sums, squares) = statistics.split_at_mut(channels);
        for channel in 0..channels {
            (sums[channel], squares[channel]) = (0.0, 0.0);
            for pixel in 0..shape.output_pixels() {
                let value = f64::from(output.get(pixel, channel));
                sums[channel] += value;
                squares[channel] += value * value;
            }
        }
    }
}

pub(super) fn backward_data(
    shape: &Shape,
    threads: &Threads,
    output_gradient: View<'_>,
    packed: &[f32],
    input_gradient: View<'_>,
    write: Write,
) {
    let (inputs, outputs) = (shape.input.padded(), shape.output.padded());
    let source = output_gradient.raw(shape.output_pixels(), outputs);
    let target = input_gradient.raw(shape.input_pixels(), inputs);
    let (rows, columns) = (shape.output_height(), shape.output_width());
    threads.run(shape.batch * shape.height, |chunk| {
        let (image, input_y) = (chunk / shape.height, chunk % shape.height);
        // SAFETY: the row is this chunk's, which no other chunk touches.
        let pixel = |x| unsafe {
            std::slice::from_raw_parts_mut(target.pixel(chunk * shape.width + x), inputs)
        };
        if write == Write::Overwrite {
            for x in 0..shape.width {
                pixel(x).fill(0.0);
            }
        }
        for ky in 0..shape.kernel {
            for y in (0..rows).filter(|&y| tap(shape, y, ky, shape.height) == Some(input_y)) {
                for kx in 0..shape.kernel {
                    for x in 0..columns {
                        let Some(input_x) = tap(shape, x, kx, shape.width) else {
                            continue;
                        };
                        let gradient_pixel = (image * rows + y) * columns + x;
                        // SAFETY: `raw` has checked the extent; nothing writes the output's gradient.
                        let gradient = unsafe {
                            std::slice::from_raw_parts(source.pixel(gradient_pixel), outputs)
                        };
                        let first = (ky * shape.kernel + kx) * inputs;
                        for (channel, sum) in pixel(input_x).iter_mut().enumerate() {
                            let weights = &packed[(first + channel) * outputs..][..outputs];
                            let products = gradient.iter().zip(weights).map(|(g, w)| g * w);
                            *sum += products.sum::<f32>();
                        }
                    }
                }
            }
        }
    });
}

pub(super) fn backward_weights(
    shape: &Shape,
    threads: &Threads,
    input: Input<'_>,
    output_gradient: View<'_>,
    weight_gradient: &mut [f32],
) {
    let source = Source::new(shape, input);
    let gradient = output_gradient.raw(shape.output_pixels(), shape.output.padded());
    let (rows, columns) = (shape.output_height(), shape.output_width());
    let taps = shape.kernel * shape.kernel;
    let per_output = shape.input.count() * taps;
    let target = View::dense(crate::view::as_cells(weight_gradient), per_output)
        .raw(shape.output.count(), per_output);
    threads.run(shape.output.count(), |out| {
        let place = shape
            .output
            .places()
            .nth(out)
            .expect("invariant: a real channel");
        // SAFETY: each chunk has its own output channel.
        let sums = unsafe { std::slice::from_raw_parts_mut(target.pixel(out), per_output) };
        for (index, channel) in shape.input.places().enumerate() {
            for ky in 0..shape.kernel {
                for kx in 0..shape.kernel {
                    let mut sum = 0.0_f64;
                    for image_row in 0..shape.batch * rows {
                        let (image, y) = (image_row / rows, image_row % rows);
                        let Some(input_y) = tap(shape, y, ky, shape.height) else {
                            continue;
                        };
                        for x in 0..columns {
                            let Some(input_x) = tap(shape, x, kx, shape.width) else {
                                continue;
                            };
                            let pixel = (image * shape.height + input_y) * shape.width + input_x;
                            // SAFETY: `raw` has checked the extent; nothing writes the gradient.
                            let g = unsafe { *gradient.pixel(image_row * columns + x).add(place) };
                            sum += f64::from(g * source.get(pixel, channel));
                        }
                    }
                    sums[index * taps + ky * shape.kernel + kx] += sum as f32;
                }
            }
        }
    });
}
