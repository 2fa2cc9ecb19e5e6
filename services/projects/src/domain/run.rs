//! The things themselves: runs, attempts, models, and the facts told about them.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::Amount;
use kit::id::{self, Id};
use kit::money::PricePerHour;
use kit::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::attempt::Outcome;
use super::state::State;
use crate::error::Error;

/// Values by the name of their metric.
pub type Metrics = BTreeMap<String, f64>;

/// The most values a call may carry.
const METRICS_MAX: usize = 1_000;
/// The longest name of a metric, in bytes.
pub(crate) const METRIC_NAME_MAX: usize = 128;
const ARGUMENTS_MAX: usize = 200;
const ARGUMENT_LENGTH_MAX: usize = 256;
const EPOCHS_MAX: i32 = 100_000;
const BATCH_MAX: i32 = 65_536;
const IMAGE_SIZE_MAX: i32 = 8_192;

/// What a run trains. Zero and empty stand for the recipe's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// A published name such as `yolo11n`.
    pub model: String,
    /// How often all images are seen.
    pub epochs: i32,
    /// Images in one step.
    pub batch: i32,
    /// The side of the square input in pixels.
    pub image_size: i32,
    /// Seeds order and augmentation.
    pub seed: u32,
    /// `auto`, `SGD` or `AdamW`.
    pub optimizer: String,
    /// The engine's other arguments by their standard names.
    pub arguments: BTreeMap<String, String>,
}

impl TrainSpec {
    /// Checks what can be checked without knowing the models; the estimator knows the rest.
    pub fn check(&self) -> Result<(), Error> {
        if self.model.is_empty() || self.model.len() > 64 {
            return Err(Error::field(
                "spec.model",
                "names a model in 1 to 64 characters",
            ));
        }
        in_range("spec.epochs", self.epochs, EPOCHS_MAX)?;
        in_range("spec.batch", self.batch, BATCH_MAX)?;
        in_range("spec.image_size", self.image_size, IMAGE_SIZE_MAX)?;
        if self.image_size % 32 != 0 {
            return Err(Error::field("spec.image_size", "is a multiple of 32"));
        }
        if self.arguments.len() > ARGUMENTS_MAX {
            return Err(Error::field(
                "spec.arguments",
                format!("has at most {ARGUMENTS_MAX}"),
            ));
        }
        let longest = self
            .arguments
            .iter()
            .map(|(name, value)| name.len().max(value.len()))
            .max();
        if longest.is_some_and(|length| length > ARGUMENT_LENGTH_MAX) {
            let rule = format!("names and values have at most {ARGUMENT_LENGTH_MAX} bytes");
            return Err(Error::field("spec.arguments", rule));
        }
        Ok(())
    }
}

fn in_range(field: &str, value: i32, max: i32) -> Result<(), Error> {
    if (0..=max).contains(&value) {
        Ok(())
    } else {
        Err(Error::field(field, format!("is 0 to {max}, not {value}")))
    }
}

/// Time and money as they were promised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The lower end of the band.
    pub time_low: Duration,
    /// The likely time.
    pub time_likely: Duration,
    /// The upper end of the band.
    pub time_high: Duration,
    /// The cost of the lower end.
    pub cost_low_micros: i64,
    /// The likely cost.
    pub cost_likely_micros: i64,
    /// The cost of the upper end.
    pub cost_high_micros: i64,
    /// `prior` or `fitted`.
    pub basis: String,
}

/// What an active run is asked to do as soon as its worker can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// End for good.
    Cancel,
    /// Give the device back and keep the checkpoint.
    Pause {
        /// `user`, `balance` or `cap`.
        cause: String,
    },
}

/// One training and all that is decided about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its id.
    pub id: Id<id::Run>,
    /// Whose it is.
    pub workspace_id: Id<id::Workspace>,
    /// Where it belongs.
    pub project_id: Id<id::Project>,
    /// What people call it.
    pub name: String,
    /// What it learns from.
    pub version_id: Id<id::Version>,
    /// What it trains.
    pub spec: TrainSpec,
    /// The classes of the version, in the order of their ids.
    pub class_names: Vec<String>,
    /// The device type it asked for.
    pub gpu_type: String,
    /// What an hour of committed compute costs.
    pub price: PricePerHour,
    /// What was promised.
    pub estimate: Estimate,
    /// The most it may cost, as asked; zero for the hold.
    pub cost_cap: Amount,
    /// What is held for it.
    pub hold: Amount,
    /// The client's key for `StartRun`, or empty.
    pub idempotency_key: String,
    /// Where it stands.
    pub state: State,
    /// Why it failed, paused or waits.
    pub cause: String,
    /// What its worker is asked to do.
    pub wish: Option<Wish>,
    /// Finished epochs.
    pub epochs_done: i32,
    /// Compute that moved the model forward, over all attempts.
    pub committed: Duration,
    /// The newest value of every metric.
    pub metrics: Metrics,
    /// What it produced.
    pub model_id: Option<Id<id::Model>>,
    /// Whether every attempt went on just as one uninterrupted run would have.
    pub is_bit_exact: bool,
    /// The highest fence that is known.
    pub fence: i64,
    /// The highest fence that may write no more.
    pub fence_closed: i64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When its first attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Its newest attempt.
    pub attempt: Option<Attempt>,
    /// Attempts that a newer one has replaced since the run was loaded.
    pub replaced: Vec<Attempt>,
}

/// One stretch of a run on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its id.
    pub id: Id<id::Attempt>,
    /// The fence of its lease.
    pub fence: i64,
    /// Who trains.
    pub worker_id: Id<id::Worker>,
    /// The device in words.
    pub device: String,
    /// Equal kinds train bit-exactly alike.
    pub device_kind: String,
    /// The checkpoint it went on from.
    pub resumed_from: Option<Id<id::Checkpoint>>,
    /// The step of that checkpoint; what earlier attempts measured after it is superseded.
    pub start_step: Option<i64>,
    /// The step of its newest checkpoint.
    pub last_step: Option<i64>,
    /// Its committed compute.
    pub committed: Duration,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why it ended so, for people.
    pub cause: String,
}

/// A file a worker made, stored as a blob of this service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// What it is; one of [`artifact_kinds`].
    pub kind: String,
    /// What to call it when it is fetched.
    pub file_name: String,
    /// BLAKE3 of its bytes, hex.
    pub digest: String,
    /// Its length.
    pub size_bytes: i64,
}

/// Returns what an artifact can be.
pub const fn artifact_kinds() -> [&'static str; 6] {
    ["weights", "last", "onnx", "results", "labels", "plots"]
}

/// A trained model with its files.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its id.
    pub id: Id<id::Model>,
    /// Whose it is.
    pub workspace_id: Id<id::Workspace>,
    /// Where it belongs.
    pub project_id: Id<id::Project>,
    /// The run that made it.
    pub run_id: Id<id::Run>,
    /// What people call it.
    pub name: String,
    /// The published name it was built from.
    pub architecture: String,
    /// Class names in the order of their ids.
    pub class_names: Vec<String>,
    /// The side of its input in pixels; 0 for the recipe's.
    pub image_size: i32,
    /// The validation of its best checkpoint.
    pub metrics: Metrics,
    /// What it learned from.
    pub version_id: Id<id::Version>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its files.
    pub artifacts: Vec<Artifact>,
}

/// Why a run is in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueCause {
    /// It was started.
    Start,
    /// It was paused and goes on.
    Resume,
    /// Its worker was lost.
    WorkerLost,
    /// Its worker gave it back.
    Drained,
}

impl QueueCause {
    /// Returns the word that facts carry.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Resume => "resume",
            Self::WorkerLost => "worker_lost",
            Self::Drained => "drained",
        }
    }
}

/// What became true of a run. The rest of what a hearer needs is the run itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// It waits for a device.
    Queued(QueueCause),
    /// A worker began its newest attempt.
    Started,
    /// A checkpoint is durable.
    Checkpointed {
        /// The checkpoint.
        checkpoint_id: Id<id::Checkpoint>,
        /// Finished epochs.
        epoch: i32,
        /// Optimiser steps.
        step: i64,
    },
    /// Its worker is asked to end it.
    CancelRequested,
    /// Its worker is asked to pause it.
    PauseRequested(String),
    /// It gave its device back.
    Paused,
    /// It ended well.
    Completed,
    /// It was ended.
    Cancelled,
    /// It can't go on.
    Failed,
    /// It produced a model.
    ModelCreated(Id<id::Model>),
}

impl Run {
    /// Returns the most it may cost in all.
    pub fn effective_cap(&self) -> Amount {
        if self.cost_cap.is_zero() {
            self.hold
        } else {
            self.cost_cap
        }
    }

    /// Takes new values of metrics; refuses what is no name or too many.
    pub fn learn_metrics(&mut self, metrics: &Metrics) -> Result<(), Error> {
        if metrics.len() > METRICS_MAX {
            return Err(Error::field(
                "metrics",
                format!("has at most {METRICS_MAX} values"),
            ));
        }
        if let Some(name) = metrics.keys().find(|name| !is_metric_name(name)) {
            let rule = format!("'{name}' is no name: 1 to {METRIC_NAME_MAX} printable bytes");
            return Err(Error::field("metrics", rule));
        }
        self.metrics
            .extend(metrics.iter().map(|(name, value)| (name.clone(), *value)));
        Ok(())
    }

    /// Refuses every fence that may write no more.
    pub(super) fn check_fence(&self, fence: i64) -> Result<(), Error> {
        if fence < self.fence || fence <= self.fence_closed {
            return Err(Error::StaleFence {
                given: fence,
                newest: self.fence,
            });
        }
        Ok(())
    }

    /// Returns the open attempt with this fence, or why it may not write.
    pub fn writing_attempt(&self, fence: i64) -> Result<&Attempt, Error> {
        self.check_fence(fence)?;
        let open = self
            .attempt
            .as_ref()
            .filter(|attempt| attempt.outcome.is_none());
        open.filter(|attempt| attempt.fence == fence)
            .ok_or(Error::AttemptNotBegun(fence))
    }

    /// Tells whether telemetry with this fence is of the newest attempt and not of a lost one.
    pub fn takes_telemetry(&self, fence: i64) -> bool {
        let newest = self.attempt.as_ref();
        fence >= self.fence
            && newest.is_some_and(|attempt| {
                attempt.fence == fence && attempt.outcome != Some(Outcome::Lost)
            })
    }
}

/// Tells whether a text can name a metric.
pub(crate) fn is_metric_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= METRIC_NAME_MAX
        && name.chars().all(|letter| !letter.is_control())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a queued run at 10 credits an hour, made at the start of 1970.
    pub fn queued() -> Run {
        let now = Timestamp::EPOCH;
        Run {
            id: Id::new(now),
            workspace_id: Id::new(now),
            project_id: Id::new(now),
            name: "yolo11n-1".into(),
            version_id: Id::new(now),
            spec: spec(),
            class_names: vec!["cell".into()],
            gpu_type: "cpu".into(),
            price: PricePerHour::from_micros(10_000_000).unwrap(),
            estimate: Estimate::default(),
            cost_cap: Amount::ZERO,
            hold: Amount::from_micros(1_000_000),
            idempotency_key: String::new(),
            state: State::Queued,
            cause: String::new(),
            wish: None,
            epochs_done: 0,
            committed: Duration::ZERO,
            metrics: Metrics::new(),
            model_id: None,
            is_bit_exact: true,
            fence: 0,
            fence_closed: 0,
            created_at: now,
            started_at: None,
            finished_at: None,
            attempt: None,
            replaced: Vec::new(),
        }
    }

    fn spec() -> TrainSpec {
        TrainSpec {
            model: "yolo11n".into(),
            epochs: 3,
            batch: 16,
            image_size: 320,
            seed: 0,
            optimizer: String::new(),
            arguments: BTreeMap::new(),
        }
    }

    #[test]
    fn a_spec_out_of_range_is_refused_by_the_field() {
        let refusal = |change: fn(&mut TrainSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check().unwrap_err().to_string()
        };
        assert!(spec().check().is_ok());
        assert!(refusal(|spec| spec.model.clear()).starts_with("spec.model"));
        assert!(refusal(|spec| spec.epochs = -1).starts_with("spec.epochs"));
        assert!(refusal(|spec| spec.batch = 100_000).starts_with("spec.batch"));
        assert_eq!(
            refusal(|spec| spec.image_size = 100),
            "spec.image_size: is a multiple of 32"
        );
        assert!(
            refusal(|spec| drop(spec.arguments.insert("x".repeat(300), String::new())))
                .starts_with("spec.arguments")
        );
    }
}
