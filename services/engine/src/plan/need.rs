//! How much memory a training takes, and what batch fits: the one answer that the command line and the scheduler give.

use super::{Mode, Options, Plan, largest_batch};
use crate::models::{self, ModelSpec};
use crate::network::InputShape;
use crate::{Error, Result};

/// Validation runs this many training batches at once: without a way back it needs far less memory.
pub const VALIDATION_BATCHES: usize = 2;
/// f32 copies of each parameter beside the plan: weights, gradients, average and two moments.
const PARAMETER_COPIES: u64 = 5;

/// What a training holds at its peak, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingMemory {
    /// The training plan's arena and images.
    pub training: u64,
    /// The validation plan's, held at the same time.
    pub validation: u64,
    /// Parameters with all that belongs to them.
    pub parameters: u64,
    /// What is gone before anything is planned.
    pub overhead: u64,
}

impl TrainingMemory {
    /// Counts, without running anything. `options` are those of the training; batches above the largest there is count
    /// as that.
    pub fn new(spec: &ModelSpec, shape: InputShape, options: Options) -> Result<Self> {
        let peak = |batch: usize, mode| {
            let batch = batch.min(InputShape::BATCH_MAX);
            let options = Options { mode, ..options };
            Ok::<_, Error>(Plan::new(spec, InputShape { batch, ..shape }, options)?.peak_bytes())
        };
        Ok(Self {
            training: peak(shape.batch, Mode::Train)?,
            validation: peak(shape.batch * VALIDATION_BATCHES, Mode::Infer)?,
            parameters: parameter_bytes(spec),
            overhead: options.target.overhead_bytes(),
        })
    }

    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.training + self.validation + self.parameters + self.overhead
    }
}

/// Returns the largest batch whose training fits into this much memory, or 0.
pub fn largest_training_batch(
    spec: &ModelSpec,
    shape: InputShape,
    options: Options,
    memory_bytes: u64,
) -> Result<usize> {
    let beside = parameter_bytes(spec) + options.target.overhead_bytes();
    let room = memory_bytes.saturating_sub(beside);
    let mut batch = largest_batch(spec, shape, options, room)?;
    // The validation plan is small beside the training plan, so few steps down are enough.
    while batch > 0 {
        let shape = InputShape { batch, ..shape };
        if TrainingMemory::new(spec, shape, options)?.total() <= memory_bytes {
            break;
        }
        batch -= 1.max(batch / 16);
    }
    Ok(batch)
}

fn parameter_bytes(spec: &ModelSpec) -> u64 {
    let tensors = models::tables(spec).parameters;
    let count: u64 = tensors
        .iter()
        .map(|tensor| tensor.element_count() as u64)
        .sum();
    count * PARAMETER_COPIES * size_of::<f32>() as u64
}
