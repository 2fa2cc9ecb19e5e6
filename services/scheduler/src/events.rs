//! What the scheduler hears: how runs fare.

use std::sync::Arc;

use kit::bus::{Told, filter};
use kit::id::{Id, Run};
use kit::store::Tx;
use prost::Message as _;
use proto::fovea::runs::v1::{
    RunCancelRequested, RunCancelled, RunCompleted, RunFailed, RunPauseRequested, RunPaused,
    RunQueued,
};

use crate::commands;
use crate::domain::job::{Queued, Wish};
use crate::error::Error;

/// The durable consumer.
pub const DURABLE: &str = "scheduler-jobs";

/// Returns the subjects of the facts heard.
pub fn filters() -> Vec<String> {
    vec![
        filter::<RunQueued>(),
        filter::<RunCancelRequested>(),
        filter::<RunPauseRequested>(),
        filter::<RunPaused>(),
        filter::<RunCompleted>(),
        filter::<RunCancelled>(),
        filter::<RunFailed>(),
    ]
}

/// Hears one fact.
pub async fn on_fact(tx: Tx, told: Arc<Told>) -> Result<(), Error> {
    let run_id: Id<Run> = Id::parse_field("subject", &told.subject)?;
    if told.is::<RunQueued>() {
        on_run_queued(&tx, &told, run_id).await
    } else if told.is::<RunCancelRequested>() {
        commands::wish(&tx, run_id, Wish::Cancel).await
    } else if told.is::<RunPauseRequested>() {
        commands::wish(&tx, run_id, Wish::Pause).await
    } else {
        let outcome = told.name.rsplit('.').next().unwrap_or_default();
        commands::end(&tx, run_id, told.time, outcome).await
    }
}

async fn on_run_queued(tx: &Tx, told: &Told, run_id: Id<Run>) -> Result<(), Error> {
    let fact: RunQueued = told.decode().map_err(kit::Fault::from)?;
    let workspace_id = told.workspace.ok_or_else(|| Error::Invalid {
        field: "workspace",
        rule: "a run belongs to a workspace".into(),
    })?;
    let queued = Queued {
        run_id,
        workspace_id,
        gpu_type: fact.gpu_type,
        fence: fact.fence,
        spec: fact.spec.unwrap_or_default().encode_to_vec(),
    };
    commands::enqueue(tx, queued, told.time).await
}
