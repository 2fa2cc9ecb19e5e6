//! Keypoints: how far those of an anchor are from the true ones, whether they are seen, and how likely their places
//! are.

pub(super) mod likelihood;

use super::anchor::keypoint_scale;
use super::cross_entropy::sigmoid_of;
use super::rules::KeypointRules;
use crate::models::Family;

/// Keeps divisions finite.
const EPSILON: f64 = 1e-9;

/// The pose of one anchor beside the true one; places are in cells.
pub(super) struct PoseTerm<'a> {
    pub rules: &'a KeypointRules,
    pub family: Family,
    /// The raw outputs, keypoint by keypoint.
    pub raw: &'a [f32],
    /// Width times height of the true box, in cells.
    pub area: f64,
    /// The true keypoints as fractions of the image.
    pub truths: &'a [[f32; 3]],
    /// Width and height of the image, in cells.
    pub cells: [f64; 2],
    /// Where gradients are written, and the factors of the two terms.
    pub gradient: Option<PoseGradient<'a>>,
}

/// Where the gradient of an anchor's pose goes.
pub(super) struct PoseGradient<'a> {
    pub keypoint_scale: f64,
    pub visibility_scale: f64,
    pub raw: &'a mut [f32],
}

/// The terms of one anchor's pose, summed over its keypoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PoseLoss {
    pub keypoints: f64,
    pub visibility: f64,
}

impl PoseTerm<'_> {
    /// Returns the loss; `found` gives the place of a keypoint.
    pub fn compute(self, found: impl Fn(usize) -> [f64; 2]) -> PoseLoss {
        let mut loss = PoseLoss::default();
        let count = self.rules.shape.count as f64;
        let dims = self.rules.shape.dims;
        let seen = self.truths.iter().filter(|truth| truth[2] != 0.0).count();
        let factor = count / (seen as f64 + EPSILON);
        let mut gradient = self.gradient;
        for (index, truth) in self.truths.iter().enumerate() {
            let is_seen = truth[2] != 0.0;
            if is_seen {
                let found = found(index);
                let wanted = place(truth, self.cells);
                let error = [0, 1].map(|axis| found[axis] - wanted[axis]);
                let spread = self.rules.spreads[index] * (self.area + EPSILON);
                let similarity = (-(error[0] * error[0] + error[1] * error[1]) / spread).exp();
                loss.keypoints += factor * (1.0 - similarity);
                if let Some(gradient) = &mut gradient {
                    let slope = gradient.keypoint_scale * factor * similarity * 2.0 / spread
                        * keypoint_scale(self.family);
                    let raw = &mut gradient.raw[index * dims..];
                    for (raw, error) in raw.iter_mut().zip(error) {
                        *raw = (slope * error) as f32;
                    }
                }
            }
            if dims == 3 {
                let logit = self.raw[index * dims + 2];
                let x = f64::from(logit);
                let target = f64::from(u8::from(is_seen));
                loss.visibility += x.max(0.0) + (-x.abs()).exp().ln_1p() - x * target;
                if let Some(gradient) = &mut gradient {
                    let slope = gradient.visibility_scale * (sigmoid_of(logit) - target);
                    gradient.raw[index * dims + 2] = slope as f32;
                }
            }
        }
        loss
    }
}

/// Returns where a true keypoint is, in cells.
pub(super) fn place(truth: &[f32; 3], cells: [f64; 2]) -> [f64; 2] {
    [0, 1].map(|axis| f64::from(truth[axis]) * cells[axis])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::rules::{LossSettings, Rules};
    use crate::models::{KeypointShape, ModelSpec, Scale, Task};

    #[test]
    fn the_loss_agrees_with_its_definition_and_differences() {
        for (dims, family) in [(3, Family::Yolo11), (2, Family::Yolo26)] {
            let shape = KeypointShape { count: 4, dims };
            let spec = ModelSpec {
                family,
                scale: Scale::N,
                task: Task::Pose,
                class_count: 1,
                keypoints: Some(shape),
                class_hidden: None,
            };
            let rules = Rules::new(&spec, LossSettings::default());
            let truths = [
                [0.1, 0.2, 2.0],
                [0.5, 0.3, 0.0],
                [0.4, 0.6, 1.0],
                [0.3, 0.3, 2.0],
            ];
            let (cells, area, centre) = ([10.0, 8.0], 6.0, [2.5, 3.5]);
            let step = keypoint_scale(family);
            let offset = if family == Family::Yolo26 { 0.0 } else { 0.5 };
            let found = |raw: &[f32], index: usize| {
                [0, 1]
                    .map(|axis| f64::from(raw[index * dims + axis]) * step + centre[axis] - offset)
            };
            let definition = |raw: &[f32]| {
                let (mut keypoints, mut visibility) = (0.0, 0.0);
                for (index, truth) in truths.iter().enumerate() {
                    let [x, y] = found(raw, index);
                    let dx = x - f64::from(truth[0]) * 10.0;
                    let dy = y - f64::from(truth[1]) * 8.0;
                    let seen = if truth[2] == 0.0 { 0.0 } else { 1.0 };
                    let e = (dx * dx + dy * dy) / (0.25 * area * 2.0);
                    keypoints += 4.0 / 3.0 * (1.0 - (-e).exp()) * seen;
                    if dims == 3 {
                        let x = f64::from(raw[index * dims + 2]);
                        visibility += (1.0 + x.exp()).ln() - x * seen;
                    }
                }
                [keypoints, visibility]
            };
            let raw: Vec<f32> = (0..4 * dims)
                .map(|i| ((i * 5) % 7) as f32 * 0.25 - 0.75)
                .collect();
            let mut gradient = vec![0.0; raw.len()];
            let term = PoseTerm {
                rules: rules.keypoints(),
                family,
                raw: &raw,
                area,
                truths: &truths,
                cells,
                gradient: Some(PoseGradient {
                    keypoint_scale: 2.0,
                    visibility_scale: 0.5,
                    raw: &mut gradient,
                }),
            };
            let loss = term.compute(|index| found(&raw, index));
            let [keypoints, visibility] = definition(&raw);
            assert!((loss.keypoints - keypoints).abs() < 1e-7);
            assert!((loss.visibility - visibility).abs() < 1e-7);
            for (i, slope) in gradient.iter().enumerate() {
                let at = |by: f32| {
                    let mut moved = raw.clone();
                    moved[i] += by;
                    let [keypoints, visibility] = definition(&moved);
                    2.0 * keypoints + 0.5 * visibility
                };
                let difference = (at(1.0 / 512.0) - at(-1.0 / 512.0)) * 256.0;
                assert!((difference - f64::from(*slope)).abs() < 1e-4, "{dims} {i}");
            }
        }
    }
}
