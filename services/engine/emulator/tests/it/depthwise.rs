//! Depthwise convolutions, forward and both gradients.

use engine::device::cuda::Device;
use engine::ops::conv2d::cuda::SumRanges;
use engine::ops::cuda::FastDiv;
use engine::ops::depthwise::cuda::{DwconvBwd, DwconvFprop};

use crate::bench::{Draw, Tensor, Vector, agree, each_way, from_bf16, silu, to_bf16};
use crate::norm::Norm;

/// Images, height, width, channels.
const CASES: [[usize; 4]; 3] = [[2, 5, 7, 72], [1, 1, 9, 8], [2, 12, 6, 16]];

fn weights(device: &Device, channels: usize, draw: &mut Draw) -> (Vector, Vec<f64>) {
    let bits: Vec<u16> = draw.floats(9 * channels).into_iter().map(to_bf16).collect();
    let exact = bits.iter().map(|&bits| f64::from(from_bf16(bits)));
    (Vector::of(device, &bits), exact.collect())
}

/// Calls with output pixel, input pixel and tap.
fn each_tap([images, height, width, _]: [usize; 4], mut call: impl FnMut(usize, usize, usize)) {
    for image in 0..images {
        for (p, q) in (0..height).flat_map(|p| (0..width).map(move |q| (p, q))) {
            for tap in 0..9 {
                let (y, x) = ((p + tap / 3).wrapping_sub(1), (q + tap % 3).wrapping_sub(1));
                if y < height && x < width {
                    let at = |y, x| (image * height + y) * width + x;
                    call(at(p, q), at(y, x), tap);
                }
            }
        }
    }
}

#[test]
fn a_depthwise_convolution_makes_the_statistics_of_what_it_wrote() {
    each_way(|device, seed| {
        for case in CASES {
            let [images, height, width, channels] = case;
            let draw = &mut Draw::new(seed);
            let pixels = images * height * width;
            let x = Tensor::new(device, pixels, [channels + 8, 8, channels]);
            let y = Tensor::new(device, pixels, [channels + 16, 8, channels]);
            let (w_there, w) = weights(device, channels, draw);
            let inputs = x.set(|_, _| draw.next());
            let norm = Norm::new(device, channels, draw);
            let blocks = pixels.div_ceil(40);
            let partials = Vector::poisoned(device, blocks * 3 * channels);
            let counters = Vector::of(device, &[0u32; 2]);
            let parameters = DwconvFprop {
                x: x.view(),
                y: y.view(),
                norm: norm.parameters(),
                w: w_there.address(),
                partials: partials.address(),
                counters: counters.address(),
                bias: 0,
                height: height as u32,
                width: width as u32,
                pixels: pixels as u32,
                pixels_per_block: 40,
                by_width: FastDiv::new(width as u32),
                by_height: FastDiv::new(height as u32),
                silu: 0,
                unused: 0,
            };
            let grid = [blocks as u32, channels.div_ceil(64) as u32, 1];
            device.launch("dwconv_fprop", grid, &parameters).unwrap();
            let mut expected = vec![0.0; pixels * channels];
            each_tap(case, |to, from, tap| {
                for c in 0..channels {
                    expected[to * channels + c] +=
                        inputs[from * channels + c] * w[tap * channels + c];
                }
            });
            agree("y", &y.get(), &expected, 4e-3);
            norm.check(&y.get());
        }
    });
}

#[test]
fn a_folded_norm_of_a_depthwise_convolution_is_a_bias_and_an_activation() {
    each_way(|device, seed| {
        let case = CASES[0];
        let [images, height, width, channels] = case;
        let draw = &mut Draw::new(seed);
        let pixels = images * height * width;
        let x = Tensor::new(device, pixels, [channels + 8, 8, channels]);
        let y = Tensor::new(device, pixels, [channels + 16, 8, channels]);
        let (w_there, w) = weights(device, channels, draw);
        let inputs = x.set(|_, _| draw.next());
        let bias = draw.floats(channels);
        let bias_there = Vector::of(device, &bias);
        let parameters = DwconvFprop {
            x: x.view(),
            y: y.view(),
            w: w_there.address(),
            bias: bias_there.address(),
            height: height as u32,
            width: width as u32,
            pixels: pixels as u32,
            pixels_per_block: 40,
            by_width: FastDiv::new(width as u32),
            by_height: FastDiv::new(height as u32),
            silu: 1,
            ..DwconvFprop::default()
        };
        let grid = [pixels.div_ceil(40) as u32, channels.div_ceil(64) as u32, 1];
        device.launch("dwconv_fprop", grid, &parameters).unwrap();
        let mut expected = vec![0.0; pixels * channels];
        each_tap(case, |to, from, tap| {
            for c in 0..channels {
                expected[to * channels + c] += inputs[from * channels + c] * w[tap * channels + c];
            }
        });
        for (index, value) in expected.iter_mut().enumerate() {
            *value = silu(*value + f64::from(bias[index % channels]));
        }
        agree("y", &y.get(), &expected, 4e-3);
    });
}

#[test]
fn both_gradients_of_a_depthwise_convolution_come_from_one_pass() {
    each_way(|device, seed| {
        for (index, case) in CASES.into_iter().enumerate() {
            let [images, height, width, channels] = case;
            let draw = &mut Draw::new(seed);
            let pixels = images * height * width;
            let x = Tensor::new(device, pixels, [channels + 8, 8, channels]);
            let dy = Tensor::new(device, pixels, [channels + 24, 16, channels]);
            let dx = Tensor::new(device, pixels, [channels + 16, 8, channels]);
            let (w_there, w) = weights(device, channels, draw);
            let inputs = x.set(|_, _| draw.next());
            let gradients = dy.set(|_, _| draw.next());
            let is_adding = index == 0;
            let mut expected = if is_adding {
                dx.set(|_, _| draw.next())
            } else {
                vec![0.0; pixels * channels]
            };
            let blocks = pixels.div_ceil(40);
            let partials = Vector::poisoned(device, blocks * 9 * channels);
            let parameters = DwconvBwd {
                x: x.view(),
                dy: dy.view(),
                dx: dx.view(),
                w: w_there.address(),
                partials: partials.address(),
                height: height as u32,
                width: width as u32,
                pixels: pixels as u32,
                pixels_per_block: 40,
                by_width: FastDiv::new(width as u32),
                by_height: FastDiv::new(height as u32),
                accumulate: u32::from(is_adding),
                unused: 0,
            };
            let grid = [blocks as u32, channels.div_ceil(64) as u32, 1];
            device.launch("dwconv_bwd", grid, &parameters).unwrap();
            let target = Vector::poisoned(device, 9 * channels);
            let sum = SumRanges {
                partials: partials.address(),
                target: target.address(),
                count: 9 * channels as u32,
                ranges: blocks as u32,
                accumulate: 0,
                unused: 0,
            };
            device.launch("sum_ranges", [1, 1, 1], &sum).unwrap();
            let mut dw = vec![0.0; 9 * channels];
            each_tap(case, |to, from, tap| {
                for c in 0..channels {
                    let gradient = gradients[to * channels + c];
                    expected[from * channels + c] += gradient * w[tap * channels + c];
                    dw[tap * channels + c] += gradient * inputs[from * channels + c];
                }
            });
            agree("dx", &dx.get(), &expected, 4e-3);
            agree("dw", &target.floats(), &dw, 2e-6);
        }
    });
}
