//! The end of the file's graph: boxes decoded, extras made what they mean, everything joined into the outputs.

use std::f32::consts::PI;

use super::proto::Attribute;
use super::writer::Writer;
use crate::decode::DETECTIONS_MAX;
use crate::graph::{Head, ValueId};
use crate::models::{Family, KeypointShape, MASK_CHANNELS, ModelSpec, Task};

const NAME: &str = "head";
const SIDES: usize = 4;

/// Where the anchors of a head lie.
struct Anchors {
    /// Names of constants: centres `[1, 2, anchors]` in cells, strides `[1, 1, anchors]`.
    centres: String,
    strides: String,
    count: usize,
}

impl Writer<'_> {
    /// Emits what follows the raw outputs and returns the sides of each output beside the batch's.
    pub fn outputs(&mut self, spec: &ModelSpec, is_end_to_end: bool) -> Vec<Vec<usize>> {
        if let Some(logits) = self.graph.logits {
            let attributes = vec![Attribute::int("axis", 1)];
            let logits = self.names[logits.0].clone();
            let shares = self.builder.node(NAME, "Softmax", &[&logits], attributes);
            self.builder.rename(&shares, "output0");
            return vec![vec![spec.class_count]];
        }
        let levels = self.graph.branches[0].clone();
        let anchors = self.anchors(&levels);
        let distances = self.distances(spec, &levels, &anchors);
        let scores = self.joined(&levels, |head| Some(head.scores));
        let scores = self.builder.node(NAME, "Sigmoid", &[&scores], Vec::new());
        let raw = (spec.extra_channels() > 0).then(|| self.joined(&levels, |head| head.extra));
        let (boxes, extras) = match (spec.task, raw) {
            (Task::Obb, Some(raw)) => {
                let angle = self.angle(spec, &raw);
                (self.turned_boxes(&distances, &angle, &anchors), Some(angle))
            }
            (task, raw) => {
                let boxes = self.boxes(&distances, &anchors, is_end_to_end);
                let extras = match (task, raw, spec.keypoints) {
                    (Task::Pose, Some(raw), Some(shape)) => {
                        Some(self.keypoints(spec, shape, &raw, &anchors))
                    }
                    (_, raw, _) => raw,
                };
                (boxes, extras)
            }
        };
        let extra_count = spec.extra_channels();
        let mut sides = if is_end_to_end {
            let count = anchors.count.min(DETECTIONS_MAX);
            let parts = [Some(boxes), Some(scores), extras];
            self.detections(parts, spec.class_count, count);
            vec![vec![count, SIDES + 2 + extra_count]]
        } else {
            let parts: Vec<&str> = [Some(&boxes), Some(&scores), extras.as_ref()]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            let all = self.builder.concat(NAME, &parts, 1);
            self.builder.rename(&all, "output0");
            vec![vec![SIDES + spec.class_count + extra_count, anchors.count]]
        };
        if let Some(prototypes) = self.graph.prototypes {
            let [height, width] = self.sides(prototypes).map(|side| side as usize);
            let name = self.names[prototypes.0].clone();
            self.builder.rename(&name, "output1");
            sides.push(vec![MASK_CHANNELS, height, width]);
        }
        sides
    }

    fn anchors(&mut self, levels: &[Head]) -> Anchors {
        let (mut across, mut down, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        for head in levels {
            let [height, width] = self.sides(head.boxes);
            for cell in 0..height * width {
                across.push((cell % width) as f32 + 0.5);
                down.push((cell / width) as f32 + 0.5);
                strides.push(head.stride as f32);
            }
        }
        let count = strides.len();
        across.append(&mut down);
        Anchors {
            centres: self.builder.floats("head.centres", &[1, 2, count], &across),
            strides: self
                .builder
                .floats("head.strides", &[1, 1, count], &strides),
            count,
        }
    }

    /// Joins one output of all levels along the anchors: `[batch, channels, anchors]`.
    fn joined(&mut self, levels: &[Head], output: impl Fn(&Head) -> Option<ValueId>) -> String {
        let values: Vec<ValueId> = levels.iter().filter_map(output).collect();
        let flat: Vec<String> = values
            .into_iter()
            .map(|id| {
                let [height, width] = self.sides(id);
                let shape = [0, self.graph.value(id).channels as i64, height * width];
                let name = self.names[id.0].clone();
                self.builder.reshape(NAME, &name, &shape)
            })
            .collect();
        let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
        self.builder.concat(NAME, &flat, 2)
    }

    /// Returns the distances to the four sides in cells, `[batch, 4, anchors]`.
    fn distances(&mut self, spec: &ModelSpec, levels: &[Head], anchors: &Anchors) -> String {
        let raw = self.joined(levels, |head| Some(head.boxes));
        let bins = spec.family.bins();
        if bins == 1 {
            return raw;
        }
        let frozen = self
            .graph
            .parameters
            .iter()
            .find(|tensor| tensor.shape == [1, bins, 1, 1]);
        let name = frozen.map_or("head.bins", |tensor| tensor.name.as_str());
        let builder = &mut self.builder;
        // The distance of a side is the mean of its bins' numbers, weighed by their softmax.
        let (bin_count, anchors) = (bins as i64, anchors.count as i64);
        let sides = builder.reshape(NAME, &raw, &[0, SIDES as i64, bin_count, anchors]);
        let sides = builder.transpose(NAME, &sides, [0, 2, 1, 3]);
        let sides = builder.node(NAME, "Softmax", &[&sides], vec![Attribute::int("axis", 1)]);
        let numbers: Vec<f32> = (0..bins).map(|bin| bin as f32).collect();
        let numbers = builder.floats(name, &[1, bins, 1, 1], &numbers);
        let attributes = vec![Attribute::ints("kernel_shape", [1, 1])];
        let distances = builder.node(NAME, "Conv", &[&sides, &numbers], attributes);
        builder.reshape(NAME, &distances, &[0, SIDES as i64, anchors])
    }

    /// Returns boxes in pixels, `[batch, 4, anchors]`: corners, or centre and size.
    fn boxes(&mut self, distances: &str, anchors: &Anchors, has_corners: bool) -> String {
        let builder = &mut self.builder;
        let parts = builder.split(NAME, distances, 1, &[2, 2]);
        let low = builder.node(NAME, "Sub", &[&anchors.centres, &parts[0]], Vec::new());
        let high = builder.node(NAME, "Add", &[&anchors.centres, &parts[1]], Vec::new());
        let pair = if has_corners {
            [low, high]
        } else {
            let sum = builder.node(NAME, "Add", &[&low, &high], Vec::new());
            let half = builder.floats("head.half", &[], &[0.5]);
            let middle = builder.node(NAME, "Mul", &[&sum, &half], Vec::new());
            [
                middle,
                builder.node(NAME, "Sub", &[&high, &low], Vec::new()),
            ]
        };
        let boxes = builder.concat(NAME, &[&pair[0], &pair[1]], 1);
        builder.node(NAME, "Mul", &[&boxes, &anchors.strides], Vec::new())
    }

    /// Returns centre and size of turned boxes in pixels, `[batch, 4, anchors]`.
    fn turned_boxes(&mut self, distances: &str, angle: &str, anchors: &Anchors) -> String {
        let builder = &mut self.builder;
        let parts = builder.split(NAME, distances, 1, &[2, 2]);
        let size = builder.node(NAME, "Add", &[&parts[0], &parts[1]], Vec::new());
        let difference = builder.node(NAME, "Sub", &[&parts[1], &parts[0]], Vec::new());
        let half = builder.floats("head.half", &[], &[0.5]);
        let offset = builder.node(NAME, "Mul", &[&difference, &half], Vec::new());
        let axes = builder.split(NAME, &offset, 1, &[1, 1]);
        let cosine = builder.node(NAME, "Cos", &[angle], Vec::new());
        let sine = builder.node(NAME, "Sin", &[angle], Vec::new());
        let mut product =
            |left: &str, right: &str| builder.node(NAME, "Mul", &[left, right], Vec::new());
        let along = [product(&axes[0], &cosine), product(&axes[0], &sine)];
        let aside = [product(&axes[1], &sine), product(&axes[1], &cosine)];
        let x = builder.node(NAME, "Sub", &[&along[0], &aside[0]], Vec::new());
        let y = builder.node(NAME, "Add", &[&along[1], &aside[1]], Vec::new());
        let turned = builder.concat(NAME, &[&x, &y], 1);
        let centre = builder.node(NAME, "Add", &[&anchors.centres, &turned], Vec::new());
        let boxes = builder.concat(NAME, &[&centre, &size], 1);
        builder.node(NAME, "Mul", &[&boxes, &anchors.strides], Vec::new())
    }

    /// Returns the angle in radians, `[batch, 1, anchors]`.
    fn angle(&mut self, spec: &ModelSpec, raw: &str) -> String {
        if spec.family == Family::Yolo26 {
            return raw.to_owned();
        }
        let builder = &mut self.builder;
        let share = builder.node(NAME, "Sigmoid", &[raw], Vec::new());
        let quarter = builder.floats("head.quarter", &[], &[0.25]);
        let share = builder.node(NAME, "Sub", &[&share, &quarter], Vec::new());
        let half_turn = builder.floats("head.half_turn", &[], &[PI]);
        builder.node(NAME, "Mul", &[&share, &half_turn], Vec::new())
    }

    /// Returns keypoints in pixels with their visibility, `[batch, keypoints × numbers, anchors]`.
    fn keypoints(
        &mut self,
        spec: &ModelSpec,
        shape: KeypointShape,
        raw: &str,
        anchors: &Anchors,
    ) -> String {
        let builder = &mut self.builder;
        let [count, dims, all] = [shape.count, shape.dims, anchors.count].map(|side| side as i64);
        let points = builder.reshape(NAME, raw, &[0, count, dims, all]);
        let mut parts = match shape.dims {
            3 => builder.split(NAME, &points, 2, &[2, 1]),
            _ => vec![points],
        };
        // Twice as far from the cell's corner, or as they are from its centre.
        let (places, origin) = if spec.family == Family::Yolo26 {
            (parts[0].clone(), anchors.centres.clone())
        } else {
            let two = builder.floats("head.two", &[], &[2.0]);
            let half = builder.floats("head.half", &[], &[0.5]);
            (
                builder.node(NAME, "Mul", &[&parts[0], &two], Vec::new()),
                builder.node(NAME, "Sub", &[&anchors.centres, &half], Vec::new()),
            )
        };
        // `[1, 2, anchors]` stretches over the batch and the keypoints.
        let places = builder.node(NAME, "Add", &[&places, &origin], Vec::new());
        parts[0] = builder.node(NAME, "Mul", &[&places, &anchors.strides], Vec::new());
        if let Some(visible) = parts.get_mut(1) {
            *visible = builder.node(NAME, "Sigmoid", &[visible], Vec::new());
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let points = builder.concat(NAME, &parts, 2);
        builder.reshape(NAME, &points, &[0, count * dims, all])
    }

    /// Emits `output0` of a one-to-one branch from boxes, scores and extras: of the anchors with the largest best
    /// score, the largest pairs of anchor and class.
    fn detections(&mut self, parts: [Option<String>; 3], class_count: usize, count: usize) {
        let builder = &mut self.builder;
        let parts = parts.map(|part| part.map(|part| builder.transpose(NAME, &part, [0, 2, 1])));
        let [Some(boxes), Some(scores), extras] = parts else {
            unreachable!("invariant: a dense head has boxes and scores");
        };
        let count = builder.whole(&[count as i64]);
        let classes = builder.whole(&[class_count as i64]);
        let last = builder.whole(&[-1]);
        let by_anchor = || vec![Attribute::int("axis", 1)];
        let flat = vec![Attribute::int("keepdims", 0)];
        let best = builder.node(NAME, "ReduceMax", &[&scores, &last], flat);
        let found = builder.split_node(NAME, "TopK", &[&best, &count], by_anchor(), 2);
        let anchors = builder.node(NAME, "Unsqueeze", &[&found[1], &last], Vec::new());
        let scores = self.rows_of(&scores, &anchors, class_count);
        let builder = &mut self.builder;
        let pairs = builder.reshape(NAME, &scores, &[0, -1]);
        let found = builder.split_node(NAME, "TopK", &[&pairs, &count], by_anchor(), 2);
        let place = builder.node(NAME, "Div", &[&found[1], &classes], Vec::new());
        let class = builder.node(NAME, "Mod", &[&found[1], &classes], Vec::new());
        let class = builder.node(NAME, "Cast", &[&class], vec![Attribute::int("to", 1)]);
        let [place, score, class] = [&place, &found[0], &class]
            .map(|part| builder.node(NAME, "Unsqueeze", &[part, &last], Vec::new()));
        let place = builder.node(NAME, "GatherElements", &[&anchors, &place], by_anchor());
        let boxes = self.rows_of(&boxes, &place, SIDES);
        let mut all = vec![boxes, score, class];
        if let Some(extras) = extras {
            let count = self.graph.branches[0][0].extra;
            let count = count.map_or(0, |id| self.graph.value(id).channels);
            all.push(self.rows_of(&extras, &place, count));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let all = self.builder.concat(NAME, &all, 2);
        self.builder.rename(&all, "output0");
    }

    /// Takes whole rows of `[batch, anchors, width]` by the anchors' numbers, `[batch, count, 1]`.
    fn rows_of(&mut self, values: &str, anchors: &str, width: usize) -> String {
        let builder = &mut self.builder;
        let shape = builder.whole(&[1, 1, width as i64]);
        let anchors = builder.node(NAME, "Expand", &[anchors, &shape], Vec::new());
        let attributes = vec![Attribute::int("axis", 1)];
        builder.node(NAME, "GatherElements", &[values, &anchors], attributes)
    }
}
