//! The losses of every dense task: with the assignments held, gradients agree with differences of the values.
//!
//! What CIoU adds by the box is left out here: its weight of the aspect is no function of the box to the gradient.

use crate::loss::flow::tests::made_up as made_up_flow;
use crate::loss::lanes::tests::noise;
use crate::models::{Family, KeypointShape, MASK_CHANNELS, Scale};
use crate::network::{HeadLevel, HeadLevelGradient, MapGradient};

use super::*;

const BATCH: usize = 2;
const SIZE: (usize, usize) = (96, 128);
const CLASSES: usize = 3;

/// One of a level's outputs, or its gradient.
#[derive(Debug, Clone, PartialEq, Default)]
struct Output {
    values: Vec<f32>,
    stride: usize,
}

/// Everything a head puts out, or its gradient.
#[derive(Debug, Clone, PartialEq, Default)]
struct Head {
    /// Branches, their levels, and of each boxes, scores, extra and sigma.
    branches: Vec<Vec<[Output; 4]>>,
    prototypes: Output,
    semantic: Output,
    parameters: Vec<f32>,
}

const STRIDES: [usize; 3] = [8, 16, 32];

fn spec(family: Family, task: Task) -> ModelSpec {
    ModelSpec {
        family,
        scale: Scale::N,
        task,
        class_count: CLASSES,
        keypoints: (task == Task::Pose).then_some(KeypointShape { count: 5, dims: 3 }),
        class_hidden: None,
    }
}

fn loss_of(spec: &ModelSpec, gains: Gains) -> Loss {
    let settings = LossSettings {
        gains,
        ..LossSettings::default()
    };
    let is_flowing = spec.task == Task::Pose && spec.family == Family::Yolo26;
    Loss {
        rules: Rules::new(spec, settings),
        one_to_many: ONE_TO_MANY_FIRST,
        branches: [Branch::default(), Branch::default()],
        flow: is_flowing.then(|| Flow::find(&made_up_flow().0).unwrap()),
        semantic: Vec::new(),
    }
}

impl Output {
    fn new(seed: u64, pixels: usize, channels: usize, scale: f32, offset: f32) -> Self {
        let stride = channels.next_multiple_of(16);
        let values = (0..pixels * stride).map(|i| scale * noise(seed, i) + offset);
        Self {
            values: values.collect(),
            stride,
        }
    }
}

impl Head {
    fn new(spec: &ModelSpec, seed: u64) -> Self {
        let is_26 = spec.family == Family::Yolo26;
        let branch = |index: u64| {
            let level = |stride: usize| {
                let pixels = BATCH * (SIZE.0 / stride) * (SIZE.1 / stride);
                let seed = seed * 1000 + index * 100 + stride as u64;
                let boxes = if is_26 {
                    Output::new(seed, pixels, 4, 1.0, 2.0)
                } else {
                    Output::new(seed, pixels, 64, 2.0, 0.0)
                };
                let scores = Output::new(seed + 1, pixels, CLASSES, 3.0, -1.0);
                let extra = match spec.task {
                    Task::Detect | Task::Classify => Output::default(),
                    _ => Output::new(seed + 2, pixels, spec.extra_channels(), 0.7, 0.0),
                };
                let sigma = match spec.keypoints {
                    Some(shape) if is_26 => {
                        Output::new(seed + 3, pixels, 2 * shape.count, 1.5, 0.0)
                    }
                    _ => Output::default(),
                };
                [boxes, scores, extra, sigma]
            };
            STRIDES.map(level).to_vec()
        };
        let mut head = Self {
            branches: (0..if is_26 { 2 } else { 1 }).map(branch).collect(),
            ..Self::default()
        };
        if spec.task == Task::Segment {
            let pixels = BATCH * SIZE.0 * SIZE.1;
            head.prototypes = Output::new(seed + 4, pixels / 16, MASK_CHANNELS, 1.0, 0.0);
            if is_26 {
                head.semantic = Output::new(seed + 5, pixels / 64, CLASSES, 2.0, 0.0);
            }
        }
        if spec.task == Task::Pose && is_26 {
            head.parameters = made_up_flow().1;
        }
        head
    }

    fn view(&self) -> Outputs<'_> {
        fn level((outputs, stride): (&[Output; 4], usize)) -> HeadLevel<'_> {
            let [boxes, scores, extra, sigma] = outputs;
            HeadLevel {
                stride,
                height: SIZE.0 / stride,
                width: SIZE.1 / stride,
                boxes: &boxes.values,
                box_stride: boxes.stride,
                scores: &scores.values,
                score_stride: scores.stride,
                extra: &extra.values,
                extra_stride: extra.stride,
                sigma: &sigma.values,
                sigma_stride: sigma.stride,
            }
        }
        fn map(output: &Output, reduction: usize, channels: usize) -> Option<Map<'_>> {
            (output.stride > 0).then_some(Map {
                height: SIZE.0 / reduction,
                width: SIZE.1 / reduction,
                channels,
                pixel_stride: output.stride,
                values: &output.values,
            })
        }
        Outputs {
            branches: (self.branches.iter())
                .map(|branch| branch.iter().zip(STRIDES).map(level).collect())
                .collect(),
            prototypes: map(&self.prototypes, 4, MASK_CHANNELS),
            semantic: map(&self.semantic, 8, CLASSES),
            logits: None,
        }
    }

    fn gradient_view(&mut self) -> (OutputGradients<'_>, &mut [f32]) {
        fn level(outputs: &mut [Output; 4]) -> HeadLevelGradient<'_> {
            let [boxes, scores, extra, sigma] = outputs;
            HeadLevelGradient {
                boxes: &mut boxes.values,
                scores: &mut scores.values,
                extra: &mut extra.values,
                sigma: &mut sigma.values,
            }
        }
        fn map(output: &mut Output) -> Option<MapGradient<'_>> {
            (output.stride > 0).then_some(MapGradient {
                values: &mut output.values,
            })
        }
        let gradients = OutputGradients {
            branches: (self.branches.iter_mut())
                .map(|branch| branch.iter_mut().map(level).collect())
                .collect(),
            prototypes: map(&mut self.prototypes),
            semantic: map(&mut self.semantic),
            logits: None,
        };
        (gradients, &mut self.parameters)
    }

    fn all(&mut self) -> Vec<(String, &mut Vec<f32>)> {
        let mut all = Vec::new();
        for (b, branch) in self.branches.iter_mut().enumerate() {
            for (l, level) in branch.iter_mut().enumerate() {
                let names = ["boxes", "scores", "extra", "sigma"];
                for (name, output) in names.iter().zip(level) {
                    all.push((format!("branch {b} level {l} {name}"), &mut output.values));
                }
            }
        }
        all.push(("prototypes".into(), &mut self.prototypes.values));
        all.push(("semantic".into(), &mut self.semantic.values));
        all.push(("parameters".into(), &mut self.parameters));
        all
    }
}

fn targets(task: Task) -> Targets {
    let mut targets = Targets::empty(BATCH);
    let objects = [
        (0, 1, [0.30, 0.35, 0.40, 0.50], 0.3),
        (0, 2, [0.70, 0.60, 0.30, 0.35], -0.5),
        (0, 1, [0.52, 0.48, 0.10, 0.12], 1.1),
        (1, 0, [0.50, 0.50, 0.80, 0.70], 0.0),
        (1, 2, [0.20, 0.75, 0.22, 0.30], 0.75),
    ];
    for (row, (image, class, bounds, angle)) in objects.into_iter().enumerate() {
        let [x, y, w, h] = bounds;
        match task {
            Task::Obb => targets.push_turned(image, class, bounds, angle),
            Task::Pose => {
                let keypoints = (0..5).map(|k| {
                    [
                        x + 0.3 * w * noise(70, row * 5 + k),
                        y + 0.3 * h * noise(71, row * 5 + k),
                        if k == 3 { 0.0 } else { 2.0 },
                    ]
                });
                targets.push_posed(image, class, bounds, keypoints);
            }
            _ => targets.push(image, class, bounds),
        }
    }
    if task == Task::Segment {
        let (height, width) = (SIZE.0 / 4, SIZE.1 / 4);
        let mut values = vec![0u16; BATCH * height * width];
        let mut number = [0u16; BATCH];
        for (image, _, [x, y, w, h], _) in objects {
            let image = image as usize;
            number[image] += 1;
            for row in 0..height {
                for column in 0..width {
                    let across = ((column as f32 + 0.5) / width as f32 - x) / (w / 2.0);
                    let down = ((row as f32 + 0.5) / height as f32 - y) / (h / 2.0);
                    if across * across + down * down <= 1.0 {
                        values[(image * height + row) * width + column] = number[image];
                    }
                }
            }
        }
        targets.masks = Some(InstanceMaps {
            height,
            width,
            values,
        });
    }
    targets
}

/// Returns the loss with the assignments of the last call. Prototypes and semantic logits of the second branch are
/// those of `detached`: it does not train them.
fn held(
    loss: &mut Loss,
    head: &Head,
    detached: &Head,
    targets: &Targets,
    threads: &Threads,
) -> f64 {
    let input = LossInput {
        targets,
        image_size: SIZE,
        parameters: &head.parameters,
        threads,
    };
    let outputs = head.view();
    let weights = loss.branch_weights(outputs.branches.len());
    let batch = BATCH as f64;
    let sources = [&outputs, &detached.view()];
    let mut total = 0.0;
    for (index, levels) in outputs.branches.iter().enumerate() {
        let Outputs {
            semantic,
            prototypes,
            ..
        } = *sources[index];
        let semantic = semantic.map_or(0.0, |map| loss.semantic(map, None, 0.0, &input));
        let branch = BranchInput {
            rules: &loss.rules,
            claims: Claims::ONE_TO_MANY,
            levels,
            prototypes,
            input: &input,
            weight: 1.0,
        };
        let output = loss.branches[index].compute(&branch, None, loss.flow.as_mut());
        total += weights[index] * batch * (output.terms.sum() + semantic);
    }
    total
}

/// Computes loss and gradients into memory full of nonsense.
fn compute(loss: &mut Loss, head: &Head, targets: &Targets, threads: usize) -> (LossOutput, Head) {
    let mut gradient = head.clone();
    for (name, values) in gradient.all() {
        let start = if name == "parameters" { 0.0 } else { f32::NAN };
        values.fill(start);
    }
    let threads = Threads::new(threads).unwrap();
    let input = LossInput {
        targets,
        image_size: SIZE,
        parameters: &head.parameters,
        threads: &threads,
    };
    let outputs = head.view();
    let (mut gradients, parameters) = gradient.gradient_view();
    let output = loss.compute(&outputs, &mut gradients, parameters, &input);
    let again = loss.evaluate(&outputs, &input);
    assert_eq!(output.items, again.items, "with and without gradient");
    (output, gradient)
}

/// Checks the gradient where it is not zero in a few places of every output, and in a few where it is.
fn agree(family: Family, task: Task, gains: Gains) {
    agree_in(family, task, gains, |_| true);
}

fn agree_in(family: Family, task: Task, gains: Gains, is_checked: fn(&str) -> bool) {
    let spec = spec(family, task);
    let original = Head::new(&spec, 3);
    let mut head = original.clone();
    let targets = targets(task);
    let mut loss = loss_of(&spec, gains);
    let (output, mut gradient) = compute(&mut loss, &head, &targets, 2);
    assert!(output.assigned > 3, "{output:?}");
    assert!(output.items.iter().all(|item| item.is_finite()));
    let threads = Threads::new(1).unwrap();
    let now = held(&mut loss, &head, &original, &targets, &threads);
    assert!((now - output.total).abs() < 1e-9 * now.abs(), "{task:?}");

    let step = 1.0 / 1024.0;
    let names: Vec<_> = head.all().iter().map(|(name, _)| name.clone()).collect();
    for (output, name) in names.iter().enumerate() {
        if !is_checked(name) {
            continue;
        }
        let slopes = gradient.all().swap_remove(output).1.clone();
        let largest = slopes.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        assert!(slopes.iter().all(|slope| slope.is_finite()), "{name}");
        let mut places: Vec<usize> = (0..slopes.len()).filter(|&i| slopes[i] != 0.0).collect();
        places = places
            .iter()
            .copied()
            .step_by(places.len().div_ceil(40).max(1))
            .collect();
        places.extend((0..slopes.len()).step_by(slopes.len().div_ceil(5).max(1)));
        for place in places {
            let mut at = |by: f32| {
                let base = head.all().swap_remove(output).1[place];
                head.all().swap_remove(output).1[place] = base + by;
                let value = held(&mut loss, &head, &original, &targets, &threads);
                head.all().swap_remove(output).1[place] = base;
                value
            };
            let difference = (at(step) - at(-step)) / f64::from(2.0 * step);
            let error = (difference - f64::from(slopes[place])).abs();
            assert!(
                error < 2e-3 * f64::from(largest) + 1e-4 * difference.abs() + 1e-6,
                "{task:?} {name} {place}: {difference} and {}",
                slopes[place]
            );
        }
    }
}

const NONE: Gains = Gains {
    boxes: 0.0,
    classes: 0.0,
    distances: 0.0,
    keypoints: 0.0,
    visibility: 0.0,
    likelihood: 0.0,
    angles: 0.0,
};

#[test]
fn gradients_of_turned_boxes_agree_with_differences() {
    for family in [Family::Yolo11, Family::Yolo26] {
        agree(
            family,
            Task::Obb,
            Gains {
                classes: 0.0,
                ..Gains::default()
            },
        );
    }
}

#[test]
fn gradients_of_distances_and_classes_agree_with_differences() {
    for family in [Family::Yolo11, Family::Yolo26] {
        let gains = Gains {
            boxes: 0.0,
            ..Gains::default()
        };
        agree(family, Task::Detect, gains);
    }
}

#[test]
fn gradients_of_keypoints_agree_with_differences() {
    for family in [Family::Yolo8, Family::Yolo26] {
        let gains = Gains {
            keypoints: 12.0,
            visibility: 1.0,
            likelihood: 1.0,
            ..NONE
        };
        agree(family, Task::Pose, gains);
    }
}

#[test]
fn gradients_of_masks_agree_with_differences() {
    for family in [Family::Yolo11, Family::Yolo26] {
        let gains = Gains { boxes: 7.5, ..NONE };
        agree_in(family, Task::Segment, gains, |name| {
            !name.ends_with("boxes")
        });
    }
}

#[test]
fn every_task_gives_the_same_bits_on_any_number_of_threads() {
    for family in [Family::Yolo11, Family::Yolo26] {
        for task in [Task::Detect, Task::Segment, Task::Pose, Task::Obb] {
            let spec = spec(family, task);
            let head = Head::new(&spec, 9);
            let targets = targets(task);
            let mut loss = loss_of(&spec, Gains::default());
            let one = compute(&mut loss, &head, &targets, 1);
            let mut fresh = loss_of(&spec, Gains::default());
            for threads in [2, 5] {
                assert!(
                    one == compute(&mut fresh, &head, &targets, threads),
                    "{task:?}"
                );
            }
        }
    }
}

#[test]
fn a_batch_without_objects_is_all_background_for_every_task() {
    for task in [Task::Detect, Task::Segment, Task::Pose, Task::Obb] {
        let spec = spec(Family::Yolo26, task);
        let head = Head::new(&spec, 4);
        let mut loss = loss_of(&spec, Gains::default());
        let (output, mut gradient) = compute(&mut loss, &head, &Targets::empty(BATCH), 2);
        assert_eq!((output.assigned, output.score_sum), (0, 0.0));
        let names = loss.item_names();
        for (name, item) in names.iter().zip(output.items.iter()) {
            let is_background = ["cls_loss", "sem_loss"].contains(name);
            assert!(
                if is_background {
                    *item > 0.0
                } else {
                    *item == 0.0
                },
                "{name}"
            );
        }
        for (name, values) in gradient.all() {
            let is_background = name.ends_with("scores") || name == "semantic";
            assert!(
                is_background || values.iter().all(|&by| by == 0.0),
                "{name}"
            );
        }
    }
}

#[test]
fn the_weight_moves_from_the_first_branch_to_the_second() {
    let mut loss = loss_of(&spec(Family::Yolo26, Task::Detect), Gains::default());
    assert_eq!(loss.branch_weights(1), [1.0, 0.0]);
    for (finished, epochs, expected) in [
        (0, 100, 0.8),
        (1, 100, 0.792_929_293),
        (99, 100, 0.1),
        (500, 100, 0.1),
        (0, 1, 0.8),
    ] {
        loss.set_progress(finished, epochs);
        let [many, one] = loss.branch_weights(2);
        assert!((many - expected).abs() < 1e-9);
        assert!((many + one - 1.0).abs() < 1e-12);
    }
}
