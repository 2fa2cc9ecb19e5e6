//! Every way this service says no. Each reason has a heading in `errors.md`.

use std::time::Duration;

use kit::fault::{Fault, Kind};

use crate::domain::{Move, State};

/// Why a command or question was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such thing in this workspace.
    #[error("there is no {what} '{id}'")]
    NotFound {
        /// `run`, `project` or `model`.
        what: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// A field of the request breaks a rule.
    #[error("{field}: {rule}")]
    Field {
        /// The field as the proto names it.
        field: String,
        /// The rule.
        rule: String,
    },
    /// The project's name is in use.
    #[error("a project named '{0}' exists already in this workspace")]
    ProjectNameTaken(String),
    /// The state table has no such edge.
    #[error("a run that is {state} can't {step}")]
    WrongState {
        /// Where the run stands.
        state: State,
        /// What was tried.
        step: Move,
    },
    /// The run is over.
    #[error("the run has ended: it is {0}")]
    RunEnded(State),
    /// A worker acts under a lease that has ended or was given to another.
    #[error("fence {given} is stale: the newest lease of the run has fence {newest}")]
    StaleFence {
        /// The worker's fence.
        given: i64,
        /// The highest that is known.
        newest: i64,
    },
    /// A worker reports on an attempt that it has not begun.
    #[error("no attempt with fence {0} has begun: begin it first")]
    AttemptNotBegun(i64),
    /// Committed time went backwards.
    #[error("committed time fell from {before:?} to {given:?} within the attempt")]
    CommittedFell {
        /// What is recorded.
        before: Duration,
        /// What was given.
        given: Duration,
    },
    /// More committed time than has passed.
    #[error("committed time {given:?} is more than the {passed:?} since the attempt began")]
    CommittedTooLong {
        /// What was given.
        given: Duration,
        /// What has passed.
        passed: Duration,
    },
    /// The bytes that are to be recorded are not in the store.
    #[error("the blob {0} is not in the store: upload it before it is recorded")]
    BlobMissing(String),
    /// The stored bytes are of another length.
    #[error("the blob {digest} has {found} bytes, {given} were announced")]
    BlobSizeDiffers {
        /// The blob.
        digest: String,
        /// What was announced.
        given: u64,
        /// What is stored.
        found: u64,
    },
    /// The same bytes are being removed at this moment.
    #[error("the blob {0} is just being removed: try again")]
    BlobBusy(String),
    /// A completed attempt brought no weights.
    #[error("artifacts: a completed attempt brings an artifact of kind 'weights'")]
    WeightsMissing,
    /// No provider here has the device type.
    #[error("no provider here offers the device type '{0}'")]
    GpuNotOffered(String),
    /// The plan doesn't include the device type.
    #[error("the workspace's plan does not include the device type '{0}'")]
    GpuNotInPlan(String),
    /// The training needs more memory than the device has.
    #[error(
        "batch {batch} needs {needed_bytes} bytes, '{gpu_type}' has {memory_bytes}; \
         the largest batch that fits is {largest_batch}"
    )]
    BatchDoesNotFit {
        /// The device type.
        gpu_type: String,
        /// The batch as it was asked for; 0 for the recipe's.
        batch: i32,
        /// What the plan needs.
        needed_bytes: i64,
        /// What the device has.
        memory_bytes: i64,
        /// What would fit.
        largest_batch: i32,
    },
    /// Not one device type is offered, allowed and large enough.
    #[error("no device type is offered, in the plan and large enough: {0}")]
    NoDeviceFits(String),
    /// The run has used what it was allowed to cost.
    #[error("the run has reached its cost cap of {0} credits: resume it with a higher one")]
    CostCapReached(kit::Amount),
    /// The model has no such file.
    #[error("format: the model has no '{format}', it has {available}")]
    ModelFileMissing {
        /// What was asked for.
        format: String,
        /// What there is.
        available: String,
    },
    /// What another service or the kit said.
    #[error(transparent)]
    Other(#[from] Fault),
    /// The store could not do it, or an idempotency key was reused.
    #[error(transparent)]
    Store(#[from] kit::store::Error),
}

impl Error {
    /// Returns the refusal of a field.
    pub fn field(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            rule: rule.into(),
        }
    }

    /// Returns the refusal of a run that isn't there, or isn't the caller's.
    pub fn no_run(id: impl std::fmt::Display) -> Self {
        Self::NotFound {
            what: "run",
            id: id.to_string(),
        }
    }
}

const RETRY_BLOB_AFTER: Duration = Duration::from_secs(1);

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let refuse = |kind, reason: &'static str| Fault::new(kind, reason, "runs", message.clone());
        match error {
            Error::NotFound { what, .. } => {
                let (reason, domain) = match what {
                    "project" => ("PROJECT_NOT_FOUND", "projects"),
                    "model" => ("MODEL_NOT_FOUND", "models"),
                    _ => ("RUN_NOT_FOUND", "runs"),
                };
                Fault::new(Kind::NotFound, reason, domain, message)
            }
            Error::Field { field, rule } => {
                Fault::invalid_field("FIELD_INVALID", "runs", field, rule)
            }
            Error::ProjectNameTaken(name) => {
                Fault::new(Kind::Conflict, "PROJECT_NAME_TAKEN", "projects", message)
                    .with("name", name)
            }
            Error::WrongState { state, .. } => {
                refuse(Kind::Precondition, "RUN_STATE_WRONG").with("state", state)
            }
            Error::RunEnded(state) => refuse(Kind::Precondition, "RUN_ENDED").with("state", state),
            Error::StaleFence { given, newest } => refuse(Kind::Precondition, "STALE_FENCE")
                .with("fence", given)
                .with("newest", newest),
            Error::AttemptNotBegun(_) => refuse(Kind::Precondition, "ATTEMPT_NOT_BEGUN"),
            Error::CommittedFell { .. } => refuse(Kind::Invalid, "COMMITTED_TIME_FELL")
                .violation("committed", "never falls within an attempt"),
            Error::CommittedTooLong { .. } => refuse(Kind::Invalid, "COMMITTED_TIME_TOO_LONG")
                .violation("committed", "is at most the time since the attempt began"),
            Error::BlobMissing(digest) => {
                refuse(Kind::Precondition, "BLOB_MISSING").with("digest", digest)
            }
            Error::BlobSizeDiffers { digest, found, .. } => {
                refuse(Kind::Precondition, "BLOB_SIZE_DIFFERS")
                    .with("digest", digest)
                    .with("size_bytes", found)
            }
            Error::BlobBusy(_) => {
                refuse(Kind::Unavailable, "BLOB_BUSY").retry_after(RETRY_BLOB_AFTER)
            }
            Error::WeightsMissing => refuse(Kind::Invalid, "WEIGHTS_MISSING")
                .violation("artifacts", "holds one of kind 'weights'"),
            Error::GpuNotOffered(gpu_type) => {
                refuse(Kind::Precondition, "GPU_NOT_OFFERED").with("gpu_type", gpu_type)
            }
            Error::GpuNotInPlan(gpu_type) => {
                refuse(Kind::Denied, "GPU_NOT_IN_PLAN").with("gpu_type", gpu_type)
            }
            Error::BatchDoesNotFit {
                gpu_type,
                needed_bytes,
                memory_bytes,
                largest_batch,
                ..
            } => refuse(Kind::Precondition, "BATCH_DOES_NOT_FIT")
                .with("gpu_type", gpu_type)
                .with("needed_bytes", needed_bytes)
                .with("memory_bytes", memory_bytes)
                .with("largest_batch", largest_batch),
            Error::NoDeviceFits(_) => refuse(Kind::Precondition, "NO_DEVICE_FITS"),
            Error::CostCapReached(cap) => {
                refuse(Kind::Precondition, "COST_CAP_REACHED").with("cost_cap_micros", cap.micros())
            }
            Error::ModelFileMissing { .. } => {
                Fault::new(Kind::NotFound, "MODEL_FILE_MISSING", "models", message)
            }
            Error::Other(fault) => fault,
            Error::Store(error) => error.into(),
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}
