//! What a head found in an image: boxes, and what belongs to each of them, read from the raw outputs for as many
//! anchors as are kept.

use super::candidates::Candidates;
use super::nms::{suppress, suppress_turned};
use super::{Detection, NmsOptions, TurnedDetection};
use crate::loss::{ImageHead, LossSettings, Outline, Place, Prototypes, Rules};
use crate::models::{MASK_CHANNELS, ModelSpec};
use crate::network::{HeadLevel, Outputs};

/// Reads detections from a model's raw outputs.
#[derive(Debug, Clone)]
pub struct Detector {
    rules: Rules,
    options: NmsOptions,
    /// Whether the head's last branch gives one anchor an object, so that nothing is suppressed.
    is_one_to_one: bool,
}

impl Detector {
    /// Makes a detector that suppresses doubles.
    pub fn new(spec: &ModelSpec, options: NmsOptions) -> Self {
        Self::with_settings(spec, LossSettings::default(), options)
    }

    /// Makes a detector with what the data set says of keypoints.
    pub(crate) fn with_settings(
        spec: &ModelSpec,
        settings: LossSettings,
        options: NmsOptions,
    ) -> Self {
        Self {
            rules: Rules::new(spec, settings),
            options,
            is_one_to_one: false,
        }
    }

    /// Makes a detector for the branch that needs no suppression.
    pub fn one_to_one(spec: &ModelSpec, options: NmsOptions) -> Self {
        Self {
            is_one_to_one: true,
            ..Self::new(spec, options)
        }
    }

    /// Returns the detections of one image by descending score.
    ///
    /// # Panics
    /// When the model's boxes are turned.
    pub fn upright(&self, outputs: &Outputs<'_>, image: usize) -> Vec<Detection> {
        let head = self.head(outputs, image);
        let corners = |index: usize| match head.outline(Place::find(head.levels, index)) {
            Outline::Upright(shape) => shape.corners.map(|corner| corner as f32),
            Outline::Turned(_) => panic!("the model's boxes are turned"),
        };
        let candidates = self.candidates(head.levels, image);
        if self.is_one_to_one {
            let class_count = candidates.class_count;
            let list = candidates.list.into_iter().map(|candidate| {
                let (index, class) = candidate.place(class_count);
                Detection {
                    bounds: corners(index),
                    score: candidate.score(),
                    class: class as u32,
                    index: index as u32,
                }
            });
            return list.collect();
        }
        suppress(candidates, &self.options, corners)
    }

    /// Returns the turned detections of one image by descending score.
    ///
    /// # Panics
    /// When the model's boxes are upright.
    pub fn turned(&self, outputs: &Outputs<'_>, image: usize) -> Vec<TurnedDetection> {
        let head = self.head(outputs, image);
        let bounds = |index: usize| match head.outline(Place::find(head.levels, index)) {
            Outline::Turned(turned) => {
                let [x, y, width, height] = turned.bounds;
                [x, y, width, height, turned.angle]
            }
            Outline::Upright(_) => panic!("the model's boxes are upright"),
        };
        let candidates = self.candidates(head.levels, image);
        if self.is_one_to_one {
            let class_count = candidates.class_count;
            let list = candidates.list.into_iter().map(|candidate| {
                let (index, class) = candidate.place(class_count);
                TurnedDetection {
                    bounds: bounds(index).map(|number| number as f32),
                    score: candidate.score(),
                    class: class as u32,
                    index: index as u32,
                }
            });
            return list.collect();
        }
        suppress_turned(candidates, &self.options, bounds)
    }

    /// Returns the keypoints of an anchor: x and y in pixels of the input, and how likely each is visible.
    ///
    /// # Panics
    /// When the model has no keypoints.
    pub fn keypoints(&self, outputs: &Outputs<'_>, image: usize, index: u32) -> Vec<[f32; 3]> {
        let head = self.head(outputs, image);
        let place = Place::find(head.levels, index as usize);
        let keypoints = self.rules.keypoints();
        let stride = head.stride(place);
        let dims = keypoints.shape.dims;
        let raw = head.extra(place, keypoints.shape.values());
        let point = |keypoint: usize| {
            let [x, y] = head.keypoint(place, keypoints, keypoint);
            let visibility = match dims {
                3 => 1.0 / (1.0 + (-raw[keypoint * dims + 2]).exp()),
                _ => 1.0,
            };
            [(x * stride) as f32, (y * stride) as f32, visibility]
        };
        (0..keypoints.shape.count).map(point).collect()
    }

    /// Returns the mask coefficients of an anchor.
    ///
    /// # Panics
    /// When the model has no masks.
    pub fn coefficients<'a>(
        &'a self,
        outputs: &'a Outputs<'a>,
        image: usize,
        index: u32,
    ) -> &'a [f32] {
        let head = self.head(outputs, image);
        let place = Place::find(head.levels, index as usize);
        head.extra(place, MASK_CHANNELS)
    }

    /// Returns the object keypoint similarity's divisors, `2 · (2 σ)²` of each keypoint.
    pub(crate) fn keypoint_spreads(&self) -> &[f64] {
        &self.rules.keypoints().spreads
    }

    fn candidates(&self, levels: &[HeadLevel<'_>], image: usize) -> Candidates {
        let list = if self.is_one_to_one {
            Candidates::of_one_to_one
        } else {
            Candidates::of_levels
        };
        list(levels, image, self.rules.class_count, &self.options)
    }

    fn head<'a>(&'a self, outputs: &'a Outputs<'a>, image: usize) -> ImageHead<'a> {
        let branch = if self.is_one_to_one {
            outputs.branches.last()
        } else {
            outputs.branches.first()
        };
        ImageHead {
            rules: &self.rules,
            levels: branch.expect("invariant: a dense head has a branch"),
            image,
            prototypes: (outputs.prototypes.as_ref()).map(|map| Prototypes::of_image(map, image)),
        }
    }
}
