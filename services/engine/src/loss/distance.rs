//! The distances from an anchor to the sides of its box. With bins a side is a distribution over distances: its
//! expectation, and the loss that pulls the distribution towards the two bins around the true distance. Without, the
//! outputs are the distances themselves, and the loss is how far they are off.

use super::lanes::{LANES, Lanes, exp_of_nonpositive};

/// Bins of one side's distribution: distances 0 to 15 cells.
pub const BIN_COUNT: usize = 16;
const _: () = assert!(BIN_COUNT == LANES, "one side fills the lanes exactly");

/// The largest distance that still has a bin on both sides.
const DISTANCE_MAXIMUM: f64 = BIN_COUNT as f64 - 1.0 - 0.01;

/// The sides of one anchor's box: left, top, right, bottom, in cells.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack while one anchor is worked on"
)]
pub(crate) enum Sides<'a> {
    Bins {
        logits: &'a [[f32; BIN_COUNT]],
        distributions: [Distribution; 4],
    },
    Plain([f64; 4]),
}

impl<'a> Sides<'a> {
    /// Reads the outputs of one anchor: four times as many as there are bins, or four.
    pub fn read(values: &'a [f32]) -> Self {
        match *values {
            [left, top, right, bottom] => Self::Plain([left, top, right, bottom].map(f64::from)),
            _ => {
                let (logits, _) = values.as_chunks();
                Self::Bins {
                    logits,
                    distributions: std::array::from_fn(|side| Distribution::new(&logits[side])),
                }
            }
        }
    }

    /// Returns the distances.
    pub fn means(&self) -> [f64; 4] {
        match self {
            Self::Bins { distributions, .. } => distributions.map(|side| side.mean),
            Self::Plain(distances) => *distances,
        }
    }

    /// Returns the mean loss of the four sides. `units` is what one cell counts along each of them; only plain
    /// distances are measured with it.
    pub fn loss(&self, targets: [f64; 4], units: [f64; 4]) -> f64 {
        let sides = 0..4;
        let sum: f64 = match self {
            Self::Bins {
                logits,
                distributions,
            } => sides
                .map(|side| distributions[side].loss(&logits[side], targets[side]))
                .sum(),
            Self::Plain(distances) => sides
                .map(|side| (distances[side] - targets[side]).abs() * units[side])
                .sum(),
        };
        sum / 4.0
    }

    /// Writes the gradient of `Σ mean_gradients · means + loss_gradient · loss` with respect to the outputs.
    pub fn gradient(
        &self,
        mean_gradients: [f64; 4],
        loss_gradient: f64,
        targets: [f64; 4],
        units: [f64; 4],
        gradient: &mut [f32],
    ) {
        let loss_gradient = loss_gradient / 4.0;
        match self {
            Self::Bins { distributions, .. } => {
                for (side, gradient) in gradient.as_chunks_mut().0.iter_mut().enumerate().take(4) {
                    distributions[side].gradient(
                        mean_gradients[side],
                        loss_gradient,
                        targets[side],
                        gradient,
                    );
                }
            }
            Self::Plain(distances) => {
                for side in 0..4 {
                    let slope = slope_of_abs(distances[side] - targets[side]) * units[side];
                    gradient[side] = (mean_gradients[side] + loss_gradient * slope) as f32;
                }
            }
        }
    }
}

/// Returns the slope of `|x|`: its sign, zero at zero.
pub(super) fn slope_of_abs(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

/// One side's distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Distribution {
    probabilities: Lanes,
    /// `ln Σ exp(logit)`.
    log_sum: f64,
    /// The expected distance in cells.
    pub mean: f64,
}

impl Distribution {
    /// Reads one side's logits.
    pub fn new(logits: &[f32; BIN_COUNT]) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps = exp_of_nonpositive(logits.map(|logit| logit - largest));
        let (mut sum, mut moment) = (0.0, 0.0);
        for (bin, &exp) in exps.iter().enumerate() {
            sum += f64::from(exp);
            moment += f64::from(exp) * bin as f64;
        }
        Self {
            probabilities: exps.map(|exp| (f64::from(exp) / sum) as f32),
            log_sum: sum.ln() + f64::from(largest),
            mean: moment / sum,
        }
    }

    /// Returns the cross-entropy with the two bins around `target`.
    pub fn loss(&self, logits: &[f32; BIN_COUNT], target: f64) -> f64 {
        let (bin, low, high) = neighbours(target);
        low * (self.log_sum - f64::from(logits[bin]))
            + high * (self.log_sum - f64::from(logits[bin + 1]))
    }

    /// Writes the gradient of `mean_gradient · mean + loss_gradient · loss(target)` with respect to the logits.
    pub fn gradient(
        &self,
        mean_gradient: f64,
        loss_gradient: f64,
        target: f64,
        gradient: &mut [f32; BIN_COUNT],
    ) {
        let (at, low, high) = neighbours(target);
        for (bin, (gradient, &probability)) in
            gradient.iter_mut().zip(&self.probabilities).enumerate()
        {
            let wanted = match bin.wrapping_sub(at) {
                0 => low,
                1 => high,
                _ => 0.0,
            };
            let probability = f64::from(probability);
            *gradient = (mean_gradient * probability * (bin as f64 - self.mean)
                + loss_gradient * (probability - wanted)) as f32;
        }
    }
}

/// Returns the bin below `target`, and the weights of it and of the next.
fn neighbours(target: f64) -> (usize, f64, f64) {
    let target = target.clamp(0.0, DISTANCE_MAXIMUM);
    let bin = target.floor();
    let high = target - bin;
    (bin as usize, 1.0 - high, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; BIN_COUNT] = [
        0.5, -1.0, 2.0, 0.25, 1.5, -3.0, 0.0, 0.125, 4.0, -2.0, 0.75, 1.0, -0.5, 0.0, 3.0, -1.0,
    ];

    #[test]
    fn the_mean_is_the_expectation_of_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&l| f64::from(l).exp()).sum();
        let mean: f64 = LOGITS
            .iter()
            .enumerate()
            .map(|(bin, &l)| f64::from(l).exp() / total * bin as f64)
            .sum();
        assert!((Distribution::new(&LOGITS).mean - mean).abs() < 1e-6);
        assert_eq!(Distribution::new(&[7.0; BIN_COUNT]).mean, 7.5);
    }

    #[test]
    fn a_target_beyond_the_bins_counts_as_the_last_one() {
        let distribution = Distribution::new(&LOGITS);
        let last = distribution.loss(&LOGITS, 14.99);
        assert_eq!(distribution.loss(&LOGITS, 40.0), last);
        assert_eq!(
            distribution.loss(&LOGITS, -1.0),
            distribution.loss(&LOGITS, 0.0)
        );
    }

    #[test]
    fn plain_distances_are_off_by_their_difference_in_units() {
        let sides = Sides::read(&[1.0, 2.0, -3.0, 4.0]);
        let (targets, units) = ([2.0, 2.0, 1.0, 1.0], [0.5, 1.0, 0.5, 0.25]);
        assert_eq!(sides.loss(targets, units), (0.5 + 0.0 + 2.0 + 0.75) / 4.0);
        let mut gradient = [0.0; 4];
        sides.gradient([1.0; 4], 8.0, targets, units, &mut gradient);
        assert_eq!(gradient, [1.0 - 1.0, 1.0, 1.0 - 1.0, 1.0 + 0.5]);
    }

    #[test]
    fn the_gradient_agrees_with_differences() {
        for target in [0.0, 3.25, 8.0, 14.99] {
            let mut gradient = [0.0; BIN_COUNT];
            Distribution::new(&LOGITS).gradient(1.5, 0.75, target, &mut gradient);
            for bin in 0..BIN_COUNT {
                let value = |step: f32| {
                    let mut logits = LOGITS;
                    logits[bin] += step;
                    let side = Distribution::new(&logits);
                    1.5 * side.mean + 0.75 * side.loss(&logits, target)
                };
                let difference = (value(0.015625) - value(-0.015625)) / 0.03125;
                assert!(
                    (difference - f64::from(gradient[bin])).abs() < 3e-4,
                    "target {target}, bin {bin}: {difference} and {}",
                    gradient[bin]
                );
            }
        }
    }
}
