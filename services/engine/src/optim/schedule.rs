//! Learning rates and momentum over a run: warm-up, decay by epoch, and steps over several batches.

use super::settings::OptimizerSettings;

/// The batch size that the learning rate and the weight decay are meant for.
pub const NOMINAL_BATCH: usize = 64;

/// What one optimiser step uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Learning rate of decayed weights.
    pub weight: f64,
    /// Learning rate of normalisation weights.
    pub norm: f64,
    /// Learning rate of biases.
    pub bias: f64,
    /// Momentum, for the optimisers whose momentum warms up.
    pub momentum: f64,
}

/// What to do at one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPlan {
    pub rates: Rates,
    /// How many batches' gradients go into one step.
    pub accumulate: usize,
}

/// The learning rates of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Epochs of the run.
    pub epochs: usize,
    /// Batches of one epoch.
    pub batches: usize,
    /// The learning rate after warm-up.
    pub learning_rate: f64,
    /// The last learning rate as a fraction of the first (`lrf`).
    pub final_fraction: f64,
    /// Whether the rate falls along a cosine (`cos_lr`) rather than a line.
    pub is_cosine: bool,
    /// Epochs of warm-up; at most all but one.
    pub warmup_epochs: f64,
    /// Where the momentum starts.
    pub warmup_momentum: f64,
    /// Where the biases' learning rate starts.
    pub warmup_bias_learning_rate: f64,
    /// Momentum after warm-up.
    pub momentum: f64,
    /// Batches in one step after warm-up.
    pub accumulate: usize,
}

impl Schedule {
    /// Returns the default schedule of a run with the given optimiser.
    pub fn new(settings: &OptimizerSettings, epochs: usize, batches: usize, batch: usize) -> Self {
        let whole_run = (epochs * batches).max(1);
        Self {
            epochs,
            batches,
            learning_rate: settings.learning_rate,
            final_fraction: 0.01,
            is_cosine: false,
            warmup_epochs: 3.0,
            warmup_momentum: 0.8,
            warmup_bias_learning_rate: settings.warmup_bias_learning_rate,
            momentum: settings.momentum,
            accumulate: accumulate(batch).min(whole_run),
        }
    }

    /// Returns the learning rate of an epoch as a fraction of the first; epochs count from 0.
    pub fn factor(&self, epoch: usize) -> f64 {
        let progress = epoch as f64 / self.epochs.max(1) as f64;
        if self.is_cosine {
            let fall = ((1.0 - (std::f64::consts::PI * progress).cos()) / 2.0).max(0.0);
            fall * (self.final_fraction - 1.0) + 1.0
        } else {
            (1.0 - progress).max(0.0) * (1.0 - self.final_fraction) + self.final_fraction
        }
    }

    /// Returns the number of the last batch of the warm-up.
    pub fn warmup_iterations(&self) -> u64 {
        let epochs = self.warmup_epochs.min(self.epochs.saturating_sub(1) as f64);
        (epochs * self.batches as f64).round_ties_even().max(0.0) as u64
    }

    /// Returns what to do at a batch; `iteration` counts all batches of the run from 0.
    pub fn at(&self, epoch: usize, iteration: u64) -> StepPlan {
        let target = self.learning_rate * self.factor(epoch);
        let warmup = self.warmup_iterations();
        let progress = if iteration >= warmup {
            1.0
        } else {
            iteration as f64 / warmup as f64
        };
        let towards = |start: f64, end: f64| {
            if progress < 1.0 {
                start + (end - start) * progress
            } else {
                end
            }
        };
        let accumulate = towards(1.0, self.accumulate as f64).round_ties_even();
        StepPlan {
            rates: Rates {
                weight: towards(0.0, target),
                norm: towards(0.0, target),
                bias: towards(self.warmup_bias_learning_rate, target),
                momentum: towards(self.warmup_momentum, self.momentum),
            },
            accumulate: accumulate.max(1.0) as usize,
        }
    }
}

/// Returns how many batches come nearest to the nominal batch.
pub(super) fn accumulate(batch: usize) -> usize {
    let ratio = NOMINAL_BATCH as f64 / batch.max(1) as f64;
    ratio.round_ties_even().max(1.0) as usize
}

/// Remembers when the last step was. Batches left over at an epoch's end count into the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accumulation {
    /// The number of the first batch after the last step.
    next: u64,
}

impl Accumulation {
    /// Continues after a step that took in all batches below `next`.
    pub fn restore(next: u64) -> Self {
        Self { next }
    }

    /// Returns the number of the first batch after the last step.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether a step is due once the gradient of batch `iteration` has been added, and notes it.
    pub fn is_step_due(&mut self, iteration: u64, accumulate: usize) -> bool {
        let is_due = iteration + 1 >= self.next + accumulate as u64;
        if is_due {
            self.next = iteration + 1;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        let settings = OptimizerSettings::sgd();
        Schedule::new(&settings, 10, 20, 16)
    }

    #[test]
    fn the_warm_up_is_a_straight_line_to_the_epochs_rate() {
        let schedule = schedule();
        assert_eq!((schedule.warmup_iterations(), schedule.accumulate), (60, 4));
        let first = schedule.at(0, 0);
        assert_eq!(
            first.rates,
            Rates {
                weight: 0.0,
                norm: 0.0,
                bias: 0.1,
                momentum: 0.8
            }
        );
        assert_eq!(first.accumulate, 1);
        let middle = schedule.at(1, 30);
        let target = 0.01 * (0.9 * 0.99 + 0.01);
        assert!((middle.rates.weight - target / 2.0).abs() < 1e-15);
        assert!((middle.rates.bias - (0.1 + target) / 2.0).abs() < 1e-15);
        assert!((middle.rates.momentum - (0.8 + 0.937) / 2.0).abs() < 1e-15);
        // Half way between 1 and 4, rounded to the even neighbour.
        assert_eq!(middle.accumulate, 2);
        let after = schedule.at(3, 60);
        assert_eq!((after.rates.momentum, after.accumulate), (0.937, 4));
        assert_eq!(after.rates.weight, 0.01 * schedule.factor(3));
        assert_eq!(after.rates.bias, after.rates.weight);
    }

    #[test]
    fn a_run_of_one_epoch_has_no_warm_up() {
        let settings = OptimizerSettings::sgd();
        let schedule = Schedule::new(&settings, 1, 5, 64);
        assert_eq!(schedule.warmup_iterations(), 0);
        assert_eq!(schedule.at(0, 0).rates.weight, 0.01);
    }

    #[test]
    fn a_step_takes_no_more_batches_than_the_run_has() {
        let settings = OptimizerSettings::sgd();
        assert_eq!(Schedule::new(&settings, 2, 3, 1).accumulate, 6);
    }

    #[test]
    fn batches_are_gathered_until_there_are_enough() {
        let mut accumulation = Accumulation::default();
        let due: Vec<bool> = (0..9).map(|i| accumulation.is_step_due(i, 4)).collect();
        let expected = [false, false, false, true, false, false, false, true, false];
        assert_eq!(due, expected);
        let mut again = Accumulation::restore(accumulation.next());
        assert!(!again.is_step_due(9, 4) && again.is_step_due(10, 3));
    }
}
