//! Convolutions of views: forward with statistics or a folded norm, and the input's gradient.

use engine::device::cuda::Device;
use engine::ops::conv2d::cuda::{ConvDgrad, ConvFprop, ConvGeometry, ConvSize, ConvTile, TILES};

use crate::bench::{Draw, Tensor, Vector, agree, each_way, from_bf16, silu, to_bf16};
use crate::norm::Norm;

/// Extents with padded input and output channels.
#[derive(Debug, Clone, Copy)]
struct Case {
    size: ConvSize,
    input: usize,
    output: usize,
}

const fn case(kernel: u32, stride: u32, extent: (u32, u32), channels: (usize, usize)) -> Case {
    Case {
        size: ConvSize {
            images: 2,
            height: extent.0,
            width: extent.1,
            kernel,
            stride,
        },
        input: channels.0,
        output: channels.1,
    }
}

/// Ragged rows, columns and depth, each kernel and stride.
const CASES: [Case; 6] = [
    case(3, 1, (9, 11), (8, 16)),
    case(3, 2, (12, 9), (40, 72)),
    case(3, 2, (7, 8), (16, 24)),
    case(1, 1, (10, 7), (72, 40)),
    case(3, 1, (6, 6), (24, 136)),
    case(1, 2, (5, 6), (16, 16)),
];

impl Case {
    fn in_pixels(&self) -> usize {
        (self.size.images * self.size.height * self.size.width) as usize
    }

    fn out_pixels(&self) -> usize {
        let (height, width) = self.size.output();
        (self.size.images * height * width) as usize
    }

    fn taps(&self) -> usize {
        (self.size.kernel * self.size.kernel) as usize
    }

    /// Calls with output pixel, input pixel and tap of every product that isn't of padding.
    fn each_tap(&self, mut call: impl FnMut(usize, usize, usize)) {
        let size = self.size;
        let (height, width) = size.output();
        let half = size.kernel / 2;
        for image in 0..size.images {
            for (p, q) in (0..height).flat_map(|p| (0..width).map(move |q| (p, q))) {
                for tap in 0..size.kernel * size.kernel {
                    let y = (p * size.stride + tap / size.kernel).wrapping_sub(half);
                    let x = (q * size.stride + tap % size.kernel).wrapping_sub(half);
                    if y < size.height && x < size.width {
                        let from = (image * size.height + y) * size.width + x;
                        let to = (image * height + p) * width + q;
                        call(to as usize, from as usize, tap as usize);
                    }
                }
            }
        }
    }
}

/// Weights as `[output][tap][input]`, rounded.
fn weights(case: &Case, draw: &mut Draw) -> Vec<f32> {
    let values = draw.floats(case.output * case.taps() * case.input);
    values
        .into_iter()
        .map(|value| from_bf16(to_bf16(value)))
        .collect()
}

fn on_device(device: &Device, values: &[f32]) -> Vector {
    let bits: Vec<u16> = values.iter().map(|&value| to_bf16(value)).collect();
    Vector::of(device, &bits)
}

fn forward(case: &Case, x: &[f64], w: &[f32]) -> Vec<f64> {
    let mut y = vec![0.0; case.out_pixels() * case.output];
    case.each_tap(|to, from, tap| {
        for k in 0..case.output {
            let row = &w[(k * case.taps() + tap) * case.input..][..case.input];
            let pixel = &x[from * case.input..][..case.input];
            let sum: f64 = row.iter().zip(pixel).map(|(&w, x)| f64::from(w) * x).sum();
            y[to * case.output + k] += sum;
        }
    });
    y
}

/// Runs one case with one tile, twice with other values; few blocks, so that each has several tiles.
fn check_statistics(device: &Device, case: &Case, tile: ConvTile, seed: u64) {
    let draw = &mut Draw::new(seed);
    let x = Tensor::new(device, case.in_pixels(), [case.input + 8, 8, case.input]);
    let y = Tensor::new(
        device,
        case.out_pixels(),
        [case.output + 16, 8, case.output],
    );
    let columns = case.output.div_ceil(tile.columns as usize);
    let counters = Vector::of(device, &vec![0u32; columns]);
    for _ in 0..2 {
        let w = weights(case, draw);
        let w_there = on_device(device, &w);
        let values = x.set(|_, _| draw.next());
        let geometry = ConvGeometry::forward(case.size, x.view(), w_there.address(), y.view());
        let grid = tile.fprop_grid(&geometry, 1);
        let partials = Vector::poisoned(device, grid[0] as usize * 3 * case.output);
        let norm = Norm::new(device, case.output, draw);
        let parameters = ConvFprop {
            geometry,
            norm: norm.parameters(),
            partials: partials.address(),
            counters: counters.address(),
            ..ConvFprop::default()
        };
        y.arena.fill(0, y.pixels * y.pitch * 2, 0xff).unwrap();
        device.launch(tile.fprop, grid, &parameters).unwrap();
        device.synchronize().unwrap();
        agree(tile.fprop, &y.get(), &forward(case, &values, &w), 4e-3);
        norm.check(&y.get());
    }
}

#[test]
fn a_convolution_makes_the_statistics_of_what_it_wrote() {
    each_way(|device, seed| {
        for case in &CASES {
            for tile in TILES {
                // A tile much wider than the output adds nothing but time.
                if (tile.columns as usize) < 4 * case.output {
                    check_statistics(device, case, tile, seed);
                }
            }
        }
    });
}

#[test]
fn a_folded_norm_is_a_bias_an_activation_and_a_residual() {
    each_way(|device, seed| {
        let case = CASES[1];
        let draw = &mut Draw::new(seed);
        let x = Tensor::new(device, case.in_pixels(), [case.input, 0, case.input]);
        let y = Tensor::new(device, case.out_pixels(), [case.output, 0, case.output]);
        let residual = Tensor::new(device, case.out_pixels(), [case.output + 8, 8, case.output]);
        let w = weights(&case, draw);
        let w_there = on_device(device, &w);
        let bias = draw.floats(case.output);
        let bias_there = Vector::of(device, &bias);
        let values = x.set(|_, _| draw.next());
        let added = residual.set(|_, _| 9.0 * draw.next());
        let geometry = ConvGeometry::forward(case.size, x.view(), w_there.address(), y.view());
        let tile = ConvTile::choose(&geometry, 1);
        let parameters = ConvFprop {
            geometry,
            bias: bias_there.address(),
            residual: residual.view(),
            silu: 1,
            ..ConvFprop::default()
        };
        device
            .launch(tile.fprop, tile.fprop_grid(&geometry, 1), &parameters)
            .unwrap();
        let mut expected = forward(&case, &values, &w);
        for (index, value) in expected.iter_mut().enumerate() {
            *value = silu(*value + f64::from(bias[index % case.output])) + added[index];
        }
        agree("folded", &y.get(), &expected, 8e-3);
    });
}

fn check_gradient(device: &Device, case: &Case, tile: ConvTile, seed: u64, accumulate: bool) {
    let draw = &mut Draw::new(seed);
    let dy = Tensor::new(device, case.out_pixels(), [case.output + 8, 8, case.output]);
    let dx = Tensor::new(device, case.in_pixels(), [case.input + 16, 8, case.input]);
    let w = weights(case, draw);
    // The gradient multiplies by the transposed weights.
    let mut transposed = vec![0.0; w.len()];
    for (index, &value) in w.iter().enumerate() {
        let (k, rest) = (
            index / (case.taps() * case.input),
            index % (case.taps() * case.input),
        );
        let (tap, c) = (rest / case.input, rest % case.input);
        transposed[(c * case.taps() + tap) * case.output + k] = value;
    }
    let w_there = on_device(device, &transposed);
    let values = dy.set(|_, _| draw.next());
    // A kernel of one with a stride leaves pixels that no output reads.
    let is_whole = case.size.kernel >= case.size.stride;
    let mut expected = if accumulate || !is_whole {
        dx.set(|_, _| if accumulate { draw.next() } else { 0.0 })
    } else {
        vec![0.0; case.in_pixels() * case.input]
    };
    case.each_tap(|to, from, tap| {
        for k in 0..case.output {
            let gradient = values[to * case.output + k];
            let row = &w[(k * case.taps() + tap) * case.input..][..case.input];
            let pixel = &mut expected[from * case.input..][..case.input];
            for (sum, &w) in pixel.iter_mut().zip(row) {
                *sum += gradient * f64::from(w);
            }
        }
    });
    for geometry in ConvGeometry::backward(case.size, dy.view(), w_there.address(), dx.view()) {
        let parameters = ConvDgrad {
            geometry,
            accumulate: u32::from(accumulate),
            unused: 0,
        };
        device
            .launch(tile.dgrad, tile.dgrad_grid(&geometry), &parameters)
            .unwrap();
    }
    agree(tile.dgrad, &dx.get(), &expected, 8e-3);
}

#[test]
fn the_gradient_of_the_input_meets_every_pixel_once() {
    each_way(|device, seed| {
        for (index, case) in CASES.iter().enumerate() {
            for tile in TILES {
                if (tile.columns as usize) < 4 * case.input {
                    check_gradient(device, case, tile, seed, index % 2 == 0);
                }
            }
        }
    });
}
