//! One attempt: from a lease to the run's ending, through everything that may go wrong between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::checkpoint::Checkpoint;
use engine::clock::Stopwatch;
use engine::train::{Ending, Reason, StopHandle, TrainOptions};
use kit::Clock;
use kit::bus::Bus;
use kit::fault::Fault;
use kit::id::Id;
use kit::service::Channel;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::fleet::v1::fleet_service_client::FleetServiceClient;
use proto::fovea::fleet::v1::{
    ExtendLeaseRequest, Lease, LeaseProgress, ReleaseLeaseRequest, Wish,
};
use proto::fovea::runs::v1::run_service_client::RunServiceClient;
use proto::fovea::runs::v1::{
    Artifact, BeginAttemptRequest, BeginAttemptResponse, FinishAttemptRequest,
    RecordCheckpointRequest, ReportPhaseRequest, Run, RunState, SignBlobRequest, TrainSpec,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::calls::patiently;
use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::host::Counters;
use crate::telemetry::{Voice, epoch_metrics};
use crate::training::{self, Assignment, Outcome, Told};
use crate::transfer::Transfer;

/// What the training may be ahead of its telling.
const TOLD_MAX: usize = 32;
/// The longest a checkpoint interval is, if the fleet names none.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(300);
/// How long an ending is tried to be told after the process was asked to stop.
const FAREWELL: Duration = Duration::from_secs(8);

/// What a worker needs for every attempt.
#[derive(Clone)]
pub struct Worker {
    pub worker_id: String,
    pub device: Device,
    pub config: Config,
    pub heartbeat: Duration,
    pub bus: Bus,
    pub clock: Clock,
    pub runs: RunServiceClient<Channel>,
    pub fleet: FleetServiceClient<Channel>,
    pub datasets: DatasetServiceClient<Channel>,
    pub cache: Cache,
    pub transfer: Transfer,
    pub shutdown: CancellationToken,
}

/// How an attempt ended, as the contract calls it.
struct Ended {
    outcome: &'static str,
    cause: String,
    committed: Duration,
    epochs_done: u32,
    artifacts: Vec<Artifact>,
    /// What the best checkpoint reached, of a completed run.
    metrics: HashMap<String, f64>,
    trained: Option<Outcome>,
}

impl Worker {
    /// Trains the run of a lease.
    pub async fn attempt(&self, lease: Lease) {
        let over = CancellationToken::new();
        let (wishes, wished) = watch::channel(Wish::Run);
        let (progress, progressed) = watch::channel(LeaseProgress::default());
        let heart =
            tokio::spawn(
                self.clone()
                    .beat(lease.clone(), over.clone(), wishes, progressed),
            );
        let run_id = lease.run_id.clone();
        let trained = self.train(&lease, &over, wished, progress).await;
        match trained {
            Ok(ended) => {
                tracing::info!(run = run_id, outcome = ended.outcome, "an attempt ended");
            }
            Err(Error::LeaseLost) => tracing::warn!(run = run_id, "the lease was lost"),
            Err(error) => {
                let error = kit::fault::chain(&error);
                tracing::warn!(run = run_id, error, "an attempt was given up");
            }
        }
        over.cancel();
        // It ends with `over`; a panic in it was logged.
        let _ = heart.await;
    }

    /// Extends the lease again and again, and brings back what is wished.
    async fn beat(
        self,
        lease: Lease,
        over: CancellationToken,
        wishes: watch::Sender<Wish>,
        progressed: watch::Receiver<LeaseProgress>,
    ) {
        loop {
            let progress = progressed.borrow().clone();
            let request = ExtendLeaseRequest {
                lease_id: lease.id.clone(),
                fence: lease.fence,
                progress: Some(progress),
            };
            let answer = patiently(&over, || {
                let (mut fleet, request) = (self.fleet.clone(), request.clone());
                async move { fleet.extend_lease(request).await }
            })
            .await;
            match answer {
                Ok(answer) => {
                    wishes.send_if_modified(|wish| {
                        let is_new = *wish != answer.wish();
                        *wish = answer.wish();
                        is_new
                    });
                }
                Err(error) => {
                    if !over.is_cancelled() {
                        let error = kit::fault::chain(&error);
                        tracing::warn!(run = lease.run_id, error, "can't extend the lease");
                    }
                    over.cancel();
                    return;
                }
            }
            tokio::select! {
                () = over.cancelled() => return,
                () = tokio::time::sleep(self.heartbeat) => {}
            }
        }
    }

    async fn train(
        &self,
        lease: &Lease,
        over: &CancellationToken,
        wished: watch::Receiver<Wish>,
        progress: watch::Sender<LeaseProgress>,
    ) -> Result<Ended, Error> {
        let begun = self.begin(lease, over).await?;
        let run = begun.run.clone().unwrap_or_default();
        let mut voice = Voice::new(
            self.bus.clone(),
            self.clock.clone(),
            Id::parse_field("workspace_id", &begun.workspace_id)?,
            Id::parse_field("run_id", &lease.run_id)?,
            lease.fence,
            begun.next_log_sequence,
        );
        let device = &self.device.description.device;
        voice
            .log("info", format!("attempt {} on {device}", lease.fence))
            .await;
        let mut attempt = Attempt {
            worker: self,
            lease,
            over,
            run,
            committed: Duration::ZERO,
        };
        let ended = match attempt.run(&begun, &mut voice, wished, progress).await {
            Ok(ended) => ended,
            Err(Error::Run(cause)) => {
                voice.log("error", &cause).await;
                attempt.ended("failed", cause)
            }
            Err(Error::Fault(fault)) => {
                let cause = fault.to_string();
                voice.log("error", &cause).await;
                attempt.ended("failed", cause)
            }
            Err(gone) => return Err(gone),
        };
        attempt.finish(&ended).await?;
        Ok(ended)
    }

    async fn begin(
        &self,
        lease: &Lease,
        over: &CancellationToken,
    ) -> Result<BeginAttemptResponse, Error> {
        let request = BeginAttemptRequest {
            run_id: lease.run_id.clone(),
            fence: lease.fence,
            worker_id: self.worker_id.clone(),
            device: self.device.description.device.clone(),
            device_kind: self.device.kind.clone(),
        };
        patiently(over, || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.begin_attempt(request).await }
        })
        .await
    }
}

struct Attempt<'a> {
    worker: &'a Worker,
    lease: &'a Lease,
    over: &'a CancellationToken,
    run: Run,
    /// Compute of this attempt that a recorded checkpoint holds.
    committed: Duration,
}

impl Attempt<'_> {
    async fn run(
        &mut self,
        begun: &BeginAttemptResponse,
        voice: &mut Voice,
        mut wished: watch::Receiver<Wish>,
        progress: watch::Sender<LeaseProgress>,
    ) -> Result<Ended, Error> {
        self.report(RunState::Preparing).await?;
        let dataset = self
            .worker
            .cache
            .fetch(&self.worker.datasets, &self.run.version_id, self.over)
            .await?;
        let counts = (dataset.train.len(), dataset.val.len());
        voice
            .log(
                "info",
                format!("{} training, {} validation images", counts.0, counts.1),
            )
            .await;
        let checkpoint = match &begun.resume_from {
            Some(from) => {
                let bytes = self
                    .worker
                    .transfer
                    .get(&begun.resume_url, &from.digest, self.over)
                    .await?;
                let checkpoint = Checkpoint::from_bytes(&bytes, &from.id)?;
                voice
                    .log(
                        "info",
                        format!("goes on after epoch {} step {}", from.epoch, from.step),
                    )
                    .await;
                Some(checkpoint)
            }
            None => None,
        };
        let mut best = match &begun.best_checkpoint {
            Some(from) => Some(
                self.worker
                    .transfer
                    .get(&begun.best_url, &from.digest, self.over)
                    .await?,
            ),
            None => None,
        };
        let options = options(self.run.spec.as_ref(), self.worker.device.threads)?;
        let assignment = Assignment {
            options,
            dataset: Arc::new(dataset),
            checkpoint,
        };
        self.report(RunState::Training).await?;

        let stop = StopHandle::default();
        let (teller, mut told) = mpsc::channel(TOLD_MAX);
        let thread = {
            let stop = stop.clone();
            tokio::task::spawn_blocking(move || training::train(assignment, &stop, teller))
        };
        let interval = begun
            .checkpoint_interval
            .and_then(|interval| Duration::try_from(interval).ok())
            .filter(|interval| !interval.is_zero())
            .unwrap_or(CHECKPOINT_INTERVAL);
        let listened = self
            .listen(
                &mut told,
                &stop,
                voice,
                &mut wished,
                &progress,
                interval,
                &mut best,
            )
            .await;
        if listened.is_err() {
            stop.stop();
        }
        // The training's own end unblocks only when nobody holds the channel.
        drop(told);
        let trained = thread.await.map_err(Fault::internal)?;
        listened?;
        let outcome = trained?;
        let wish = *wished.borrow();
        self.conclude(outcome, voice, wish, best).await
    }

    /// Hears the training until it ends: passes on what it tells, stores checkpoints, obeys wishes.
    #[expect(
        clippy::too_many_arguments,
        reason = "one loop that ties an attempt's ends together"
    )]
    async fn listen(
        &mut self,
        told: &mut mpsc::Receiver<Told>,
        stop: &StopHandle,
        voice: &mut Voice,
        wished: &mut watch::Receiver<Wish>,
        progress: &watch::Sender<LeaseProgress>,
        interval: Duration,
        best: &mut Option<Bytes>,
    ) -> Result<(), Error> {
        let mut sampling = tokio::time::interval(self.worker.config.sample_every);
        let mut counters = (Counters::read(), Stopwatch::start());
        let mut checkpointed = Stopwatch::start();
        let mut metrics = HashMap::new();
        let mut iteration = 0;
        let mut has_wish = true;
        loop {
            tokio::select! {
                biased;
                () = self.over.cancelled() => return Err(Error::LeaseLost),
                () = self.worker.shutdown.cancelled(), if !stop.is_stopped() => stop.stop(),
                changed = wished.changed(), if has_wish => {
                    has_wish = changed.is_ok();
                    if *wished.borrow() != Wish::Run {
                        stop.stop();
                    }
                }
                _ = sampling.tick() => {
                    let now = (Counters::read(), Stopwatch::start());
                    let sample = now.0.since(&counters.0, counters.1.elapsed());
                    counters = now;
                    voice.sample(sample).await;
                    if checkpointed.elapsed() >= interval {
                        checkpointed = Stopwatch::start();
                        stop.request_checkpoint();
                    }
                }
                next = told.recv() => match next {
                    None => return Ok(()),
                    Some(Told::Started(started)) => {
                        let text = format!(
                            "{}: {} parameters, {} with learning rate {}, {} threads, {} MiB planned",
                            started.model, started.parameters, started.optimizer,
                            started.learning_rate, started.threads, started.plan_bytes >> 20
                        );
                        voice.log("info", text).await;
                    }
                    Some(Told::Step(step)) => {
                        iteration = step.iteration;
                        let left = remaining(&step);
                        voice.step(&step, left).await;
                        progress.send_replace(lease_progress(&step));
                    }
                    Some(Told::Epoch(epoch)) => {
                        metrics = epoch_metrics(&epoch);
                        voice.epoch(iteration, &epoch).await;
                        if let Some(scores) = &epoch.validation {
                            let text = format!(
                                "epoch {}: mAP50 {:.4}, mAP50-95 {:.4}",
                                epoch.epoch, scores.map50, scores.map50_95
                            );
                            voice.log("info", text).await;
                        }
                    }
                    Some(Told::Note(note)) => voice.log("warn", note).await,
                    Some(Told::Checkpoint { reason, bytes, compute }) => {
                        let is_best = matches!(reason, Reason::Epoch { is_best: true });
                        let is_epoch = matches!(reason, Reason::Epoch { .. });
                        if is_best {
                            *best = Some(bytes.clone());
                        }
                        let told = if is_epoch { metrics.clone() } else { HashMap::new() };
                        self.record(bytes, compute, told, is_best).await?;
                        checkpointed = Stopwatch::start();
                    }
                },
            }
        }
    }

    /// Stores a checkpoint and has it recorded: from here on its compute is committed.
    async fn record(
        &mut self,
        bytes: Bytes,
        compute: Duration,
        metrics: HashMap<String, f64>,
        is_best: bool,
    ) -> Result<(), Error> {
        let position = Checkpoint::from_bytes(&bytes, "just written")?
            .header
            .position;
        let (digest, size_bytes) = self.store(bytes).await?;
        let request = RecordCheckpointRequest {
            run_id: self.lease.run_id.clone(),
            fence: self.lease.fence,
            epoch: i32::try_from(position.epoch).unwrap_or(i32::MAX),
            step: i64::try_from(position.iteration).unwrap_or(i64::MAX),
            digest,
            size_bytes,
            committed: prost_types::Duration::try_from(compute).ok(),
            metrics,
            is_best,
        };
        patiently(self.over, || {
            let (mut runs, request) = (self.worker.runs.clone(), request.clone());
            async move { runs.record_checkpoint(request).await }
        })
        .await?;
        self.committed = compute;
        Ok(())
    }

    /// Stores bytes as a blob of the run's workspace.
    async fn store(&self, bytes: Bytes) -> Result<(String, i64), Error> {
        let digest = {
            let bytes = bytes.clone();
            let hashing = tokio::task::spawn_blocking(move || blake3::hash(&bytes));
            hashing.await.map_err(Fault::internal)?.to_hex().to_string()
        };
        let size_bytes = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let request = SignBlobRequest {
            run_id: self.lease.run_id.clone(),
            fence: self.lease.fence,
            digest: digest.clone(),
            size_bytes,
        };
        let signed = patiently(self.over, || {
            let (mut runs, request) = (self.worker.runs.clone(), request.clone());
            async move { runs.sign_blob(request).await }
        })
        .await?;
        if !signed.exists {
            self.worker
                .transfer
                .put(&signed.url, bytes, self.over)
                .await?;
        }
        Ok((digest, size_bytes))
    }

    async fn conclude(
        &mut self,
        outcome: Outcome,
        voice: &mut Voice,
        wish: Wish,
        best: Option<Bytes>,
    ) -> Result<Ended, Error> {
        if outcome.ending == Ending::Stopped {
            let (word, cause) = match wish {
                Wish::Pause => ("paused", "asked to pause"),
                Wish::Cancel => ("cancelled", "asked to end"),
                Wish::Drain | Wish::Run | Wish::Unspecified => ("drained", "the worker stops"),
            };
            voice.log("info", format!("stopped: {cause}")).await;
            let mut ended = self.ended(word, cause.to_owned());
            ended.epochs_done = outcome.epochs_done;
            ended.trained = Some(outcome);
            return Ok(ended);
        }
        self.report(RunState::Validating).await?;
        let stopwatch = Stopwatch::start();
        let best = best.ok_or_else(|| Error::Run("the training left no best checkpoint".into()))?;
        let (name, date) = (
            file_stem(&self.run.name),
            self.worker.clock.now().to_string(),
        );
        let making = tokio::task::spawn_blocking(move || {
            let best = Checkpoint::from_bytes(&best, "the best")?;
            let metrics = best
                .header
                .history
                .last()
                .map(epoch_metrics)
                .unwrap_or_default();
            training::files(&name, best, date).map(|files| (files, metrics))
        });
        let (files, metrics) = making.await.map_err(Fault::internal)??;
        let mut artifacts = Vec::with_capacity(files.len());
        for (kind, file_name, bytes) in files {
            let (digest, size_bytes) = self.store(bytes).await?;
            artifacts.push(Artifact {
                kind: kind.to_owned(),
                file_name,
                digest,
                size_bytes,
            });
        }
        let word = if outcome.ending == Ending::OutOfPatience {
            "early stop"
        } else {
            "all epochs"
        };
        voice
            .log(
                "info",
                format!("completed: {word}, {} epochs", outcome.epochs_done),
            )
            .await;
        let mut ended = self.ended("completed", String::new());
        ended.committed = outcome.compute + stopwatch.elapsed();
        ended.epochs_done = outcome.epochs_done;
        ended.artifacts = artifacts;
        ended.metrics = metrics;
        ended.trained = Some(outcome);
        Ok(ended)
    }

    fn ended(&self, outcome: &'static str, cause: String) -> Ended {
        Ended {
            outcome,
            cause,
            committed: self.committed,
            epochs_done: 0,
            artifacts: Vec::new(),
            metrics: HashMap::new(),
            trained: None,
        }
    }

    /// Tells how the attempt ended, then gives the lease back.
    async fn finish(&self, ended: &Ended) -> Result<(), Error> {
        let request = FinishAttemptRequest {
            run_id: self.lease.run_id.clone(),
            fence: self.lease.fence,
            outcome: ended.outcome.to_owned(),
            cause: ended.cause.clone(),
            committed: prost_types::Duration::try_from(ended.committed).ok(),
            metrics: ended.metrics.clone(),
            artifacts: ended.artifacts.clone(),
            epochs_done: i32::try_from(ended.epochs_done).unwrap_or(i32::MAX),
        };
        let over = self.farewell();
        patiently(&over, || {
            let (mut runs, request) = (self.worker.runs.clone(), request.clone());
            async move { runs.finish_attempt(request).await }
        })
        .await?;
        let trained = ended.trained.as_ref();
        let release = ReleaseLeaseRequest {
            lease_id: self.lease.id.clone(),
            fence: self.lease.fence,
            images_trained: trained.map_or(0, |outcome| {
                i64::try_from(outcome.images_trained).unwrap_or(i64::MAX)
            }),
            training_micros: trained.map_or(0, |outcome| {
                i64::try_from(outcome.step_time.as_micros()).unwrap_or(i64::MAX)
            }),
            class_count: trained.map_or(0, |outcome| {
                i32::try_from(outcome.class_count).unwrap_or(i32::MAX)
            }),
        };
        patiently(&over, || {
            let (mut fleet, release) = (self.worker.fleet.clone(), release.clone());
            async move { fleet.release_lease(release).await }
        })
        .await?;
        Ok(())
    }

    /// A worker that stops doesn't wait for others forever.
    fn farewell(&self) -> CancellationToken {
        let over = self.over.child_token();
        if self.worker.shutdown.is_cancelled() {
            let late = over.clone();
            tokio::spawn(async move {
                tokio::time::sleep(FAREWELL).await;
                late.cancel();
            });
        }
        over
    }

    async fn report(&self, phase: RunState) -> Result<(), Error> {
        let request = ReportPhaseRequest {
            run_id: self.lease.run_id.clone(),
            fence: self.lease.fence,
            phase: phase.into(),
        };
        patiently(self.over, || {
            let (mut runs, request) = (self.worker.runs.clone(), request.clone());
            async move { runs.report_phase(request).await }
        })
        .await?;
        Ok(())
    }
}

/// Returns the engine's options for what the contract asks.
fn options(spec: Option<&TrainSpec>, threads: usize) -> Result<TrainOptions, Error> {
    let spec = spec.cloned().unwrap_or_default();
    let mut options = TrainOptions::default();
    let mut pairs: Vec<(String, String)> = vec![
        ("model".into(), spec.model.clone()),
        ("epochs".into(), spec.epochs.to_string()),
        ("batch".into(), spec.batch.to_string()),
        ("imgsz".into(), spec.image_size.to_string()),
        ("seed".into(), spec.seed.to_string()),
        ("optimizer".into(), spec.optimizer.clone()),
    ];
    // Zero and empty mean the recipe's default.
    pairs.retain(|(name, value)| !value.is_empty() && (value != "0" || name == "seed"));
    pairs.extend(spec.arguments.clone());
    pairs.sort();
    for (name, value) in &pairs {
        options.set(name, value)?;
    }
    options.threads = threads;
    Ok(options)
}

fn lease_progress(step: &engine::train::StepReport) -> LeaseProgress {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    LeaseProgress {
        epoch: number(step.epoch),
        epochs: number(step.epochs),
        step: i64::try_from(step.iteration).unwrap_or(i64::MAX),
        images_per_second: step.images_per_second,
        phase: "training".to_owned(),
    }
}

/// The time that is left at the present speed; validation and ends not counted.
fn remaining(step: &engine::train::StepReport) -> Duration {
    let total = u64::from(step.epochs) * u64::from(step.batches);
    let left = total.saturating_sub(step.iteration) as f64;
    let per_step = step.images as f64 / step.images_per_second.max(1e-3);
    Duration::try_from_secs_f64(left * per_step).unwrap_or(Duration::MAX)
}

/// Makes a file name of a run's name.
fn file_stem(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '-'
            }
        })
        .collect();
    let trimmed = plain.trim_matches(['-', '.']);
    if trimmed.is_empty() {
        "model".to_owned()
    } else {
        trimmed.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_becomes_options_and_unknown_arguments_are_refused() {
        let mut spec = TrainSpec {
            model: "yolo11s".into(),
            epochs: 7,
            batch: 4,
            image_size: 320,
            ..TrainSpec::default()
        };
        spec.arguments.insert("mosaic".into(), "0.5".into());
        let read = options(Some(&spec), 2).unwrap();
        assert_eq!(
            (read.model.as_str(), read.epochs, read.batch, read.imgsz),
            ("yolo11s", 7, 4, 320)
        );
        assert_eq!((read.seed, read.threads), (0, 2));
        spec.arguments.insert("mosiac".into(), "0.5".into());
        assert!(
            options(Some(&spec), 2)
                .unwrap_err()
                .to_string()
                .contains("mosiac")
        );
    }

    #[test]
    fn file_names_are_plain() {
        assert_eq!(file_stem("my run/ä 1"), "my-run---1");
        assert_eq!(file_stem("../.."), "model");
    }
}
