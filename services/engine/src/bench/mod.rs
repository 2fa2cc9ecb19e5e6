//! How fast the engine is on this machine, and where the time goes.
//!
//! For callers: [`training`] times whole steps (forward, loss, backward, clip, optimiser) on a batch that is ready,
//! [`prediction`] times whole predictions (letterbox, forward, post-processing) of one picture. Both return a [`Report`]
//! with every single time, so that a caller who alternates with another engine can pool the runs of each.

mod prediction;
mod training;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

pub use prediction::{POST_PROCESSING, PredictionCase, prediction, threshold};
pub use training::training;

use crate::models::{self, ModelSpec};
use crate::network::{Images, InputShape, Network, State};
use crate::ops::simd::Level;
use crate::parallel::Threads;
use crate::plan::{self, Mode, Plan};
use crate::random::{Philox, Use};
use crate::{Error, Precision, Result};

/// The most steps of one measurement.
pub const STEPS_MAX: usize = 100_000;
/// Seed of weights, pictures and boxes.
const SEED: u64 = 1;

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub spec: ModelSpec,
    pub batch: usize,
    /// Side of the pictures.
    pub size: usize,
    pub threads: usize,
    pub precision: Precision,
    /// Steps that count; those before them fill caches and don't.
    pub steps: usize,
}

impl Case {
    fn check(&self) -> Result<()> {
        if self.steps == 0 || self.steps > STEPS_MAX {
            return Err(Error::Argument {
                argument: "steps",
                rule: format!("must be between 1 and {STEPS_MAX}, not {}", self.steps),
            });
        }
        Ok(())
    }
}

impl Case {
    fn network(&self, mode: Mode, threads: &Threads) -> Result<Network> {
        let shape = InputShape::square(self.batch, self.size);
        let options = plan::Options {
            precision: self.precision.here(),
            ..plan::Options::new(mode, threads.count())
        };
        Network::with_options(&self.spec, shape, options, threads)
    }
}

/// Times of one measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub model: String,
    pub batch: usize,
    pub imgsz: usize,
    pub threads: usize,
    /// What was asked for, which is not what every machine does.
    pub precision: Precision,
    /// The instruction set of the kernels.
    pub level: &'static str,
    /// Of each step, in order.
    pub seconds: Vec<f64>,
    pub seconds_median: f64,
    /// Of the median step.
    pub images_per_second: f64,
    /// Useful floating-point operations of a step.
    pub flops: u64,
    /// Memory of the plan beside the parameters.
    pub plan_bytes: u64,
    /// By kind of launch and by what is done outside the network, the longest first.
    pub parts: Vec<Part>,
}

/// One kind of work within a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    pub name: String,
    /// In one step.
    pub launches: usize,
    /// Of a step, mean over the steps.
    pub seconds: f64,
    pub share: f64,
    pub flops_per_second: f64,
    pub bytes_per_second: f64,
}

/// Collects times as steps go by.
struct Record<'a> {
    case: &'a Case,
    seconds: Vec<f64>,
    /// Time outside the network's launches.
    others: BTreeMap<&'static str, Duration>,
}

impl<'a> Record<'a> {
    fn new(case: &'a Case) -> Self {
        Self {
            case,
            seconds: Vec::new(),
            others: BTreeMap::new(),
        }
    }

    fn add(&mut self, name: &'static str, time: Duration) {
        *self.others.entry(name).or_default() += time;
    }

    fn step(&mut self, time: Duration) {
        self.seconds.push(time.as_secs_f64());
    }

    fn report(self, plan: &Plan, timings: &[Duration]) -> Report {
        let seconds_median = median(&self.seconds);
        let total = self.seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut sums: BTreeMap<String, (Duration, u64, u64, usize)> = BTreeMap::new();
        for (launch, time) in plan.launches().zip(timings) {
            let name = format!("{} {}", launch.kernel.kind(), plan.launch_shape(launch));
            let sum = sums.entry(name.trim_end().to_owned()).or_default();
            sum.0 += *time;
            sum.1 += launch.flops;
            sum.2 += launch.bytes;
            sum.3 += 1;
        }
        for (name, time) in self.others {
            sums.entry(name.to_owned()).or_default().0 += time;
        }
        let steps = self.seconds.len() as f64;
        let mut parts: Vec<Part> = sums
            .into_iter()
            .map(|(name, (time, flops, bytes, launches))| {
                let seconds = (time.as_secs_f64() / steps).max(f64::MIN_POSITIVE);
                Part {
                    name,
                    launches,
                    seconds,
                    share: time.as_secs_f64() / total,
                    flops_per_second: flops as f64 / seconds,
                    bytes_per_second: bytes as f64 / seconds,
                }
            })
            .collect();
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Report {
            model: self.case.spec.name(),
            batch: self.case.batch,
            imgsz: self.case.size,
            threads: self.case.threads,
            precision: self.case.precision,
            level: Level::best().name(),
            seconds_median,
            images_per_second: self.case.batch as f64 / seconds_median,
            seconds: self.seconds,
            flops: plan.flops(),
            plan_bytes: plan.peak_bytes(),
            parts,
        }
    }
}

/// Returns the middle value; of an even number the mean of the two.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    } else {
        sorted[middle]
    }
}

/// Returns fresh weights with the statistics that pictures give: with those of the beginning, values fade on their
/// way through the network until they are too small to be computed with at full speed.
pub fn settled_state(spec: &ModelSpec, threads: &Threads) -> Result<State> {
    /// The running statistics forget 3 % in each pass.
    const PASSES: usize = 100;
    let shape = InputShape::square(2, 64);
    let mut state = models::initialise(spec, SEED);
    let mut network = Network::train(spec, shape, threads)?;
    let pictures = noise(shape.pixel_count());
    for _ in 0..PASSES {
        network.forward(&mut state, Images::U8(&pictures));
    }
    Ok(state)
}

/// Returns `pixels` random RGB pixels.
fn noise(pixels: usize) -> Vec<u8> {
    let mut stream = Philox::new(SEED, 0, 0, Use::Picture);
    (0..3 * pixels)
        .map(|_| (stream.uniform_f32() * 255.0) as u8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::picture::Picture;

    fn case(steps: usize) -> Case {
        Case {
            spec: ModelSpec::parse("yolo11n", 3).unwrap(),
            batch: 2,
            size: 64,
            threads: 2,
            precision: Precision::F32,
            steps,
        }
    }

    fn check(report: &Report, steps: usize) {
        assert_eq!(report.seconds.len(), steps);
        assert!(report.seconds.iter().all(|&seconds| seconds > 0.0));
        let shares: f64 = report.parts.iter().map(|part| part.share).sum();
        assert!((0.5..1.01).contains(&shares), "{shares} of a step is seen");
        let order = report.parts.is_sorted_by(|a, b| a.seconds >= b.seconds);
        assert!(order && report.flops > 0 && report.plan_bytes > 0);
    }

    #[test]
    fn a_training_step_is_timed_whole_and_in_parts() {
        let report = training(&case(3)).unwrap();
        check(&report, 3);
        for name in ["loss", "optimiser"] {
            assert!(report.parts.iter().any(|part| part.name == name), "{name}");
        }
    }

    #[test]
    fn every_task_has_targets_to_train_on() {
        for name in ["yolo11n-seg", "yolo11n-cls", "yolo26n-pose", "yolov8n-obb"] {
            let spec = ModelSpec::parse(name, 3).unwrap();
            check(&training(&Case { spec, ..case(1) }).unwrap(), 1);
        }
    }

    #[test]
    fn a_prediction_is_timed_with_the_threshold_that_leaves_so_many_candidates() {
        let case = PredictionCase {
            case: Case {
                batch: 1,
                ..case(2)
            },
            picture: Picture::filled(90, 60, [200, 90, 30]),
            confidence: 0.0,
        };
        let state = settled_state(&case.case.spec, &Threads::new(2).unwrap()).unwrap();
        let limit = threshold(&case, &state, 5).unwrap();
        let report = prediction(
            &PredictionCase {
                confidence: limit,
                ..case.clone()
            },
            &state,
        )
        .unwrap();
        check(&report, 2);
        assert!(limit > 0.0 && threshold(&case, &state, 20).unwrap() < limit);
    }

    #[test]
    fn no_steps_are_refused() {
        let error = training(&case(0)).unwrap_err().to_string();
        assert!(error.starts_with("steps: must be between 1"), "{error}");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
