//! Every way billing says no. `errors.md` tells people what each reason means.

use kit::fault::{Fault, Kind};
use kit::id::{Id, Run, Workspace};
use kit::money::{self, Amount, PricePerHour};
use kit::store;

use crate::domain::Plan;

const DOMAIN: &str = "billing";

/// A refusal, or a failure from below.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the balance is {available} credits, this needs {needed}")]
    BalanceTooLow { available: Amount, needed: Amount },
    #[error("run {run} has spent its cap of {cap} credits: raise the cap to go on")]
    CapReached { run: Id<Run>, cap: Amount },
    #[error("{field}: {rule}")]
    AmountInvalid { field: &'static str, rule: String },
    #[error("note: must have at most {max} characters", max = crate::domain::ledger::NOTE_CHARACTERS_MAX)]
    NoteTooLong,
    #[error("gpu_type: '{0}' is no device type: expected lower case, digits and dashes")]
    GpuTypeInvalid(String),
    #[error("device type '{0}' has no price here")]
    GpuTypeUnknown(String),
    #[error("device type '{gpu_type}' needs the plan '{}', the workspace is on '{}'", needed.as_str(), plan.as_str())]
    GpuNotInPlan {
        gpu_type: String,
        needed: Plan,
        plan: Plan,
    },
    #[error("per_hour_micros: {rule}")]
    PriceInvalid { rule: String },
    #[error("plan: '{0}' is no plan: expected free, pro or enterprise")]
    PlanInvalid(String),
    #[error("device type '{gpu_type}' was not quoted at {per_hour} credits an hour: ask again")]
    PriceNotQuoted {
        gpu_type: String,
        per_hour: PricePerHour,
    },
    #[error("run {run} has a hold already, with another {what}")]
    HoldConflict { run: Id<Run>, what: &'static str },
    #[error("run {0} is settled: nothing more can be held for it")]
    RunSettled(Id<Run>),
    #[error("run {0} does not exist")]
    RunNotFound(Id<Run>),
    #[error("workspace {0} does not exist")]
    WorkspaceNotFound(Id<Workspace>),
    #[error(transparent)]
    Money(#[from] money::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Other(#[from] Fault),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let refuse = |kind, reason| Fault::new(kind, reason, DOMAIN, message.clone());
        let field = |reason, name: &str| {
            let rule = message
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(": "));
            refuse(Kind::Invalid, reason).violation(name, rule.unwrap_or(&message))
        };
        match error {
            Error::BalanceTooLow { available, needed } => {
                refuse(Kind::Precondition, "BALANCE_TOO_LOW")
                    .with("available_micros", available.micros())
                    .with("needed_micros", needed.micros())
            }
            Error::CapReached { run, cap } => refuse(Kind::Precondition, "CAP_REACHED")
                .with("run_id", run)
                .with("cap_micros", cap.micros()),
            Error::AmountInvalid { field: name, .. } => field("AMOUNT_INVALID", name),
            Error::NoteTooLong => field("NOTE_TOO_LONG", "note"),
            Error::GpuTypeInvalid(_) => field("GPU_TYPE_INVALID", "gpu_type"),
            Error::GpuTypeUnknown(gpu_type) => {
                refuse(Kind::NotFound, "GPU_TYPE_UNKNOWN").with("gpu_type", gpu_type)
            }
            Error::GpuNotInPlan {
                gpu_type,
                needed,
                plan,
            } => refuse(Kind::Precondition, "GPU_NOT_IN_PLAN")
                .with("gpu_type", gpu_type)
                .with("needed_plan", needed.as_str())
                .with("plan", plan.as_str()),
            Error::PriceInvalid { .. } => field("PRICE_INVALID", "per_hour_micros"),
            Error::PlanInvalid(_) => field("PLAN_INVALID", "plan"),
            Error::PriceNotQuoted { gpu_type, per_hour } => {
                refuse(Kind::Precondition, "PRICE_NOT_QUOTED")
                    .with("gpu_type", gpu_type)
                    .with("per_hour_micros", per_hour.micros())
            }
            Error::HoldConflict { run, .. } => {
                refuse(Kind::Conflict, "HOLD_CONFLICT").with("run_id", run)
            }
            Error::RunSettled(run) => refuse(Kind::Precondition, "RUN_SETTLED").with("run_id", run),
            Error::RunNotFound(run) => refuse(Kind::NotFound, "RUN_NOT_FOUND").with("run_id", run),
            Error::WorkspaceNotFound(workspace) => {
                refuse(Kind::NotFound, "WORKSPACE_NOT_FOUND").with("workspace_id", workspace)
            }
            Error::Money(money::Error::NegativePrice) => field("PRICE_INVALID", "per_hour_micros"),
            Error::Money(error) => Fault::internal(error),
            Error::Store(error) => error.into(),
            Error::Other(fault) => fault,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}
