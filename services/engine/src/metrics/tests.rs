//! Metrics against recorded numbers and against their definitions.

use std::path::PathBuf;

use serde_json::Value;

use crate::clock::Stopwatch;
use crate::loss::{ciou, ciou_with_gradient, probiou};
use crate::models::{Family, ModelSpec, Scale, Task};
use crate::network::{HeadLevel, Outputs};
use crate::optim::{Ema, OptimizerSettings, Schedule};

use super::candidates::Candidates;
use super::matching::judge;
use super::nms::suppress_turned;
use super::*;

/// Returns the thresholds at which each detection takes a label.
fn match_detections(detections: &[Detection], labels: &[Label]) -> Vec<u16> {
    let found: Vec<_> = detections.iter().map(Detection::scored).collect();
    let truths: Vec<_> = labels.iter().map(Label::truth).collect();
    let overlap =
        |label: usize, found: usize| iou(&labels[label].bounds, &detections[found].bounds);
    let verdicts = judge(&found, &truths, overlap).into_iter();
    verdicts.map(|verdict| verdict.hits[0]).collect()
}

/// Returns the recorded numbers of another implementation, or `None` where they are not at hand.
fn recorded() -> Option<Value> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test finds its data through the environment"
    )]
    let place = std::env::var("FOVEA_TEST_SPEC");
    let place = place.map_or_else(
        |_| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/spec")),
        PathBuf::from,
    );
    let path = place.join("golden/metrics.json");
    match std::fs::read(&path) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap()),
        Err(_) => {
            println!("skipped: {} is not there", path.display());
            None
        }
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap();
    list.iter().map(|number| number.as_f64().unwrap()).collect()
}

fn rows(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

fn corners(centre_and_size: &[f64]) -> [f64; 4] {
    let [x, y, w, h] = *centre_and_size else {
        panic!("four numbers make a box")
    };
    [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
}

#[test]
fn suppression_keeps_what_is_recorded() {
    let Some(recorded) = recorded() else { return };
    let input: Vec<f32> = rows(&recorded["nms_input_xywh_scores"])
        .concat()
        .into_iter()
        .map(|number| number as f32)
        .collect();
    for key in ["nms_val", "nms_predict", "nms_agnostic"] {
        let arguments = &recorded[key]["args"];
        let number = |name: &str| arguments[name].as_f64().unwrap();
        let is = |name: &str| arguments[name].as_bool().unwrap_or(false);
        let options = NmsOptions {
            confidence: number("conf_thres") as f32,
            iou: number("iou_thres") as f32,
            detection_count_max: number("max_det") as usize,
            is_multi_label: is("multi_label"),
            is_class_agnostic: is("agnostic"),
        };
        let found = nms(&input, 3, &options);
        let expected = rows(&recorded[key]["index_class_conf"]);
        assert_eq!(found.len(), expected.len(), "{key}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(
                [found.index, found.class],
                [expected[0] as u32, expected[1] as u32]
            );
            assert!((f64::from(found.score) - expected[2]).abs() < 1e-7);
        }
    }
}

#[test]
fn matching_and_average_precision_are_as_recorded() {
    let Some(recorded) = recorded() else { return };
    let mut metrics = DetectMetrics::new(3);
    for picture in recorded["map_input"].as_array().unwrap() {
        let single = |list: &[f64]| corners(list).map(|number| number as f32);
        let labels: Vec<_> = rows(&picture["gt_cls_xywh"])
            .iter()
            .map(|row| Label {
                class: row[0] as u32,
                bounds: single(&row[1..]),
            })
            .collect();
        let detections: Vec<_> = rows(&picture["pred_cls_conf_xywh"])
            .iter()
            .map(|row| Detection {
                class: row[0] as u32,
                score: row[1] as f32,
                bounds: single(&row[2..]),
                index: 0,
            })
            .collect();
        let hits = match_detections(&detections, &labels);
        for (hits, expected) in hits.iter().zip(rows(&picture["true_positive_per_iou"])) {
            let bits: Vec<f64> = (0..10).map(|bit| f64::from(hits >> bit & 1)).collect();
            assert_eq!(bits, expected);
        }
        metrics.add(&detections, &labels);
    }
    let report = metrics.report();
    let expected = &recorded["map"];
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-8);
    for (index, class) in report.classes.iter().enumerate() {
        assert_eq!(
            class.class,
            expected["classes"][index].as_u64().unwrap() as u32
        );
        for (key, found) in [
            ("precision", class.precision),
            ("recall", class.recall),
            ("f1", class.f1),
        ] {
            close(found, expected[key][index].as_f64().unwrap());
        }
        let precisions = numbers(&expected["ap_per_class_and_iou"][index]);
        for (found, expected) in class.average_precision.iter().zip(precisions) {
            close(*found, expected);
        }
    }
    close(report.map50, expected["mAP50"].as_f64().unwrap());
    close(report.map50_95, expected["mAP50-95"].as_f64().unwrap());
    close(report.fitness(), report.map50_95);
    let mean = |key: &str| numbers(&expected[key]).iter().sum::<f64>() / 3.0;
    close(report.precision, mean("precision"));
    close(report.recall, mean("recall"));
}

#[test]
fn ciou_and_its_gradient_are_as_recorded() {
    let Some(recorded) = recorded() else { return };
    let recorded = &recorded["ciou"];
    let pairs = rows(&recorded["pred_xywh"])
        .into_iter()
        .zip(rows(&recorded["target_xywh"]));
    let slopes = rows(&recorded["d_sum_d_pred"]);
    for (index, (prediction, target)) in pairs.enumerate() {
        let (prediction, target) = (corners(&prediction), corners(&target));
        let (value, [x1, y1, x2, y2]) = ciou_with_gradient(prediction, target);
        assert_eq!(value, ciou(prediction, target));
        assert!((value - recorded["ciou"][index].as_f64().unwrap()).abs() < 1e-8);
        let slope = [x1 + x2, y1 + y2, (x2 - x1) / 2.0, (y2 - y1) / 2.0];
        for (found, expected) in slope.iter().zip(&slopes[index]) {
            assert!((found - expected).abs() < 1e-8, "{found} and {expected}");
        }
    }
}

#[test]
fn probiou_is_as_recorded() {
    let Some(recorded) = recorded() else { return };
    let boxes = &recorded["ciou"];
    let recorded = &recorded["probiou"];
    let turned = |key: &str, angles: &str| {
        let pairs = rows(&boxes[key])
            .into_iter()
            .zip(numbers(&recorded[angles]));
        let five = pairs.map(|(b, angle)| [b[0], b[1], b[2], b[3], angle]);
        five.collect::<Vec<[f64; 5]>>()
    };
    let firsts = turned("pred_xywh", "angles_a");
    let seconds = turned("target_xywh", "angles_b");
    for ((first, second), expected) in firsts.iter().zip(seconds).zip(numbers(&recorded["value"])) {
        let value = probiou(*first, second);
        assert!((value - expected).abs() < 1e-8, "{value} and {expected}");
    }
}

#[test]
fn learning_rate_factors_and_the_averages_decay_are_as_recorded() {
    let Some(recorded) = recorded() else { return };
    let mut schedule = Schedule::new(&OptimizerSettings::sgd(), 10, 1, 64);
    for (key, is_cosine) in [
        ("lr_factor_linear_10_epochs_lrf_0.01", false),
        ("lr_factor_cosine_10_epochs_lrf_0.01", true),
    ] {
        schedule.is_cosine = is_cosine;
        for (epoch, expected) in numbers(&recorded[key]).into_iter().enumerate() {
            assert!(
                (schedule.factor(epoch) - expected).abs() < 1e-9,
                "{key}, epoch {epoch}"
            );
        }
    }
    for (updates, expected) in recorded["ema_decay_at_updates"].as_object().unwrap() {
        let decay = Ema::decay(updates.parse().unwrap());
        assert!((decay - expected.as_f64().unwrap()).abs() < 1e-9);
    }
}

fn detection(bounds: [f32; 4], score: f32, class: u32) -> Detection {
    Detection {
        bounds,
        score,
        class,
        index: 0,
    }
}

/// Greedy suppression by its definition, without any order tricks.
fn nms_by_definition(rows: &[f32], class_count: usize, options: &NmsOptions) -> Vec<(u32, u32)> {
    let width = 4 + class_count;
    let mut all = Vec::new();
    for (index, row) in rows.chunks(width).enumerate() {
        let best = (0..class_count)
            .rev()
            .max_by(|&a, &b| row[4 + a].total_cmp(&row[4 + b]));
        for class in 0..class_count {
            let counts = options.is_multi_label || Some(class) == best;
            if counts && row[4 + class] > options.confidence {
                let bounds = corners(&[0, 1, 2, 3].map(|k| f64::from(row[k])));
                all.push((
                    row[4 + class],
                    index as u32,
                    class as u32,
                    bounds.map(|x| x as f32),
                ));
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut kept: Vec<(f32, u32, u32, [f32; 4])> = Vec::new();
    for candidate in all.into_iter().take(30_000) {
        let is_double = kept.iter().any(|surer| {
            let shared = intersection(&surer.3, &candidate.3);
            let iou = shared / (area(&surer.3) + area(&candidate.3) - shared);
            (options.is_class_agnostic || surer.2 == candidate.2) && iou > f64::from(options.iou)
        });
        if !is_double {
            kept.push(candidate);
        }
    }
    kept.truncate(options.detection_count_max);
    kept.into_iter()
        .map(|(_, index, class, _)| (index, class))
        .collect()
}

/// Rows of made-up predictions; coordinates and scores are coarse, so that ties and exact overlaps occur.
fn made_up_rows(seed: u64, anchors: usize, class_count: usize, steps: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = move |limit: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % limit) as f32
    };
    let mut rows = Vec::new();
    for _ in 0..anchors {
        rows.extend([
            next(64) * 8.0,
            next(64) * 8.0,
            16.0 + next(8) * 16.0,
            16.0 + next(8) * 16.0,
        ]);
        for _ in 0..class_count {
            let score = next(steps) / steps as f32;
            rows.push(score * score);
        }
    }
    rows
}

proptest::proptest! {
    #[test]
    fn suppression_agrees_with_its_definition(
        seed in 0u64..u64::MAX,
        anchors in 0usize..400,
        class_count in 1usize..20,
        is_multi_label: bool,
        is_class_agnostic: bool,
        detection_count_max in 1usize..200,
    ) {
        let rows = made_up_rows(seed, anchors, class_count, 50);
        let options = NmsOptions {
            confidence: 0.1,
            // Seven sixteenths: what a quotient of whole numbers compares with in the same way at any precision.
            iou: 0.4375,
            detection_count_max,
            is_multi_label,
            is_class_agnostic,
        };
        let found = nms(&rows, class_count, &options);
        let found: Vec<_> = found.iter().map(|d| (d.index, d.class)).collect();
        proptest::prop_assert_eq!(found, nms_by_definition(&rows, class_count, &options));
    }
}

/// Turned suppression by its definition: a box dies by any surer one, dead or alive.
fn turned_by_definition(
    rows: &[f32],
    class_count: usize,
    options: &NmsOptions,
    bounds: impl Fn(usize) -> [f64; 5],
) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    for (index, row) in rows.chunks(4 + class_count).enumerate() {
        for (class, &score) in row[4..].iter().enumerate() {
            if score > options.confidence {
                all.push((score, index, class));
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let is_alive = |place: usize| {
        let (_, index, class) = all[place];
        all[..place].iter().all(|&(_, surer, other)| {
            let meets = options.is_class_agnostic || class == other;
            !meets || probiou(bounds(surer), bounds(index)) <= f64::from(options.iou)
        })
    };
    let alive = (0..all.len()).filter(|&place| is_alive(place));
    let places = alive.map(|place| (all[place].1 as u32, all[place].2 as u32));
    places.take(options.detection_count_max).collect()
}

proptest::proptest! {
    #[test]
    fn turned_suppression_agrees_with_its_definition(
        seed in 0u64..u64::MAX,
        anchors in 0usize..200,
        class_count in 1usize..4,
        is_class_agnostic: bool,
        detection_count_max in 1usize..200,
        iou in 0.05f32..0.95,
    ) {
        let rows = made_up_rows(seed, anchors, class_count, 1 << 20);
        let options = NmsOptions {
            confidence: 0.1,
            iou,
            detection_count_max,
            is_multi_label: true,
            is_class_agnostic,
        };
        let bounds = |index: usize| {
            let row = &rows[index * (4 + class_count)..];
            let [x, y, w, h] = [0, 1, 2, 3].map(|k| f64::from(row[k]));
            [x / 4.0, y / 4.0, w, h, (index % 13) as f64 * 0.25]
        };
        let candidates = Candidates::of_rows(&rows, class_count, &options);
        let found = suppress_turned(candidates, &options, bounds);
        let found: Vec<_> = found.iter().map(|d| (d.index, d.class)).collect();
        let expected = turned_by_definition(&rows, class_count, &options, bounds);
        proptest::prop_assert_eq!(found, expected);
    }
}

/// The logits of made-up scores on three levels, and heads over them whose boxes are what `nms` would read.
struct Levels {
    scores: Vec<Vec<f32>>,
    boxes: Vec<Vec<f32>>,
}

const LEVELS: [(usize, usize); 3] = [(8, 12), (16, 6), (32, 3)];

impl Levels {
    fn new(rows: &[f32], class_count: usize) -> Self {
        let score_stride = class_count.next_multiple_of(16);
        let (mut scores, mut boxes) = (Vec::new(), Vec::new());
        let mut rows = rows.chunks(4 + class_count);
        for (_, side) in LEVELS {
            let (mut level_scores, mut level_boxes) = (Vec::new(), Vec::new());
            for _ in 0..side * side {
                let row = rows.next().unwrap();
                let logits = row[4..].iter().map(|p| (p / (1.0 - p)).ln());
                level_scores.extend(logits);
                level_scores.resize(level_scores.len().next_multiple_of(score_stride), 99.0);
                level_boxes.extend([row[2] / 64.0, row[3] / 64.0, row[3] / 32.0, row[2] / 32.0]);
            }
            scores.push(level_scores);
            boxes.push(level_boxes);
        }
        Self { scores, boxes }
    }

    fn outputs(&self, class_count: usize) -> Outputs<'_> {
        let level = |index: usize| {
            let (stride, side) = LEVELS[index];
            HeadLevel {
                stride,
                height: side,
                width: side,
                boxes: &self.boxes[index],
                box_stride: 4,
                scores: &self.scores[index],
                score_stride: class_count.next_multiple_of(16),
                ..HeadLevel::default()
            }
        };
        Outputs {
            branches: vec![(0..LEVELS.len()).map(level).collect()],
            ..Outputs::default()
        }
    }
}

proptest::proptest! {
    #[test]
    fn what_is_read_from_logits_is_what_decoded_rows_give(
        seed in 0u64..u64::MAX,
        class_count in 1usize..20,
        is_multi_label: bool,
    ) {
        let anchors = LEVELS.iter().map(|(_, side)| side * side).sum();
        let mut rows = made_up_rows(seed, anchors, class_count, 1 << 16);
        let levels = Levels::new(&rows, class_count);
        // Turn the distances that the head holds into the centres and sizes of rows.
        let mut row = rows.chunks_mut(4 + class_count);
        for ((stride, side), boxes) in LEVELS.into_iter().zip(&levels.boxes) {
            for (cell, sides) in boxes.chunks(4).enumerate() {
                let row = row.next().unwrap();
                let (x, y) = ((cell % side) as f32 + 0.5, (cell / side) as f32 + 0.5);
                row[0] = (x + (sides[2] - sides[0]) / 2.0) * stride as f32;
                row[1] = (y + (sides[3] - sides[1]) / 2.0) * stride as f32;
                row[2] = (sides[0] + sides[2]) * stride as f32;
                row[3] = (sides[1] + sides[3]) * stride as f32;
            }
        }
        let options = NmsOptions {
            confidence: 0.1,
            is_multi_label,
            ..NmsOptions::validation()
        };
        let spec = ModelSpec {
            family: Family::Yolo26,
            scale: Scale::N,
            task: Task::Detect,
            class_count,
            keypoints: None,
            class_hidden: None,
        };
        let found = Detector::new(&spec, options).upright(&levels.outputs(class_count), 0);
        let expected = nms(&rows, class_count, &options);
        let places = |list: &[Detection]| -> Vec<_> {
            let mut places: Vec<_> = list.iter().map(|d| (d.index, d.class)).collect();
            places.sort_unstable();
            places
        };
        proptest::prop_assert_eq!(places(&found), places(&expected));
        for found in &found {
            let same = expected.iter().find(|d| (d.index, d.class) == (found.index, found.class));
            let same = same.unwrap();
            proptest::prop_assert!((found.score - same.score).abs() < 1e-5);
            for (a, b) in found.bounds.iter().zip(same.bounds) {
                proptest::prop_assert!((a - b).abs() < 1e-3);
            }
        }
    }
}

#[test]
fn one_to_one_takes_the_best_anchors_and_then_the_best_of_their_classes() {
    let class_count = 3;
    let anchors = LEVELS.iter().map(|(_, side)| side * side).sum();
    let rows = made_up_rows(6, anchors, class_count, 1 << 16);
    let levels = Levels::new(&rows, class_count);
    let options = NmsOptions {
        confidence: 0.3,
        detection_count_max: 20,
        ..NmsOptions::prediction()
    };
    let spec = ModelSpec {
        family: Family::Yolo26,
        scale: Scale::N,
        task: Task::Detect,
        class_count,
        keypoints: None,
        class_hidden: None,
    };
    let found = Detector::one_to_one(&spec, options).upright(&levels.outputs(class_count), 0);
    let row = |index: usize| &rows[index * 7 + 4..][..3];
    let best = |index: usize| row(index).iter().fold(0.0, |a: f32, b| a.max(*b));
    let mut order: Vec<usize> = (0..anchors).collect();
    order.sort_by(|&a, &b| best(b).total_cmp(&best(a)));
    let mut pairs: Vec<(f32, usize, usize)> = order[..20]
        .iter()
        .flat_map(|&index| (0..3).map(move |class| (index, class)))
        .map(|(index, class)| (row(index)[class], index, class))
        .collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs.truncate(20);
    let found: Vec<_> = found
        .iter()
        .map(|d| (d.index as usize, d.class as usize))
        .collect();
    let expected: Vec<_> = pairs
        .iter()
        .map(|&(_, index, class)| (index, class))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn objects_of_a_size_are_judged_among_their_like() {
    let at = |x: f32, side: f32| [x, 0.0, x + side, side];
    let label = |x: f32, side: f32| Label {
        bounds: at(x, side),
        class: 0,
    };
    let mut metrics = DetectMetrics::new(1).with_interpolation(Interpolation::Coco);
    metrics.add(
        &[
            // Takes the large label: neither right nor wrong among the small ones.
            detection(at(0.0, 100.0), 0.9, 0),
            // Takes nothing and is large itself.
            detection(at(600.0, 100.0), 0.8, 0),
            // Takes the small label, after a small one that takes nothing.
            detection(at(900.0, 10.0), 0.7, 0),
            detection(at(300.0, 20.0), 0.6, 0),
        ],
        &[label(0.0, 100.0), label(300.0, 20.0), label(400.0, 50.0)],
    );
    let [small, medium, large] = metrics.report().sizes;
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
    assert_eq!([small, medium, large].map(|size| size.label_count), [1; 3]);
    close(small.map50, 0.5);
    close(medium.map50, 0.0);
    close(large.map50, 1.0);
    close(large.map50_95, 1.0);
}

#[test]
fn more_candidates_than_the_limit_are_cut_by_score() {
    let rows = made_up_rows(3, 8400, 20, 1 << 20);
    let options = NmsOptions::validation();
    let found = nms(&rows, 20, &options);
    assert_eq!(found.len(), 300);
    let found: Vec<_> = found.iter().map(|d| (d.index, d.class)).collect();
    assert_eq!(found, nms_by_definition(&rows, 20, &options));
}

#[test]
fn predictions_that_are_no_numbers_are_no_detections() {
    let mut rows = made_up_rows(4, 10, 3, 50);
    rows.iter_mut()
        .skip(4)
        .step_by(7)
        .for_each(|score| *score = f32::NAN);
    for options in [NmsOptions::validation(), NmsOptions::prediction()] {
        assert!(
            nms(&rows, 3, &options)
                .iter()
                .all(|d| d.score > options.confidence)
        );
    }
    assert!(nms(&[f32::NAN; 28], 3, &NmsOptions::prediction()).is_empty());
}

#[test]
fn a_label_counts_once_and_only_for_its_class() {
    let bounds = [0.0, 0.0, 10.0, 10.0];
    let labels = [Label { bounds, class: 1 }];
    let detections = [
        detection(bounds, 0.9, 0),
        detection([0.0, 0.0, 10.0, 8.0], 0.8, 1),
        detection(bounds, 0.7, 1),
    ];
    // The surer one takes the label below an overlap of 0.8, the exact one gets it above.
    assert_eq!(
        match_detections(&detections, &labels),
        [0, 0b00_0011_1111, 0b11_1100_0000]
    );
}

#[test]
fn the_confusion_matrix_counts_hits_mistakes_misses_and_ghosts() {
    let label = |x: f32, class| Label {
        bounds: [x, 0.0, x + 10.0, 10.0],
        class,
    };
    let at = |x: f32, score, class| detection([x, 0.0, x + 10.0, 10.0], score, class);
    let detections = [
        at(0.0, 0.9, 0),
        at(101.0, 0.8, 0),
        at(300.0, 0.7, 1),
        at(0.0, 0.6, 0),
        at(200.0, 0.2, 1),
    ];
    let labels = [label(0.0, 0), label(100.0, 1), label(200.0, 1)];
    let mut matrix = ConfusionMatrix::new(2);
    matrix.add(
        &detections.map(|found| found.scored()),
        &labels.map(|label| label.truth()),
        |label, found| iou(&labels[label].bounds, &detections[found].bounds),
    );
    let rows: Vec<_> = matrix.rows().map(<[u64]>::to_vec).collect();
    // Rows: said 0, said 1, said nothing. Columns: is 0, is 1, is nothing.
    assert_eq!(rows, [[1, 1, 1], [0, 0, 1], [0, 1, 0]]);
    assert_eq!(matrix.count(None, Some(1)), 1);
}

#[test]
fn a_set_without_labels_or_detections_scores_zero() {
    let report = DetectMetrics::new(2).report();
    assert_eq!(
        (report.map50, report.precision, report.classes.len()),
        (0.0, 0.0, 0)
    );
    let mut metrics = DetectMetrics::new(2);
    metrics.add(
        &[],
        &[Label {
            bounds: [0.0, 0.0, 1.0, 1.0],
            class: 1,
        }],
    );
    let report = metrics.report();
    assert_eq!(
        (report.map50_95, report.recall, report.classes.len()),
        (0.0, 0.0, 1)
    );
    assert_eq!(
        (report.classes[0].label_count, report.classes[0].image_count),
        (1, 1)
    );
    metrics.add(&[detection([0.0, 0.0, 1.0, 1.0], 0.9, 0)], &[]);
    assert_eq!(
        metrics.report().classes.len(),
        1,
        "a class without labels does not count"
    );
}

#[test]
#[ignore = "a measurement: run it alone, with --nocapture"]
fn how_long_suppression_takes() {
    for (name, anchors, power) in [
        ("320 px", 2100, 8),
        ("640 px", 8400, 8),
        ("640 px, nearly all above", 8400, 1),
    ] {
        let mut rows = made_up_rows(5, anchors, 80, 1 << 20);
        for row in rows.chunks_mut(84) {
            row[4..]
                .iter_mut()
                .for_each(|score| *score = score.powi(power));
        }
        for (kind, options) in [
            ("val", NmsOptions::validation()),
            ("predict", NmsOptions::prediction()),
        ] {
            let watch = Stopwatch::start();
            let count = (0..20).map(|_| nms(&rows, 80, &options).len()).max();
            let time = watch.elapsed().as_secs_f64() / 20.0 * 1e3;
            let above = candidates_above(&rows, options.confidence);
            println!(
                "{name}, 80 classes, {kind}: {time:.2} ms, {above} scores above, {count:?} kept"
            );
        }
    }
}

#[test]
#[ignore = "a measurement: run it alone, with --nocapture"]
fn how_long_detections_take_from_logits() {
    const SIDES: [(usize, usize); 3] = [(8, 80), (16, 40), (32, 20)];
    const CLASSES: usize = 80;
    let spec = ModelSpec::parse("yolo11n", CLASSES).unwrap();
    for (name, above) in [("few above", 14.0), ("many above", 9.0)] {
        let noise = crate::loss::noise;
        let scores = SIDES.map(|(_, side)| {
            let values = (0..side * side * CLASSES).map(|i| {
                let x = noise(1, i);
                x.powi(9) * 8.0 - above + 6.0
            });
            values.collect::<Vec<f32>>()
        });
        let boxes = SIDES.map(|(_, side)| {
            let values = (0..side * side * 64).map(|i| 3.0 * noise(2, i));
            values.collect::<Vec<f32>>()
        });
        let level = |k: usize| HeadLevel {
            stride: SIDES[k].0,
            height: SIDES[k].1,
            width: SIDES[k].1,
            boxes: &boxes[k],
            box_stride: 64,
            scores: &scores[k],
            score_stride: CLASSES,
            ..HeadLevel::default()
        };
        let outputs = Outputs {
            branches: vec![(0..3).map(level).collect()],
            ..Outputs::default()
        };
        for (kind, options) in [
            ("val", NmsOptions::validation()),
            ("predict", NmsOptions::prediction()),
        ] {
            let detector = Detector::new(&spec, options);
            let watch = Stopwatch::start();
            let count = (0..20).map(|_| detector.upright(&outputs, 0).len()).max();
            let time = watch.elapsed().as_secs_f64() / 20.0 * 1e3;
            println!("640 px, 80 classes, {name}, {kind}: {time:.2} ms, {count:?} kept");
        }
    }
}

fn candidates_above(rows: &[f32], confidence: f32) -> usize {
    let scores = rows.chunks(84).flat_map(|row| &row[4..]);
    scores.filter(|&&score| score > confidence).count()
}
