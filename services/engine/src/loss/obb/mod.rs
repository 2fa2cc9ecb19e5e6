//! Boxes that are turned: how one is read from the distances in its own frame, and the terms of its loss.

pub(crate) mod probiou;

/// A box side divided by another is bounded away from zero by this.
const SIDE_EPSILON: f64 = 1e-9;
/// How quickly the angle stops to matter as a box grows longer than wide, in the logarithm of the ratio.
const ASPECT_SCALE: f64 = 3.0;

/// Returns the box at distances (left, top, right, bottom), measured in its own frame, from a centre.
pub(super) fn turned_box(
    [x, y]: [f64; 2],
    [left, top, right, bottom]: [f64; 4],
    angle: f64,
) -> [f64; 5] {
    let (sin, cos) = angle.sin_cos();
    let (along, across) = ((right - left) / 2.0, (bottom - top) / 2.0);
    [
        x + along * cos - across * sin,
        y + along * sin + across * cos,
        left + right,
        top + bottom,
        angle,
    ]
}

/// Carries the gradient by a box of [`turned_box`] back to its distances and its angle.
pub(super) fn turned_box_gradient(
    [left, top, right, bottom]: [f64; 4],
    angle: f64,
    [by_x, by_y, by_width, by_height, by_angle]: [f64; 5],
) -> ([f64; 4], f64) {
    let (sin, cos) = angle.sin_cos();
    let (along, across) = ((right - left) / 2.0, (bottom - top) / 2.0);
    let by_along = (by_x * cos + by_y * sin) / 2.0;
    let by_across = (by_y * cos - by_x * sin) / 2.0;
    let distances = [
        by_width - by_along,
        by_height - by_across,
        by_width + by_along,
        by_height + by_across,
    ];
    let turn = by_y * (along * cos - across * sin) - by_x * (along * sin + across * cos) + by_angle;
    (distances, turn)
}

/// Returns the distances from a centre to the sides of a turned box, in the box's frame.
pub(super) fn distances_in_frame([x, y]: [f64; 2], target: [f64; 5]) -> [f64; 4] {
    let [dx, dy] = in_frame([target[0] - x, target[1] - y], target[4]);
    let (half_width, half_height) = (target[2] / 2.0, target[3] / 2.0);
    [
        half_width - dx,
        half_height - dy,
        half_width + dx,
        half_height + dy,
    ]
}

/// Returns a vector as seen in a frame turned by `angle`.
pub(super) fn in_frame([dx, dy]: [f64; 2], angle: f64) -> [f64; 2] {
    let (sin, cos) = angle.sin_cos();
    [dx * cos + dy * sin, dy * cos - dx * sin]
}

/// Returns the angle term of a prediction and its slope: twice the error as a squared sine, so that a quarter turn
/// costs nothing, weighed down for boxes much longer than wide, whose overlap says enough.
pub(super) fn angle_term(predicted: f64, target: [f64; 5]) -> (f64, f64) {
    let ratio = (target[2] + SIDE_EPSILON) / (target[3] + SIDE_EPSILON);
    let stretch = ratio.ln() / ASPECT_SCALE;
    let weight = (-stretch * stretch).exp();
    let error = predicted - target[4];
    let sine = (2.0 * error).sin();
    (weight * sine * sine, weight * 2.0 * (4.0 * error).sin())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_and_its_distances_are_inverse() {
        let target = [5.0, 7.0, 4.0, 2.0, 0.6];
        let centre = [5.4, 6.8];
        let again = turned_box(centre, distances_in_frame(centre, target), 0.6);
        for (again, target) in again.iter().zip(target) {
            assert!((again - target).abs() < 1e-12);
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        let (distances, angle) = ([1.0, 2.5, 3.0, 0.5], 0.7);
        let weights = [0.3, -0.7, 1.1, 0.9, -0.4];
        let value = |distances: [f64; 4], angle: f64| -> f64 {
            let turned = turned_box([2.0, 3.0], distances, angle);
            turned.iter().zip(weights).map(|(v, w)| v * w).sum()
        };
        let (by_distance, by_angle) = turned_box_gradient(distances, angle, weights);
        let step = 1e-6;
        for side in 0..4 {
            let at = |by: f64| {
                let mut moved = distances;
                moved[side] += by;
                value(moved, angle)
            };
            let difference = (at(step) - at(-step)) / (2.0 * step);
            assert!((difference - by_distance[side]).abs() < 1e-8);
        }
        let difference = (value(distances, angle + step) - value(distances, angle - step)) / 2.0;
        assert!((difference / step - by_angle).abs() < 1e-8);

        let target = [0.0, 0.0, 5.0, 2.0, -0.2];
        let (_, slope) = angle_term(angle, target);
        let at = |by: f64| angle_term(angle + by, target).0;
        assert!(((at(step) - at(-step)) / (2.0 * step) - slope).abs() < 1e-8);
    }
}
