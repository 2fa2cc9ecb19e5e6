//! Every level agrees with f64, and results do not depend on the threads.

use super::*;
use crate::view::as_cells;

fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn view(cells: &[Cell<f32>], stride: usize) -> View<'_> {
    View::dense(cells, stride).from_channel(16)
}

/// Spreads dense real channels over a buffer of `stride` floats a pixel, from channel 16 on.
fn lay_out(dense: &[f32], channels: &Channels, stride: usize, rest: f32) -> Vec<f32> {
    let pixels = dense.len() / channels.count();
    let mut buffer = vec![rest; pixels * stride];
    for (pixel, values) in buffer
        .chunks_exact_mut(stride)
        .zip(dense.chunks_exact(channels.count()))
    {
        pixel[16..16 + channels.padded()].fill(0.0);
        for (place, &value) in channels.places().zip(values) {
            pixel[16 + place] = value;
        }
    }
    buffer
}

fn read_back(buffer: &[f32], channels: &Channels, stride: usize, rest: f32) -> Vec<f32> {
    let mut values = Vec::new();
    for pixel in buffer.chunks_exact(stride) {
        let (before, after) = (&pixel[..16], &pixel[16 + channels.padded()..]);
        assert!(before.iter().chain(after).all(|&value| value == rest));
        values.extend(channels.places().map(|place| pixel[16 + place]));
    }
    values
}

/// The results of all passes: output, input gradient, weight gradient.
type Results = [Vec<f64>; 3];

fn truth(shape: &Shape, input: &[f32], weights: &[f32], gradient: &[f32]) -> Results {
    let (count, kernel, half) = (shape.channels.count(), shape.kernel, shape.kernel / 2);
    let mut results = [input.len(), input.len(), weights.len()].map(|len| vec![0.0; len]);
    for line in 0..shape.batch * shape.height {
        let (image, y) = (line / shape.height, line % shape.height);
        for x in 0..shape.width {
            for tap in 0..kernel * kernel {
                let source_y = (y + tap / kernel).wrapping_sub(half);
                let source_x = (x + tap % kernel).wrapping_sub(half);
                if source_y >= shape.height || source_x >= shape.width {
                    continue;
                }
                for channel in 0..count {
                    let out = (line * shape.width + x) * count + channel;
                    let source_line = image * shape.height + source_y;
                    let source = (source_line * shape.width + source_x) * count + channel;
                    let weight = channel * kernel * kernel + tap;
                    results[0][out] += f64::from(input[source]) * f64::from(weights[weight]);
                    results[1][source] += f64::from(gradient[out]) * f64::from(weights[weight]);
                    results[2][weight] += f64::from(gradient[out]) * f64::from(input[source]);
                }
            }
        }
    }
    results
}

/// Runs all passes; gradients are added to ones, which are taken off again.
fn run(
    shape: &Shape,
    level: Level,
    threads: &Threads,
    [input, weights, gradient]: [&[f32]; 3],
) -> [Vec<f32>; 3] {
    let channels = &shape.channels;
    let stride = channels.padded() + 48;
    let depthwise = Depthwise::new(shape.clone(), Some(level));
    let mut packed = vec![f32::NAN; depthwise.packed_len()];
    depthwise.pack(weights, &mut packed);
    let scratch_len = depthwise
        .scratch_len(Pass::Forward)
        .max(depthwise.scratch_len(Pass::BackwardWeights));
    let mut scratch = vec![f32::NAN; scratch_len];
    let scratch = as_cells(&mut scratch);
    let mut source = lay_out(input, channels, stride, 9.0);
    let source = view(as_cells(&mut source), stride);
    let mut output_gradient = lay_out(gradient, channels, stride, 9.0);
    let output_gradient = view(as_cells(&mut output_gradient), stride);

    let mut output = lay_out(&vec![f32::NAN; input.len()], channels, stride, 7.0);
    let mut statistics = vec![f64::NAN; 2 * channels.padded()];
    let epilogue = Epilogue {
        statistics: Some(&mut statistics),
        ..Epilogue::default()
    };
    let target = view(as_cells(&mut output), stride);
    depthwise.forward(threads, source, &packed, target, epilogue, scratch);
    let output = read_back(&output, channels, stride, 7.0);
    for (channel, place) in channels.places().enumerate() {
        let column = output.iter().skip(channel).step_by(channels.count());
        let (mut sum, mut squares, mut size) = (0.0, 0.0, 1e-6);
        for &value in column {
            let value = f64::from(value);
            sum += value;
            squares += value * value;
            size += value.abs();
        }
        assert!((statistics[place] - sum).abs() < 1e-5 * size);
        assert!((statistics[channels.padded() + place] - squares).abs() < 1e-5 * squares + 1e-9);
    }

    let mut input_gradient = lay_out(&vec![1.0; input.len()], channels, stride, 7.0);
    let target = view(as_cells(&mut input_gradient), stride);
    depthwise.backward_data(threads, output_gradient, &packed, target, Write::Accumulate);
    let mut accumulated = read_back(&input_gradient, channels, stride, 7.0);
    accumulated.iter_mut().for_each(|value| *value -= 1.0);
    let target = view(as_cells(&mut input_gradient), stride);
    depthwise.backward_data(threads, output_gradient, &packed, target, Write::Overwrite);
    let input_gradient = read_back(&input_gradient, channels, stride, 7.0);
    for (added, written) in accumulated.iter().zip(&input_gradient) {
        assert!((added - written).abs() < 1e-5);
    }

    let mut weight_gradient = vec![1.0; weights.len()];
    depthwise.backward_weights(
        threads,
        source,
        output_gradient,
        &mut weight_gradient,
        scratch,
    );
    weight_gradient.iter_mut().for_each(|value| *value -= 1.0);
    [output, input_gradient, weight_gradient]
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for width in 1..=21 {
        for kernel in [3, 5] {
            shapes.push(Shape {
                batch: 1 + width % 2,
                height: 1 + width * 7 % 11,
                width,
                channels: Channels::groups(vec![1 + width * 5 % 40, 16]),
                kernel,
            });
        }
    }
    shapes
}

#[test]
fn passes_agree_with_f64_on_every_level() {
    let threads = Threads::new(2).unwrap();
    for (seed, shape) in shapes().into_iter().enumerate() {
        let len = shape.pixels() * shape.channels.count();
        let (input, gradient) = (values(seed as u64, len), values(seed as u64 + 99, len));
        let weights = values(7, shape.weight_len());
        let truth = truth(&shape, &input, &weights, &gradient);
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            let results = run(&shape, level, &threads, [&input, &weights, &gradient]);
            for (result, truth) in results.iter().zip(&truth) {
                for (&value, &expected) in result.iter().zip(truth) {
                    let error = (f64::from(value) - expected).abs();
                    assert!(
                        error < 5e-5,
                        "{shape:?} {level:?}: {value} is not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn results_are_the_same_bits_for_any_number_of_threads() {
    let shape = Shape {
        batch: 3,
        height: 19,
        width: 23,
        channels: Channels::new(40),
        kernel: 3,
    };
    let len = shape.pixels() * shape.channels.count();
    let (input, gradient) = (values(1, len), values(2, len));
    let weights = values(3, shape.weight_len());
    let results = [1, 2, 3].map(|count| {
        let threads = Threads::new(count).unwrap();
        run(
            &shape,
            Level::best(),
            &threads,
            [&input, &weights, &gradient],
        )
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}
