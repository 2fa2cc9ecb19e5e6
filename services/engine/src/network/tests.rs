//! Networks on shapes that the recorded numbers don't have: few classes, oblong images, one image.

use super::*;
use crate::models;
use crate::ops::conv2d::{Algorithm, Precision};
use crate::plan;

const CLASSES: usize = 3;

fn spec(name: &str) -> ModelSpec {
    ModelSpec::parse(name, CLASSES).unwrap()
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

/// One output with its real channels, its pixel's stride, and its gradient.
type Output<'a> = (&'a [f32], usize, usize, &'a mut [f32]);

fn levels<'a>(
    spec: &ModelSpec,
    levels: Vec<HeadLevel<'a>>,
    gradients: Vec<HeadLevelGradient<'a>>,
) -> Vec<Output<'a>> {
    let bins = spec.family.bins();
    let deviations = 2 * spec.keypoints.map_or(0, |shape| shape.count);
    let of_level = |(level, gradient): (HeadLevel<'a>, HeadLevelGradient<'a>)| {
        let extra = spec.extra_channels();
        [
            (level.boxes, 4 * bins, level.box_stride, gradient.boxes),
            (level.scores, CLASSES, level.score_stride, gradient.scores),
            (level.extra, extra, level.extra_stride, gradient.extra),
            (level.sigma, deviations, level.sigma_stride, gradient.sigma),
        ]
    };
    levels
        .into_iter()
        .zip(gradients)
        .flat_map(of_level)
        .collect()
}

/// A loss that is linear in the head's outputs; writes its gradient. A one-to-one branch does not count: no
/// gradient goes from it to what it reads.
fn linear_loss(network: &mut Network) -> f64 {
    let spec = network.plan().spec.clone();
    let (outputs, gradients) = network.outputs_and_gradients();
    let mut all = Vec::new();
    let branches = outputs.branches.into_iter().zip(gradients.branches);
    for (index, (branch, mut gradients)) in branches.enumerate() {
        if index == 0 {
            all.extend(levels(&spec, branch, gradients));
            continue;
        }
        for level in &mut gradients {
            level.boxes.fill(0.0);
            level.scores.fill(0.0);
            level.extra.fill(0.0);
            level.sigma.fill(0.0);
        }
    }
    let maps = [
        (outputs.prototypes, gradients.prototypes),
        (outputs.semantic, gradients.semantic),
        (outputs.logits, gradients.logits),
    ];
    for (map, gradient) in maps {
        if let (Some(map), Some(gradient)) = (map, gradient) {
            all.push((map.values, map.channels, map.pixel_stride, gradient.values));
        }
    }
    let mut loss = 0.0;
    for (seed, (values, channels, stride, gradient)) in all.into_iter().enumerate() {
        for (index, (slope, value)) in gradient.iter_mut().zip(values).enumerate() {
            *slope = match index % stride < channels {
                true => noise(10 + seed, index),
                false => 0.0,
            };
            loss += f64::from(*slope) * f64::from(*value);
        }
    }
    loss
}

/// Checks that a step along the gradient changes the loss as much as its length says.
fn check_slope(spec: &ModelSpec, batch: usize) {
    let threads = Threads::new(2).unwrap();
    let mut network = Network::train(spec, shape(batch), &threads).unwrap();
    let start = models::initialise(spec, 3);
    check_slope_at(&mut network, &start, &images(shape(batch)));
}

fn check_slope_at(network: &mut Network, start: &State, images: &[u8]) {
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
    let plan = network.plan();
    assert!(
        deviation.abs() < 0.02,
        "{}, batch {}: {slope} and {length}",
        plan.spec.name(),
        plan.shape.batch
    );
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    for batch in [1, 3] {
        check_slope(&spec("yolo11n"), batch);
    }
}

#[test]
fn the_gradient_is_the_slope_of_the_loss_for_every_task_and_family() {
    for name in [
        "yolo26n",
        "yolo11n-seg",
        "yolo26n-seg",
        "yolo11n-cls",
        "yolov8n-pose",
        "yolo26n-pose",
        "yolo26n-obb",
    ] {
        check_slope(&spec(name), 2);
    }
}

#[test]
fn norms_that_keep_their_statistics_compute_as_in_prediction_and_still_learn() {
    let (spec, threads) = (spec("yolo11n"), Threads::new(2).unwrap());
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
    check_slope_at(&mut network, &state, &pixels);
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
    let (spec, threads) = (spec("yolo11n"), Threads::new(2).unwrap());
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
    let (spec, threads) = (spec("yolo11n"), Threads::new(2).unwrap());
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

/// The outputs of a training pass, by which batch statistics have gone through every layer.
fn raw_outputs(name: &str, algorithm: Option<Algorithm>, precision: Precision) -> Vec<f32> {
    let (spec, threads) = (
        ModelSpec::parse(name, CLASSES).unwrap(),
        Threads::new(2).unwrap(),
    );
    let options = plan::Options {
        algorithm,
        precision,
        ..plan::Options::new(Mode::Train, 2)
    };
    let mut network = Network::with_options(&spec, shape(2), options, &threads).unwrap();
    let mut state = models::initialise(&spec, 3);
    network.forward(&mut state, Images::U8(&images(shape(2))));
    let mut values = Vec::new();
    for level in network.outputs().branches.into_iter().flatten() {
        values.extend_from_slice(level.boxes);
        values.extend_from_slice(level.scores);
    }
    values
}

/// Returns the largest difference over the root mean square of the expected.
fn worst_difference(expected: &[f32], found: &[f32]) -> f64 {
    let squares: f64 = expected.iter().map(|&value| f64::from(value).powi(2)).sum();
    let rms = (squares / expected.len() as f64).sqrt();
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    f64::from(differences.fold(0.0, f32::max)) / rms
}

#[test]
fn winograd_agrees_with_direct_convolution() {
    for name in ["yolo11n", "yolo11s", "yolo26n", "yolov8n"] {
        let direct = raw_outputs(name, Some(Algorithm::Direct), Precision::F32);
        let fastest = raw_outputs(name, None, Precision::F32);
        let worst = worst_difference(&direct, &fastest);
        println!("{name}: worst {worst:.1e} of the outputs' rms");
        assert!(worst > 0.0 && worst <= 1e-4, "{name}: {worst:e}");
    }
}

#[test]
fn mixed_precision_stays_near_single() {
    for name in ["yolo11n", "yolo11s", "yolo26n", "yolov8n"] {
        let single = raw_outputs(name, None, Precision::F32);
        let mixed = raw_outputs(name, None, Precision::Mixed);
        let square = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|value| f64::from(value).powi(2)).sum::<f64>()
        };
        let differences = single.iter().zip(&mixed).map(|(a, b)| a - b);
        let size = square(&mut single.iter().copied());
        let error = (square(&mut differences.into_iter()) / size).sqrt();
        let worst = worst_difference(&single, &mixed);
        println!("{name}: {error:.1e} of the outputs' rms, the worst {worst:.1e}");
        assert!(error > 1e-5 && error <= 2e-2, "{name}: {error:e}");
    }
}

#[test]
fn a_batch_that_does_not_fit_names_the_largest_that_does() {
    let huge = InputShape::square(InputShape::BATCH_MAX, 1280);
    let refused = Network::train(&spec("yolo11n"), huge, &Threads::new(1).unwrap());
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

#[test]
fn detections_are_the_best_rows_of_the_one_to_one_branch() {
    let threads = Threads::new(2).unwrap();
    for name in ["yolo26n", "yolo26n-seg", "yolo26n-pose", "yolo26n-obb"] {
        let spec = spec(name);
        // Fresh branches are copies of each other.
        let state = models::initialise(&spec, 5);
        let predict = |branches: plan::Branches| {
            let options = plan::Options {
                branches,
                ..plan::Options::new(Mode::Infer, 2)
            };
            let shape = shape(2);
            let mut network = Network::with_options(&spec, shape, options, &threads).unwrap();
            network.load(&state);
            network.infer_forward(Images::U8(&images(shape)));
            let predictions = network.predictions();
            let rows = (0..2).map(|image| predictions.image(image).to_vec());
            (
                rows.collect::<Vec<_>>(),
                predictions.row_length(),
                predictions.anchors,
            )
        };
        let (anchors, length, count) = predict(plan::Branches::OneToMany);
        let (detections, short, detection_count) = predict(plan::Branches::OneToOne);
        assert_eq!((count, detection_count), (8 * 20 + 4 * 10 + 2 * 5, 210));
        let extras = spec.extra_channels();
        assert_eq!((length, short), (4 + CLASSES + extras, 6 + extras));
        for (anchors, detections) in anchors.iter().zip(&detections) {
            let mut scores: Vec<f32> = anchors
                .chunks(length)
                .flat_map(|row| row[4..4 + CLASSES].iter().copied())
                .collect();
            scores.sort_by(|a, b| b.total_cmp(a));
            let got: Vec<f32> = detections.chunks(short).map(|row| row[4]).collect();
            assert_eq!(got, scores[..210], "{name}");
            let is_from_the_anchors = |row: &[f32]| {
                let class = row[5] as usize;
                let same = |anchor: &&[f32]| {
                    anchor[4 + class] == row[4] && anchor[4 + CLASSES..] == row[6..]
                };
                anchors.chunks(length).any(|anchor| same(&anchor))
            };
            assert!(detections.chunks(short).all(is_from_the_anchors), "{name}");
        }
    }
}

#[test]
fn classes_of_an_image_are_probabilities() {
    let (spec, threads) = (spec("yolov8n-cls"), Threads::new(2).unwrap());
    let mut network = Network::infer(&spec, shape(2), &threads).unwrap();
    network.load(&models::initialise(&spec, 5));
    network.infer_forward(Images::U8(&images(shape(2))));
    let predictions = network.predictions();
    assert_eq!(predictions.values.len(), 2 * CLASSES);
    for image in 0..2 {
        let sum: f32 = predictions.image(image).iter().sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }
}
