//! Overlap of two rotated boxes as that of two Gaussians (probIoU: Llerena et al., "Gaussian Bounding Boxes and
//! Probabilistic Intersection-over-Union for Object Detection", 2021), and its gradient.
//!
//! A box is centre x, centre y, width, height, angle in radians.

const EPSILON: f64 = 1e-7;
/// The Bhattacharyya distance beyond which boxes are as good as infinitely far apart.
const DISTANCE_MAXIMUM: f64 = 100.0;
/// Added to both variances where the loss follows the gradient: a box without width still has one.
const LOSS_VARIANCE_FLOOR: f64 = 0.01;

/// A rotated box as a Gaussian: its centre and its covariance `[[a, c], [c, b]]`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gaussian {
    centre: [f64; 2],
    a: f64,
    b: f64,
    c: f64,
}

/// The parts of a distance that value and gradient share.
struct Parts {
    /// Difference of the centres.
    dx: f64,
    dy: f64,
    /// Sums of the covariances.
    a: f64,
    b: f64,
    c: f64,
    /// Determinant of the summed covariances, and the same with epsilon.
    determinant: f64,
    divisor: f64,
    /// What the distance of the centres contributes.
    shift: f64,
    /// The determinants of the two covariances, not below zero.
    own: f64,
    other: f64,
    root: f64,
    /// The argument of the logarithm.
    ratio: f64,
    distance: f64,
}

impl Gaussian {
    /// Returns the Gaussian of a box; `floor` is added to its variances along its own axes.
    pub fn new([x, y, width, height, angle]: [f64; 5], floor: f64) -> Self {
        let (sin, cos) = angle.sin_cos();
        let along = width * width / 12.0 + floor;
        let across = height * height / 12.0 + floor;
        Self {
            centre: [x, y],
            a: along * cos * cos + across * sin * sin,
            b: along * sin * sin + across * cos * cos,
            c: (along - across) * cos * sin,
        }
    }

    /// Returns the overlap with another box. Rounding may take it below zero by a ten-millionth.
    pub fn overlap(&self, other: &Self) -> f64 {
        Parts::new(self, other).value()
    }

    /// Returns the squared distance to another box's centre.
    pub fn squared_distance(&self, other: &Self) -> f64 {
        let [dx, dy] = [0, 1].map(|axis| self.centre[axis] - other.centre[axis]);
        dx * dx + dy * dy
    }

    /// Returns the sum of all variances of two boxes.
    pub fn variances(&self, other: &Self) -> f64 {
        self.a + self.b + other.a + other.b
    }

    fn determinant(&self) -> f64 {
        (self.a * self.b - self.c * self.c).max(0.0)
    }
}

impl Parts {
    fn new(first: &Gaussian, second: &Gaussian) -> Self {
        let [dx, dy] = [0, 1].map(|axis| first.centre[axis] - second.centre[axis]);
        let (a, b, c) = (first.a + second.a, first.b + second.b, first.c + second.c);
        let determinant = a * b - c * c;
        let divisor = determinant + EPSILON;
        let shift = (0.25 * (a * dy * dy + b * dx * dx) - 0.5 * c * dx * dy) / divisor;
        let (own, other) = (first.determinant(), second.determinant());
        let root = 4.0 * (own * other).sqrt() + EPSILON;
        let ratio = determinant / root + EPSILON;
        Self {
            dx,
            dy,
            a,
            b,
            c,
            determinant,
            divisor,
            shift,
            own,
            other,
            root,
            ratio,
            distance: shift + 0.5 * ratio.ln(),
        }
    }

    fn value(&self) -> f64 {
        let distance = self.distance.clamp(EPSILON, DISTANCE_MAXIMUM);
        1.0 - (1.0 - (-distance).exp() + EPSILON).sqrt()
    }

    /// Returns the value's slope by the distance.
    fn slope(&self) -> f64 {
        if !(EPSILON..=DISTANCE_MAXIMUM).contains(&self.distance) {
            return 0.0;
        }
        let decay = (-self.distance).exp();
        -0.5 * decay / (1.0 - decay + EPSILON).sqrt()
    }
}

/// Returns the probIoU of two boxes.
pub fn probiou(first: [f64; 5], second: [f64; 5]) -> f64 {
    Gaussian::new(first, 0.0).overlap(&Gaussian::new(second, 0.0))
}

/// Returns the probIoU that the loss uses, whose variances have a floor, and its gradient with respect to the
/// prediction.
pub(in crate::loss) fn probiou_with_gradient(
    prediction: [f64; 5],
    target: [f64; 5],
) -> (f64, [f64; 5]) {
    let own = Gaussian::new(prediction, LOSS_VARIANCE_FLOOR);
    let parts = Parts::new(&own, &Gaussian::new(target, LOSS_VARIANCE_FLOOR));
    let slope = parts.slope();

    // By the covariance: through the sums, and through the determinant of the prediction's own.
    let by_log = 0.5 / (parts.ratio * parts.root);
    let by_own = if parts.own > 0.0 {
        -0.5 * parts.determinant / (parts.root * parts.root * parts.ratio)
            * 2.0
            * (parts.other / parts.own).sqrt()
    } else {
        0.0
    };
    let pull = by_log - parts.shift / parts.divisor;
    let by_a = 0.25 * parts.dy * parts.dy / parts.divisor + pull * parts.b + by_own * own.b;
    let by_b = 0.25 * parts.dx * parts.dx / parts.divisor + pull * parts.a + by_own * own.a;
    let by_c = -0.5 * parts.dx * parts.dy / parts.divisor - 2.0 * (pull * parts.c + by_own * own.c);

    let [_, _, width, height, angle] = prediction;
    let (sin, cos) = angle.sin_cos();
    let stretch = (width * width - height * height) / 12.0;
    let gradient = [
        0.5 * (parts.b * parts.dx - parts.c * parts.dy) / parts.divisor,
        0.5 * (parts.a * parts.dy - parts.c * parts.dx) / parts.divisor,
        width / 6.0 * (by_a * cos * cos + by_b * sin * sin + by_c * cos * sin),
        height / 6.0 * (by_a * sin * sin + by_b * cos * cos - by_c * cos * sin),
        stretch * (2.0 * cos * sin * (by_b - by_a) + by_c * (cos * cos - sin * sin)),
    ];
    (parts.value(), gradient.map(|by| by * slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: [f64; 5] = [10.0, 8.0, 7.0, 3.0, 0.4];
    const PREDICTIONS: [[f64; 5]; 5] = [
        [10.5, 7.5, 6.0, 4.0, 0.1],
        [10.0, 8.0, 7.5, 2.5, 1.9],
        [14.0, 12.0, 2.0, 9.0, -0.7],
        [9.0, 8.5, 0.2, 0.1, 0.5],
        [10.0, 9.0, -1.0, 3.0, 0.3],
    ];

    #[test]
    fn the_gradient_agrees_with_differences() {
        for prediction in PREDICTIONS {
            let (value, gradient) = probiou_with_gradient(prediction, TARGET);
            assert!(value > 1e-6, "{prediction:?} meets the target");
            for i in 0..5 {
                let step = 1e-5;
                let at = |by: f64| {
                    let mut moved = prediction;
                    moved[i] += by;
                    probiou_with_gradient(moved, TARGET).0
                };
                let difference = (at(step) - at(-step)) / (2.0 * step);
                assert!(
                    (difference - gradient[i]).abs() < 1e-7,
                    "{prediction:?} number {i}: {difference} and {}",
                    gradient[i]
                );
            }
        }
    }

    #[test]
    fn the_overlap_is_symmetric_and_knows_half_turns() {
        for prediction in PREDICTIONS {
            let value = probiou(prediction, TARGET);
            assert!((value - probiou(TARGET, prediction)).abs() < 1e-12);
            let mut turned = prediction;
            turned[4] += std::f64::consts::PI;
            assert!((value - probiou(turned, TARGET)).abs() < 1e-9);
        }
        assert!(probiou(TARGET, TARGET) > 0.999);
        let far = [1e4, 8.0, 7.0, 3.0, 0.4];
        assert!(probiou(far, TARGET).abs() < 1e-6);
        assert_eq!(probiou_with_gradient(far, TARGET).1, [0.0; 5]);
    }

    #[test]
    fn boxes_without_area_have_finite_overlaps() {
        let empty = [10.0, 8.0, 0.0, 0.0, 0.0];
        for other in [empty, TARGET] {
            assert!(probiou(empty, other).is_finite());
            let (value, gradient) = probiou_with_gradient(empty, other);
            assert!(value.is_finite() && gradient.iter().all(|by| by.is_finite()));
        }
    }
}
