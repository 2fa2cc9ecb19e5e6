//! One image's share of a head's raw outputs, read anchor by anchor.

use crate::models::{Family, Task};
use crate::network::HeadLevel;

use super::ciou::Shape;
use super::cross_entropy::sigmoid_of;
use super::distance::Sides;
use super::obb;
use super::outline::{Outline, Turned};
use super::rules::{KeypointRules, Rules};
use super::segment::Prototypes;

/// Where an anchor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub level: usize,
    /// Index within the level.
    pub cell: usize,
}

impl Place {
    /// Finds an anchor that is counted over all levels, finest level first.
    pub fn find(levels: &[HeadLevel<'_>], anchor: usize) -> Self {
        let mut cell = anchor;
        for (index, level) in levels.iter().enumerate() {
            let count = level.height * level.width;
            if cell < count {
                return Self { level: index, cell };
            }
            cell -= count;
        }
        unreachable!("anchor {anchor} lies beyond the last level")
    }

    /// Returns the anchor's centre in cells.
    pub fn centre(self, level: &HeadLevel<'_>) -> [f64; 2] {
        [
            (self.cell % level.width) as f64 + 0.5,
            (self.cell / level.width) as f64 + 0.5,
        ]
    }
}

/// The raw outputs of one branch for one image.
#[derive(Clone, Copy)]
pub(crate) struct ImageHead<'a> {
    pub rules: &'a Rules,
    pub levels: &'a [HeadLevel<'a>],
    pub image: usize,
    pub prototypes: Option<Prototypes<'a>>,
}

impl<'a> ImageHead<'a> {
    fn row(&self, place: Place) -> (&'a HeadLevel<'a>, usize) {
        let level = &self.levels[place.level];
        (level, self.image * level.height * level.width + place.cell)
    }

    /// Returns the pixels per cell.
    pub fn stride(&self, place: Place) -> f64 {
        self.levels[place.level].stride as f64
    }

    /// Returns the anchor's centre in cells.
    pub fn centre(&self, place: Place) -> [f64; 2] {
        place.centre(&self.levels[place.level])
    }

    /// Returns the distances to the sides.
    pub fn sides(&self, place: Place) -> Sides<'a> {
        let (level, row) = self.row(place);
        let bins = self.rules.family.bins();
        Sides::read(&level.boxes[row * level.box_stride..][..4 * bins])
    }

    /// Returns the logit of one class.
    pub fn score(&self, place: Place, class: u32) -> f32 {
        let (level, row) = self.row(place);
        level.scores[row * level.score_stride + class as usize]
    }

    /// Returns the first `count` values of the task's third output.
    pub fn extra(&self, place: Place, count: usize) -> &'a [f32] {
        let (level, row) = self.row(place);
        &level.extra[row * level.extra_stride..][..count]
    }

    /// Returns the logits of the keypoints' deviations.
    pub fn sigma(&self, place: Place, count: usize) -> &'a [f32] {
        let (level, row) = self.row(place);
        &level.sigma[row * level.sigma_stride..][..count]
    }

    /// Returns the angle of the box, and its slope by the raw output.
    pub fn angle(&self, place: Place) -> (f64, f64) {
        let raw = self.extra(place, 1)[0];
        if self.rules.family == Family::Yolo26 {
            (f64::from(raw), 1.0)
        } else {
            let share = sigmoid_of(raw);
            let half_turn = std::f64::consts::PI;
            (
                (share - 0.25) * half_turn,
                share * (1.0 - share) * half_turn,
            )
        }
    }

    /// Returns the predicted box in pixels.
    pub fn outline(&self, place: Place) -> Outline {
        let stride = self.stride(place);
        let centre = self.centre(place);
        let distances = self.sides(place).means();
        if self.rules.task == Task::Obb {
            let (angle, _) = self.angle(place);
            let [x, y, width, height, angle] = obb::turned_box(centre, distances, angle);
            let bounds = [x, y, width, height].map(|cells| cells * stride);
            Outline::Turned(Turned::new(bounds, angle))
        } else {
            let corners = corners(centre, distances);
            Outline::Upright(Shape::new(corners.map(|cells| cells * stride)))
        }
    }

    /// Returns a predicted keypoint in cells; its slope by the raw output is [`keypoint_scale`].
    pub fn keypoint(&self, place: Place, keypoints: &KeypointRules, index: usize) -> [f64; 2] {
        let dims = keypoints.shape.dims;
        let raw = &self.extra(place, keypoints.shape.values())[index * dims..];
        let scale = keypoint_scale(self.rules.family);
        let offset = if self.rules.family == Family::Yolo26 {
            0.0
        } else {
            0.5
        };
        let centre = self.centre(place);
        [0, 1].map(|axis| f64::from(raw[axis]) * scale + centre[axis] - offset)
    }
}

/// Returns how many cells one unit of a raw keypoint is.
pub(super) fn keypoint_scale(family: Family) -> f64 {
    match family {
        Family::Yolo26 => 1.0,
        Family::Yolo8 | Family::Yolo11 => 2.0,
    }
}

/// Returns the box at the given distances (left, top, right, bottom) around a centre.
pub(super) fn corners([x, y]: [f64; 2], [left, top, right, bottom]: [f64; 4]) -> [f64; 4] {
    [x - left, y - top, x + right, y + bottom]
}

/// Returns the distances (left, top, right, bottom) from a centre to the sides of a box.
pub(super) fn distances([x, y]: [f64; 2], [x1, y1, x2, y2]: [f64; 4]) -> [f64; 4] {
    [x - x1, y - y1, x2 - x, y2 - y]
}
