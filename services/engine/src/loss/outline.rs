//! The outline of an object: an upright box, or one that is turned.

use super::ciou::{self, Shape};
use super::obb;
use super::obb::probiou::Gaussian;

/// A box in pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outline {
    Upright(Shape),
    Turned(Turned),
}

/// A turned box with what its overlap needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turned {
    /// Centre x, centre y, width, height.
    pub bounds: [f64; 4],
    pub angle: f64,
    gaussian: Gaussian,
}

impl Turned {
    pub fn new(bounds: [f64; 4], angle: f64) -> Self {
        let [x, y, width, height] = bounds;
        Self {
            bounds,
            angle,
            gaussian: Gaussian::new([x, y, width, height, angle], 0.0),
        }
    }

    /// Returns whether a point lies inside, the sides enlarged to at least `side_minimum`.
    pub fn contains(&self, [x, y]: [f64; 2], side_minimum: f64) -> bool {
        let [centre_x, centre_y, width, height] = self.bounds;
        let [along, across] = obb::in_frame([x - centre_x, y - centre_y], self.angle);
        along.abs() <= width.max(side_minimum) / 2.0
            && across.abs() <= height.max(side_minimum) / 2.0
    }

    /// Returns the corners of the upright box around it, its sides enlarged to at least `side_minimum`.
    pub fn around(&self, side_minimum: f64) -> [f64; 4] {
        let [x, y, width, height] = self.bounds;
        let (sin, cos) = self.angle.sin_cos();
        let (along, across) = (
            width.max(side_minimum) / 2.0,
            height.max(side_minimum) / 2.0,
        );
        let half_width = (along * cos).abs() + (across * sin).abs();
        let half_height = (along * sin).abs() + (across * cos).abs();
        [
            x - half_width,
            y - half_height,
            x + half_width,
            y + half_height,
        ]
    }
}

impl Outline {
    /// Returns how well two boxes meet, from 0: CIoU for upright boxes, probIoU for turned ones.
    pub fn overlap(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Upright(one), Self::Upright(other)) => ciou::overlap(one, other),
            (Self::Turned(one), Self::Turned(other)) => {
                one.gaussian.overlap(&other.gaussian).max(0.0)
            }
            _ => unreachable!("invariant: a model's boxes are all turned or all upright"),
        }
    }

    /// Returns width times height.
    pub fn area(&self) -> f64 {
        let [width, height] = self.size();
        width * height
    }

    /// Returns width and height.
    pub fn size(&self) -> [f64; 2] {
        match self {
            Self::Upright(shape) => {
                let [x1, y1, x2, y2] = shape.corners;
                [x2 - x1, y2 - y1]
            }
            Self::Turned(turned) => [turned.bounds[2], turned.bounds[3]],
        }
    }
}

impl Default for Outline {
    fn default() -> Self {
        Self::Upright(Shape::default())
    }
}
