//! A box side as a distribution over distances: its expectation, and the loss that pulls the distribution towards
//! the two bins around the true distance.

use super::lanes::{LANES, Lanes, exp_of_nonpositive};

/// Bins of one side's distribution: distances 0 to 15 cells.
pub const BIN_COUNT: usize = 16;
const _: () = assert!(BIN_COUNT == LANES, "one side fills the lanes exactly");

/// The largest distance that still has a bin on both sides.
const DISTANCE_MAXIMUM: f64 = BIN_COUNT as f64 - 1.0 - 0.01;

/// One side's distribution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distribution {
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
