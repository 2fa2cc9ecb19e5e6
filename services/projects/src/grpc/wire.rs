//! Messages from values, values from messages.

use std::time::Duration;

use kit::time::Timestamp;
use proto::fovea::models::v1::Model as ModelMessage;
use proto::fovea::projects::v1::Project as ProjectMessage;
use proto::fovea::runs::v1 as runs;
use proto::fovea::telemetry::v1::{HostSample, MetricBatch};

use crate::domain::{
    Artifact, Attempt, Checkpoint, Estimate, Line, Metrics, Model, Outcome, Project, Reading, Run,
    State, TrainSpec,
};
use crate::error::Error;

/// Returns a run; `attempts` are left out of lists.
pub fn run_message(run: &Run, attempts: &[Attempt]) -> runs::Run {
    runs::Run {
        id: run.id.to_string(),
        project_id: run.project_id.to_string(),
        name: run.name.clone(),
        version_id: run.version_id.to_string(),
        spec: Some(spec_message(&run.spec)),
        gpu_type: run.gpu_type.clone(),
        state: state_number(run.state).into(),
        cause: run.cause.clone(),
        epochs_done: run.epochs_done,
        committed: Some(span_message(run.committed)),
        price_per_hour_micros: run.price.micros(),
        estimate: Some(estimate_message(&run.estimate)),
        metrics: run.metrics.clone().into_iter().collect(),
        model_id: run
            .model_id
            .map(|model| model.to_string())
            .unwrap_or_default(),
        attempts: attempts.iter().map(attempt_message).collect(),
        created_at: Some(run.created_at.into()),
        started_at: run.started_at.map(Into::into),
        finished_at: run.finished_at.map(Into::into),
        is_bit_exact: run.is_bit_exact,
        cost_cap_micros: run.cost_cap.micros(),
        fence: run.fence,
    }
}

fn attempt_message(attempt: &Attempt) -> runs::Attempt {
    runs::Attempt {
        id: attempt.id.to_string(),
        fence: attempt.fence,
        worker_id: attempt.worker_id.to_string(),
        started_at: Some(attempt.started_at.into()),
        ended_at: attempt.ended_at.map(Into::into),
        outcome: attempt
            .outcome
            .map(Outcome::name)
            .unwrap_or_default()
            .to_owned(),
        cause: attempt.cause.clone(),
        committed: Some(span_message(attempt.committed)),
        device: attempt.device.clone(),
    }
}

const fn state_number(state: State) -> runs::RunState {
    match state {
        State::Created => runs::RunState::Created,
        State::Queued => runs::RunState::Queued,
        State::Provisioning => runs::RunState::Provisioning,
        State::Preparing => runs::RunState::Preparing,
        State::Training => runs::RunState::Training,
        State::Validating => runs::RunState::Validating,
        State::Completed => runs::RunState::Completed,
        State::Paused => runs::RunState::Paused,
        State::Cancelled => runs::RunState::Cancelled,
        State::Failed => runs::RunState::Failed,
    }
}

/// Returns the state that a number of the proto stands for.
pub fn state_value(number: i32) -> Option<State> {
    let number = runs::RunState::try_from(number).ok()?;
    State::ALL
        .into_iter()
        .find(|state| state_number(*state) == number)
}

/// Returns what a run trains.
pub fn spec_message(spec: &TrainSpec) -> runs::TrainSpec {
    runs::TrainSpec {
        model: spec.model.clone(),
        epochs: spec.epochs,
        batch: spec.batch,
        image_size: spec.image_size,
        seed: spec.seed,
        optimizer: spec.optimizer.clone(),
        arguments: spec.arguments.clone().into_iter().collect(),
    }
}

/// Reads what a run trains.
pub fn spec_value(message: runs::TrainSpec) -> TrainSpec {
    TrainSpec {
        model: message.model,
        epochs: message.epochs,
        batch: message.batch,
        image_size: message.image_size,
        seed: message.seed,
        optimizer: message.optimizer,
        arguments: message.arguments.into_iter().collect(),
    }
}

fn estimate_message(estimate: &Estimate) -> runs::Estimate {
    runs::Estimate {
        time_low: Some(span_message(estimate.time_low)),
        time_likely: Some(span_message(estimate.time_likely)),
        time_high: Some(span_message(estimate.time_high)),
        cost_low_micros: estimate.cost_low_micros,
        cost_likely_micros: estimate.cost_likely_micros,
        cost_high_micros: estimate.cost_high_micros,
        basis: estimate.basis.clone(),
    }
}

/// Reads an estimate.
pub fn estimate_value(message: runs::Estimate) -> Result<Estimate, Error> {
    Ok(Estimate {
        time_low: span_value("estimate.time_low", message.time_low)?,
        time_likely: span_value("estimate.time_likely", message.time_likely)?,
        time_high: span_value("estimate.time_high", message.time_high)?,
        cost_low_micros: message.cost_low_micros,
        cost_likely_micros: message.cost_likely_micros,
        cost_high_micros: message.cost_high_micros,
        basis: message.basis,
    })
}

/// Returns a checkpoint.
pub fn checkpoint_message(checkpoint: Checkpoint) -> runs::Checkpoint {
    runs::Checkpoint {
        id: checkpoint.id.to_string(),
        epoch: checkpoint.epoch,
        step: checkpoint.step,
        digest: checkpoint.digest,
        size_bytes: checkpoint.size_bytes,
        created_at: Some(checkpoint.created_at.into()),
    }
}

/// Returns a line of a log.
pub fn line_message(line: Line) -> runs::LogLine {
    runs::LogLine {
        at: Some(line.at.into()),
        level: line.level,
        message: line.message,
        sequence: line.sequence,
    }
}

/// Reads an artifact.
pub fn artifact_value(message: runs::Artifact) -> Artifact {
    Artifact {
        kind: message.kind,
        file_name: message.file_name,
        digest: message.digest,
        size_bytes: message.size_bytes,
    }
}

/// Returns a project.
pub fn project_message(project: Project) -> ProjectMessage {
    ProjectMessage {
        id: project.id.to_string(),
        name: project.name,
        description: project.description,
        created_at: Some(project.created_at.into()),
        run_count: i32::try_from(project.run_count).unwrap_or(i32::MAX),
    }
}

/// Returns a model.
pub fn model_message(model: Model) -> ModelMessage {
    let artifacts = model.artifacts.into_iter().map(|artifact| runs::Artifact {
        kind: artifact.kind,
        file_name: artifact.file_name,
        digest: artifact.digest,
        size_bytes: artifact.size_bytes,
    });
    ModelMessage {
        id: model.id.to_string(),
        project_id: model.project_id.to_string(),
        run_id: model.run_id.to_string(),
        name: model.name,
        architecture: model.architecture,
        class_names: model.class_names,
        image_size: model.image_size,
        metrics: model.metrics.into_iter().collect(),
        artifacts: artifacts.collect(),
        created_at: Some(model.created_at.into()),
        version_id: model.version_id.to_string(),
    }
}

/// Returns values of metrics as telemetry carries them.
pub fn metric_batch(reading: Reading) -> MetricBatch {
    MetricBatch {
        step: reading.step,
        epoch: reading.epoch,
        at: Some(reading.at.into()),
        values: reading.values.into_iter().collect(),
        fence: reading.fence,
    }
}

/// The names under which the measures of a host are stored, in the order of the proto.
const CPU: &str = "system/cpu_utilization";
const MEMORY_USED: &str = "system/memory_used_bytes";
const MEMORY_TOTAL: &str = "system/memory_total_bytes";
const DISK_READ: &str = "system/disk_read_bytes_per_second";
const DISK_WRITE: &str = "system/disk_write_bytes_per_second";
const NETWORK_RECEIVE: &str = "system/network_receive_bytes_per_second";
const NETWORK_TRANSMIT: &str = "system/network_transmit_bytes_per_second";
const GPU: &str = "system/gpu_utilization";
const GPU_MEMORY: &str = "system/gpu_memory_used_bytes";
const PROCESS_MEMORY: &str = "system/process_memory_bytes";

/// Returns the measures of a host by name. Bytes stay exact up to 2^53, nine petabytes.
pub fn sample_values(host: &HostSample) -> Metrics {
    let always = [
        (CPU, host.cpu_utilization),
        (MEMORY_USED, host.memory_used_bytes as f64),
        (MEMORY_TOTAL, host.memory_total_bytes as f64),
        (DISK_READ, host.disk_read_bytes_per_second),
        (DISK_WRITE, host.disk_write_bytes_per_second),
        (NETWORK_RECEIVE, host.network_receive_bytes_per_second),
        (NETWORK_TRANSMIT, host.network_transmit_bytes_per_second),
        (PROCESS_MEMORY, host.process_memory_bytes as f64),
    ];
    let gpu = host.gpu_utilization.map(|value| (GPU, value));
    let gpu_memory = host
        .gpu_memory_used_bytes
        .map(|value| (GPU_MEMORY, value as f64));
    let all = always.into_iter().chain(gpu).chain(gpu_memory);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the measures of a host as telemetry carries them.
pub fn host_sample(reading: Reading) -> HostSample {
    let value = |name: &str| reading.values.get(name).copied();
    let number = |name: &str| value(name).unwrap_or_default();
    HostSample {
        at: Some(reading.at.into()),
        cpu_utilization: number(CPU),
        memory_used_bytes: number(MEMORY_USED) as i64,
        memory_total_bytes: number(MEMORY_TOTAL) as i64,
        disk_read_bytes_per_second: number(DISK_READ),
        disk_write_bytes_per_second: number(DISK_WRITE),
        network_receive_bytes_per_second: number(NETWORK_RECEIVE),
        network_transmit_bytes_per_second: number(NETWORK_TRANSMIT),
        gpu_utilization: value(GPU),
        gpu_memory_used_bytes: value(GPU_MEMORY).map(|bytes| bytes as i64),
        process_memory_bytes: number(PROCESS_MEMORY) as i64,
        fence: reading.fence,
    }
}

/// Returns a span as protobuf writes it.
pub fn span_message(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: span.subsec_nanos() as i32,
    }
}

/// Reads a span; unset is zero, and none is negative.
pub fn span_value(field: &str, span: Option<prost_types::Duration>) -> Result<Duration, Error> {
    let span = span.unwrap_or_default();
    Duration::try_from(span).map_err(|_| Error::field(field, "is a span that is not below zero"))
}

/// Reads an instant, or takes another one where there is none or none that can be.
pub fn instant_or(instant: Option<prost_types::Timestamp>, other: Timestamp) -> Timestamp {
    instant
        .and_then(|instant| instant.try_into().ok())
        .unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_number() {
        for (number, state) in (1..).zip(State::ALL) {
            assert_eq!(state_value(number), Some(state));
            assert_eq!(state_number(state) as i32, number);
        }
        assert_eq!(state_value(0), None);
        assert_eq!(state_value(99), None);
    }

    #[test]
    fn a_host_sample_survives_its_series() {
        let host = HostSample {
            at: Some(Timestamp::from_seconds(5).into()),
            cpu_utilization: 0.5,
            memory_used_bytes: 1 << 40,
            memory_total_bytes: 1 << 41,
            disk_read_bytes_per_second: 1.0,
            disk_write_bytes_per_second: 2.0,
            network_receive_bytes_per_second: 3.0,
            network_transmit_bytes_per_second: 4.0,
            gpu_utilization: None,
            gpu_memory_used_bytes: Some(7),
            process_memory_bytes: 9,
            fence: 2,
        };
        let values = sample_values(&host);
        let at = Timestamp::from_seconds(5);
        let reading = Reading {
            position: 1,
            fence: 2,
            at,
            epoch: 0,
            step: 0,
            values,
        };
        assert_eq!(host_sample(reading), host);
    }

    #[test]
    fn a_span_below_zero_is_refused() {
        let below = prost_types::Duration {
            seconds: -1,
            nanos: 0,
        };
        assert!(span_value("committed", Some(below)).is_err());
        assert_eq!(span_value("committed", None).unwrap(), Duration::ZERO);
        let span = Duration::new(3, 5);
        assert_eq!(
            span_value("committed", Some(span_message(span))).unwrap(),
            span
        );
    }
}
