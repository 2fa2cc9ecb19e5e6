//! Attention against double-precision loops; its gradient against finite differences of those.

use super::*;
use crate::view::as_cells;

const SHAPE: AttentionShape = AttentionShape {
    batch: 2,
    pixels: 21,
    heads: 2,
    key_channels: 16,
    value_channels: 32,
};
const MIXED: usize = 128;
const CHANNELS: usize = 64;
const PIXELS: usize = 42;

fn noise(seed: u64, length: usize) -> Vec<f32> {
    let value = |i: usize| {
        let mixed = (seed * 1000 + i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..length).map(value).collect()
}

/// Returns the attended values and the values.
fn plain(input: &[f64]) -> [Vec<f64>; 2] {
    let mut results = [vec![0.0; PIXELS * CHANNELS], vec![0.0; PIXELS * CHANNELS]];
    let head_channels = SHAPE.head_channels();
    for chunk in 0..SHAPE.chunks() {
        let (image, head) = (chunk / SHAPE.heads, chunk % SHAPE.heads);
        let at = |pixel: usize, channel: usize| {
            input[(image * SHAPE.pixels + pixel) * MIXED + head * head_channels + channel]
        };
        for i in 0..SHAPE.pixels {
            let logit = |j: usize| {
                let dot: f64 = (0..SHAPE.key_channels)
                    .map(|c| at(i, c) * at(j, SHAPE.key_channels + c))
                    .sum();
                (dot / (SHAPE.key_channels as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = (0..SHAPE.pixels).map(logit).collect();
            let total: f64 = weights.iter().sum();
            for c in 0..SHAPE.value_channels {
                let value = |j: usize| at(j, 2 * SHAPE.key_channels + c);
                let place = (image * SHAPE.pixels + i) * CHANNELS + head * SHAPE.value_channels + c;
                let weighted = weights.iter().enumerate().map(|(j, w)| w * value(j));
                results[0][place] = weighted.sum::<f64>() / total;
                results[1][place] = value(i);
            }
        }
    }
    results
}

struct Run {
    attended: Vec<f32>,
    values: Vec<f32>,
    input_gradient: Vec<f32>,
}

fn run(input: &[f32], gradients: [&[f32]; 2]) -> Run {
    let threads = Threads::new(2).unwrap();
    let mut input = input.to_vec();
    let [mut attended_gradient, mut values_gradient] = gradients.map(<[f32]>::to_vec);
    let mut result = Run {
        attended: vec![f32::NAN; PIXELS * CHANNELS],
        values: vec![f32::NAN; PIXELS * CHANNELS],
        input_gradient: vec![f32::NAN; PIXELS * MIXED],
    };
    let mut normalisers = vec![f32::NAN; normalisers_len(&SHAPE)];
    let mut scratch = vec![f32::NAN; backward_scratch_len(&SHAPE, 2)];
    let normalisers = as_cells(&mut normalisers);
    let scratch = as_cells(&mut scratch);
    let input = View::dense(as_cells(&mut input), MIXED);
    let attended = View::dense(as_cells(&mut result.attended), CHANNELS);
    let pass = Forward {
        input,
        attended,
        values: View::dense(as_cells(&mut result.values), CHANNELS),
        normalisers: Some(normalisers),
        scratch,
    };
    forward(&threads, &SHAPE, pass);
    let pass = Backward {
        input,
        attended,
        normalisers,
        attended_gradient: View::dense(as_cells(&mut attended_gradient), CHANNELS),
        values_gradient: View::dense(as_cells(&mut values_gradient), CHANNELS),
        input_gradient: View::dense(as_cells(&mut result.input_gradient), MIXED),
        scratch,
    };
    backward(&threads, &SHAPE, pass);
    result
}

#[test]
fn attention_and_its_gradient_agree_with_plain_loops() {
    let input = noise(1, PIXELS * MIXED);
    let gradients = [noise(2, PIXELS * CHANNELS), noise(3, PIXELS * CHANNELS)];
    let result = run(&input, [&gradients[0], &gradients[1]]);

    let exact: Vec<f64> = input.iter().map(|&v| f64::from(v)).collect();
    let [attended, values] = plain(&exact);
    for (got, expected) in result.attended.iter().zip(&attended) {
        assert!((f64::from(*got) - expected).abs() < 1e-6);
    }
    for (got, expected) in result.values.iter().zip(&values) {
        assert_eq!(f64::from(*got), *expected);
    }

    let objective = |input: &[f64]| {
        let outputs = plain(input);
        let terms = outputs
            .iter()
            .zip(&gradients)
            .flat_map(|(output, gradient)| {
                output.iter().zip(gradient).map(|(o, g)| o * f64::from(*g))
            });
        terms.sum::<f64>()
    };
    for index in (0..exact.len()).step_by(37) {
        let shifted = |step: f64| {
            let mut moved = exact.clone();
            moved[index] += step;
            objective(&moved)
        };
        let slope = (shifted(1e-4) - shifted(-1e-4)) / 2e-4;
        let got = f64::from(result.input_gradient[index]);
        assert!((got - slope).abs() < 2e-5, "{index}: {got} and {slope}");
    }
}
