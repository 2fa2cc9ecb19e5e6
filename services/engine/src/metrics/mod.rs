//! From raw predictions to numbers people compare: suppression of doubles, matching with the labels, average
//! precision, curves and the confusion matrix.
//!
//! Boxes are `x1, y1, x2, y2` in the pixels of the network's input, turned ones centre, size and angle.

mod average_precision;
mod candidates;
mod classify;
mod confusion;
pub mod cuda;
mod detect;
mod detector;
mod matching;
mod nms;
mod overlaps;
#[cfg(test)]
mod tests;

pub use average_precision::Interpolation;
pub use classify::{ClassAccuracy, ClassifyMetrics, ClassifyReport};
pub use confusion::ConfusionMatrix;
pub use detect::{ClassCurves, ClassReport, Curves, DetectMetrics, DetectReport, SizeReport};
pub use detector::Detector;
pub use matching::{IOU_THRESHOLDS, SIZE_BOUNDS, Scored, Truth};
pub use nms::{NmsOptions, nms};
pub(crate) use overlaps::MaskTruths;
pub use overlaps::keypoint_similarity;

use crate::data::augment::polygon::TurnedRectangle;

/// One object a model found.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Detection {
    pub bounds: [f32; 4],
    pub score: f32,
    pub class: u32,
    /// The anchor it came from.
    pub index: u32,
}

/// One turned object a model found.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TurnedDetection {
    /// Centre x, centre y, width, height, and the angle in radians.
    pub bounds: [f32; 5],
    pub score: f32,
    pub class: u32,
    /// The anchor it came from.
    pub index: u32,
}

/// One object that is there.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Label {
    pub bounds: [f32; 4],
    pub class: u32,
}

impl Detection {
    /// Returns what counting needs of it.
    pub fn scored(&self) -> Scored {
        Scored {
            score: self.score,
            class: self.class,
            area: area(&self.bounds),
        }
    }
}

impl TurnedDetection {
    /// Returns what counting needs of it.
    pub fn scored(&self) -> Scored {
        Scored {
            score: self.score,
            class: self.class,
            area: f64::from(self.bounds[2]) * f64::from(self.bounds[3]),
        }
    }

    /// Returns the corners, going round.
    pub fn corners(&self) -> [[f32; 2]; 4] {
        let [x, y, width, height, angle] = self.bounds;
        let rectangle = TurnedRectangle {
            centre: [x, y],
            width,
            height,
            angle,
        };
        rectangle.corners()
    }

    /// Returns the upright box around it.
    pub fn around(&self) -> Detection {
        let [x, y, width, height, angle] = self.bounds;
        let (sin, cos) = angle.sin_cos();
        let half_width = ((width * cos).abs() + (height * sin).abs()) / 2.0;
        let half_height = ((width * sin).abs() + (height * cos).abs()) / 2.0;
        Detection {
            bounds: [
                x - half_width,
                y - half_height,
                x + half_width,
                y + half_height,
            ],
            score: self.score,
            class: self.class,
            index: self.index,
        }
    }
}

impl Label {
    /// Returns what counting needs of it.
    pub fn truth(&self) -> Truth {
        Truth {
            class: self.class,
            area: area(&self.bounds),
        }
    }
}

/// Returns the area shared by two boxes.
fn intersection(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    let side = |k: usize| f64::from(a[k + 2].min(b[k + 2])) - f64::from(a[k].max(b[k]));
    side(0).max(0.0) * side(1).max(0.0)
}

/// Returns the area of a box.
fn area(a: &[f32; 4]) -> f64 {
    (f64::from(a[2]) - f64::from(a[0])) * (f64::from(a[3]) - f64::from(a[1]))
}

/// Returns the overlap of two boxes as matching measures it, zero for boxes without area.
pub(crate) fn iou(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    const EPSILON: f64 = 1e-7;
    let shared = intersection(a, b);
    shared / (area(a) + area(b) - shared + EPSILON)
}
