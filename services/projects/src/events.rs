//! The facts this service hears, one function each, and those it tells.
//!
//! Heard: `JobLeased`, `JobRequeued` (scheduler), `HoldExhausted`, `CreditAdded` (billing).
//! Told: `ProjectCreated`; `RunQueued`, `RunStarted`, `RunCheckpointed`, `RunCancelRequested`,
//! `RunPauseRequested`, `RunPaused`, `RunCompleted`, `RunCancelled`, `RunFailed`; `ModelCreated`.

use std::sync::Arc;

use kit::bus::{Fact as Message, Told, filter};
use kit::fault::Fault;
use kit::id::{Id, Run as RunId};
use kit::store::Tx;
use proto::fovea::billing::v1::{CreditAdded, HoldExhausted};
use proto::fovea::jobs::v1::{JobLeased, JobRequeued};
use proto::fovea::models::v1::ModelCreated;
use proto::fovea::projects::v1::ProjectCreated;
use proto::fovea::runs::v1::{
    RunCancelRequested, RunCancelled, RunCheckpointed, RunCompleted, RunFailed, RunPauseRequested,
    RunPaused, RunQueued, RunStarted,
};

use crate::commands::Projects;
use crate::domain::{Fact, Leased, Project, QueueCause, Requeued, Run};
use crate::error::Error;
use crate::grpc::{span_message, spec_message};
use crate::store;

/// The durable consumer of what the scheduler and billing tell.
pub const CONSUMER: &str = "projects-runs";

/// Returns the subjects of what is heard. One consumer: facts about one run keep their order.
pub fn filters() -> Vec<String> {
    vec![
        filter::<JobLeased>(),
        filter::<JobRequeued>(),
        filter::<HoldExhausted>(),
        filter::<CreditAdded>(),
    ]
}

/// Hears a fact.
pub async fn on_fact(projects: Projects, tx: Tx, told: Arc<Told>) -> Result<(), Error> {
    match told.name.rsplit('.').next() {
        Some("JobLeased") => on_job_leased(&projects, &tx, &told).await,
        Some("JobRequeued") => on_job_requeued(&projects, &tx, &told).await,
        Some("HoldExhausted") => on_hold_exhausted(&projects, &tx, &told).await,
        Some("CreditAdded") => on_credit_added(&projects, &tx, &told).await,
        _ => Ok(()),
    }
}

async fn on_job_leased(projects: &Projects, tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<JobLeased>(told)?;
    projects
        .on_leased(tx, run_id(&fact.run_id)?, Leased { fence: fact.fence })
        .await
}

async fn on_job_requeued(projects: &Projects, tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<JobRequeued>(told)?;
    let cause = match fact.cause.as_str() {
        "drained" => QueueCause::Drained,
        _ => QueueCause::WorkerLost,
    };
    let lease = Requeued {
        fence: fact.fence,
        cause,
    };
    projects.on_requeued(tx, run_id(&fact.run_id)?, lease).await
}

async fn on_hold_exhausted(projects: &Projects, tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<HoldExhausted>(told)?;
    projects
        .on_exhausted(tx, run_id(&fact.run_id)?, &fact.cause)
        .await
}

/// Notes which runs wait for credit; their money is held outside this transaction, by a task.
async fn on_credit_added(projects: &Projects, tx: &Tx, told: &Told) -> Result<(), Error> {
    let Some(workspace) = told.workspace else {
        return Ok(());
    };
    if store::ask_resumptions(tx, workspace).await? > 0 {
        projects.credit.notify_one();
    }
    Ok(())
}

fn decode<M: Message>(told: &Told) -> Result<M, Error> {
    Ok(told.envelope.decode::<M>().map_err(Fault::from)?)
}

fn run_id(text: &str) -> Result<Id<RunId>, Error> {
    Ok(Id::parse_field("run_id", text)?)
}

/// Tells that a project exists.
pub async fn tell_project(tx: &Tx, project: &Project) -> Result<(), Error> {
    let fact = ProjectCreated {
        project_id: project.id.to_string(),
        name: project.name.clone(),
    };
    tx.tell(Some(project.workspace_id), project.id, &fact)
        .await?;
    Ok(())
}

/// Tells what became true of a run.
pub async fn tell(tx: &Tx, run: &Run, fact: &Fact) -> Result<(), Error> {
    let run_id = run.id.to_string();
    let committed = Some(span_message(run.committed));
    let workspace = Some(run.workspace_id);
    let told = match fact {
        Fact::Queued(cause) => {
            let fact = RunQueued {
                run_id,
                project_id: run.project_id.to_string(),
                gpu_type: run.gpu_type.clone(),
                version_id: run.version_id.to_string(),
                spec: Some(spec_message(&run.spec)),
                cause: cause.name().to_owned(),
                fence: run.fence,
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::Started => {
            let attempt = run
                .attempt
                .as_ref()
                .expect("invariant: a started run has an attempt");
            let resumed_from = attempt
                .resumed_from
                .map(|checkpoint| checkpoint.to_string());
            let fact = RunStarted {
                run_id,
                attempt_id: attempt.id.to_string(),
                worker_id: attempt.worker_id.to_string(),
                fence: attempt.fence,
                checkpoint_id: resumed_from.unwrap_or_default(),
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::Checkpointed {
            checkpoint_id,
            epoch,
            step,
        } => {
            let fact = RunCheckpointed {
                run_id,
                checkpoint_id: checkpoint_id.to_string(),
                epoch: *epoch,
                step: *step,
                committed,
                fence: run.fence,
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::CancelRequested => {
            tx.tell(workspace, run.id, &RunCancelRequested { run_id })
                .await
        }
        Fact::PauseRequested(cause) => {
            let fact = RunPauseRequested {
                run_id,
                cause: cause.clone(),
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::Paused => {
            let fact = RunPaused {
                run_id,
                cause: run.cause.clone(),
                committed,
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::Completed => {
            let model_id = run
                .model_id
                .map(|model| model.to_string())
                .unwrap_or_default();
            let metrics = run.metrics.clone().into_iter().collect();
            let fact = RunCompleted {
                run_id,
                model_id,
                committed,
                metrics,
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::Cancelled => {
            tx.tell(workspace, run.id, &RunCancelled { run_id, committed })
                .await
        }
        Fact::Failed => {
            let fact = RunFailed {
                run_id,
                cause: run.cause.clone(),
                committed,
            };
            tx.tell(workspace, run.id, &fact).await
        }
        Fact::ModelCreated(model) => {
            let architecture = run.spec.model.clone();
            let fact = ModelCreated {
                model_id: model.to_string(),
                run_id,
                architecture,
            };
            tx.tell(workspace, model, &fact).await
        }
    };
    told?;
    Ok(())
}
