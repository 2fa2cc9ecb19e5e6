//! Convolutions of views: forward with statistics or a folded norm, and the input's gradient.

use engine::device::cuda::Device;
use engine::ops::conv2d::cuda::{
    ConvDgrad, ConvFprop, ConvGeometry, ConvSize, ConvTile, ConvWgrad, SumRanges, TILES,
    WEIGHT_TILES, WeightTile,
};

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

/// Runs one case with one tile, twice with other values: first in one block that has all tiles of rows, then in many.
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
    for round in 0..2 {
        let w = weights(case, draw);
        let w_there = on_device(device, &w);
        let values = x.set(|_, _| draw.next());
        let geometry = ConvGeometry::forward(case.size, x.view(), w_there.address(), y.view());
        let mut grid = tile.fprop_grid(&geometry, 1);
        if round == 0 {
            grid[0] = 1;
        }
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

/// Sums the partial gradients onto `kept`.
fn sum_ranges(device: &Device, partials: &Vector, ranges: u32, kept: &[f32]) -> Vec<f64> {
    let target = Vector::of(device, kept);
    let parameters = SumRanges {
        partials: partials.address(),
        target: target.address(),
        count: kept.len() as u32,
        ranges,
        accumulate: 1,
        unused: 0,
    };
    let blocks = (kept.len() as u32).div_ceil(1024);
    device
        .launch("sum_ranges", [blocks, 1, 1], &parameters)
        .unwrap();
    target.floats()
}

fn check_weights(device: &Device, case: &Case, tile: WeightTile, seed: u64) {
    let draw = &mut Draw::new(seed);
    let x = Tensor::new(device, case.in_pixels(), [case.input + 8, 8, case.input]);
    let dy = Tensor::new(
        device,
        case.out_pixels(),
        [case.output + 16, 8, case.output],
    );
    let (inputs, gradients) = (x.set(|_, _| draw.next()), dy.set(|_, _| draw.next()));
    let geometry = ConvGeometry::forward(case.size, x.view(), 0, dy.view());
    // Short ranges: the last is ragged, and their order matters.
    let rows_per_range = 64;
    let ranges = geometry.rows.div_ceil(rows_per_range);
    let kept = draw.floats(case.output * case.taps() * case.input);
    let partials = Vector::poisoned(device, kept.len() * ranges as usize);
    let parameters = ConvWgrad {
        geometry,
        partials: partials.address(),
        rows_per_range,
        unused: 0,
    };
    let ([_, tiles, taps], _) = tile.grid(&geometry, 1);
    device
        .launch(tile.name, [ranges, tiles, taps], &parameters)
        .unwrap();
    let mut expected: Vec<f64> = kept.iter().map(|&value| f64::from(value)).collect();
    case.each_tap(|to, from, tap| {
        for k in 0..case.output {
            let row = &mut expected[(k * case.taps() + tap) * case.input..][..case.input];
            for (sum, x) in row.iter_mut().zip(&inputs[from * case.input..]) {
                *sum += gradients[to * case.output + k] * x;
            }
        }
    });
    agree(
        tile.name,
        &sum_ranges(device, &partials, ranges, &kept),
        &expected,
        2e-6,
    );
}

#[test]
fn the_gradient_of_the_weights_is_the_sum_of_its_ranges() {
    each_way(|device, seed| {
        for case in &CASES {
            for tile in WEIGHT_TILES {
                if (tile.input_channels as usize) < 4 * case.input {
                    check_weights(device, case, tile, seed);
                }
            }
        }
    });
}

/// The first convolution: its case counts four input channels, of which the last is none.
fn stem_case(output: usize) -> Case {
    case(3, 2, (13, 18), (4, output))
}

fn image(device: &Device, case: &Case, draw: &mut Draw) -> (Vector, Vec<f64>) {
    let bytes: Vec<u8> = (0..case.in_pixels() * 4)
        .map(|_| (draw.next() * 127.0 + 128.0) as u8)
        .collect();
    let inputs = bytes
        .iter()
        .enumerate()
        .map(|(index, &byte)| match index % 4 {
            3 => 0.0,
            _ => f64::from(byte) / 255.0,
        });
    (Vector::of(device, &bytes), inputs.collect())
}

#[test]
fn the_first_convolution_reads_bytes() {
    each_way(|device, seed| {
        for (name, columns, output) in
            [("stem_fprop_128x16", 16, 16), ("stem_fprop_128x32", 32, 80)]
        {
            let draw = &mut Draw::new(seed);
            let case = stem_case(output);
            let (bytes, inputs) = image(device, &case, draw);
            let w = weights(&case, draw);
            let mut rows = vec![0.0; output * 48];
            for (row, from) in rows.chunks_mut(48).zip(w.chunks(36)) {
                row[..36].copy_from_slice(from);
            }
            let w_there = on_device(device, &rows);
            let y = Tensor::new(device, case.out_pixels(), [output + 8, 8, output]);
            let norm = Norm::new(device, output, draw);
            let blocks = 1;
            let partials = Vector::poisoned(device, blocks * 3 * output);
            let counters = Vector::of(device, &[0u32; 8]);
            let parameters = ConvFprop {
                geometry: ConvGeometry::stem(
                    case.size,
                    bytes.address(),
                    w_there.address(),
                    y.view(),
                ),
                norm: norm.parameters(),
                partials: partials.address(),
                counters: counters.address(),
                ..ConvFprop::default()
            };
            let grid = [blocks as u32, output.div_ceil(columns) as u32, 1];
            device.launch(name, grid, &parameters).unwrap();
            agree(name, &y.get(), &forward(&case, &inputs, &w), 4e-3);
            norm.check(&y.get());
        }
    });
}

#[test]
fn the_first_convolution_has_gradients_of_its_weights() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let case = stem_case(24);
        let (bytes, inputs) = image(device, &case, draw);
        let dy = Tensor::new(device, case.out_pixels(), [40, 8, 24]);
        let gradients = dy.set(|_, _| draw.next());
        let (ranges, rows_per_range) = (2, 64);
        let kept = draw.floats(24 * 48);
        let partials = Vector::poisoned(device, kept.len() * ranges as usize);
        let parameters = ConvWgrad {
            geometry: ConvGeometry::stem(case.size, bytes.address(), 0, dy.view()),
            partials: partials.address(),
            rows_per_range,
            unused: 0,
        };
        assert!(parameters.geometry.rows > rows_per_range && parameters.geometry.rows < 128);
        device
            .launch("stem_wgrad", [ranges, 2, 1], &parameters)
            .unwrap();
        let mut expected: Vec<f64> = kept.iter().map(|&value| f64::from(value)).collect();
        case.each_tap(|to, from, tap| {
            for k in 0..24 {
                for c in 0..3 {
                    expected[k * 48 + tap * 4 + c] += gradients[to * 24 + k] * inputs[from * 4 + c];
                }
            }
        });
        agree(
            "stem_wgrad",
            &sum_ranges(device, &partials, ranges, &kept),
            &expected,
            2e-6,
        );
    });
}
