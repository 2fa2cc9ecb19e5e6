//! Batch normalisation: statistics, normalisation with activation.

use engine::device::cuda::Device;
use engine::ops::norm::cuda::{BnSiluApply, BnStats, NormVectors, STATS_CHANNELS};

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
