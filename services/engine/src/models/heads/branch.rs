//! One branch of a dense head: for each level a chain of convolutions for boxes, one for scores, and one for
//! what else the task wants.

use super::STRIDES;
use crate::graph::{Graph, Head, ValueId};
use crate::models::blocks::{Conv, Shape, chain};
use crate::models::{Family, KeypointShape, ModelSpec, Task};

/// The least width of the box chains.
const BOX_HIDDEN_MIN: usize = 16;
/// Classes beyond this many widen the score chains no more.
const CLASS_HIDDEN_MAX: usize = 100;

type Chains = [Vec<Conv>; 3];

/// A branch whose tensors are declared.
pub(super) struct Branch {
    /// The head's name, then what the branch's names begin with.
    prefix: String,
    boxes: Chains,
    scores: Chains,
    extra: Option<Chains>,
    /// YOLO26's pose: keypoints and deviations, both of what `extra` puts out.
    keypoints: Option<[[Conv; 2]; 3]>,
}

impl Branch {
    /// Declares the chains of boxes and scores.
    pub(super) fn declare(
        graph: &mut Graph,
        prefix: String,
        spec: &ModelSpec,
        channels: [usize; 3],
    ) -> Self {
        let outputs = 4 * spec.family.bins();
        let hidden = BOX_HIDDEN_MIN.max(channels[0] / 4).max(outputs);
        let boxes = [0, 1, 2].map(|level| {
            let name = format!("{prefix}cv2.{level}");
            three_convolutions(graph, &name, channels[level], hidden, outputs)
        });
        let hidden = channels[0].max(spec.class_count.min(CLASS_HIDDEN_MAX));
        let hidden = spec.class_hidden.unwrap_or(hidden);
        let scores = [0, 1, 2].map(|level| {
            let name = format!("{prefix}cv3.{level}");
            if spec.family == Family::Yolo8 {
                three_convolutions(graph, &name, channels[level], hidden, spec.class_count)
            } else {
                light_convolutions(graph, &name, channels[level], hidden, spec.class_count)
            }
        });
        Self {
            prefix,
            boxes,
            scores,
            extra: None,
            keypoints: None,
        }
    }

    /// Declares the chains of the task's third output.
    pub(super) fn declare_extra(
        &mut self,
        graph: &mut Graph,
        spec: &ModelSpec,
        channels: [usize; 3],
    ) {
        let outputs = spec.extra_channels();
        if outputs == 0 {
            return;
        }
        let is_stem = spec.task == Task::Pose && spec.family == Family::Yolo26;
        let hidden = hidden_of_extra(spec, channels);
        self.extra = Some([0, 1, 2].map(|level| {
            let name = format!("{}cv4.{level}", self.prefix);
            if is_stem {
                two_convolutions(graph, &name, channels[level], hidden)
            } else {
                three_convolutions(graph, &name, channels[level], hidden, outputs)
            }
        }));
    }

    /// Declares what follows the third chain in YOLO26's pose.
    pub(super) fn declare_keypoints(
        &mut self,
        graph: &mut Graph,
        spec: &ModelSpec,
        channels: [usize; 3],
    ) {
        let hidden = hidden_of_extra(spec, channels);
        let deviations = 2 * spec.keypoints.map_or(0, |shape| shape.count);
        let outputs = [
            ("cv4_kpts", spec.extra_channels()),
            ("cv4_sigma", deviations),
        ];
        let [keypoints, deviations] = outputs.map(|(leaf, outputs)| {
            [0, 1, 2].map(|level| {
                let name = format!("{}{leaf}.{level}", self.prefix);
                Conv::declare_plain(graph, name, Shape::new(hidden, outputs, 1))
            })
        });
        let [a, b, c] = keypoints;
        let [d, e, f] = deviations;
        self.keypoints = Some([[a, d], [b, e], [c, f]]);
    }

    /// Lets no gradient through to the features.
    pub(super) fn detach(&mut self) {
        let chains = [
            Some(&mut self.boxes),
            Some(&mut self.scores),
            self.extra.as_mut(),
        ];
        for chain in chains.into_iter().flatten().flatten() {
            chain[0].detach();
        }
    }

    /// Adds the nodes of one level.
    pub(super) fn wire(&self, graph: &mut Graph, level: usize, input: ValueId) -> Head {
        let boxes = chain(graph, &self.boxes[level], input);
        let scores = chain(graph, &self.scores[level], input);
        let extra = self
            .extra
            .as_ref()
            .map(|chains| chain(graph, &chains[level], input));
        let (extra, sigma) = match (extra, &self.keypoints) {
            (Some(stem), Some(keypoints)) => {
                let [keypoints, sigma] = &keypoints[level];
                (
                    Some(keypoints.wire(graph, stem)),
                    Some(sigma.wire(graph, stem)),
                )
            }
            (extra, _) => (extra, None),
        };
        Head {
            stride: STRIDES[level],
            boxes,
            scores,
            extra,
            sigma,
        }
    }
}

/// Returns the width of the third chains.
fn hidden_of_extra(spec: &ModelSpec, channels: [usize; 3]) -> usize {
    let outputs = match spec.keypoints {
        // Deviations are made of the same features.
        Some(KeypointShape { count, dims }) if spec.family == Family::Yolo26 => count * (dims + 2),
        _ => spec.extra_channels(),
    };
    (channels[0] / 4).max(outputs)
}

fn two_convolutions(graph: &mut Graph, name: &str, input: usize, hidden: usize) -> Vec<Conv> {
    let shapes = [Shape::new(input, hidden, 3), Shape::new(hidden, hidden, 3)];
    let convolutions = shapes.into_iter().enumerate();
    convolutions
        .map(|(i, shape)| Conv::declare(graph, format!("{name}.{i}"), shape))
        .collect()
}

fn three_convolutions(
    graph: &mut Graph,
    name: &str,
    input: usize,
    hidden: usize,
    outputs: usize,
) -> Vec<Conv> {
    let mut chain = two_convolutions(graph, name, input, hidden);
    let last = Shape::new(hidden, outputs, 1);
    chain.push(Conv::declare_plain(graph, format!("{name}.2"), last));
    chain
}

/// Depthwise and pointwise convolutions in turn.
fn light_convolutions(
    graph: &mut Graph,
    name: &str,
    input: usize,
    hidden: usize,
    outputs: usize,
) -> Vec<Conv> {
    let shapes = [
        ("0.0", Shape::depthwise(input, 3)),
        ("0.1", Shape::new(input, hidden, 1)),
        ("1.0", Shape::depthwise(hidden, 3)),
        ("1.1", Shape::new(hidden, hidden, 1)),
    ];
    let mut chain: Vec<_> = shapes
        .into_iter()
        .map(|(leaf, shape)| Conv::declare(graph, format!("{name}.{leaf}"), shape))
        .collect();
    let last = Shape::new(hidden, outputs, 1);
    chain.push(Conv::declare_plain(graph, format!("{name}.2"), last));
    chain
}
