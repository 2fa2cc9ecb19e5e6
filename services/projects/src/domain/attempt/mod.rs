//! What workers and their leases do to a run: begin, report, record, finish, lose.
//!
//! A fence comes with a lease and rises with every lease of a run. The run keeps the highest one
//! it heard of and the highest that may write no more; who has less is refused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kit::id::{self, Id};
use kit::time::Timestamp;

use super::checkpoint::Checkpoint;
use super::run::{Artifact, Attempt, Fact, Metrics, QueueCause, Run, Wish, artifact_kinds};
use super::state::{Move, State, next};
use crate::error::Error;

/// How far a worker's own clock may run ahead of ours before its time is disbelieved.
const COMMITTED_SLACK: Duration = Duration::from_secs(60);
const DEVICE_LENGTH_MAX: usize = 500;
const CAUSE_LENGTH_MAX: usize = 2_000;
const ARTIFACTS_MAX: usize = 64;
const FILE_NAME_MAX: usize = 255;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The training is done.
    Completed,
    /// It was asked to pause.
    Paused,
    /// It was asked to end.
    Cancelled,
    /// It can't go on.
    Failed,
    /// The worker gave the run back to the queue.
    Drained,
    /// The worker was not heard of any more.
    Lost,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Completed,
        Self::Paused,
        Self::Cancelled,
        Self::Failed,
        Self::Drained,
        Self::Lost,
    ];

    /// Returns the word that is stored and shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Drained => "drained",
            Self::Lost => "lost",
        }
    }

    /// Parses what a worker says; only the scheduler can say that one is lost.
    pub fn of_worker(text: &str) -> Result<Self, Error> {
        text.parse()
            .ok()
            .filter(|outcome| *outcome != Self::Lost)
            .ok_or_else(|| {
                Error::field(
                    "outcome",
                    "is completed, paused, cancelled, failed or drained",
                )
            })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Outcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|outcome| outcome.name() == text);
        known.ok_or_else(|| format!("'{text}' is no outcome of an attempt"))
    }
}

/// Who begins an attempt, and on what.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The id of the attempt, if it is a new one.
    pub attempt_id: Id<id::Attempt>,
    /// The lease's fence.
    pub fence: i64,
    /// The worker.
    pub worker_id: Id<id::Worker>,
    /// The device in words.
    pub device: String,
    /// Equal kinds train bit-exactly alike.
    pub device_kind: String,
}

/// A device was granted.
#[derive(Debug, Clone, Copy)]
pub struct Leased {
    /// The lease's fence.
    pub fence: i64,
}

/// A lease ended and its job waits again.
#[derive(Debug, Clone, Copy)]
pub struct Requeued {
    /// The fence of the lease that ended.
    pub fence: i64,
    /// Why.
    pub cause: QueueCause,
}

/// What is durable now.
#[derive(Debug, Clone)]
pub struct Record {
    /// The id of the checkpoint, if it is a new one.
    pub checkpoint_id: Id<id::Checkpoint>,
    /// The lease's fence.
    pub fence: i64,
    /// Finished epochs.
    pub epoch: i32,
    /// Optimiser steps.
    pub step: i64,
    /// Compute of the attempt up to here.
    pub committed: Duration,
    /// The newest metrics.
    pub metrics: Metrics,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct Finish {
    /// The id of the model, if there will be one.
    pub model_id: Id<id::Model>,
    /// The lease's fence.
    pub fence: i64,
    /// As the worker says.
    pub outcome: Outcome,
    /// For people.
    pub cause: String,
    /// Compute of the attempt that is committed.
    pub committed: Duration,
    /// The newest metrics.
    pub metrics: Metrics,
    /// What was made.
    pub artifacts: Vec<Artifact>,
    /// Finished epochs.
    pub epochs_done: i32,
}

/// Takes note of a lease. One that is older than what is known changes nothing.
pub fn leased(run: &mut Run, lease: Leased, now: Timestamp) -> Vec<Fact> {
    if lease.fence <= run.fence {
        return Vec::new();
    }
    run.fence = lease.fence;
    match next(run.state, Move::Lease) {
        Ok(state) => {
            lose_attempt(run, "another lease was granted", now);
            run.state = state;
            run.cause.clear();
        }
        // It was paused or ended while the lease was on its way here: the lease is worthless.
        Err(_) => run.fence_closed = lease.fence,
    }
    Vec::new()
}

/// Begins an attempt from `resume`, the newest checkpoint; repeating it changes nothing.
pub fn begin(
    run: &mut Run,
    begin: Begin,
    resume: Option<&Checkpoint>,
    resume_kind: Option<&str>,
    now: Timestamp,
) -> Result<Vec<Fact>, Error> {
    check_device(&begin)?;
    if let Ok(attempt) = run.writing_attempt(begin.fence) {
        let newest = run.fence;
        return if attempt.worker_id == begin.worker_id {
            Ok(Vec::new())
        } else {
            Err(Error::StaleFence {
                given: begin.fence,
                newest,
            })
        };
    }
    run.check_fence(begin.fence)?;
    let state = next(run.state, Move::Begin)?;
    lose_attempt(run, "another attempt began", now);
    // Without a checkpoint it starts anew, and nothing of the earlier attempts is in the result.
    let is_exact = resume_kind.is_none_or(|kind| kind == begin.device_kind);
    run.is_bit_exact = resume.is_none() || (run.is_bit_exact && is_exact);
    run.state = state;
    run.cause.clear();
    run.fence = begin.fence;
    run.started_at = run.started_at.or(Some(now));
    run.replaced.extend(run.attempt.take());
    run.attempt = Some(Attempt {
        id: begin.attempt_id,
        fence: begin.fence,
        worker_id: begin.worker_id,
        device: begin.device,
        device_kind: begin.device_kind,
        resumed_from: resume.map(|checkpoint| checkpoint.id),
        start_step: resume.map(|checkpoint| checkpoint.step),
        last_step: None,
        committed: Duration::ZERO,
        started_at: now,
        ended_at: None,
        outcome: None,
        cause: String::new(),
    });
    Ok(vec![Fact::Started])
}

/// Takes note of the part of an attempt that is under way.
pub fn report_phase(run: &mut Run, fence: i64, phase: Move) -> Result<(), Error> {
    run.writing_attempt(fence)?;
    run.state = next(run.state, phase)?;
    Ok(())
}

/// Records a checkpoint and commits the time up to it.
pub fn record(run: &mut Run, record: &Record, now: Timestamp) -> Result<Vec<Fact>, Error> {
    let attempt = run.writing_attempt(record.fence)?;
    if record.epoch < 0 {
        return Err(Error::field("epoch", "is not below zero"));
    }
    let least = attempt.last_step.or(attempt.start_step).unwrap_or(0);
    if record.step < least {
        return Err(Error::field(
            "step",
            format!("is not below {least}, where it went on from"),
        ));
    }
    commit(run, record.committed, now)?;
    run.learn_metrics(&record.metrics)?;
    run.epochs_done = record.epoch;
    if let Some(attempt) = &mut run.attempt {
        attempt.last_step = Some(record.step);
    }
    let Record {
        checkpoint_id,
        epoch,
        step,
        ..
    } = *record;
    Ok(vec![Fact::Checkpointed {
        checkpoint_id,
        epoch,
        step,
    }])
}

/// Ends an attempt and moves the run accordingly. What somebody wished meanwhile outranks giving
/// the run back or pausing it, and a training that is done outranks every wish.
pub fn finish(run: &mut Run, finish: &Finish, now: Timestamp) -> Result<Vec<Fact>, Error> {
    run.writing_attempt(finish.fence)?;
    if finish.epochs_done < 0 {
        return Err(Error::field("epochs_done", "is not below zero"));
    }
    check_artifacts(finish)?;
    commit(run, finish.committed, now)?;
    run.learn_metrics(&finish.metrics)?;
    run.epochs_done = run.epochs_done.max(finish.epochs_done);
    let cause: String = finish.cause.chars().take(CAUSE_LENGTH_MAX).collect();
    end_attempt(run, finish.outcome, &cause, now);
    let wish = run.wish.take();
    match (finish.outcome, wish) {
        (Outcome::Completed, _) => {
            run.state = next(run.state, Move::Complete)?;
            run.model_id = Some(finish.model_id);
            run.cause.clear();
            run.finished_at = Some(now);
            Ok(vec![Fact::Completed, Fact::ModelCreated(finish.model_id)])
        }
        (Outcome::Failed, _) => {
            run.state = next(run.state, Move::Fail)?;
            run.cause = cause;
            run.finished_at = Some(now);
            Ok(vec![Fact::Failed])
        }
        (Outcome::Cancelled, _) | (Outcome::Paused | Outcome::Drained, Some(Wish::Cancel)) => {
            cancel(run, now)
        }
        (Outcome::Paused | Outcome::Drained, Some(Wish::Pause { cause })) => pause(run, cause),
        (Outcome::Paused, None) => pause(
            run,
            if cause.is_empty() {
                "worker".to_owned()
            } else {
                cause
            },
        ),
        (Outcome::Drained, None) => requeue(run, QueueCause::Drained),
        (Outcome::Lost, _) => Err(Error::field("outcome", "is not for a worker to call lost")),
    }
}

/// Takes note of a lease that ended without an ending of the run. The stretch since the last
/// checkpoint is lost; what somebody wished meanwhile is done at once.
pub fn requeued(run: &mut Run, lease: Requeued, now: Timestamp) -> Result<Vec<Fact>, Error> {
    if lease.fence < run.fence {
        return Ok(Vec::new());
    }
    run.fence = lease.fence;
    run.fence_closed = lease.fence;
    if next(run.state, Move::Requeue).is_err() {
        return Ok(Vec::new());
    }
    lose_attempt(run, lease.cause.name(), now);
    match run.wish.take() {
        Some(Wish::Cancel) => cancel(run, now),
        Some(Wish::Pause { cause }) => pause(run, cause),
        None => requeue(run, lease.cause),
    }
}

pub(super) fn cancel(run: &mut Run, now: Timestamp) -> Result<Vec<Fact>, Error> {
    run.state = next(run.state, Move::Cancel)?;
    run.fence_closed = run.fence;
    run.wish = None;
    run.cause.clear();
    run.finished_at = Some(now);
    Ok(vec![Fact::Cancelled])
}

pub(super) fn pause(run: &mut Run, cause: String) -> Result<Vec<Fact>, Error> {
    run.state = next(run.state, Move::Pause)?;
    // A lease that was granted meanwhile ends with the job; its worker must not begin.
    run.fence_closed = run.fence;
    run.wish = None;
    run.cause = cause;
    Ok(vec![Fact::Paused])
}

fn requeue(run: &mut Run, cause: QueueCause) -> Result<Vec<Fact>, Error> {
    run.state = next(run.state, Move::Requeue)?;
    run.cause = cause.name().to_owned();
    Ok(vec![Fact::Queued(cause)])
}

fn lose_attempt(run: &mut Run, cause: &str, now: Timestamp) {
    let open = run
        .attempt
        .as_ref()
        .filter(|attempt| attempt.outcome.is_none());
    if open.is_some() {
        end_attempt(run, Outcome::Lost, cause, now);
    }
}

fn end_attempt(run: &mut Run, outcome: Outcome, cause: &str, now: Timestamp) {
    if let Some(attempt) = &mut run.attempt {
        attempt.outcome = Some(outcome);
        attempt.cause = cause.to_owned();
        attempt.ended_at = Some(now);
        run.fence_closed = run.fence_closed.max(attempt.fence);
    }
}

/// Raises the open attempt's committed time, and the run's by the difference.
fn commit(run: &mut Run, committed: Duration, now: Timestamp) -> Result<(), Error> {
    let attempt = run
        .attempt
        .as_mut()
        .expect("invariant: a writing attempt was found before");
    let Some(grown) = committed.checked_sub(attempt.committed) else {
        return Err(Error::CommittedFell {
            before: attempt.committed,
            given: committed,
        });
    };
    let passed = now.since(attempt.started_at);
    if committed > passed + COMMITTED_SLACK {
        return Err(Error::CommittedTooLong {
            given: committed,
            passed,
        });
    }
    attempt.committed = committed;
    run.committed += grown;
    Ok(())
}

fn check_device(begin: &Begin) -> Result<(), Error> {
    for (field, text) in [
        ("device", &begin.device),
        ("device_kind", &begin.device_kind),
    ] {
        if text.len() > DEVICE_LENGTH_MAX {
            return Err(Error::field(
                field,
                format!("has at most {DEVICE_LENGTH_MAX} bytes"),
            ));
        }
    }
    if begin.fence <= 0 {
        return Err(Error::field("fence", "is above zero"));
    }
    Ok(())
}

fn check_artifacts(finish: &Finish) -> Result<(), Error> {
    if finish.artifacts.len() > ARTIFACTS_MAX {
        return Err(Error::field(
            "artifacts",
            format!("has at most {ARTIFACTS_MAX}"),
        ));
    }
    for (place, artifact) in finish.artifacts.iter().enumerate() {
        let field = |name| format!("artifacts[{place}].{name}");
        if !artifact_kinds().contains(&artifact.kind.as_str()) {
            let rule = format!("is one of {}", artifact_kinds().join(", "));
            return Err(Error::field(field("kind"), rule));
        }
        let name = &artifact.file_name;
        let is_plain = !name.is_empty()
            && name.len() <= FILE_NAME_MAX
            && !name.starts_with('.')
            && !name
                .chars()
                .any(|letter| letter.is_control() || matches!(letter, '/' | '\\'));
        if !is_plain {
            let rule = format!("is a plain file name of 1 to {FILE_NAME_MAX} bytes");
            return Err(Error::field(field("file_name"), rule));
        }
    }
    let has_weights = finish
        .artifacts
        .iter()
        .any(|artifact| artifact.kind == "weights");
    if finish.outcome == Outcome::Completed && !has_weights {
        return Err(Error::WeightsMissing);
    }
    Ok(())
}

impl State {
    /// Returns the step that leads to this phase, if it is one that a worker reports.
    pub const fn phase(self) -> Option<Move> {
        match self {
            Self::Preparing => Some(Move::Prepare),
            Self::Training => Some(Move::Train),
            Self::Validating => Some(Move::Validate),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
