//! Facts billing hears: what runs committed, and which workspaces there are.
//!
//! Told: `CreditAdded`, `RunCharged`, `HoldExhausted`, `RunSettled`.

use std::sync::Arc;
use std::time::Duration;

use kit::bus::{Fact, Told, filter};
use kit::fault::Fault;
use kit::id::{Id, Run, Workspace};
use kit::store::Tx;
use proto::fovea::accounts::v1::{WorkspaceCreated, WorkspacePlanChanged};
use proto::fovea::runs::v1::{
    RunCancelled, RunCheckpointed, RunCompleted, RunFailed, RunPaused, RunQueued,
};

use crate::commands;
use crate::domain::holds::Hold;
use crate::error::Error;
use crate::store;

/// The durable consumer of what runs do.
pub const RUNS_CONSUMER: &str = "billing-charge";
/// The durable consumer of what becomes of workspaces.
pub const WORKSPACES_CONSUMER: &str = "billing-workspaces";

/// Returns the subjects of what runs do.
pub fn run_filters() -> Vec<String> {
    vec![
        filter::<RunQueued>(),
        filter::<RunCheckpointed>(),
        filter::<RunPaused>(),
        filter::<RunCompleted>(),
        filter::<RunCancelled>(),
        filter::<RunFailed>(),
    ]
}

/// Returns the subjects of what becomes of workspaces.
pub fn workspace_filters() -> Vec<String> {
    vec![
        filter::<WorkspaceCreated>(),
        filter::<WorkspacePlanChanged>(),
    ]
}

/// Hears what a run did.
pub async fn on_run_fact(tx: Tx, told: Arc<Told>, hold_ttl: Duration) -> Result<(), Error> {
    match told.name.rsplit('.').next() {
        Some("RunQueued") => on_run_queued(&tx, &told).await,
        Some("RunCheckpointed") => on_run_checkpointed(&tx, &told).await,
        Some("RunPaused") => on_run_paused(&tx, &told, hold_ttl).await,
        Some("RunCompleted") => on_run_completed(&tx, &told).await,
        Some("RunCancelled") => on_run_cancelled(&tx, &told).await,
        Some("RunFailed") => on_run_failed(&tx, &told).await,
        _ => Ok(()),
    }
}

/// Hears what became of a workspace.
pub async fn on_workspace_fact(tx: Tx, told: Arc<Told>) -> Result<(), Error> {
    match told.name.rsplit('.').next() {
        Some("WorkspaceCreated") => on_workspace_created(&tx, &told).await,
        Some("WorkspacePlanChanged") => on_workspace_plan_changed(&tx, &told).await,
        _ => Ok(()),
    }
}

async fn on_run_queued(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<RunQueued>(told)?;
    match hold_of(tx, told, &fact.run_id).await? {
        Some(hold) => commands::confirm(tx, hold).await,
        None => Ok(()),
    }
}

async fn on_run_checkpointed(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<RunCheckpointed>(told)?;
    let committed = span(fact.committed)?;
    match hold_of(tx, told, &fact.run_id).await? {
        Some(hold) => commands::advance(tx, hold, committed).await,
        None => Ok(()),
    }
}

async fn on_run_paused(tx: &Tx, told: &Told, hold_ttl: Duration) -> Result<(), Error> {
    let fact = decode::<RunPaused>(told)?;
    let committed = span(fact.committed)?;
    match hold_of(tx, told, &fact.run_id).await? {
        Some(hold) => commands::pause(tx, hold, committed, told.time, hold_ttl).await,
        None => Ok(()),
    }
}

async fn on_run_completed(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<RunCompleted>(told)?;
    settle(tx, told, &fact.run_id, fact.committed).await
}

async fn on_run_cancelled(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<RunCancelled>(told)?;
    settle(tx, told, &fact.run_id, fact.committed).await
}

async fn on_run_failed(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<RunFailed>(told)?;
    settle(tx, told, &fact.run_id, fact.committed).await
}

async fn settle(
    tx: &Tx,
    told: &Told,
    run_id: &str,
    committed: Option<prost_types::Duration>,
) -> Result<(), Error> {
    let committed = span(committed)?;
    match hold_of(tx, told, run_id).await? {
        Some(hold) => commands::settle(tx, hold, committed).await,
        None => Ok(()),
    }
}

async fn on_workspace_created(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<WorkspaceCreated>(told)?;
    let workspace = Id::<Workspace>::parse_field("workspace_id", &fact.workspace_id)?;
    let plan = commands::plan_from_wire(fact.plan());
    Ok(store::note_workspace(tx, workspace, plan, told.time).await?)
}

async fn on_workspace_plan_changed(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = decode::<WorkspacePlanChanged>(told)?;
    let workspace = Id::<Workspace>::parse_field("workspace_id", &fact.workspace_id)?;
    let plan = commands::plan_from_wire(fact.plan());
    Ok(store::note_workspace(tx, workspace, plan, told.time).await?)
}

/// Returns the hold a fact is about. A run that was never held for costs nothing: there is no price to charge.
async fn hold_of(tx: &Tx, told: &Told, run_id: &str) -> Result<Option<Hold>, Error> {
    let run = Id::<Run>::parse_field("run_id", run_id)?;
    let hold = store::hold(tx, run).await?;
    let is_theirs = hold
        .as_ref()
        .is_some_and(|hold| Some(hold.workspace) == told.workspace);
    if is_theirs {
        return Ok(hold);
    }
    tracing::warn!(
        fovea.run.id = %run, fact = told.name, "passed over a fact about a run without a hold"
    );
    Ok(None)
}

fn decode<M: Fact>(told: &Told) -> Result<M, Error> {
    told.decode::<M>()
        .map_err(|error| Error::Other(error.into()))
}

fn span(committed: Option<prost_types::Duration>) -> Result<Duration, Error> {
    Duration::try_from(committed.unwrap_or_default()).map_err(|_| {
        let rule = "must not be below zero";
        Fault::invalid_field("DURATION_INVALID", "billing", "committed", rule).into()
    })
}
