//! Networks on shapes that the recorded numbers don't have: few classes, oblong images, one image.

use super::*;
use crate::models;
use crate::plan;

const CLASSES: usize = 3;

fn spec() -> ModelSpec {
    ModelSpec::parse("yolo11n", CLASSES).unwrap()
}

fn shape(batch: usize) -> InputShape {
    InputShape {
        batch,
        height: 64,
        width: 160,
    }
}

/// Numbers in -1..1 that look random.
fn noise(seed: usize, index: usize) -> f32 {
    let mixed = ((seed * 100_003 + index + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

fn images(shape: InputShape) -> Vec<u8> {
    let byte = |i| (127.0 + 100.0 * noise(1, i)) as u8;
    (0..3 * shape.pixel_count()).map(byte).collect()
}

/// A loss that is linear in the head's outputs; writes its gradient.
fn linear_loss(network: &mut Network) -> f64 {
    let (mut outputs, mut gradients) = network.outputs_and_gradients();
    let (heads, gradients) = (outputs.branches.remove(0), gradients.branches.remove(0));
    let mut loss = 0.0;
    for (level, (head, gradient)) in heads.iter().zip(gradients).enumerate() {
        let real = [(64, head.box_stride), (CLASSES, head.score_stride)];
        let outputs = [head.boxes, head.scores];
        for (kind, target) in [gradient.boxes, gradient.scores].into_iter().enumerate() {
            let (channels, stride) = real[kind];
            for (index, (slope, output)) in target.iter_mut().zip(outputs[kind]).enumerate() {
                *slope = match index % stride < channels {
                    true => noise(10 + 2 * level + kind, index),
                    false => 0.0,
                };
                loss += f64::from(*slope) * f64::from(*output);
            }
        }
    }
    loss
}

/// Checks the gradient at `start` against the loss a step before and behind.
fn check_slope(network: &mut Network, start: &State, images: &[u8]) {
    network.forward(&mut start.clone(), Images::U8(images));
    linear_loss(network);
    let step = 1e-4;
    let mut gradient = vec![0.0; start.parameters.len()];
    network.backward(start, &mut gradient);
    let squares = gradient.iter().map(|&g| f64::from(g).powi(2));
    let length = squares.sum::<f64>().sqrt();
    let mut loss_at = |side: f64| {
        let moved = start.parameters.iter().zip(&gradient);
        let moved = moved.map(|(&p, &g)| p + (side * step * f64::from(g) / length) as f32);
        let mut state = State {
            parameters: moved.collect(),
            buffers: start.buffers.clone(),
        };
        network.forward(&mut state, Images::U8(images));
        linear_loss(network)
    };
    let slope = (loss_at(1.0) - loss_at(-1.0)) / (2.0 * step);
    let deviation = slope / length - 1.0;
    assert!(deviation.abs() < 0.02, "{slope} and {length}");
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    let (spec, threads) = (spec(), Threads::new(2).unwrap());
    for batch in [1, 3] {
        let start = models::initialise(&spec, 3);
        let mut network = Network::train(&spec, shape(batch), &threads).unwrap();
        check_slope(&mut network, &start, &images(shape(batch)));
    }
}

#[test]
fn norms_that_keep_their_statistics_compute_as_in_prediction_and_still_learn() {
    let (spec, threads) = (spec(), Threads::new(2).unwrap());
    let pixels = images(shape(2));
    let mut state = models::initialise(&spec, 3);
    let mut network = Network::train(&spec, shape(2), &threads).unwrap();
    // Statistics that are those of pictures.
    for _ in 0..100 {
        network.forward(&mut state, Images::U8(&pixels));
    }
    network.keep_statistics(|_| true);
    let before = state.clone();
    network.forward(&mut state, Images::U8(&pixels));
    assert_eq!(state, before);
    let mut folded = Network::infer(&spec, shape(2), &threads).unwrap();
    folded.load(&state);
    folded.infer_forward(Images::U8(&pixels));
    let (ours, wanted) = (network.outputs(), folded.outputs());
    for (ours, wanted) in ours.branches[0].iter().zip(&wanted.branches[0]) {
        let largest = wanted
            .boxes
            .iter()
            .fold(0f32, |most, value| most.max(value.abs()));
        for (ours, wanted) in ours.boxes.iter().zip(wanted.boxes) {
            assert!(
                (ours - wanted).abs() <= 1e-3 * largest,
                "{ours} and {wanted}"
            );
        }
    }
    check_slope(&mut network, &state, &pixels);
    // Only the named layer keeps its own.
    network.keep_statistics(|tensor| tensor.starts_with("model.0."));
    network.forward(&mut state, Images::U8(&pixels));
    let moved =
        |range: std::ops::Range<usize>| state.buffers[range.clone()] != before.buffers[range];
    let buffers = models::tables(&spec).buffers;
    assert!(!moved(buffers[0].range()) && moved(buffers[2].range()));
}

#[test]
fn gradients_are_added_to() {
    let (spec, threads) = (spec(), Threads::new(2).unwrap());
    let mut state = models::initialise(&spec, 3);
    let mut network = Network::train(&spec, shape(1), &threads).unwrap();
    let mut add_to = |gradient: &mut [f32]| {
        network.forward(&mut state, Images::U8(&images(shape(1))));
        linear_loss(&mut network);
        network.backward(&state, gradient);
    };
    let mut once = vec![0.0; models::tables(&spec).parameter_count()];
    add_to(&mut once);
    let mut twice = once.clone();
    add_to(&mut twice);
    let largest = once.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let doubled = once.iter().zip(&twice);
    assert!(
        doubled
            .map(|(a, b)| (2.0 * a - b).abs())
            .all(|d| d <= 1e-5 * largest)
    );
}

#[test]
fn predictions_do_not_depend_on_kept_memory_or_the_batch() {
    let (spec, threads) = (spec(), Threads::new(2).unwrap());
    let state = models::initialise(&spec, 5);
    let pair = images(shape(2));
    let predict = |batch: usize, images: &[u8], keep_everything: bool| {
        let options = plan::Options {
            keep_everything,
            ..plan::Options::new(Mode::Infer, 2)
        };
        let mut network = Network::with_options(&spec, shape(batch), options, &threads).unwrap();
        network.load(&state);
        network.infer_forward(Images::U8(images));
        let predictions = network.predictions();
        assert_eq!(predictions.row_length(), 4 + CLASSES);
        assert_eq!(predictions.anchors, 8 * 20 + 4 * 10 + 2 * 5);
        predictions.values.to_vec()
    };
    let both = predict(2, &pair, false);
    assert_eq!(both, predict(2, &pair, true));
    let second = predict(1, &pair[pair.len() / 2..], false);
    for (a, b) in second.iter().zip(&both[both.len() / 2..]) {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} and {b}");
    }
}

#[test]
fn a_batch_that_does_not_fit_names_the_largest_that_does() {
    let huge = InputShape::square(InputShape::BATCH_MAX, 1280);
    let refused = Network::train(&spec(), huge, &Threads::new(1).unwrap());
    let Err(Error::OutOfMemory {
        batch,
        needed_bytes,
        available_bytes,
        largest_batch,
    }) = refused
    else {
        panic!("no machine has that much memory");
    };
    assert_eq!(batch, InputShape::BATCH_MAX);
    assert!(needed_bytes > available_bytes && largest_batch < batch);
}
