//! The detection loss against its definition in double precision, and its gradient against differences.

use crate::clock::Stopwatch;
use crate::loss::anchor::Place;
use crate::loss::lanes::tests::noise;
use crate::models::ModelSpec;
use crate::network::{HeadLevel, HeadLevelGradient, OutputGradients, Outputs};

use super::*;

fn loss_of(class_count: usize) -> Loss {
    let spec = ModelSpec::parse("yolo11n", class_count).unwrap();
    Loss::new(&spec, LossSettings::default())
}

/// A head with made-up outputs for one batch.
struct Head {
    batch: usize,
    class_count: usize,
    levels: Vec<Level>,
}

#[derive(Clone)]
struct Level {
    stride: usize,
    height: usize,
    width: usize,
    score_stride: usize,
    boxes: Vec<f32>,
    scores: Vec<f32>,
}

impl Head {
    fn new(seed: u64, batch: usize, class_count: usize, (height, width): (usize, usize)) -> Self {
        let score_stride = class_count.div_ceil(16) * 16;
        let levels = [8, 16, 32].map(|stride| {
            let (height, width) = (height / stride, width / stride);
            let rows = batch * height * width;
            let seed = seed * 100 + stride as u64;
            Level {
                stride,
                height,
                width,
                score_stride,
                boxes: (0..rows * 64).map(|i| noise(seed, i) * 2.0).collect(),
                scores: (0..rows * score_stride)
                    .map(|i| noise(seed + 1, i) * 3.0 - 2.0)
                    .collect(),
            }
        });
        Self {
            batch,
            class_count,
            levels: levels.into(),
        }
    }

    fn views(&self) -> Vec<HeadLevel<'_>> {
        fn view(level: &Level) -> HeadLevel<'_> {
            HeadLevel {
                stride: level.stride,
                height: level.height,
                width: level.width,
                boxes: &level.boxes,
                box_stride: 64,
                scores: &level.scores,
                score_stride: level.score_stride,
                ..HeadLevel::default()
            }
        }
        self.levels.iter().map(view).collect()
    }

    /// Returns the loss, the assignments, and the gradients of every level.
    fn compute(
        &self,
        targets: &Targets,
        size: (usize, usize),
        threads: usize,
    ) -> (LossOutput, Vec<Assignment>, Vec<Level>) {
        let mut gradients = self.levels.clone();
        for level in &mut gradients {
            level.boxes.fill(f32::NAN);
            level.scores.fill(f32::NAN);
        }
        let views = gradients.iter_mut().map(Level::gradient).collect();
        let mut views = OutputGradients {
            branches: vec![views],
            ..OutputGradients::default()
        };
        let mut loss = loss_of(self.class_count);
        let threads = Threads::new(threads).unwrap();
        let input = LossInput {
            targets,
            image_size: size,
            parameters: &[],
            threads: &threads,
        };
        let output = loss.compute(&self.outputs(), &mut views, &mut [], &input);
        let again = loss.evaluate(&self.outputs(), &input);
        assert_eq!(output.items, again.items, "with and without gradient");
        let assignments = loss.assignments(0).copied().collect();
        (output, assignments, gradients)
    }

    fn outputs(&self) -> Outputs<'_> {
        Outputs {
            branches: vec![self.views()],
            ..Outputs::default()
        }
    }
}

impl Level {
    fn gradient(&mut self) -> HeadLevelGradient<'_> {
        HeadLevelGradient {
            boxes: &mut self.boxes,
            scores: &mut self.scores,
            ..HeadLevelGradient::default()
        }
    }
}

fn targets(seed: u64, batch: usize, class_count: usize, per_image: usize) -> Targets {
    let mut targets = Targets::empty(batch);
    for i in 0..batch * per_image {
        let u = |k: usize| noise(seed + 7, i * 8 + k) * 0.5 + 0.5;
        let (w, h) = (0.01 + 0.7 * u(0) * u(0), 0.01 + 0.7 * u(1) * u(1));
        let class = (u(4) * class_count as f32) as u32;
        targets.push(
            (i % batch) as u32,
            class,
            [w / 2.0 + (1.0 - w) * u(2), h / 2.0 + (1.0 - h) * u(3), w, h],
        );
    }
    targets
}

/// The assigner by its definition: whole anchors × boxes tables, in `f64`.
fn assignments_by_definition(
    head: &Head,
    targets: &Targets,
    (height, width): (usize, usize),
) -> Vec<Assignment> {
    let mut out = Vec::new();
    for image in 0..head.batch {
        let mut anchors = Vec::new();
        for level in &head.levels {
            for cell in 0..level.height * level.width {
                let row = image * level.height * level.width + cell;
                let s = level.stride as f64;
                let centre = [
                    (cell % level.width) as f64 + 0.5,
                    (cell / level.width) as f64 + 0.5,
                ];
                let mean = |side: usize| expectation(&level.boxes[row * 64 + side * 16..][..16]);
                let predicted = [
                    (centre[0] - mean(0)) * s,
                    (centre[1] - mean(1)) * s,
                    (centre[0] + mean(2)) * s,
                    (centre[1] + mean(3)) * s,
                ];
                let scores = &level.scores[row * level.score_stride..];
                anchors.push((centre.map(|c| c * s), predicted, scores));
            }
        }
        let truths: Vec<_> = (0..targets.len())
            .filter(|&i| targets.image[i] as usize == image)
            .map(|i| {
                let [x, y, w, h] = targets.boxes[i].map(f64::from);
                let (wide, high) = (width as f64, height as f64);
                let corners = [
                    (x - w / 2.0) * wide,
                    (y - h / 2.0) * high,
                    (x + w / 2.0) * wide,
                    (y + h / 2.0) * high,
                ];
                (targets.class[i] as usize, corners)
            })
            .collect();
        let count = anchors.len();
        let mut overlap = vec![vec![0.0; count]; truths.len()];
        let mut alignment = overlap.clone();
        let mut claimed = vec![vec![false; count]; truths.len()];
        for (g, (class, t)) in truths.iter().enumerate() {
            for (a, (centre, predicted, scores)) in anchors.iter().enumerate() {
                let is_inside = (0..2).all(|k| {
                    let (middle, half) =
                        ((t[k] + t[k + 2]) / 2.0, (t[k + 2] - t[k]).max(16.0) / 2.0);
                    centre[k] - (middle - half) > 1e-9 && middle + half - centre[k] > 1e-9
                });
                if is_inside {
                    overlap[g][a] = ciou(*t, *predicted).max(0.0);
                    let score = 1.0 / (1.0 + (-f64::from(scores[*class])).exp());
                    alignment[g][a] = score.sqrt() * overlap[g][a].powi(6);
                }
            }
            let mut order: Vec<_> = (0..count).filter(|&a| alignment[g][a] > 0.0).collect();
            order.sort_by(|&a, &b| alignment[g][b].total_cmp(&alignment[g][a]));
            for &a in order.iter().take(10) {
                claimed[g][a] = true;
            }
        }
        for a in 0..count {
            if (0..truths.len()).filter(|&g| claimed[g][a]).count() > 1 {
                let mut best = 0;
                for g in 0..truths.len() {
                    if overlap[g][a] > overlap[best][a] {
                        best = g;
                    }
                }
                (0..truths.len()).for_each(|g| claimed[g][a] = g == best);
            }
        }
        for a in 0..count {
            for g in 0..truths.len() {
                if claimed[g][a] {
                    let peak = |table: &[f64]| {
                        (0..count)
                            .filter(|&a| claimed[g][a])
                            .map(|a| table[a])
                            .fold(0.0, f64::max)
                    };
                    out.push(Assignment {
                        image: image as u32,
                        anchor: a as u32,
                        ground_truth: g as u32,
                        score: alignment[g][a] * peak(&overlap[g]) / (peak(&alignment[g]) + 1e-9),
                    });
                }
            }
        }
    }
    out
}

fn expectation(logits: &[f32]) -> f64 {
    let exps = logits.iter().map(|&l| f64::from(l).exp());
    let sum: f64 = exps.clone().sum();
    exps.enumerate().map(|(bin, e)| bin as f64 * e).sum::<f64>() / sum
}

/// The loss by its definition for given assignments, with `moved` added to one logit: `(level, is_box, index,
/// step)`. The aspect weights stay at those of the unmoved logits.
fn loss_by_definition(
    head: &Head,
    targets: &Targets,
    (height, width): (usize, usize),
    assignments: &[Assignment],
    moved: Option<(usize, bool, usize, f64)>,
) -> [f64; 3] {
    let value = |level: usize, is_box: bool, index: usize, step: bool| {
        let data = &head.levels[level];
        let base = f64::from(if is_box {
            data.boxes[index]
        } else {
            data.scores[index]
        });
        match moved {
            Some((l, b, i, s)) if step && (l, b, i) == (level, is_box, index) => base + s,
            _ => base,
        }
    };
    let norm = assignments.iter().map(|a| a.score).sum::<f64>().max(1.0);
    let mut sums = [0.0; 3];
    for (l, level) in head.levels.iter().enumerate() {
        for row in 0..head.batch * level.height * level.width {
            for c in 0..head.class_count {
                let x = value(l, false, row * level.score_stride + c, true);
                sums[1] += x.max(0.0) + (-x.abs()).exp().ln_1p();
            }
        }
    }
    for assignment in assignments {
        let (mut l, mut cell) = (0, assignment.anchor as usize);
        while cell >= head.levels[l].height * head.levels[l].width {
            cell -= head.levels[l].height * head.levels[l].width;
            l += 1;
        }
        let level = &head.levels[l];
        let row = assignment.image as usize * level.height * level.width + cell;
        let index = (0..targets.len())
            .filter(|&i| targets.image[i] == assignment.image)
            .nth(assignment.ground_truth as usize)
            .unwrap();
        let score_at = row * level.score_stride + targets.class[index] as usize;
        sums[1] -= value(l, false, score_at, true) * assignment.score;

        let s = level.stride as f64;
        let [x, y, w, h] = targets.boxes[index].map(f64::from);
        let (wide, high) = (width as f64 / s, height as f64 / s);
        let target = [
            (x - w / 2.0) * wide,
            (y - h / 2.0) * high,
            (x + w / 2.0) * wide,
            (y + h / 2.0) * high,
        ];
        let (ax, ay) = (
            (cell % level.width) as f64 + 0.5,
            (cell / level.width) as f64 + 0.5,
        );
        let wanted = [
            ax - target[0],
            ay - target[1],
            target[2] - ax,
            target[3] - ay,
        ];
        let mut predicted = [[0.0; 4]; 2];
        for side in 0..4 {
            for step in [false, true] {
                let logits: Vec<f64> = (0..16)
                    .map(|bin| value(l, true, row * 64 + side * 16 + bin, step))
                    .collect();
                let sum: f64 = logits.iter().map(|x| x.exp()).sum();
                let mean = logits
                    .iter()
                    .enumerate()
                    .map(|(bin, x)| bin as f64 * x.exp() / sum);
                let mean: f64 = mean.sum();
                predicted[usize::from(step)][side] =
                    [ax - mean, ay - mean, ax + mean, ay + mean][side];
                if step {
                    let wanted = wanted[side].clamp(0.0, 14.99);
                    let low = wanted.floor() as usize;
                    let weight = wanted - low as f64;
                    let log = |bin: usize| logits[bin] - sum.ln();
                    sums[2] -= ((1.0 - weight) * log(low) + weight * log(low + 1)) / 4.0
                        * assignment.score;
                }
            }
        }
        let aspect = |p: [f64; 4]| {
            let angle = |b: [f64; 4]| ((b[2] - b[0]) / (b[3] - b[1] + 1e-7)).atan();
            4.0 / std::f64::consts::PI.powi(2) * (angle(target) - angle(p)).powi(2)
        };
        let iou = |p: [f64; 4]| {
            let side = |k: usize| (p[k + 2].min(target[k + 2]) - p[k].max(target[k])).max(0.0);
            let inner = side(0) * side(1);
            let area = |b: [f64; 4]| (b[2] - b[0]) * (b[3] - b[1] + 1e-7);
            inner / (area(p) + area(target) - inner + 1e-7)
        };
        let weight = |p: [f64; 4]| aspect(p) / (1.0 - iou(p) + aspect(p) + 1e-7);
        let [still, now] = predicted;
        let held = ciou(now, target) + aspect(now) * (weight(now) - weight(still));
        sums[0] += (1.0 - held) * assignment.score;
    }
    let gains = [7.5, 0.5, 1.5];
    std::array::from_fn(|i| sums[i] * gains[i] / norm)
}

fn assert_same_assignments(found: &[Assignment], expected: &[Assignment]) {
    let keys = |list: &[Assignment]| -> Vec<_> {
        list.iter()
            .map(|a| (a.image, a.anchor, a.ground_truth))
            .collect()
    };
    assert_eq!(keys(found), keys(expected));
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found.score - expected.score).abs() < 1e-5,
            "{found:?} and {expected:?}"
        );
    }
}

#[test]
fn the_loss_and_its_gradient_agree_with_their_definition() {
    for (seed, class_count) in [(1, 3), (2, 1), (3, 20)] {
        let size = (96, 128);
        let head = Head::new(seed, 2, class_count, size);
        let targets = targets(seed, 2, class_count, 4);
        let (output, assignments, gradients) = head.compute(&targets, size, 1);
        assert!(output.assigned > 20, "{output:?}");
        let items = loss_by_definition(&head, &targets, size, &assignments, None);
        for (found, expected) in output.items.iter().zip(items) {
            assert!((f64::from(*found) - expected).abs() < 1e-5 * expected.abs());
        }
        let total = |moved| -> f64 {
            let items = loss_by_definition(&head, &targets, size, &assignments, Some(moved));
            items.iter().sum::<f64>() * 2.0
        };
        let step = 1e-4;
        let mut worst = 0.0f64;
        let mut check = |level: usize, is_box: bool, index: usize, found: f32| {
            let high = total((level, is_box, index, step));
            let low = total((level, is_box, index, -step));
            let difference = (high - low) / (2.0 * step);
            worst = worst.max((difference - f64::from(found)).abs());
        };
        for assignment in assignments.iter().step_by(5) {
            let place = Place::find(&head.views(), assignment.anchor as usize);
            let level = &gradients[place.level];
            let row = assignment.image as usize * level.height * level.width + place.cell;
            for i in (0..64).step_by(3) {
                check(place.level, true, row * 64 + i, level.boxes[row * 64 + i]);
            }
            for c in 0..class_count {
                let i = row * level.score_stride + c;
                check(place.level, false, i, level.scores[i]);
            }
        }
        assert!(worst < 2e-6, "worst difference {worst}");
        for (level, gradient) in head.levels.iter().zip(&gradients) {
            assert!(
                gradient
                    .boxes
                    .iter()
                    .chain(&gradient.scores)
                    .all(|g| g.is_finite())
            );
            let padding = gradient.scores.chunks(level.score_stride);
            assert!(
                padding
                    .flat_map(|row| &row[class_count..])
                    .all(|&g| g == 0.0)
            );
        }
    }
}

#[test]
fn an_anchor_without_a_box_has_no_box_gradient() {
    let head = Head::new(5, 2, 3, (64, 64));
    let (output, assignments, gradients) = head.compute(&targets(5, 2, 3, 2), (64, 64), 1);
    let used = gradients.iter().flat_map(|level| level.boxes.chunks(64));
    let used = used.filter(|row| row.iter().any(|&g| g != 0.0)).count();
    assert_eq!(used, assignments.iter().filter(|a| a.score > 1e-12).count());
    assert_eq!(output.assigned, assignments.len());
}

#[test]
fn a_batch_without_boxes_is_all_background() {
    let head = Head::new(6, 3, 2, (64, 96));
    let (output, assignments, gradients) = head.compute(&Targets::empty(3), (64, 96), 2);
    assert!(assignments.is_empty());
    assert_eq!(
        (output.items[0], output.items[2], output.score_sum),
        (0.0, 0.0, 0.0)
    );
    assert!(output.items[1] > 0.0);
    assert!(
        gradients
            .iter()
            .all(|level| level.boxes.iter().all(|&g| g == 0.0))
    );
}

#[test]
fn the_result_is_the_same_bits_for_any_number_of_threads() {
    let head = Head::new(7, 5, 4, (160, 160));
    let targets = targets(7, 5, 4, 9);
    let bits = |levels: Vec<Level>| -> Vec<u32> {
        let all = levels
            .into_iter()
            .flat_map(|l| l.boxes.into_iter().chain(l.scores));
        all.map(f32::to_bits).collect()
    };
    let (one, assignments, gradients) = head.compute(&targets, (160, 160), 1);
    let gradients = bits(gradients);
    for threads in [2, 3, 8] {
        let (many, others, again) = head.compute(&targets, (160, 160), threads);
        assert_eq!((one, &assignments), (many, &others));
        assert!(gradients == bits(again));
    }
}

#[test]
fn ten_thousand_boxes_in_one_image_are_assigned_as_defined() {
    let size = (128, 128);
    let head = Head::new(8, 1, 2, size);
    let targets = targets(8, 1, 2, 10_000);
    let (output, assignments, _) = head.compute(&targets, size, 1);
    assert!(output.items.iter().all(|item| item.is_finite()));
    assert_same_assignments(
        &assignments,
        &assignments_by_definition(&head, &targets, size),
    );
}

#[test]
fn boxes_without_area_and_outside_the_image_do_no_harm() {
    let head = Head::new(9, 1, 2, (64, 64));
    let mut targets = Targets::empty(1);
    for bounds in [
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [3.0, -2.0, 0.1, 0.1],
        [0.5, 0.5, 4.0, 4.0],
        [f32::NAN, 0.5, 0.1, 0.1],
    ] {
        targets.push(0, 1, bounds);
    }
    let (output, _, _) = head.compute(&targets, (64, 64), 1);
    assert!(
        output.items.iter().all(|item| item.is_finite()),
        "{output:?}"
    );
}

#[test]
fn a_prediction_that_is_no_number_makes_the_loss_no_number() {
    let mut head = Head::new(10, 1, 2, (64, 64));
    head.levels[0].scores[33] = f32::NAN;
    let targets = targets(10, 1, 2, 3);
    let threads = Threads::new(1).unwrap();
    let input = LossInput {
        targets: &targets,
        image_size: (64, 64),
        parameters: &[],
        threads: &threads,
    };
    let output = loss_of(2).evaluate(&head.outputs(), &input);
    assert!(output.total.is_nan());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    #[test]
    fn the_assigner_agrees_with_its_definition(
        seed in 0u64..1_000_000,
        class_count in 1usize..5,
        per_image in 0usize..12,
    ) {
        let size = (96, 64);
        let head = Head::new(seed, 2, class_count, size);
        let targets = targets(seed, 2, class_count, per_image);
        let (_, assignments, _) = head.compute(&targets, size, 2);
        assert_same_assignments(&assignments, &assignments_by_definition(&head, &targets, size));
    }
}

#[test]
#[ignore = "a measurement: run it alone, with --nocapture"]
fn how_long_the_loss_takes() {
    for (size, batch, class_count, per_image) in
        [(320, 16, 80, 7), (640, 16, 80, 28), (320, 16, 3, 15)]
    {
        let head = Head::new(11, batch, class_count, (size, size));
        let targets = targets(11, batch, class_count, per_image);
        let mut gradients = head.levels.clone();
        let mut loss = loss_of(class_count);
        for count in [1, 2] {
            let threads = Threads::new(count).unwrap();
            let input = LossInput {
                targets: &targets,
                image_size: (size, size),
                parameters: &[],
                threads: &threads,
            };
            let mut best = f64::INFINITY;
            for _ in 0..20 {
                let mut views = OutputGradients {
                    branches: vec![gradients.iter_mut().map(Level::gradient).collect()],
                    ..OutputGradients::default()
                };
                let watch = Stopwatch::start();
                loss.compute(&head.outputs(), &mut views, &mut [], &input);
                best = best.min(watch.elapsed().as_secs_f64());
            }
            println!(
                "{size} px, batch {batch}, {class_count} classes, {per_image} boxes, {count} threads: {:.2} ms",
                best * 1e3
            );
        }
    }
}
