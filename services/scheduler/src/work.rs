//! What a training asks of a device, counted by the engine's own plan without running anything.

use engine::models::{self, ModelSpec};
use engine::network::InputShape;
use engine::plan::{self, Mode, Plan, Target, TrainingMemory, VALIDATION_BATCHES};
use engine::train::TrainOptions;
use proto::fovea::runs::v1::TrainSpec;

use crate::domain::estimate::Work;
use crate::error::Error;

/// The recipe's defaults.
const BATCH: i32 = 16;
const IMAGE_SIZE: i32 = 640;
const EPOCHS: i32 = 100;
const MODEL: &str = "yolo11n";
/// The most epochs a run may ask for.
const EPOCHS_MAX: i32 = 10_000;
/// Threads only move scratch memory about; the count is for the largest that workers have.
const PLAN_THREADS: usize = 2;

/// A training as the engine understands it, with every default filled in.
#[derive(Debug, Clone)]
pub struct Training {
    pub spec: TrainSpec,
    model: ModelSpec,
    batch: usize,
    side: usize,
}

impl Training {
    /// Checks a specification and fills in the defaults.
    pub fn new(spec: TrainSpec, class_count: usize) -> Result<Self, Error> {
        let or = |value: i32, default: i32| if value == 0 { default } else { value };
        let spec = TrainSpec {
            model: if spec.model.is_empty() {
                MODEL.to_owned()
            } else {
                spec.model
            },
            epochs: or(spec.epochs, EPOCHS),
            batch: or(spec.batch, BATCH),
            image_size: or(spec.image_size, IMAGE_SIZE),
            ..spec
        };
        let model = ModelSpec::parse(&spec.model, class_count)?;
        if !(1..=EPOCHS_MAX).contains(&spec.epochs) {
            let rule = format!("{} is not between 1 and {EPOCHS_MAX}", spec.epochs);
            return Err(Error::Invalid {
                field: "spec.epochs",
                rule,
            });
        }
        let batch = usize::try_from(spec.batch).ok().filter(|batch| *batch >= 1);
        let batch = batch.ok_or_else(|| Error::Invalid {
            field: "spec.batch",
            rule: format!("{} is not a number of images", spec.batch),
        })?;
        let side = usize::try_from(spec.image_size).unwrap_or(0);
        InputShape::square(batch, side).check()?;
        let mut options = TrainOptions::default();
        if !spec.optimizer.is_empty() {
            options.set("optimizer", &spec.optimizer)?;
        }
        for (name, value) in &spec.arguments {
            options.set(name, value)?;
        }
        options.check()?;
        Ok(Self {
            spec,
            model,
            batch,
            side,
        })
    }

    /// Counts what one image takes in training and in validation.
    pub fn work(
        &self,
        target: Target,
        train_image_count: u64,
        val_image_count: u64,
    ) -> Result<Work, Error> {
        let step = self.plan(target, self.batch, Mode::Train)?;
        let forward = self.plan(target, self.batch * VALIDATION_BATCHES, Mode::Infer)?;
        let (batch, forward_batch) = (self.batch as f64, (self.batch * VALIDATION_BATCHES) as f64);
        Ok(Work {
            step_flops_per_image: step.flops() as f64 / batch,
            step_bytes_per_image: step.traffic_bytes() as f64 / batch,
            forward_flops_per_image: forward.flops() as f64 / forward_batch,
            forward_bytes_per_image: forward.traffic_bytes() as f64 / forward_batch,
            parameter_count: self.parameter_count() as f64,
            train_image_count,
            val_image_count,
            epochs: u64::from(self.spec.epochs.unsigned_abs()),
        })
    }

    /// Returns the memory that the training holds at its peak.
    pub fn needed_bytes(&self, target: Target) -> Result<u64, Error> {
        let shape = InputShape::square(self.batch.min(InputShape::BATCH_MAX), self.side);
        let memory = TrainingMemory::new(&self.model, shape, options(target, Mode::Train))?;
        Ok(memory.total())
    }

    /// Returns the largest batch whose training fits into this much memory, or 0.
    pub fn largest_batch(&self, target: Target, memory_bytes: u64) -> Result<usize, Error> {
        let shape = InputShape::square(1, self.side);
        let options = options(target, Mode::Train);
        Ok(plan::largest_training_batch(
            &self.model,
            shape,
            options,
            memory_bytes,
        )?)
    }

    fn plan(&self, target: Target, batch: usize, mode: Mode) -> Result<Plan, Error> {
        let batch = batch.min(InputShape::BATCH_MAX);
        let shape = InputShape::square(batch, self.side);
        Ok(Plan::new(&self.model, shape, options(target, mode))?)
    }

    fn parameter_count(&self) -> u64 {
        models::tables(&self.model)
            .parameters
            .iter()
            .map(|tensor| tensor.element_count() as u64)
            .sum()
    }
}

fn options(target: Target, mode: Mode) -> plan::Options {
    plan::Options {
        target,
        ..plan::Options::new(mode, PLAN_THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TrainSpec {
        TrainSpec {
            image_size: 320,
            ..TrainSpec::default()
        }
    }

    #[test]
    fn defaults_are_the_recipe_s() {
        let training = Training::new(TrainSpec::default(), 3).unwrap();
        let spec = &training.spec;
        assert_eq!(
            (spec.model.as_str(), spec.epochs, spec.batch),
            ("yolo11n", 100, 16)
        );
        assert_eq!(spec.image_size, 640);
    }

    #[test]
    fn counts_agree_with_the_published_ones() {
        // 6.481 GFLOP forward at 640² with 80 classes; a training step is about three times that.
        let training = Training::new(TrainSpec::default(), 80).unwrap();
        let work = training.work(Target::Cpu, 10, 5).unwrap();
        assert!(
            (work.forward_flops_per_image / 6.481e9 - 1.0).abs() < 0.05,
            "{work:?}"
        );
        let ratio = work.step_flops_per_image / work.forward_flops_per_image;
        assert!((2.7..3.3).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let memory = 4 << 30;
        let training = Training::new(spec(), 3).unwrap();
        let largest = training.largest_batch(Target::Cpu, memory).unwrap();
        assert!(largest >= 1);
        let needed = |batch: usize| {
            let training = Training {
                batch,
                ..training.clone()
            };
            training.needed_bytes(Target::Cpu).unwrap()
        };
        assert!(needed(largest) <= memory && needed(largest * 2) > memory);
        assert_eq!(training.largest_batch(Target::Cpu, 1 << 20).unwrap(), 0);
    }

    #[test]
    fn settings_that_break_a_rule_are_refused_by_name() {
        for (spec, words) in [
            (
                TrainSpec {
                    model: "yolo99".into(),
                    ..spec()
                },
                "unknown model 'yolo99'",
            ),
            (
                TrainSpec {
                    epochs: -1,
                    ..spec()
                },
                "spec.epochs",
            ),
            (
                TrainSpec {
                    batch: -1,
                    ..spec()
                },
                "spec.batch",
            ),
            (
                TrainSpec {
                    image_size: 100,
                    ..spec()
                },
                "32",
            ),
            (
                TrainSpec {
                    optimizer: "Lion".into(),
                    ..spec()
                },
                "Lion",
            ),
            (
                TrainSpec {
                    arguments: [("mosiac".into(), "1".into())].into(),
                    ..spec()
                },
                "mosiac",
            ),
        ] {
            let refused = Training::new(spec, 3).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
