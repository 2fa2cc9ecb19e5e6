//! Validation of every task on pictures whose right answer is built into the outputs.

use super::tally::Tally;
use crate::data::Batch;
use crate::loss::{InstanceMaps, LossSettings, Targets};
use crate::metrics::NmsOptions;
use crate::models::{Family, KeypointShape, MASK_CHANNELS, ModelSpec, Scale, Task};
use crate::network::{HeadLevel, Map, Outputs};
use crate::parallel::Threads;

const SIDE: usize = 64;
const STRIDES: [usize; 3] = [8, 16, 32];
const CLASSES: usize = 3;

/// One object: image, class, centre and size in pixels, angle. Upright edges lie on the borders of mask pixels.
type Object = (u32, u32, [f32; 4], f32);
const OBJECTS: [Object; 3] = [
    (0, 1, [20.0, 20.0, 24.0, 16.0], 0.5),
    (0, 2, [44.0, 44.0, 20.0, 32.0], -0.4),
    (1, 1, [36.0, 28.0, 32.0, 32.0], 0.2),
];

struct Head {
    spec: ModelSpec,
    /// Boxes, scores and extra of each level, with their strides.
    levels: Vec<[(Vec<f32>, usize); 3]>,
    prototypes: Vec<f32>,
    targets: Targets,
}

fn keypoints(object: &Object) -> [[f32; 3]; 2] {
    let (_, _, [x, y, width, height], _) = *object;
    [
        [x - 0.2 * width, y, 2.0],
        [x + 0.1 * width, y + 0.2 * height, 1.0],
    ]
}

impl Head {
    /// Makes the outputs of a YOLO26 head that finds every object at the anchor of its centre; `shift` moves what it
    /// says by so many pixels, boxes left alone unless `boxes_too`.
    fn new(task: Task, shift: f32, boxes_too: bool) -> Self {
        let keypoint_shape = KeypointShape { count: 2, dims: 3 };
        let spec = ModelSpec {
            family: Family::Yolo26,
            scale: Scale::N,
            task,
            class_count: CLASSES,
            keypoints: (task == Task::Pose).then_some(keypoint_shape),
            class_hidden: None,
        };
        let extra_stride = spec.extra_channels().next_multiple_of(16);
        let mut levels: Vec<_> = STRIDES
            .iter()
            .map(|stride| {
                let cells = 2 * (SIDE / stride).pow(2);
                [
                    (vec![1.0; cells * 4], 4),
                    (vec![-12.0; cells * 16], 16),
                    (vec![0.0; cells * extra_stride], extra_stride),
                ]
            })
            .collect();
        let mut targets = Targets::empty(2);
        let map_side = SIDE / 4;
        let mut maps = vec![0u16; 2 * map_side * map_side];
        let mut numbers = [0u16; 2];
        let mut prototypes = vec![0.0; maps.len() * MASK_CHANNELS];
        for object in &OBJECTS {
            let (image, class, bounds, angle) = *object;
            let [x, y, width, height] = bounds;
            let share = bounds.map(|pixels| pixels / SIDE as f32);
            match task {
                Task::Obb => targets.push_turned(image, class, share, angle),
                Task::Pose => {
                    let points = keypoints(object);
                    let points = points.map(|[x, y, v]| [x / SIDE as f32, y / SIDE as f32, v]);
                    targets.push_posed(image, class, share, points);
                }
                _ => targets.push(image, class, share),
            }
            let number = &mut numbers[image as usize];
            *number += 1;
            for row in 0..map_side {
                for column in 0..map_side {
                    let (px, py) = (column as f32 * 4.0 + 2.0, row as f32 * 4.0 + 2.0);
                    let place = (image as usize * map_side + row) * map_side + column;
                    let fits = |shift: f32| {
                        (px - shift - x).abs() < width / 2.0 && (py - y).abs() < height / 2.0
                    };
                    if fits(0.0) {
                        maps[place] = *number;
                    }
                    let is_said = if fits(shift) { 1.0 } else { -1.0 };
                    prototypes[place * MASK_CHANNELS + usize::from(*number)] = is_said;
                }
            }

            let stride = STRIDES[0] as f32;
            let side = SIDE / STRIDES[0];
            let (column, line) = ((x / stride) as usize, (y / stride) as usize);
            let cell = (image as usize * side + line) * side + column;
            let centre = [column as f32 + 0.5, line as f32 + 0.5];
            let [boxes, scores, extra] = &mut levels[0];
            scores.0[cell * 16 + class as usize] = 4.0 - cell as f32 / 100.0;
            let moved = if boxes_too { shift } else { 0.0 };
            let (dx, dy) = ((x + moved) / stride - centre[0], y / stride - centre[1]);
            let (half_width, half_height) = (width / stride / 2.0, height / stride / 2.0);
            let (along, across) = match task {
                Task::Obb => {
                    let (sin, cos) = angle.sin_cos();
                    (dx * cos + dy * sin, dy * cos - dx * sin)
                }
                _ => (dx, dy),
            };
            boxes.0[cell * 4..][..4].copy_from_slice(&[
                half_width - along,
                half_height - across,
                half_width + along,
                half_height + across,
            ]);
            let extra = &mut extra.0[cell * extra_stride..];
            match task {
                Task::Obb => extra[0] = angle,
                Task::Segment => extra[usize::from(*number)] = 1.0,
                Task::Pose => {
                    for (index, [x, y, _]) in keypoints(object).into_iter().enumerate() {
                        extra[3 * index] = (x + shift) / stride - centre[0];
                        extra[3 * index + 1] = y / stride - centre[1];
                    }
                }
                Task::Detect | Task::Classify => {}
            }
        }
        if task == Task::Segment {
            targets.masks = Some(InstanceMaps {
                height: map_side,
                width: map_side,
                values: maps,
            });
        }
        Self {
            spec,
            levels,
            prototypes,
            targets,
        }
    }

    /// Validates the outputs, and returns mAP50 and mAP50-95 of boxes and of masks or poses.
    fn validate(self) -> ([f64; 2], Option<[f64; 2]>) {
        let level = |index: usize| {
            let [boxes, scores, extra] = &self.levels[index];
            HeadLevel {
                stride: STRIDES[index],
                height: SIDE / STRIDES[index],
                width: SIDE / STRIDES[index],
                boxes: &boxes.0,
                box_stride: boxes.1,
                scores: &scores.0,
                score_stride: scores.1,
                extra: &extra.0,
                extra_stride: extra.1,
                ..HeadLevel::default()
            }
        };
        let prototypes = Map {
            height: SIDE / 4,
            width: SIDE / 4,
            channels: MASK_CHANNELS,
            pixel_stride: MASK_CHANNELS,
            values: &self.prototypes,
        };
        let outputs = Outputs {
            branches: vec![(0..3).map(level).collect()],
            prototypes: (self.spec.task == Task::Segment).then_some(prototypes),
            ..Outputs::default()
        };
        let batch = Batch {
            images: Vec::new(),
            count: 2,
            height: SIDE,
            width: SIDE,
            targets: self.targets,
            samples: vec![0, 1],
        };
        let options = NmsOptions::validation();
        let mut tally = Tally::new(&self.spec, LossSettings::default(), options);
        for _ in 0..2 {
            tally.start();
            tally.add(&outputs, &batch, &Threads::new(2).unwrap());
        }
        let (boxes, second, classification) = tally.reports();
        assert!(classification.is_none());
        let labels: usize = boxes.classes.iter().map(|class| class.label_count).sum();
        assert_eq!(labels, OBJECTS.len());
        assert_eq!(boxes.confusion.count(Some(1), Some(1)), 2);
        let maps = |report: crate::metrics::DetectReport| [report.map50, report.map50_95];
        (maps(boxes), second.map(maps))
    }
}

#[test]
fn what_is_found_exactly_counts_fully_in_every_task() {
    for task in [Task::Detect, Task::Segment, Task::Pose, Task::Obb] {
        let (boxes, second) = Head::new(task, 0.0, false).validate();
        // A perfect class ends at 0.995: the curve falls to zero at the end of the recall axis.
        assert!(boxes.iter().all(|map| *map > 0.99), "{task:?} {boxes:?}");
        let has_second = matches!(task, Task::Segment | Task::Pose);
        assert_eq!(second.is_some(), has_second);
        assert!(
            second.iter().flatten().all(|map| *map > 0.99),
            "{task:?} {second:?}"
        );
    }
}

#[test]
fn masks_and_poses_are_judged_by_themselves() {
    for (task, shift) in [(Task::Segment, 8.0), (Task::Pose, 9.0)] {
        let (boxes, second) = Head::new(task, shift, false).validate();
        assert!(boxes[1] > 0.99);
        let second = second.unwrap();
        assert!(second[1] < 0.9, "{task:?} {second:?}");
    }
    for task in [Task::Detect, Task::Obb] {
        let (boxes, _) = Head::new(task, 3.0, true).validate();
        assert!(boxes[1] < 0.9, "{task:?} {boxes:?}");
    }
}

#[test]
fn whole_images_are_counted_by_rank() {
    let spec = ModelSpec::parse("yolo11n-cls", CLASSES).unwrap();
    let logits = [[3.0f32, 1.0, 0.0], [0.0, 2.0, 1.0]];
    let values: Vec<f32> = logits
        .iter()
        .flat_map(|row| row.iter().copied().chain([99.0; 13]))
        .collect();
    let outputs = Outputs {
        logits: Some(Map {
            height: 1,
            width: 1,
            channels: CLASSES,
            pixel_stride: 16,
            values: &values,
        }),
        ..Outputs::default()
    };
    let batch = Batch {
        images: Vec::new(),
        count: 2,
        height: SIDE,
        width: SIDE,
        targets: Targets::labelled(vec![0, 2]),
        samples: vec![0, 1],
    };
    let mut tally = Tally::new(&spec, LossSettings::default(), NmsOptions::validation());
    tally.add(&outputs, &batch, &Threads::new(1).unwrap());
    let (_, _, report) = tally.reports();
    let report = report.unwrap();
    assert_eq!((report.top1, report.top5), (0.5, 1.0));
}
