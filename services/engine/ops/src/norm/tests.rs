//! The norm against double-precision loops, forward and backward.

use super::*;
use crate::view::as_cells;

const PIXELS: usize = 700;
const CHANNELS: usize = 24;
const PADDED: usize = 32;

/// Numbers in -1..1 that look random.
fn noise(seed: u64, index: usize) -> f64 {
    let mixed = (seed + index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn tensor(seed: u64, offset: f64) -> Vec<f32> {
    let value = |i: usize| match i % PADDED < CHANNELS {
        true => (noise(seed, i) + offset) as f32,
        false => 0.0,
    };
    (0..PIXELS * PADDED).map(value).collect()
}

struct Case {
    raw: Vec<f32>,
    residual: Vec<f32>,
    gradient: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

fn case() -> Case {
    Case {
        raw: tensor(1, 5.0),
        residual: tensor(2, 0.0),
        gradient: tensor(3, 0.1),
        weight: (0..CHANNELS)
            .map(|i| 1.0 + 0.3 * noise(4, i) as f32)
            .collect(),
        bias: (0..CHANNELS).map(|i| noise(5, i) as f32).collect(),
    }
}

fn statistics(case: &Case) -> (Vec<f32>, [Vec<f32>; 2]) {
    let mut sums = vec![0.0; 2 * PADDED];
    for (i, &y) in case.raw.iter().enumerate() {
        sums[i % PADDED] += f64::from(y);
        sums[PADDED + i % PADDED] += f64::from(y).powi(2);
    }
    let mut vectors = vec![0.0; Vectors::COUNT * PADDED];
    let mut running = [vec![0.0; CHANNELS], vec![1.0; CHANNELS]];
    let [mean, variance] = &mut running;
    let learnt = Learnt {
        weight: &case.weight,
        bias: &case.bias,
        constants: Constants::Dense,
    };
    let channels = Channels::new(CHANNELS);
    finish_statistics(
        &sums,
        PIXELS,
        &channels,
        learnt,
        [mean, variance],
        &mut vectors,
    );
    (vectors, running)
}

fn shape(activation: Activation) -> Shape {
    Shape {
        pixels: PIXELS,
        channels: PADDED,
        activation,
    }
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Returns mean, deviation, normalised value and its activation's slope at an element.
fn exact(case: &Case, activation: Activation, channel: usize) -> (f64, f64, Vec<[f64; 2]>) {
    let values: Vec<f64> = (0..PIXELS)
        .map(|p| f64::from(case.raw[p * PADDED + channel]))
        .collect();
    let mean = values.iter().sum::<f64>() / PIXELS as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / PIXELS as f64;
    let deviation = (variance + Constants::Dense.epsilon()).sqrt();
    let (weight, bias) = (
        f64::from(case.weight[channel]),
        f64::from(case.bias[channel]),
    );
    let activate = |v: &f64| {
        let z = (v - mean) / deviation * weight + bias;
        let s = sigmoid(z);
        match activation {
            Activation::Identity => [z, 1.0],
            Activation::Silu => [z * s, s * (1.0 + z * (1.0 - s))],
        }
    };
    (mean, deviation, values.iter().map(activate).collect())
}

fn forward(case: &Case, activation: Activation, threads: usize) -> Vec<f32> {
    let (vectors, _) = statistics(case);
    let mut raw = case.raw.clone();
    let mut residual = case.residual.clone();
    let mut output = vec![f32::NAN; PIXELS * PADDED];
    apply(
        &Threads::new(threads).unwrap(),
        shape(activation),
        View::dense(as_cells(&mut raw), PADDED),
        Vectors::split(&vectors),
        Some(View::dense(as_cells(&mut residual), PADDED)),
        View::dense(as_cells(&mut output), PADDED),
    );
    output
}

#[test]
fn forward_agrees_with_double_precision() {
    let case = case();
    for activation in [Activation::Identity, Activation::Silu] {
        let output = forward(&case, activation, 2);
        assert_eq!(output, forward(&case, activation, 1));
        for channel in 0..CHANNELS {
            let (.., values) = exact(&case, activation, channel);
            for (pixel, [value, _]) in values.iter().enumerate() {
                let index = pixel * PADDED + channel;
                let error = f64::from(output[index] - case.residual[index]) - value;
                assert!(error.abs() < 2e-6, "{error}");
            }
        }
    }
}

#[test]
fn running_statistics_follow_the_unbiased_variance() {
    let case = case();
    let (_, [means, variances]) = statistics(&case);
    for channel in 0..CHANNELS {
        let (mean, deviation, _) = exact(&case, Activation::Silu, channel);
        let variance = (deviation * deviation - Constants::Dense.epsilon()) * PIXELS as f64
            / (PIXELS - 1) as f64;
        assert!((f64::from(means[channel]) - 0.03 * mean).abs() < 1e-6);
        assert!((f64::from(variances[channel]) - 0.97 - 0.03 * variance).abs() < 1e-6);
    }
}

struct Backward {
    gradient: Vec<f32>,
    residual: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

fn backward(case: &Case, activation: Activation, threads: usize) -> Backward {
    let (vectors, _) = statistics(case);
    let threads = Threads::new(threads).unwrap();
    let mut raw = case.raw.clone();
    let mut result = Backward {
        gradient: case.gradient.clone(),
        residual: case.residual.clone(),
        weight: vec![0.0; CHANNELS],
        bias: vec![0.0; CHANNELS],
    };
    let mut coefficients = vec![0.0; Coefficients::COUNT * PADDED];
    let raw = View::dense(as_cells(&mut raw), PADDED);
    let gradient = View::dense(as_cells(&mut result.gradient), PADDED);
    let pass = BackwardActivation {
        raw,
        vectors: Vectors::split(&vectors),
        gradient,
        residual: Some((
            View::dense(as_cells(&mut result.residual), PADDED),
            Write::Accumulate,
        )),
        channels: &Channels::new(CHANNELS),
        weight_gradient: &mut result.weight,
        bias_gradient: &mut result.bias,
        coefficients: &mut coefficients,
        sums: &mut vec![f64::NAN; sums_len(PIXELS, PADDED)],
    };
    backward_activation(&threads, shape(activation), pass);
    backward_norm(
        &threads,
        shape(activation),
        raw,
        Vectors::split(&vectors),
        Coefficients::split(&coefficients),
        gradient,
    );
    result
}

#[test]
fn backward_agrees_with_double_precision() {
    let case = case();
    for activation in [Activation::Identity, Activation::Silu] {
        let result = backward(&case, activation, 2);
        let single = backward(&case, activation, 1);
        assert_eq!(result.gradient, single.gradient);
        assert_eq!(result.weight, single.weight);
        for channel in 0..CHANNELS {
            let (mean, deviation, values) = exact(&case, activation, channel);
            let at = |p: usize| p * PADDED + channel;
            let normal = |p: usize| (f64::from(case.raw[at(p)]) - mean) / deviation;
            let through = |p: usize| f64::from(case.gradient[at(p)]) * values[p][1];
            let bias: f64 = (0..PIXELS).map(through).sum();
            let weight: f64 = (0..PIXELS).map(|p| through(p) * normal(p)).sum();
            assert!((f64::from(result.bias[channel]) - bias).abs() < 1e-4);
            assert!((f64::from(result.weight[channel]) - weight).abs() < 1e-4);
            for pixel in 0..PIXELS {
                let scale = f64::from(case.weight[channel]) / deviation;
                let mean_parts = (bias + normal(pixel) * weight) / PIXELS as f64;
                let expected = scale * (through(pixel) - mean_parts);
                assert!((f64::from(result.gradient[at(pixel)]) - expected).abs() < 1e-5);
                let shortcut = case.residual[at(pixel)] + case.gradient[at(pixel)];
                assert_eq!(result.residual[at(pixel)], shortcut);
            }
        }
    }
}
