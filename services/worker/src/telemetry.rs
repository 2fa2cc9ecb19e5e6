//! What a worker says about a run while it trains: metrics, progress, logs, host samples. May be thinned.

use std::collections::HashMap;
use std::time::Duration;

use engine::train::{EpochReport, StepReport};
use kit::bus::Bus;
use kit::id::{Id, Run, Workspace};
use kit::{Clock, Timestamp};
use proto::fovea::telemetry::v1::{HostSample, LogEntry, MetricBatch, Progress};

/// The shortest time between two step metrics, and between two words on progress.
const METRICS_EVERY: Duration = Duration::from_millis(200);
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Speaks for one attempt.
pub struct Voice {
    bus: Bus,
    clock: Clock,
    workspace_id: Id<Workspace>,
    run_id: Id<Run>,
    fence: i64,
    next_log: i64,
    metrics_at: Timestamp,
    progress_at: Timestamp,
}

impl Voice {
    /// Returns the voice of an attempt; `next_log` is the sequence of its first line.
    pub fn new(
        bus: Bus,
        clock: Clock,
        workspace_id: Id<Workspace>,
        run_id: Id<Run>,
        fence: i64,
        next_log: i64,
    ) -> Self {
        Self {
            bus,
            clock,
            workspace_id,
            run_id,
            fence,
            next_log,
            metrics_at: Timestamp::EPOCH,
            progress_at: Timestamp::EPOCH,
        }
    }

    /// Writes a line of the run's log.
    pub async fn log(&mut self, level: &str, message: impl Into<String>) {
        let entry = LogEntry {
            at: Some(self.clock.now().into()),
            level: level.to_owned(),
            message: message.into(),
            sequence: self.next_log,
            fence: self.fence,
        };
        self.next_log += 1;
        self.bus
            .publish_telemetry(self.workspace_id, "logs", self.run_id, &entry)
            .await;
    }

    /// Tells the losses of a step and how far the run is, unless that was told just now.
    pub async fn step(&mut self, step: &StepReport, remaining: Duration) {
        let now = self.clock.now();
        let is_last = step.batch == step.batches;
        // The epoch's own metrics come with the same step right after its last batch.
        if !is_last && now.since(self.metrics_at) >= METRICS_EVERY {
            self.metrics_at = now;
            let names = step.columns.loss_names().iter();
            let values = names
                .zip(step.mean_losses.iter())
                .map(|(name, &value)| (format!("train/{name}"), value))
                .collect();
            self.metrics(step.iteration, step.epoch, values).await;
        }
        if is_last || now.since(self.progress_at) >= PROGRESS_EVERY {
            self.progress_at = now;
            let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
            let progress = Progress {
                at: Some(now.into()),
                epoch: number(step.epoch.saturating_sub(1)),
                epochs: number(step.epochs),
                batch_index: number(step.batch),
                batch_count: number(step.batches),
                images_per_second: step.images_per_second,
                data_wait_share: step.data_wait_share,
                remaining_seconds: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
                fence: self.fence,
            };
            self.bus
                .publish_telemetry(self.workspace_id, "progress", self.run_id, &progress)
                .await;
        }
    }

    /// Tells everything that is known at an epoch's end.
    pub async fn epoch(&self, iteration: u64, epoch: &EpochReport) {
        let mut values = epoch_metrics(epoch);
        for (group, rate) in epoch.learning_rates.iter().enumerate() {
            values.insert(format!("lr/pg{group}"), *rate);
        }
        self.metrics(iteration, epoch.epoch, values).await;
    }

    async fn metrics(&self, iteration: u64, epoch: u32, values: HashMap<String, f64>) {
        let batch = MetricBatch {
            step: i64::try_from(iteration).unwrap_or(i64::MAX),
            epoch: i32::try_from(epoch.saturating_sub(1)).unwrap_or(i32::MAX),
            at: Some(self.clock.now().into()),
            values,
            fence: self.fence,
        };
        self.bus
            .publish_telemetry(self.workspace_id, "metrics", self.run_id, &batch)
            .await;
    }

    /// Tells how the machine is doing.
    pub async fn sample(&self, sample: HostSample) {
        let at = Some(self.clock.now().into());
        let sample = HostSample {
            at,
            fence: self.fence,
            ..sample
        };
        self.bus
            .publish_telemetry(self.workspace_id, "samples", self.run_id, &sample)
            .await;
    }
}

/// Returns an epoch's losses and validation by their standard names.
pub fn epoch_metrics(epoch: &EpochReport) -> HashMap<String, f64> {
    epoch.named().into_iter().collect()
}
