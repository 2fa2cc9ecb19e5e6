//! What YOLO26 looks at beside boxes when anchors are assigned: keypoints of poses, and masks of instances.

use super::super::anchor::{ImageHead, Place};
use super::super::outline::Outline;
use super::super::rules::{KeypointRules, Rules};
use super::super::segment::{InstanceMap, MaskCounts};
use super::super::targets::Targets;
use super::GroundTruth;
use super::candidates::{Candidate, put_best_first};
use crate::models::MASK_CHANNELS;

/// Masks are compared for so many candidates per claim.
pub(super) const MASKS_PER_CLAIM: usize = 3;
/// The share of its box that an object's keypoints are taken to fill.
pub(crate) const KEYPOINT_AREA_SHARE: f64 = 0.53;
/// Keeps the division by an object's area finite.
const AREA_EPSILON: f64 = 1e-9;

/// What is known of an image's objects beside their boxes.
#[derive(Clone, Copy)]
pub(in crate::loss) struct Annotations<'a> {
    pub targets: &'a Targets,
    pub instances: Option<InstanceMap<'a>>,
    /// Height and width in pixels.
    pub image_size: (usize, usize),
}

impl<'a> Annotations<'a> {
    /// Returns the keypoints that decide about an object, if its task's do and any is visible.
    pub(super) fn keypoints(&self, rules: &'a Rules, truth: &GroundTruth) -> Option<Keypoints<'a>> {
        let rules = rules.assigning_keypoints()?;
        let points = self
            .targets
            .keypoints_of(truth.row as usize, rules.shape.count);
        let visible_count = points.iter().filter(|point| point[2] > 0.0).count();
        (visible_count > 0).then(|| Keypoints {
            rules,
            points,
            visible_count: visible_count as f64,
            area: truth.outline.area() * KEYPOINT_AREA_SHARE + AREA_EPSILON,
            image_size: self.image_size,
        })
    }
}

/// The keypoints of one object, of which at least one is visible.
pub(super) struct Keypoints<'a> {
    rules: &'a KeypointRules,
    points: &'a [[f32; 3]],
    visible_count: f64,
    area: f64,
    image_size: (usize, usize),
}

impl Keypoints<'_> {
    /// Returns the object keypoint similarity of an anchor's pose.
    pub fn similarity(&self, head: &ImageHead<'_>, place: Place) -> f64 {
        let stride = head.stride(place);
        let (height, width) = self.image_size;
        let mut sum = 0.0;
        for (index, &[x, y, visibility]) in self.points.iter().enumerate() {
            if visibility > 0.0 {
                let found = head.keypoint(place, self.rules, index);
                let dx = found[0] * stride - f64::from(x) * width as f64;
                let dy = found[1] * stride - f64::from(y) * height as f64;
                sum += (-(dx * dx + dy * dy) / (self.rules.spreads[index] * self.area)).exp();
            }
        }
        sum / self.visible_count
    }
}

/// Counts the pixels of each of an image's `count` instances, by number from 0, which is the background.
pub(super) fn count_masks(annotations: &Annotations<'_>, count: usize, areas: &mut Vec<usize>) {
    areas.clear();
    areas.resize(count + 1, 0);
    for &instance in annotations.instances.iter().flat_map(|map| map.values) {
        if let Some(area) = areas.get_mut(usize::from(instance)) {
            *area += 1;
        }
    }
}

/// The true mask of one object, beside the image's prototypes.
pub(super) struct Masks<'a> {
    head: ImageHead<'a>,
    instances: Option<InstanceMap<'a>>,
    instance: u16,
    true_area: usize,
    image_size: (usize, usize),
}

impl<'a> Masks<'a> {
    pub fn new(
        head: &ImageHead<'a>,
        annotations: &Annotations<'a>,
        truth: &GroundTruth,
        true_area: usize,
    ) -> Self {
        Self {
            head: *head,
            instances: annotations.instances,
            instance: truth.instance,
            true_area,
            image_size: annotations.image_size,
        }
    }

    /// Turns the overlap of boxes into the mean of that and of the masks' overlap, which counts as zero beyond the
    /// `limit` best candidates.
    pub fn refine(
        &self,
        candidates: &mut [Candidate],
        limit: usize,
        outline: impl Fn(u32) -> Outline,
    ) {
        let looked_at = put_best_first(candidates, limit);
        for (index, candidate) in candidates.iter_mut().enumerate() {
            let masks = if index < looked_at {
                self.overlap(candidate.place, &outline(candidate.anchor))
            } else {
                0.0
            };
            candidate.overlap = (candidate.overlap + masks) / 2.0;
            candidate.align();
        }
    }

    fn overlap(&self, place: Place, outline: &Outline) -> f64 {
        let (Some(prototypes), Some(instances), Outline::Upright(shape)) =
            (self.head.prototypes, self.instances, outline)
        else {
            return 0.0;
        };
        let mut shared = vec![0; usize::from(self.instance) + 1];
        let area = MaskCounts {
            prototypes,
            coefficients: self.head.extra(place, MASK_CHANNELS),
            instances,
            window: prototypes.window(shape.corners, self.image_size),
            shared: &mut shared,
        }
        .count();
        let shared = shared[usize::from(self.instance)];
        shared as f64 / (self.true_area + area - shared).max(1) as f64
    }
}
