//! Rotation, scale, shear, shift and perspective in one map, and what is left of the objects after it.

use super::{Augmentation, Object, Scene, polygon};
use crate::data::picture::Matrix;
use crate::random::Philox;

/// A drawn affine (or projective) map and the scale in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warp {
    pub matrix: Matrix,
    pub scale: f64,
}

impl Warp {
    /// Draws the map that brings a picture of `source` (width, height) to a square of `size`.
    pub fn draw(
        stream: &mut Philox,
        options: &Augmentation,
        source: (usize, usize),
        size: usize,
    ) -> Self {
        let mut signed = |limit: f64| stream.between(-limit, limit);
        let perspective = (signed(options.perspective), signed(options.perspective));
        let angle = signed(options.degrees).to_radians();
        let scale = 1.0 + signed(options.scale);
        let shear = (signed(options.shear), signed(options.shear));
        let shift = (
            0.5 + signed(options.translate),
            0.5 + signed(options.translate),
        );
        let centred = Matrix::translation(source.0 as f64 / -2.0, source.1 as f64 / -2.0);
        let projected = Matrix([
            [1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0],
            [perspective.0, perspective.1, 1.0],
        ]);
        let (sine, cosine) = (angle.sin() * scale, angle.cos() * scale);
        let turned = Matrix([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]]);
        let sheared = Matrix([
            [1.0, shear.0.to_radians().tan(), 0.0],
            [shear.1.to_radians().tan(), 1.0, 0.0],
            [0.0, 0.0, 1.0],
        ]);
        let moved = Matrix::translation(shift.0 * size as f64, shift.1 * size as f64);
        let matrix = moved
            .after(&sheared)
            .after(&turned)
            .after(&projected)
            .after(&centred);
        Self { matrix, scale }
    }

    /// Maps picture and objects to a square of `size`, and drops objects of which too little is left.
    pub fn apply(&self, scene: &Scene, size: usize) -> Scene {
        let objects = scene
            .objects
            .iter()
            .filter_map(|object| self.map(object, size))
            .collect();
        let picture = if self.matrix == Matrix::IDENTITY
            && (scene.picture.width(), scene.picture.height()) == (size, size)
        {
            scene.picture.clone()
        } else {
            scene.picture.warped(&self.matrix, size, size)
        };
        Scene { picture, objects }
    }

    pub(super) fn map(&self, object: &Object, size: usize) -> Option<Object> {
        let apply = |[x, y]: [f32; 2]| {
            self.matrix
                .apply([f64::from(x), f64::from(y)])
                .map(|value| value as f32)
        };
        let frame = [0.0, 0.0, size as f32, size as f32];
        let mut mapped = object.clone();
        let has_polygon = !object.polygon.is_empty();
        if has_polygon {
            mapped.polygon = object.polygon.iter().map(|&point| apply(point)).collect();
            mapped.polygon = polygon::clip(&mapped.polygon, frame);
            mapped.corners = polygon::bounding(&mapped.polygon)?;
        } else {
            let [left, top, right, bottom] = object.corners;
            let corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
            mapped.corners = polygon::bounding(&corners.map(apply))?;
        }
        for point in &mut mapped.keypoints {
            let [x, y] = apply([point[0], point[1]]);
            *point = [x, y, point[2]];
        }
        let is_kept = mapped.clip(frame) && {
            let [left, top, right, bottom] = mapped.corners;
            let (width, height) = (right - left, bottom - top);
            let before = f64::from(object.area()) * self.scale * self.scale;
            let left_over = f64::from(width * height) / (before + EPSILON);
            let least = if has_polygon {
                AREA_MIN_POLYGON
            } else {
                AREA_MIN_BOX
            };
            width > SIDE_MIN
                && height > SIDE_MIN
                && left_over > least
                && (width / height).max(height / width) < ASPECT_MAX
        };
        is_kept.then_some(mapped)
    }
}

/// What an object must still have after a warp: pixels a side, share of its scaled area, and shape.
const SIDE_MIN: f32 = 2.0;
const AREA_MIN_BOX: f64 = 0.1;
const AREA_MIN_POLYGON: f64 = 0.01;
const ASPECT_MAX: f32 = 100.0;
const EPSILON: f64 = 1e-16;
