//! What a model's loss is made of: the task's terms, their gains, and what the data set says about classes and
//! keypoints.

use crate::models::{Family, KeypointShape, ModelSpec, Task};

use super::lanes::LANES;

/// How much each term counts.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gains {
    /// The overlap with the true box; masks count as much.
    #[serde(rename = "box")]
    pub boxes: f32,
    /// The classes.
    #[serde(rename = "cls")]
    pub classes: f32,
    /// The distances from an anchor to the sides of its box.
    #[serde(rename = "dfl")]
    pub distances: f32,
    /// The places of keypoints.
    #[serde(rename = "pose")]
    pub keypoints: f32,
    /// Whether keypoints are visible.
    #[serde(rename = "kobj")]
    pub visibility: f32,
    /// How likely the places of keypoints are.
    #[serde(rename = "rle")]
    pub likelihood: f32,
    /// The angles of turned boxes.
    #[serde(rename = "angle")]
    pub angles: f32,
}

impl Default for Gains {
    fn default() -> Self {
        Self {
            boxes: 7.5,
            classes: 0.5,
            distances: 1.5,
            keypoints: 12.0,
            visibility: 1.0,
            likelihood: 1.0,
            angles: 1.0,
        }
    }
}

/// What a loss takes from the user and the data set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossSettings {
    pub gains: Gains,
    /// What each class counts, as [`class_weights`] makes them; empty when all count the same.
    pub class_weights: Vec<f32>,
    /// How far each keypoint may be off as a fraction of the object's size; empty for the usual ones.
    pub keypoint_sigmas: Vec<f64>,
}

/// Returns the weights of classes with `counts` labels: `count^-power`, of mean 1 (`cls_pw`). A class without labels
/// counts as one with one label.
pub fn class_weights(counts: &[usize], power: f64) -> Vec<f32> {
    let raw = counts
        .iter()
        .map(|&count| (count.max(1) as f64).powf(-power));
    let mean = raw.clone().sum::<f64>() / counts.len().max(1) as f64;
    raw.map(|weight| (weight / mean) as f32).collect()
}

/// The deviations of a person's keypoints in COCO.
const PERSON_SIGMAS: [f64; 17] = [
    0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062, 0.107, 0.107,
    0.087, 0.087, 0.089, 0.089,
];
/// How much a person's keypoints count in the likelihood: limbs more, their ends most.
const PERSON_WEIGHTS: [f64; 17] = [
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.5, 1.5, 1.0, 1.0, 1.2, 1.2, 1.5, 1.5,
];

/// Returns how far each keypoint may be off as a fraction of the object's size, where the data set does not say.
pub fn keypoint_sigmas(shape: KeypointShape) -> Vec<f64> {
    if shape == KeypointShape::PERSON {
        PERSON_SIGMAS.into()
    } else {
        vec![1.0 / shape.count as f64; shape.count]
    }
}

/// What is the same for every batch.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub task: Task,
    pub family: Family,
    pub class_count: usize,
    pub gains: Gains,
    /// What each class counts, padded to whole lanes; empty when all count the same.
    pub class_weights: Vec<f32>,
    pub keypoints: Option<KeypointRules>,
}

/// The keypoints of every object.
#[derive(Debug, Clone)]
pub(crate) struct KeypointRules {
    pub shape: KeypointShape,
    /// `2 · (2 σ)²` of each: what a squared distance over the area is divided by.
    pub spreads: Vec<f64>,
    /// What each counts in the likelihood.
    pub weights: Vec<f64>,
}

impl Rules {
    /// # Panics
    /// When the settings have another number of classes or keypoints than the model.
    pub fn new(spec: &ModelSpec, settings: LossSettings) -> Self {
        let mut class_weights = settings.class_weights;
        if !class_weights.is_empty() {
            assert_eq!(
                class_weights.len(),
                spec.class_count,
                "there is a weight for each class"
            );
            class_weights.resize(spec.class_count.next_multiple_of(LANES), 0.0);
        }
        Self {
            task: spec.task,
            family: spec.family,
            class_count: spec.class_count,
            gains: settings.gains,
            class_weights,
            keypoints: spec
                .keypoints
                .map(|shape| KeypointRules::new(shape, settings.keypoint_sigmas)),
        }
    }

    /// Returns what a class counts.
    pub fn class_weight(&self, class: u32) -> f64 {
        let weight = self.class_weights.get(class as usize);
        weight.map_or(1.0, |&weight| f64::from(weight))
    }

    /// Returns the keypoints.
    ///
    /// # Panics
    /// When the task has none.
    pub fn keypoints(&self) -> &KeypointRules {
        let keypoints = self.keypoints.as_ref();
        keypoints.expect("invariant: a pose model has keypoints")
    }

    /// Returns the keypoints where they decide which anchor answers for which object.
    pub fn assigning_keypoints(&self) -> Option<&KeypointRules> {
        let keypoints = self.keypoints.as_ref();
        keypoints.filter(|_| self.task == Task::Pose && self.family == Family::Yolo26)
    }

    /// Returns whether masks take part in deciding which anchor answers for which object.
    pub fn is_assigning_by_masks(&self) -> bool {
        self.task == Task::Segment && self.family == Family::Yolo26
    }
}

impl KeypointRules {
    fn new(shape: KeypointShape, sigmas: Vec<f64>) -> Self {
        let sigmas = if sigmas.is_empty() {
            keypoint_sigmas(shape)
        } else {
            sigmas
        };
        assert_eq!(
            sigmas.len(),
            shape.count,
            "there is a deviation for each keypoint"
        );
        let weights = if shape == KeypointShape::PERSON {
            PERSON_WEIGHTS.into()
        } else {
            vec![1.0; shape.count]
        };
        Self {
            shape,
            spreads: sigmas.iter().map(|s| 2.0 * (2.0 * s).powi(2)).collect(),
            weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_classes_weigh_more_and_the_mean_is_one() {
        let weights = class_weights(&[100, 25, 0], 0.5);
        let sum: f32 = weights.iter().sum();
        assert!((sum - 3.0).abs() < 1e-6);
        assert!((weights[1] / weights[0] - 2.0).abs() < 1e-6);
        assert!((weights[2] / weights[1] - 5.0).abs() < 1e-6);
        assert_eq!(class_weights(&[3, 900], 0.0), [1.0, 1.0]);
    }
}
