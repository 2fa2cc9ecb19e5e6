//! What a run tells while it goes on, and how the caller steers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::columns::Columns;
use super::row::Row;
use crate::Result;
use crate::models::Task;

/// What is known before the first step.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    pub model: String,
    pub parameters: usize,
    pub classes: Vec<String>,
    pub train_images: usize,
    pub val_images: usize,
    pub epochs: u32,
    pub batches_per_epoch: u32,
    /// Where the run goes on; zero for a new one.
    pub epoch: u32,
    pub batch: u32,
    /// The optimiser by name and its learning rate.
    pub optimizer: String,
    pub learning_rate: f64,
    pub threads: usize,
    /// Memory of one step, as planned.
    pub plan_bytes: u64,
}

/// One training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Counted from 1.
    pub epoch: u32,
    pub epochs: u32,
    /// Counted from 1.
    pub batch: u32,
    pub batches: u32,
    /// Batches since the run began, this one included.
    pub iteration: u64,
    pub columns: Columns,
    /// Of this batch.
    pub losses: Row,
    /// The same, mean over the epoch so far.
    pub mean_losses: Row,
    /// Of weights, norms and biases; MuSGD has more groups.
    pub learning_rates: Row,
    /// Length of the gradient, when this batch ended an optimiser step.
    pub gradient_norm: Option<f64>,
    pub images: usize,
    pub objects: usize,
    /// Of this step, loading included.
    pub images_per_second: f64,
    /// Share of the epoch's time so far spent waiting for data.
    pub data_wait_share: f64,
}

/// One finished epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: u32,
    /// Seconds since the run began.
    pub seconds: f64,
    /// What losses and measures are called.
    #[serde(default)]
    pub columns: Columns,
    /// Mean over the epoch.
    pub losses: Row,
    /// Of weights, norms and biases, at the last step; MuSGD has more groups.
    pub learning_rates: Row,
    /// What the averaged model reached, when it was validated.
    pub validation: Option<Scores>,
    /// Whether no epoch before was better.
    pub is_best: bool,
    pub images_per_second: f64,
    /// Share of the epoch's training time spent waiting for data.
    pub data_wait_share: f64,
}

impl EpochReport {
    /// Returns losses and measures with their names, such as `train/box_loss`.
    pub fn named(&self) -> Vec<(String, f64)> {
        let losses = |split: &str, row: &Row| -> Vec<(String, f64)> {
            let names = self.columns.loss_names().iter();
            names
                .zip(row.iter())
                .map(|(name, &value)| (format!("{split}/{name}"), value))
                .collect()
        };
        let mut named = losses("train", &self.losses);
        if let Some(scores) = &self.validation {
            let names = self.columns.metric_names().into_iter();
            let names = names.map(|name| format!("metrics/{name}"));
            named.extend(names.zip(scores.metrics(self.columns.task)));
            named.extend(losses("val", &scores.losses));
        }
        named
    }

    /// Clears what differs between two runs with the same result.
    pub fn forget_time(&mut self) {
        self.seconds = 0.0;
        self.images_per_second = 0.0;
        self.data_wait_share = 0.0;
    }
}

/// How good a model is on a split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub precision: f64,
    pub recall: f64,
    pub map50: f64,
    pub map50_95: f64,
    /// The same four for masks or keypoints, where the task has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<[f64; 4]>,
    /// Of classification, which has nothing of the above: share of pictures whose class came first, or among the first
    /// five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<[f64; 2]>,
    /// The loss items.
    pub losses: Row,
}

impl Scores {
    /// Returns the number by which models are compared.
    pub fn fitness(&self) -> f64 {
        match self.accuracy {
            Some([top1, top5]) => (top1 + top5) / 2.0,
            None => self.map50_95 + self.second.map_or(0.0, |[_, _, _, map50_95]| map50_95),
        }
    }

    /// Returns what was measured, in the order of [`Columns::metric_names`].
    pub fn metrics(&self, task: Task) -> Vec<f64> {
        if task == Task::Classify {
            return self.accuracy.unwrap_or_default().to_vec();
        }
        let mut values = vec![self.precision, self.recall, self.map50, self.map50_95];
        if matches!(task, Task::Segment | Task::Pose) {
            values.extend(self.second.unwrap_or_default());
        }
        values
    }
}

/// Returns the number, or the largest one where it is none: JSON has no word for that.
pub(crate) fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}

/// Why a checkpoint is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// An epoch ended; `is_best` when its model is the best so far.
    Epoch { is_best: bool },
    /// The caller asked for one.
    Request,
    /// The caller asked to stop.
    Stop,
}

/// Hears how a run goes. An error from any of these ends the run with it.
pub trait Progress {
    /// Called once, before the first step.
    fn on_start(&mut self, _started: &Started) -> Result<()> {
        Ok(())
    }

    /// Called after each batch.
    fn on_step(&mut self, _step: &StepReport) -> Result<()> {
        Ok(())
    }

    /// Called after each epoch, before its checkpoint.
    fn on_epoch(&mut self, _epoch: &EpochReport) -> Result<()> {
        Ok(())
    }

    /// Called with each checkpoint, the bytes of a file.
    fn on_checkpoint(&mut self, _reason: Reason, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Called with what a person should know: pictures left out, losses that are not finite.
    fn on_note(&mut self, _note: &str) -> Result<()> {
        Ok(())
    }
}

/// Hears nothing.
impl Progress for () {}

/// Steers a run from another thread; clones steer the same run.
#[derive(Debug, Clone, Default)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    checkpoint: Arc<AtomicBool>,
}

impl StopHandle {
    /// Asks the run to finish its step, hand over a checkpoint and return.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Asks for a checkpoint after the present step.
    pub fn request_checkpoint(&self) {
        self.checkpoint.store(true, Ordering::Release);
    }

    /// Returns whether the run is asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns whether a checkpoint is asked for, and forgets it.
    pub(super) fn take_checkpoint_request(&self) -> bool {
        self.checkpoint.swap(false, Ordering::AcqRel)
    }
}
