//! What a training takes on a device: the engine's own counts against the device's rates.
//!
//! Time of a step = arithmetic ÷ (efficiency × FLOP/s) + traffic ÷ (share × bytes/s). The two are added, not
//! overlapped: an upper bound that the efficiencies absorb. They are priors until runs of that device type were
//! observed; then the median of *observed ÷ prior* of the newest ones corrects it and the band narrows.

use std::time::Duration;

use super::catalogue::{CPU, Device};

/// The share of peak arithmetic a training reaches, before anything was observed.
const PRIOR_CPU_EFFICIENCY: f64 = 0.55;
const PRIOR_GPU_EFFICIENCY: f64 = 0.25;
/// The share of peak bandwidth that element-wise passes reach.
const PRIOR_BANDWIDTH_SHARE: f64 = 0.7;
/// Fetching data, decoding it and building the plan.
const PRIOR_START_SECONDS: f64 = 4.0;
/// Exports and the best model's last validation, beside the validation's own arithmetic.
const PRIOR_FINISH_SECONDS: f64 = 3.0;
/// How fast checkpoints are written.
const CHECKPOINT_BYTES_PER_SECOND: f64 = 200e6;
/// Weights, EMA and two moments, in f32.
const CHECKPOINT_BYTES_PER_PARAMETER: f64 = 16.0;
/// The band around a prior, and around an estimate that observations correct.
const PRIOR_BAND: (f64, f64) = (0.6, 1.8);
const FITTED_BAND: (f64, f64) = (0.85, 1.3);
/// How many observations make an estimate `fitted`.
pub const OBSERVATIONS_TO_FIT: usize = 1;

/// What the engine counted for one training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Forward and backward, for one image.
    pub step_flops_per_image: f64,
    pub step_bytes_per_image: f64,
    /// Forward alone.
    pub forward_flops_per_image: f64,
    pub forward_bytes_per_image: f64,
    pub parameter_count: f64,
    pub train_image_count: u64,
    pub val_image_count: u64,
    pub epochs: u64,
}

/// Time of a training, with a band.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    pub low: Duration,
    pub likely: Duration,
    pub high: Duration,
    pub images_per_second: f64,
    pub is_fitted: bool,
    pub bound_by: Bound,
}

/// What takes most of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Arithmetic,
    Bandwidth,
    Validation,
    StartAndEnd,
}

impl Bound {
    /// Returns it in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Arithmetic => "bound by arithmetic",
            Self::Bandwidth => "bound by memory bandwidth",
            Self::Validation => "mostly validation",
            Self::StartAndEnd => "mostly start and end",
        }
    }
}

/// Returns the seconds that one image of a training step takes by the prior.
pub fn prior_seconds_per_image(device: &Device, flops: f64, bytes: f64) -> f64 {
    let (arithmetic, traffic) = parts(device, flops, bytes);
    arithmetic + traffic
}

fn parts(device: &Device, flops: f64, bytes: f64) -> (f64, f64) {
    let efficiency = if device.gpu_type == CPU {
        PRIOR_CPU_EFFICIENCY
    } else {
        PRIOR_GPU_EFFICIENCY
    };
    (
        flops / (efficiency * device.flops_per_second),
        bytes / (PRIOR_BANDWIDTH_SHARE * device.bandwidth_bytes_per_second),
    )
}

/// Estimates a training on a device. `observed` are ratios *observed ÷ prior* of that device type, newest first.
pub fn time(device: &Device, work: &Work, observed: &[f64]) -> Time {
    let is_fitted = observed.len() >= OBSERVATIONS_TO_FIT;
    let correction = if is_fitted { median(observed) } else { 1.0 };
    let (arithmetic, traffic) = parts(device, work.step_flops_per_image, work.step_bytes_per_image);
    let step = (arithmetic + traffic) * correction;
    let forward = prior_seconds_per_image(
        device,
        work.forward_flops_per_image,
        work.forward_bytes_per_image,
    ) * correction;
    let train = step * (work.train_image_count * work.epochs) as f64;
    // Every epoch, and once more for the best model.
    let validation = forward * (work.val_image_count * (work.epochs + 1)) as f64;
    let checkpoint = work.parameter_count * CHECKPOINT_BYTES_PER_PARAMETER
        / CHECKPOINT_BYTES_PER_SECOND
        * work.epochs as f64;
    let fixed = PRIOR_START_SECONDS + PRIOR_FINISH_SECONDS;
    let likely = train + validation + checkpoint + fixed;
    let (low, high) = if is_fitted { FITTED_BAND } else { PRIOR_BAND };
    let bound_by = if train < fixed + checkpoint {
        Bound::StartAndEnd
    } else if train < validation {
        Bound::Validation
    } else if traffic > arithmetic {
        Bound::Bandwidth
    } else {
        Bound::Arithmetic
    };
    Time {
        low: Duration::from_secs_f64(likely * low),
        likely: Duration::from_secs_f64(likely),
        high: Duration::from_secs_f64(likely * high),
        images_per_second: 1.0 / step,
        is_fitted,
        bound_by,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// One row of the table that people choose from, as far as ranking needs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Offered, allowed and fitting.
    pub is_usable: bool,
    pub seconds: f64,
    pub cost_micros: i64,
}

/// Which rows to mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    pub cheapest: Option<usize>,
    pub fastest: Option<usize>,
    pub recommended: Option<usize>,
}

/// Marks the cheapest and the fastest usable candidate, and recommends the one of least time × cost: on the
/// Pareto front, the point where a percent of time is worth a percent of money.
pub fn rank(candidates: &[Candidate]) -> Marks {
    let least = |key: &dyn Fn(&Candidate) -> (f64, f64)| {
        candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.is_usable)
            .min_by(|(_, a), (_, b)| {
                let ((a0, a1), (b0, b1)) = (key(a), key(b));
                a0.total_cmp(&b0).then(a1.total_cmp(&b1))
            })
            .map(|(index, _)| index)
    };
    let cost = |candidate: &Candidate| candidate.cost_micros as f64;
    Marks {
        cheapest: least(&|candidate| (cost(candidate), candidate.seconds)),
        fastest: least(&|candidate| (candidate.seconds, cost(candidate))),
        recommended: least(&|candidate| {
            (
                cost(candidate).max(1.0) * candidate.seconds,
                candidate.seconds,
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue;

    fn work() -> Work {
        Work {
            step_flops_per_image: 4.9e9,
            step_bytes_per_image: 3e8,
            forward_flops_per_image: 1.6e9,
            forward_bytes_per_image: 1e8,
            parameter_count: 2.6e6,
            train_image_count: 205,
            val_image_count: 87,
            epochs: 3,
        }
    }

    #[test]
    fn more_of_anything_takes_longer() {
        let device = catalogue::unmeasured_cpu();
        let base = time(&device, &work(), &[]).likely;
        for more in [
            Work {
                epochs: 6,
                ..work()
            },
            Work {
                train_image_count: 410,
                ..work()
            },
            Work {
                val_image_count: 174,
                ..work()
            },
            Work {
                step_flops_per_image: 9.8e9,
                ..work()
            },
        ] {
            assert!(time(&device, &more, &[]).likely > base, "{more:?}");
        }
        let faster = Device {
            flops_per_second: 1e12,
            ..device
        };
        assert!(time(&faster, &work(), &[]).likely < base);
    }

    #[test]
    fn observations_correct_the_prior_and_narrow_the_band() {
        let device = catalogue::unmeasured_cpu();
        let prior = time(&device, &work(), &[]);
        let fitted = time(&device, &work(), &[2.0, 2.2, 9.0]);
        assert!(!prior.is_fitted && fitted.is_fitted);
        assert!((prior.images_per_second / fitted.images_per_second - 2.2).abs() < 1e-9);
        let width = |time: &Time| time.high.as_secs_f64() / time.low.as_secs_f64();
        assert!(width(&fitted) < width(&prior));
        assert!(prior.low < prior.likely && prior.likely < prior.high);
    }

    #[test]
    fn only_usable_candidates_are_marked() {
        let candidate = |is_usable, seconds, cost_micros| Candidate {
            is_usable,
            seconds,
            cost_micros,
        };
        let marks = rank(&[
            candidate(false, 1.0, 1),
            candidate(true, 100.0, 10),
            candidate(true, 10.0, 200),
            candidate(true, 20.0, 20),
        ]);
        assert_eq!(
            marks,
            Marks {
                cheapest: Some(1),
                fastest: Some(2),
                recommended: Some(3)
            }
        );
        assert_eq!(rank(&[candidate(false, 1.0, 1)]), Marks::default());
    }
}
