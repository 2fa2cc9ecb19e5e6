//! From raw predictions to numbers people compare: suppression of doubles, matching with the labels, average
//! precision, curves and the confusion matrix.
//!
//! Boxes are `x1, y1, x2, y2` in the pixels of the network's input.

mod average_precision;
mod confusion;
mod detect;
mod matching;
mod nms;
#[cfg(test)]
mod tests;

pub use confusion::ConfusionMatrix;
pub use detect::{ClassCurves, ClassReport, Curves, DetectMetrics, DetectReport};
pub use matching::{IOU_THRESHOLDS, match_detections};
pub use nms::{NmsOptions, nms};

/// One object a model found.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Detection {
    pub bounds: [f32; 4],
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
fn iou(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    const EPSILON: f64 = 1e-7;
    let shared = intersection(a, b);
    shared / (area(a) + area(b) - shared + EPSILON)
}
