//! Copies, sums, enlargement, means of images, and the pyramid's chained pools.

use std::cell::Cell;

use engine::ops::elementwise::cuda::{GlobalPool, MapCopy, Upsample};
use engine::ops::max_pool::cuda::Sppf;
use engine::ops::max_pool::{self, Backward};
use engine::ops::view::{Extent, View, as_cells};
use engine::parallel::Threads;

use crate::bench::{Draw, Tensor, Vector, agree, each_way};

#[test]
fn copies_and_sums_keep_to_their_channels() {
    each_way(|device, seed| {
        for (pixels, channels) in [(70, 72), (3, 8)] {
            let draw = &mut Draw::new(seed);
            let input = Tensor::new(device, pixels, [channels + 8, 8, channels]);
            let other = Tensor::new(device, pixels, [channels + 16, 0, channels]);
            let output = Tensor::new(device, pixels, [channels + 24, 16, channels]);
            for (has_other, accumulate) in [(false, false), (true, false), (false, true)] {
                let values = input.set(|_, _| draw.next());
                let added = other.set(|_, _| draw.next());
                let before = output.set(|_, _| draw.next());
                let second = if has_other {
                    other.view()
                } else {
                    Tensor::none()
                };
                let parameters = MapCopy::new(
                    pixels as u32,
                    [input.view(), second],
                    output.view(),
                    accumulate,
                );
                device
                    .launch("map_copy", parameters.grid(), &parameters)
                    .unwrap();
                let expected: Vec<f64> = (0..values.len())
                    .map(|i| match (has_other, accumulate) {
                        (true, _) => values[i] + added[i],
                        (_, true) => values[i] + before[i],
                        _ => values[i],
                    })
                    .collect();
                let tolerance = if has_other || accumulate { 4e-3 } else { 0.0 };
                agree("copy", &output.get(), &expected, tolerance);
            }
        }
    });
}

#[test]
fn enlargement_repeats_pixels_and_sums_their_gradients() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let (images, height, width, channels) = (2, 3, 5, 24);
        let pixels = images * height * width;
        let small = Tensor::new(device, pixels, [channels + 8, 8, channels]);
        let large = Tensor::new(device, 4 * pixels, [channels + 16, 0, channels]);
        let launch = |name, accumulate| {
            let (pixels, width) = (pixels as u32, width as u32);
            let (small, large) = (small.view(), large.view());
            let parameters = Upsample::new(pixels, width, small, large, accumulate);
            device.launch(name, parameters.grid(), &parameters).unwrap();
        };
        let small_pixel = |pixel: usize| {
            let (line, x) = (pixel / (2 * width), pixel % (2 * width));
            (line / 2) * width + x / 2
        };
        let values = small.set(|_, _| draw.next());
        launch("upsample_fwd", false);
        let expected: Vec<f64> = (0..4 * pixels * channels)
            .map(|i| values[small_pixel(i / channels) * channels + i % channels])
            .collect();
        agree("enlarged", &large.get(), &expected, 0.0);
        for accumulate in [false, true] {
            let gradient = large.set(|_, _| draw.next());
            let mut expected = small.set(|_, _| draw.next());
            if !accumulate {
                expected.fill(0.0);
            }
            for (i, value) in gradient.iter().enumerate() {
                expected[small_pixel(i / channels) * channels + i % channels] += value;
            }
            launch("upsample_bwd", accumulate);
            agree("gradient", &small.get(), &expected, 4e-3);
        }
    });
}

#[test]
fn means_go_forward_and_equal_shares_back() {
    each_way(|device, seed| {
        for (pixels, channels) in [(49, 72), (1, 8), (70, 128)] {
            let draw = &mut Draw::new(seed);
            let images = 2;
            let map = Tensor::new(device, images * pixels, [channels + 8, 8, channels]);
            let mean = Tensor::new(device, images, [channels, 0, channels]);
            let parameters = GlobalPool::new(pixels as u32, map.view(), mean.view(), true);
            let grids = parameters.grids(images as u32);
            for _ in 0..2 {
                let values = map.set(|_, _| draw.next() + 0.5);
                device.launch("pool_fwd", grids[0], &parameters).unwrap();
                let mut expected = vec![0.0; images * channels];
                for (i, value) in values.iter().enumerate() {
                    let image = i / (pixels * channels);
                    expected[image * channels + i % channels] += value / pixels as f64;
                }
                agree("mean", &mean.get(), &expected, 4e-3);
                let gradient = mean.set(|_, _| draw.next());
                device.launch("pool_bwd", grids[1], &parameters).unwrap();
                let expected: Vec<f64> = (0..values.len())
                    .map(|i| {
                        let image = i / (pixels * channels);
                        values[i] + gradient[image * channels + i % channels] / pixels as f64
                    })
                    .collect();
                agree("shares", &map.get(), &expected, 4e-3);
            }
        }
    });
}

/// Values in memory of the CPU's kernels.
fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn wide(cells: &[Cell<f32>]) -> Vec<f64> {
    cells.iter().map(|cell| f64::from(cell.get())).collect()
}

#[test]
fn chained_pools_are_those_of_the_cpu() {
    let threads = Threads::new(1).unwrap();
    each_way(|device, seed| {
        for (height, width, accumulate) in [(7, 9, 0), (2, 3, 1)] {
            let draw = &mut Draw::new(seed);
            let (images, channels) = (2, 16);
            let pixels = images * height * width;
            let extent = Extent {
                batch: images,
                height,
                width,
                channels,
            };
            // All four lie in one buffer, as in the block.
            let pitch = 4 * channels + 8;
            let tensor = |at: usize| Tensor::new(device, pixels, [pitch, at, channels]);
            let (input, outputs) = (tensor(8), [tensor(16), tensor(0), tensor(24)]);
            let (gradient, gradients) = (tensor(0), [tensor(8), tensor(16), tensor(0)]);
            let places = Vector::poisoned(device, 3 * pixels * channels / 4);
            for _ in 0..2 {
                // Few values, so that many are equal.
                let mut x = floats(&input.set(|_, _| (draw.next() * 6.0).floor()));
                let sizes = [images, height, width].map(|size| size as u32);
                let views = outputs.each_ref().map(Tensor::view);
                let forward = Sppf::new(sizes, input.view(), views, places.address());
                device
                    .launch("sppf_fwd", forward.grids()[0], &forward)
                    .unwrap();
                let mut maps = [(); 3].map(|()| vec![0.0f32; pixels * channels]);
                let mut source = View::dense(as_cells(&mut x), channels);
                let mut expected = Vec::new();
                for map in &mut maps {
                    let target = View::dense(as_cells(map), channels);
                    max_pool::forward(&threads, extent, 5, source, target);
                    expected.push(target);
                    source = target;
                }
                for (output, expected) in outputs.iter().zip(&expected) {
                    agree("pool", &output.get(), &wide(expected.cells), 0.0);
                }

                let mut slopes = gradients
                    .each_ref()
                    .map(|tensor| floats(&tensor.set(|_, _| draw.next())));
                let mut before = floats(&gradient.set(|_, _| draw.next()));
                if accumulate == 0 {
                    before.fill(0.0);
                }
                let backward = Sppf {
                    accumulate,
                    ..Sppf::new(
                        sizes,
                        gradient.view(),
                        gradients.each_ref().map(Tensor::view),
                        places.address(),
                    )
                };
                device
                    .launch("sppf_bwd", backward.grids()[1], &backward)
                    .unwrap();
                let [first, second, third] = &mut slopes;
                let [own, first, second, third] = [&mut before, first, second, third]
                    .map(|values| View::dense(as_cells(values), channels));
                let x = View::dense(as_cells(&mut x), channels);
                let chain = [
                    (expected[1], expected[2], third, second),
                    (expected[0], expected[1], second, first),
                    (x, expected[0], first, own),
                ];
                for (input, output, gradient, input_gradient) in chain {
                    let pass = Backward {
                        input,
                        output,
                        gradient,
                        input_gradient,
                    };
                    max_pool::backward(&threads, extent, 5, pass);
                }
                agree("pooled gradient", &gradient.get(), &wide(own.cells), 4e-3);
            }
        }
    });
}
