//! Complete IoU of two upright boxes (overlap, distance of the centres, difference of the aspect ratios) and its
//! gradient. Boxes are `x1, y1, x2, y2`.

const EPSILON: f64 = 1e-7;
/// 4 / π².
const ASPECT_SCALE: f64 = 4.0 * std::f64::consts::FRAC_1_PI * std::f64::consts::FRAC_1_PI;

/// A box with what CIoU needs of it beside the corners, worked out once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    pub corners: [f64; 4],
    /// Width, and height plus epsilon.
    width: f64,
    height: f64,
    /// `atan(width / height)`.
    angle: f64,
}

impl Shape {
    pub fn new(corners: [f64; 4]) -> Self {
        let width = corners[2] - corners[0];
        let height = corners[3] - corners[1] + EPSILON;
        Self {
            corners,
            width,
            height,
            angle: (width / height).atan(),
        }
    }
}

/// The parts of a CIoU that the value and the gradient share.
struct Parts {
    inner_width: f64,
    inner_height: f64,
    intersection: f64,
    union: f64,
    outer_width: f64,
    outer_height: f64,
    /// Squared diagonal of the enclosing box.
    diagonal: f64,
    /// Twice the distance of the centres, by axis.
    shift: [f64; 2],
    /// Squared distance of the centres.
    distance: f64,
    /// The weight of the aspect term: a constant to the gradient.
    alpha: f64,
    value: f64,
}

impl Parts {
    fn new(first: &Shape, second: &Shape) -> Self {
        let (p, t) = (&first.corners, &second.corners);
        let inner_width = (p[2].min(t[2]) - p[0].max(t[0])).max(0.0);
        let inner_height = (p[3].min(t[3]) - p[1].max(t[1])).max(0.0);
        let intersection = inner_width * inner_height;
        let union =
            first.width * first.height + second.width * second.height - intersection + EPSILON;
        let iou = intersection / union;
        let outer_width = p[2].max(t[2]) - p[0].min(t[0]);
        let outer_height = p[3].max(t[3]) - p[1].min(t[1]);
        let diagonal = outer_width * outer_width + outer_height * outer_height + EPSILON;
        let shift = [p[0] + p[2] - t[0] - t[2], p[1] + p[3] - t[1] - t[3]];
        let distance = (shift[0] * shift[0] + shift[1] * shift[1]) / 4.0;
        let turn = second.angle - first.angle;
        let aspect = ASPECT_SCALE * turn * turn;
        let alpha = aspect / (1.0 - iou + aspect + EPSILON);
        Self {
            inner_width,
            inner_height,
            intersection,
            union,
            outer_width,
            outer_height,
            diagonal,
            shift,
            distance,
            alpha,
            value: iou - (distance / diagonal + aspect * alpha),
        }
    }
}

/// Returns `max(CIoU, 0)`. Boxes that do not meet are told apart before any division.
pub(super) fn overlap(first: &Shape, second: &Shape) -> f64 {
    let (p, t) = (&first.corners, &second.corners);
    let apart = p[2] <= t[0] || t[2] <= p[0] || p[3] <= t[1] || t[3] <= p[1];
    if apart {
        // The IoU is zero and the rest only takes away.
        return 0.0;
    }
    Parts::new(first, second).value.max(0.0)
}

/// Returns the CIoU of two boxes.
pub fn ciou(prediction: [f64; 4], target: [f64; 4]) -> f64 {
    Parts::new(&Shape::new(prediction), &Shape::new(target)).value
}

/// Returns the CIoU and its gradient with respect to the prediction's corners. The weight of the aspect term
/// counts as a constant.
pub fn ciou_with_gradient(prediction: [f64; 4], target: [f64; 4]) -> (f64, [f64; 4]) {
    let (p, t) = (Shape::new(prediction), Shape::new(target));
    let parts = Parts::new(&p, &t);
    let corner = |i: usize| chosen(p.corners[i], t.corners[i]);
    // How much of a move of each corner of the prediction moves the inner and the outer box.
    let inner = [corner(0), corner(1), 1.0 - corner(2), 1.0 - corner(3)];
    let meet = parts.intersection > 0.0;
    let turn = t.angle - p.angle;
    let squares = p.width * p.width + p.height * p.height;
    let gradient = std::array::from_fn(|i| {
        let is_x = i % 2 == 0;
        let sign = if i < 2 { -1.0 } else { 1.0 };
        let (side, own) = if is_x {
            (parts.inner_height, p.height)
        } else {
            (parts.inner_width, p.width)
        };
        let d_intersection = if meet { sign * inner[i] * side } else { 0.0 };
        let d_union = sign * own - d_intersection;
        let d_iou = (d_intersection * parts.union - parts.intersection * d_union)
            / (parts.union * parts.union);
        let outer_side = if is_x {
            parts.outer_width
        } else {
            parts.outer_height
        };
        let d_diagonal = 2.0 * outer_side * sign * (1.0 - inner[i]);
        let d_distance = parts.shift[i % 2] / 2.0;
        let d_centre = (d_distance * parts.diagonal - parts.distance * d_diagonal)
            / (parts.diagonal * parts.diagonal);
        // d atan(w/h): h/(w²+h²) by the width, -w/(w²+h²) by the height.
        let d_angle = sign * if is_x { p.height } else { -p.width } / squares;
        let d_aspect = -2.0 * ASPECT_SCALE * turn * d_angle;
        d_iou - d_centre - parts.alpha * d_aspect
    });
    (parts.value, gradient)
}

/// Returns the share of `max(prediction, target)` that follows the prediction: half each when they are equal.
fn chosen(prediction: f64, target: f64) -> f64 {
    if prediction > target {
        1.0
    } else if prediction < target {
        0.0
    } else {
        0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_agrees_with_differences_of_the_value_with_alpha_held() {
        let target = [3.0, 4.0, 11.0, 9.0];
        for prediction in [
            [2.0, 3.5, 9.0, 10.0],
            [4.0, 5.0, 10.0, 8.0],
            [1.0, 1.0, 14.0, 12.0],
            [20.0, 4.5, 27.0, 8.0],
        ] {
            let (_, gradient) = ciou_with_gradient(prediction, target);
            let t = Shape::new(target);
            let alpha = Parts::new(&Shape::new(prediction), &t).alpha;
            let held = |corners: [f64; 4]| {
                let shape = Shape::new(corners);
                let parts = Parts::new(&shape, &t);
                let turn = t.angle - shape.angle;
                let aspect = ASPECT_SCALE * turn * turn;
                parts.value + aspect * (parts.alpha - alpha)
            };
            for i in 0..4 {
                let step = 1e-5;
                let (mut low, mut high) = (prediction, prediction);
                low[i] -= step;
                high[i] += step;
                let difference = (held(high) - held(low)) / (2.0 * step);
                assert!(
                    (difference - gradient[i]).abs() < 1e-8,
                    "{prediction:?} corner {i}: {difference} and {}",
                    gradient[i]
                );
            }
        }
    }

    #[test]
    fn overlap_is_the_value_cut_at_zero() {
        let target = [3.0, 4.0, 11.0, 9.0];
        for prediction in [
            [2.0, 3.5, 9.0, 10.0],
            [20.0, 4.5, 27.0, 8.0],
            [10.9, 4.5, 27.0, 80.0],
            [11.0, 4.0, 12.0, 9.0],
        ] {
            let value = ciou(prediction, target).max(0.0);
            assert_eq!(overlap(&Shape::new(target), &Shape::new(prediction)), value);
        }
    }
}
