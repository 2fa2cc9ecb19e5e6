//! The three passes against plain loops over the definition.

use super::*;

const BATCH: usize = 2;
const HEIGHT: usize = 3;
const WIDTH: usize = 5;
const INPUTS: usize = 20;
const OUTPUTS: usize = 24;
const PADDED: usize = 32;

fn noise(seed: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| {
        let mixed = ((seed * 7919 + index + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(value).collect()
}

/// A map of `pixels` with padding, in which real channels are noise.
fn map(seed: usize, pixels: usize, channels: usize) -> Vec<f32> {
    let mut values = noise(seed, pixels * PADDED);
    for pixel in values.chunks_mut(PADDED) {
        pixel[channels..].fill(0.0);
    }
    values
}

/// Calls `visit(input index, output index, weight index)` for every product.
fn for_products(mut visit: impl FnMut(usize, usize, usize)) {
    for pixel in 0..BATCH * HEIGHT * WIDTH {
        let (line, x) = (pixel / WIDTH, pixel % WIDTH);
        for corner in 0..4 {
            let target = (2 * line + corner / 2) * 2 * WIDTH + 2 * x + corner % 2;
            for input in 0..INPUTS {
                for output in 0..OUTPUTS {
                    let weight = (input * OUTPUTS + output) * 4 + corner;
                    visit(pixel * PADDED + input, target * PADDED + output, weight);
                }
            }
        }
    }
}

fn assert_near(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= 2e-5 * expected.abs().max(1.0),
            "{index}: {got} instead of {expected}"
        );
    }
}

#[test]
fn all_passes_follow_the_definition() {
    let shape = Shape {
        batch: BATCH,
        height: HEIGHT,
        width: WIDTH,
        input: Channels::new(INPUTS),
        output: Channels::new(OUTPUTS),
    };
    let threads = Threads::new(2).unwrap();
    let pixels = BATCH * HEIGHT * WIDTH;
    let transposed = Transposed::new(shape, conv2d::Options::default());
    assert_eq!(
        transposed.shape().flops(),
        (2 * 4 * INPUTS * OUTPUTS * pixels) as u64
    );
    let weights = noise(1, 4 * INPUTS * OUTPUTS);
    let mut input = map(2, pixels, INPUTS);
    let mut gradient = map(3, 4 * pixels, OUTPUTS);
    let mut bias = noise(4, PADDED);
    bias[OUTPUTS..].fill(0.0);

    let mut expected = vec![0.0; 4 * pixels * PADDED];
    for pixel in expected.chunks_mut(PADDED) {
        pixel.copy_from_slice(&bias);
    }
    let mut expected_input = vec![1.0; pixels * PADDED];
    let mut expected_weights = vec![1.0; weights.len()];
    for_products(|from, to, weight| {
        expected[to] += input[from] * weights[weight];
        expected_input[from] += gradient[to] * weights[weight];
        expected_weights[weight] += input[from] * gradient[to];
    });
    let mut expected_bias = vec![1.0; OUTPUTS];
    for pixel in gradient.chunks(PADDED) {
        for (sum, value) in expected_bias.iter_mut().zip(pixel) {
            *sum += value;
        }
    }

    let scratch_for = |pass| vec![f32::NAN; transposed.scratch_len(pass, threads.count())];
    let packed_for = |pass| {
        let mut packed = vec![f32::NAN; transposed.packed_len(pass)];
        transposed.pack(&threads, pass, &weights, &mut packed);
        packed
    };
    let mut output = vec![f32::NAN; 4 * pixels * PADDED];
    transposed.forward(
        &threads,
        View::dense(as_cells(&mut input), PADDED),
        &packed_for(Pass::Forward),
        &bias,
        View::dense(as_cells(&mut output), PADDED),
        as_cells(&mut scratch_for(Pass::Forward)),
    );
    assert_near(&output, &expected);

    let mut input_gradient = vec![1.0; pixels * PADDED];
    transposed.backward_data(
        &threads,
        View::dense(as_cells(&mut gradient), PADDED),
        &packed_for(Pass::BackwardData),
        View::dense(as_cells(&mut input_gradient), PADDED),
        Write::Accumulate,
        as_cells(&mut scratch_for(Pass::BackwardData)),
    );
    assert_near(&input_gradient, &expected_input);

    let mut weight_gradient = vec![1.0; weights.len()];
    transposed.backward_weights(
        &threads,
        View::dense(as_cells(&mut input), PADDED),
        View::dense(as_cells(&mut gradient), PADDED),
        &mut weight_gradient,
        as_cells(&mut scratch_for(Pass::BackwardWeights)),
    );
    assert_near(&weight_gradient, &expected_weights);

    let mut bias_gradient = vec![1.0; OUTPUTS];
    transposed.backward_bias(
        &threads,
        View::dense(as_cells(&mut gradient), PADDED),
        &mut bias_gradient,
    );
    assert_near(&bias_gradient, &expected_bias);
}
