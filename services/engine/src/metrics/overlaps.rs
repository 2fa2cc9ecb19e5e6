//! What an overlap is where it is not that of boxes: of masks, and of poses.

use crate::loss::{InstanceMap, KEYPOINT_AREA_SHARE, MaskCounts, Prototypes};

/// Keeps divisions finite.
const EPSILON: f64 = 1e-7;

/// The true masks of one image and how many pixels each has.
pub(crate) struct MaskTruths<'a> {
    instances: InstanceMap<'a>,
    /// Pixels of every instance by number; of the background first.
    areas: Vec<usize>,
}

impl<'a> MaskTruths<'a> {
    /// Counts a map of `count` instances.
    pub fn new(map: &'a [u16], count: usize) -> Self {
        let mut areas = vec![0; count + 1];
        for &instance in map {
            if let Some(area) = areas.get_mut(usize::from(instance)) {
                *area += 1;
            }
        }
        Self {
            instances: InstanceMap { values: map },
            areas,
        }
    }

    /// Returns the pixels of a label's mask; labels are counted from 0.
    pub fn area(&self, label: usize) -> usize {
        self.areas[label + 1]
    }

    /// Returns the overlap of a predicted mask, cut to its box in pixels of the image, with every label's, and its
    /// own area in pixels of the map.
    pub fn overlaps(
        &self,
        prototypes: Prototypes<'_>,
        coefficients: &[f32],
        corners: [f32; 4],
        image_size: (usize, usize),
    ) -> (Vec<f64>, usize) {
        let mut shared = vec![0; self.areas.len()];
        let area = MaskCounts {
            prototypes,
            coefficients,
            instances: self.instances,
            window: prototypes.window(corners.map(f64::from), image_size),
            shared: &mut shared,
        }
        .count();
        let pairs = self.areas.iter().zip(&shared).skip(1);
        let overlaps =
            pairs.map(|(&own, &shared)| shared as f64 / ((own + area - shared) as f64 + EPSILON));
        (overlaps.collect(), area)
    }
}

/// Returns the object keypoint similarity of a pose with the true one, both in pixels: `spreads` are `2 · (2 σ)²` of
/// each keypoint and `area` that of the true box.
pub fn keypoint_similarity(
    truths: &[[f32; 3]],
    found: &[[f32; 3]],
    spreads: &[f64],
    area: f64,
) -> f64 {
    let area = area * KEYPOINT_AREA_SHARE + EPSILON;
    let (mut sum, mut count) = (0.0, 0.0);
    for ((truth, found), spread) in truths.iter().zip(found).zip(spreads) {
        if truth[2] != 0.0 {
            let [dx, dy] = [0, 1].map(|axis| f64::from(truth[axis]) - f64::from(found[axis]));
            sum += (-(dx * dx + dy * dy) / (spread * area)).exp();
            count += 1.0;
        }
    }
    sum / (count + EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_compared_with_every_label_at_once() {
        // One prototype that is the pixel's column less 3.5, of a map 8 wide and 4 high.
        let values: Vec<f32> = (0..32)
            .flat_map(|pixel| {
                let mut row = [0.0; 16];
                row[0] = (pixel % 8) as f32 - 3.5;
                row
            })
            .collect();
        let prototypes = Prototypes {
            height: 4,
            width: 8,
            pixel_stride: 16,
            values: &values,
        };
        let mut map = vec![0u16; 32];
        for (pixel, instance) in map.iter_mut().enumerate() {
            *instance = match (pixel % 8, pixel / 8) {
                (5.., _) => 1,
                (0..=2, 0) => 2,
                _ => 0,
            };
        }
        let truths = MaskTruths::new(&map, 2);
        assert_eq!((truths.area(0), truths.area(1)), (12, 3));
        // Right of the middle, in the upper half.
        let corners = [0.0, 0.0, 32.0, 8.0];
        let (overlaps, area) = truths.overlaps(prototypes, &[1.0], corners, (16, 32));
        assert_eq!(area, 8);
        assert!((overlaps[0] - 6.0 / 14.0).abs() < 1e-8);
        assert_eq!(overlaps[1], 0.0);
        let (overlaps, area) = truths.overlaps(prototypes, &[-1.0], corners, (16, 32));
        assert_eq!(area, 8);
        assert!((overlaps[1] - 3.0 / 8.0).abs() < 1e-8);
    }

    #[test]
    fn a_pose_is_compared_by_its_visible_keypoints() {
        let truths = [[10.0, 10.0, 2.0], [20.0, 10.0, 0.0], [10.0, 30.0, 1.0]];
        let mut found = truths;
        found[1] = [900.0, -4.0, 0.5];
        let spreads = [0.02; 3];
        assert!((keypoint_similarity(&truths, &found, &spreads, 400.0) - 1.0).abs() < 1e-6);
        found[2][0] += 3.0;
        let expected = (1.0 + (-9.0 / (0.02 * 400.0 * 0.53f64)).exp()) / 2.0;
        let similarity = keypoint_similarity(&truths, &found, &spreads, 400.0);
        assert!((similarity - expected).abs() < 1e-6);
        let unseen = [[10.0, 10.0, 0.0]; 3];
        assert_eq!(keypoint_similarity(&unseen, &found, &spreads, 400.0), 0.0);
    }
}
