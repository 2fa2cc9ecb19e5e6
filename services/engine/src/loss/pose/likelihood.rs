//! Residual log-likelihood (Li et al., "Human Pose Regression with Residual Log-likelihood Estimation", 2021): the
//! head says how uncertain each coordinate is, and a flow how the errors are distributed.

use crate::loss::anchor::{ImageHead, Place};
use crate::loss::cross_entropy::sigmoid_of;
use crate::loss::distance::slope_of_abs;
use crate::loss::flow::Point;

use super::place;

/// Keeps the division by a deviation finite.
const EPSILON: f64 = 1e-9;
/// The largest error, in deviations, that the flow is asked about.
const ERROR_MAXIMUM: f64 = 100.0;

/// One visible keypoint of an assigned anchor.
#[derive(Debug, Clone, Copy)]
pub(in crate::loss) struct Row {
    pub place: Place,
    pub keypoint: usize,
    /// The deviation of each coordinate.
    deviation: [f64; 2],
    /// The error in deviations, not yet bounded.
    error: [f64; 2],
    weight: f64,
}

/// What a row adds to the gradients by the place of its keypoint and by the raw deviations.
pub(in crate::loss) struct RowGradient {
    pub place: [f64; 2],
    pub sigma: [f64; 2],
}

/// Lists the rows of one assigned anchor. A row whose error is no number is left out.
pub(in crate::loss) fn list(
    head: &ImageHead<'_>,
    at: Place,
    truths: &[[f32; 3]],
    cells: [f64; 2],
    rows: &mut Vec<Row>,
) {
    let rules = head.rules.keypoints();
    let sigma = head.sigma(at, 2 * rules.shape.count);
    for (keypoint, truth) in truths.iter().enumerate() {
        if truth[2] == 0.0 {
            continue;
        }
        let found = head.keypoint(at, rules, keypoint);
        let wanted = place(truth, cells);
        let deviation = [0, 1].map(|axis| sigmoid_of(sigma[2 * keypoint + axis]));
        let error = [0, 1].map(|axis| (found[axis] - wanted[axis]) / (deviation[axis] + EPSILON));
        if error.iter().all(|error| error.is_finite()) {
            rows.push(Row {
                place: at,
                keypoint,
                deviation,
                error,
                weight: rules.weights[keypoint],
            });
        }
    }
}

impl Row {
    /// Returns the point that the flow is asked about.
    pub fn point(&self) -> Point {
        Point {
            at: self.bounded().map(|error| error as f32),
            // Both coordinates' terms hold the whole point's density.
            weight: (-2.0 * self.weight) as f32,
            ..Point::default()
        }
    }

    /// Returns the row's loss, given what the flow said of its point.
    pub fn loss(&self, point: &Point) -> f64 {
        let bounded = self.bounded();
        let own = |axis: usize| {
            let deviation = self.deviation[axis];
            deviation.ln() + (2.0 * deviation).ln() + bounded[axis].abs()
        };
        self.weight * (own(0) + own(1) - 2.0 * f64::from(point.log_density))
    }

    /// Returns the gradient of `scale` times the row's loss.
    pub fn gradient(&self, point: &Point, scale: f64) -> RowGradient {
        let mut gradient = RowGradient {
            place: [0.0; 2],
            sigma: [0.0; 2],
        };
        for axis in 0..2 {
            let (error, deviation) = (self.error[axis], self.deviation[axis]);
            let by_error = if error.abs() <= ERROR_MAXIMUM {
                self.weight * slope_of_abs(error) + f64::from(point.slope[axis])
            } else {
                0.0
            };
            let by_place = by_error / (deviation + EPSILON);
            let by_deviation = 2.0 * self.weight / deviation - by_place * error;
            gradient.place[axis] = scale * by_place;
            gradient.sigma[axis] = scale * by_deviation * deviation * (1.0 - deviation);
        }
        gradient
    }

    fn bounded(&self) -> [f64; 2] {
        self.error
            .map(|error| error.clamp(-ERROR_MAXIMUM, ERROR_MAXIMUM))
    }
}
