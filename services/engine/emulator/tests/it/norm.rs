//! Batch normalisation: statistics, normalisation with activation.

use engine::device::cuda::Device;
use engine::ops::norm::cuda::{
    BnSiluApply, BnSiluBwdApply, BnSiluBwdReduce, BnStats, NormVectors, STATS_CHANNELS,
};

use crate::bench::{Draw, Tensor, Vector, agree, each_way, silu};

pub const EPSILON: f32 = 1e-3;
pub const MOMENTUM: f32 = 0.03;

/// The vectors of a norm on the device.
pub struct Norm {
    channels: usize,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    inputs: [Vector; 4],
    outputs: [Vector; 4],
}

impl Norm {
    pub fn new(device: &Device, channels: usize, draw: &mut Draw) -> Self {
        let gamma = draw.floats(channels);
        let beta = draw.floats(channels);
        let inputs = [
            gamma.clone(),
            beta.clone(),
            vec![0.5; channels],
            vec![2.0; channels],
        ];
        Self {
            channels,
            gamma,
            beta,
            inputs: inputs.map(|values| Vector::of(device, &values)),
            outputs: [(); 4].map(|()| Vector::poisoned(device, channels)),
        }
    }

    pub fn parameters(&self) -> NormVectors {
        let [gamma, beta, running_mean, running_variance] =
            self.inputs.each_ref().map(Vector::address);
        let [mean, inverse_deviation, scale, shift] = self.outputs.each_ref().map(Vector::address);
        NormVectors {
            gamma,
            beta,
            running_mean,
            running_variance,
            mean,
            inverse_deviation,
            scale,
            shift,
            epsilon: EPSILON,
            momentum: MOMENTUM,
        }
    }

    /// Returns gamma and beta of a channel.
    pub fn weights(&self, channel: usize) -> [f64; 2] {
        [self.gamma[channel], self.beta[channel]].map(f64::from)
    }

    /// Returns the bits of everything it has computed.
    pub fn bits(&self) -> Vec<u32> {
        let computed = self.outputs.iter().chain(&self.inputs[2..]);
        computed.flat_map(|vector| vector.read::<u32>()).collect()
    }

    /// Compares everything with two passes over `y` in double precision.
    pub fn check(&self, y: &[f64]) {
        let count = y.len() / self.channels;
        let mut expected: [Vec<f64>; 6] = Default::default();
        for channel in 0..self.channels {
            let values = || y.iter().skip(channel).step_by(self.channels);
            let mean = values().sum::<f64>() / count as f64;
            let squares: f64 = values().map(|value| (value - mean).powi(2)).sum();
            let inverse = 1.0 / (squares / count as f64 + f64::from(EPSILON)).sqrt();
            let scale = f64::from(self.gamma[channel]) * inverse;
            let unbiased = squares / (count as f64 - 1.0).max(1.0);
            let all = [
                mean,
                inverse,
                scale,
                f64::from(self.beta[channel]) - mean * scale,
                0.5 + f64::from(MOMENTUM) * (mean - 0.5),
                2.0 + f64::from(MOMENTUM) * (unbiased - 2.0),
            ];
            expected
                .iter_mut()
                .zip(all)
                .for_each(|(list, value)| list.push(value));
        }
        let names = ["mean", "inverse deviation", "scale", "shift"];
        for (index, name) in names.into_iter().enumerate() {
            agree(name, &self.outputs[index].floats(), &expected[index], 1e-5);
        }
        agree("running mean", &self.inputs[2].floats(), &expected[4], 1e-5);
        agree(
            "running variance",
            &self.inputs[3].floats(),
            &expected[5],
            1e-5,
        );
    }
}

/// Values whose mean is far from zero, where sums of squares would lose what matters.
fn far_from_zero(draw: &mut Draw) -> impl FnMut(usize, usize) -> f32 {
    move |_, channel| 8.0 * (channel % 3) as f32 + draw.next()
}

#[test]
fn statistics_are_those_of_two_passes() {
    each_way(|device, seed| {
        for (pixels, channels, per_block) in [(300, 72, 128), (33, 8, 64), (64, 128, 16)] {
            let draw = &mut Draw::new(seed);
            let y = Tensor::new(device, pixels, [channels + 16, 8, channels]);
            let norm = Norm::new(device, channels, draw);
            let blocks = pixels.div_ceil(per_block);
            let partials = Vector::poisoned(device, blocks * 3 * channels);
            let columns = channels.div_ceil(STATS_CHANNELS as usize);
            let counters = Vector::of(device, &vec![0u32; columns]);
            let parameters = BnStats {
                y: y.view(),
                norm: norm.parameters(),
                partials: partials.address(),
                counters: counters.address(),
                pixels: pixels as u32,
                pixels_per_block: per_block as u32,
            };
            // Twice with other values: what the first leaves behind must not show in the second.
            for round in 0..2 {
                let fresh = Norm::new(device, channels, draw);
                let used = if round == 0 { &norm } else { &fresh };
                let values = y.set(far_from_zero(draw));
                let parameters = BnStats {
                    norm: used.parameters(),
                    ..parameters
                };
                let grid = [blocks as u32, columns as u32, 1];
                device.launch("bn_stats", grid, &parameters).unwrap();
                device.synchronize().unwrap();
                used.check(&values);
            }
        }
    });
}

#[test]
fn normalisation_activates_adds_and_keeps_to_its_channels() {
    each_way(|device, seed| {
        for (pixels, channels, is_silu, has_residual) in
            [(70, 72, 1, true), (70, 16, 0, false), (9, 512, 1, false)]
        {
            let draw = &mut Draw::new(seed);
            let y = Tensor::new(device, pixels, [channels, 0, channels]);
            let output = Tensor::new(device, pixels, [channels + 24, 16, channels]);
            let residual = Tensor::new(device, pixels, [channels + 8, 8, channels]);
            let scale = draw.floats(channels);
            let shift = draw.floats(channels);
            let [scale_there, shift_there] =
                [&scale, &shift].map(|values| Vector::of(device, values));
            let values = y.set(|_, _| 4.0 * draw.next());
            let added = residual.set(|_, _| draw.next());
            let parameters = BnSiluApply {
                y: y.view(),
                output: output.view(),
                residual: if has_residual {
                    residual.view()
                } else {
                    Tensor::none()
                },
                scale: scale_there.address(),
                shift: shift_there.address(),
                pixels: pixels as u32,
                silu: is_silu,
            };
            device
                .launch("bn_silu_apply", [3, 1, 1], &parameters)
                .unwrap();
            let mut expected = Vec::new();
            for (index, value) in values.iter().enumerate() {
                let channel = index % channels;
                let z = value * f64::from(scale[channel]) + f64::from(shift[channel]);
                let a = if is_silu == 1 { silu(z) } else { z };
                expected.push(a + if has_residual { added[index] } else { 0.0 });
            }
            agree("output", &output.get(), &expected, 4e-3);
        }
    });
}

/// A norm with its activation in double precision, from its definition.
struct Exact {
    gamma: Vec<f64>,
    beta: Vec<f64>,
    channels: usize,
    is_silu: bool,
}

impl Exact {
    /// Returns mean and inverse deviation of each channel.
    fn vectors(&self, y: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let count = (y.len() / self.channels) as f64;
        (0..self.channels)
            .map(|channel| {
                let values = || y.iter().skip(channel).step_by(self.channels);
                let mean = values().sum::<f64>() / count;
                let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
                (mean, 1.0 / (variance + f64::from(EPSILON)).sqrt())
            })
            .unzip()
    }

    /// The sum over everything of the activation times its gradient.
    fn loss(&self, y: &[f64], da: &[f64]) -> f64 {
        let (mean, inverse) = self.vectors(y);
        let value = |index: usize| {
            let channel = index % self.channels;
            let normal = (y[index] - mean[channel]) * inverse[channel];
            let z = normal * self.gamma[channel] + self.beta[channel];
            if self.is_silu { silu(z) } else { z }
        };
        (0..y.len()).map(|index| value(index) * da[index]).sum()
    }

    /// The gradient of y by differences, of some elements.
    fn differences(&self, y: &[f64], da: &[f64], every: usize) -> Vec<(usize, f64)> {
        let step = 1e-4;
        let moved = |index: usize, by: f64| {
            let mut y = y.to_vec();
            y[index] += by;
            self.loss(&y, da)
        };
        (0..y.len())
            .step_by(every)
            .map(|index| {
                (
                    index,
                    (moved(index, step) - moved(index, -step)) / (2.0 * step),
                )
            })
            .collect()
    }
}

/// What a backward pass of `pixels` × `channels` was given and left.
struct Backward {
    exact: Exact,
    y: Vec<f64>,
    da: Vec<f64>,
    dy: Vec<f64>,
    sums: Vec<f64>,
    gradients: [Vec<f64>; 2],
}

fn run_backward(device: &Device, seed: u64, [pixels, channels]: [usize; 2], silu: u32) -> Backward {
    let draw = &mut Draw::new(seed);
    let y = Tensor::new(device, pixels, [channels, 0, channels]);
    let readers =
        [8, 16, 24].map(|offset| Tensor::new(device, pixels, [channels + 32, offset, channels]));
    let dy = Tensor::new(device, pixels, [channels + 8, 8, channels]);
    let shortcut = Tensor::new(device, pixels, [channels + 16, 8, channels]);
    let values = y.set(|_, channel| 3.0 * (channel % 4) as f32 + draw.next());
    let parts = readers
        .each_ref()
        .map(|reader| reader.set(|_, _| draw.next()));
    let kept = shortcut.set(|_, _| draw.next());
    let norm = Norm::new(device, channels, draw);
    let exact = Exact {
        gamma: norm.gamma.iter().map(|&value| f64::from(value)).collect(),
        beta: norm.beta.iter().map(|&value| f64::from(value)).collect(),
        channels,
        is_silu: silu == 1,
    };
    // The vectors as the forward pass leaves them.
    let (mean, inverse) = exact.vectors(&values);
    let scale: Vec<f64> = exact
        .gamma
        .iter()
        .zip(&inverse)
        .map(|(g, i)| g * i)
        .collect();
    let shift: Vec<f64> = (0..channels)
        .map(|c| exact.beta[c] - mean[c] * scale[c])
        .collect();
    let [mean, inverse, scale, shift] = [mean, inverse, scale, shift]
        .map(|values| {
            values
                .into_iter()
                .map(|value| value as f32)
                .collect::<Vec<_>>()
        })
        .map(|values| Vector::of(device, &values));
    let blocks = pixels.div_ceil(64);
    let partials = Vector::poisoned(device, blocks * 2 * channels);
    let counters = Vector::of(device, &[0u32; 4]);
    let sums = Vector::poisoned(device, 2 * channels);
    let gradients = [(); 2].map(|()| Vector::of(device, &vec![0.25f32; channels]));
    let reduce = BnSiluBwdReduce {
        gradients: readers.each_ref().map(Tensor::view),
        y: y.view(),
        scale: scale.address(),
        shift: shift.address(),
        mean: mean.address(),
        inverse_deviation: inverse.address(),
        partials: partials.address(),
        counters: counters.address(),
        sums: sums.address(),
        beta_gradient: gradients[0].address(),
        gamma_gradient: gradients[1].address(),
        pixels: pixels as u32,
        pixels_per_block: 64,
        silu,
        gradients_count: 3,
    };
    let grid = [blocks as u32, channels.div_ceil(64) as u32, 1];
    device.launch("bn_silu_bwd_reduce", grid, &reduce).unwrap();
    let apply = BnSiluBwdApply {
        gradients: reduce.gradients,
        y: y.view(),
        dy: dy.view(),
        shortcut: shortcut.view(),
        scale: scale.address(),
        shift: shift.address(),
        mean: mean.address(),
        inverse_deviation: inverse.address(),
        sums: sums.address(),
        pixels: pixels as u32,
        silu,
        gradients_count: 3,
        shortcut_accumulate: 1,
    };
    device
        .launch("bn_silu_bwd_apply", [3, 1, 1], &apply)
        .unwrap();
    let da: Vec<f64> = (0..values.len())
        .map(|index| parts.iter().map(|part| part[index]).sum())
        .collect();
    let added: Vec<f64> = da.iter().zip(&kept).map(|(da, kept)| da + kept).collect();
    agree("shortcut", &shortcut.get(), &added, 4e-3);
    Backward {
        exact,
        y: values,
        da,
        dy: dy.get(),
        sums: sums.floats(),
        gradients: gradients.map(|gradient| gradient.floats()),
    }
}

#[test]
fn the_gradient_of_a_norm_is_that_of_its_definition() {
    each_way(|device, seed| {
        for (extent, silu) in [([150, 72], 1), ([37, 8], 1), ([37, 8], 0), ([20, 144], 1)] {
            let got = run_backward(device, seed, extent, silu);
            let by_difference = got.exact.differences(&got.y, &got.da, 97);
            let largest = got
                .dy
                .iter()
                .fold(0.0, |most: f64, value| most.max(value.abs()));
            for (index, expected) in by_difference {
                let is_close = (got.dy[index] - expected).abs() <= 5e-3 * largest;
                assert!(
                    is_close,
                    "dy[{index}]: {}, expected {expected}",
                    got.dy[index]
                );
            }
            // Shifting beta or gamma changes the loss by the two sums.
            let channels = extent[1];
            let moved = |which: usize, channel: usize, by: f64| {
                let mut exact = Exact {
                    gamma: got.exact.gamma.clone(),
                    beta: got.exact.beta.clone(),
                    ..got.exact
                };
                let vector = if which == 0 {
                    &mut exact.beta
                } else {
                    &mut exact.gamma
                };
                vector[channel] += by;
                exact.loss(&got.y, &got.da)
            };
            for which in 0..2 {
                let sums = &got.sums[which * channels..][..channels];
                let expected: Vec<f64> = (0..channels)
                    .map(|c| (moved(which, c, 1e-4) - moved(which, c, -1e-4)) / 2e-4)
                    .collect();
                agree("sums", sums, &expected, 1e-4);
                let added: Vec<f64> = sums.iter().map(|sum| sum + 0.25).collect();
                agree("gradients", &got.gradients[which], &added, 1e-6);
            }
        }
    });
}

#[test]
fn without_a_norm_the_sum_of_the_gradient_is_the_bias_s() {
    each_way(|device, seed| {
        let (pixels, channels) = (70, 24);
        let draw = &mut Draw::new(seed);
        let dy = Tensor::new(device, pixels, [channels + 8, 8, channels]);
        let values = dy.set(|_, _| draw.next());
        let partials = Vector::poisoned(device, 2 * 2 * channels);
        let counters = Vector::of(device, &[0u32]);
        let gradient = Vector::of(device, &vec![0.0f32; channels]);
        let parameters = BnSiluBwdReduce {
            gradients: [dy.view(), Tensor::none(), Tensor::none()],
            partials: partials.address(),
            counters: counters.address(),
            beta_gradient: gradient.address(),
            pixels: pixels as u32,
            pixels_per_block: 64,
            gradients_count: 1,
            ..BnSiluBwdReduce::default()
        };
        device
            .launch("bn_silu_bwd_reduce", [2, 1, 1], &parameters)
            .unwrap();
        let mut expected = vec![0.0; channels];
        for (index, value) in values.iter().enumerate() {
            expected[index % channels] += value;
        }
        agree("bias", &gradient.floats(), &expected, 1e-6);
    });
}
