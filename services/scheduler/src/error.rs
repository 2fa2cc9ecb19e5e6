//! Every way the scheduler says no. Each reason has a heading in `errors.md`.

use kit::fault::{Fault, Kind};
use kit::id::{Id, Lease, Run, Worker};

/// A refusal of the scheduler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("unknown device type '{gpu_type}': `fovea gpus` lists those of the catalogue")]
    UnknownGpuType { gpu_type: String },
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    #[error("unknown worker {worker_id}: register first")]
    UnknownWorker { worker_id: Id<Worker> },
    #[error("run {run_id} doesn't wait for a device")]
    JobNotWaiting { run_id: Id<Run> },
    #[error(
        "lease {lease_id} with fence {fence} has ended; the newest fence of its run is {newest}"
    )]
    LeaseLost {
        lease_id: Id<Lease>,
        fence: i64,
        newest: i64,
    },
    #[error("unknown lease {lease_id}")]
    UnknownLease { lease_id: Id<Lease> },
    #[error("dataset version {version_id} has no images to train on")]
    NothingToTrain { version_id: String },
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Store(#[from] kit::store::Error),
    #[error(transparent)]
    Neighbour(#[from] Fault),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let error = match error {
            Error::Store(error) => return error.into(),
            Error::Neighbour(fault) => return fault,
            other => other,
        };
        let message = error.to_string();
        let (kind, reason) = match &error {
            Error::Engine(_) => (Kind::Invalid, "TRAIN_SPEC_INVALID"),
            Error::Store(_) | Error::Neighbour(_) => {
                unreachable!("invariant: returned above")
            }
            Error::UnknownGpuType { .. } => (Kind::Invalid, "UNKNOWN_GPU_TYPE"),
            Error::Invalid { .. } => (Kind::Invalid, "TRAIN_SPEC_INVALID"),
            Error::UnknownWorker { .. } => (Kind::NotFound, "UNKNOWN_WORKER"),
            Error::JobNotWaiting { .. } => (Kind::Conflict, "JOB_NOT_WAITING"),
            Error::LeaseLost { .. } => (Kind::Precondition, "LEASE_LOST"),
            Error::UnknownLease { .. } => (Kind::NotFound, "UNKNOWN_LEASE"),
            Error::NothingToTrain { .. } => (Kind::Precondition, "NOTHING_TO_TRAIN"),
        };
        let fault = Fault::new(kind, reason, "jobs", message);
        match error {
            Error::Invalid { field, rule } => fault.violation(field, rule),
            Error::UnknownGpuType { gpu_type } => {
                fault.violation("gpu_type", format!("'{gpu_type}' is not in the catalogue"))
            }
            _ => fault,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}
