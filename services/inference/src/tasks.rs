//! What runs in the background: deployments, and counters on their way to the store.

use std::sync::Arc;
use std::time::Duration;

use kit::fault::Fault;
use kit::service::Context;
use kit::store::Store;
use tokio::sync::Notify;

use crate::commands;
use crate::error::Error;
use crate::grpc::Counts;
use crate::models::Models;
use crate::store;

/// How often deployments are looked for when nobody asked: those a dead process left.
const DEPLOY_POLL: Duration = Duration::from_secs(5);
/// How often counters are written.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Makes revisions ready, one after the other, until told to stop.
pub async fn deployments(
    context: Context,
    store: Store,
    models: Arc<Models>,
    asked: Arc<Notify>,
) -> Result<(), Fault> {
    let shutdown = context.shutdown().clone();
    while !shutdown.is_cancelled() {
        match deploy_next(&store, &models).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                let error = kit::fault::chain(&error);
                tracing::warn!(error, "deploys again later");
            }
        }
        tokio::select! {
            () = asked.notified() => {}
            () = tokio::time::sleep(DEPLOY_POLL) => {}
            () = shutdown.cancelled() => {}
        }
    }
    Ok(())
}

async fn deploy_next(store: &Store, models: &Models) -> Result<bool, Error> {
    let Some(revision) = store::next_deploying(store.read()).await? else {
        return Ok(false);
    };
    let endpoint = store::endpoint(store.read(), revision.endpoint_id).await?;
    let Some(endpoint) = endpoint else {
        commands::end_deployment(store, &revision, Some("the endpoint was deleted")).await?;
        return Ok(true);
    };
    let image_size = usize::try_from(revision.image_size).unwrap_or(0);
    let loaded = models
        .load(endpoint.workspace_id, &revision.digest, image_size)
        .await;
    let failure = match loaded {
        Ok(_) => None,
        Err(error @ Error::Engine(_)) => Some(error.to_string()),
        Err(Error::Fault(fault)) if fault.kind == kit::Kind::NotFound => {
            Some("the model's weights are gone".to_owned())
        }
        Err(error) => return Err(error),
    };
    commands::end_deployment(store, &revision, failure.as_deref()).await?;
    tracing::info!(
        endpoint = endpoint.name,
        revision = revision.number,
        failure,
        "deployed"
    );
    Ok(true)
}

/// Writes counters until told to stop, and once more then.
pub async fn counters(context: Context, store: Store, counts: Counts) -> Result<(), Fault> {
    let shutdown = context.shutdown().clone();
    let mut is_last = false;
    while !is_last {
        is_last = shutdown
            .run_until_cancelled(tokio::time::sleep(COUNT_EVERY))
            .await
            .is_none();
        let taken = std::mem::take(&mut *counts.lock().await);
        for (id, (requests, errors)) in taken {
            let written = store
                .write(|tx| async move { store::count(&tx, id, requests, errors).await })
                .await;
            if let Err(error) = written {
                let error = kit::fault::chain(&error);
                tracing::warn!(error, "counters are written later");
                let mut counts = counts.lock().await;
                let kept = counts.entry(id).or_default();
                *kept = (kept.0 + requests, kept.1 + errors);
            }
        }
    }
    Ok(())
}
