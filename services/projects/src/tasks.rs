//! What time does: finish or fail interrupted starts, resume runs for which credit came in, remove
//! blobs that nothing needs, forget telemetry that can't come again.

use kit::Fault;
use kit::bus::TELEMETRY_KEPT_FOR;
use kit::store::Isolation;
use tokio_util::sync::CancellationToken;

use crate::commands::Projects;
use crate::error::Error;
use crate::store;

/// Runs and blobs that one sweep looks at.
const SWEEP_MAX: i64 = 100;
const LOCK: &str = "sweep";

/// Sweeps until told to stop.
pub async fn sweep(projects: Projects, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(error) = sweep_once(&projects).await {
            let fault = Fault::from(error);
            tracing::warn!(
                error = fault.chain(),
                "a sweep was cut off and will be repeated"
            );
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = projects.credit.notified() => {}
            () = tokio::time::sleep(projects.config.sweep_interval) => {}
        }
    }
}

/// Sweeps once, in one process of the service at a time. One part that can't be done doesn't keep
/// the others from being done.
pub async fn sweep_once(projects: &Projects) -> Result<(), Error> {
    let Some(_lock) = projects.store.try_lock(LOCK).await? else {
        return Ok(());
    };
    let starts = recover_starts(projects).await;
    let resumptions = projects.resume_for_credit().await;
    let blobs = remove_blobs(projects).await;
    let seen = forget_seen(projects).await;
    starts?;
    resumptions?;
    blobs?;
    seen
}

async fn recover_starts(projects: &Projects) -> Result<(), Error> {
    let before = projects.clock.now() - projects.config.created_timeout;
    let stuck = store::created_before(projects.store.read(), before, SWEEP_MAX).await?;
    let mut outcome = Ok(());
    for run in stuck {
        let id = run.id;
        match projects.recover_start(run).await {
            Ok(()) => tracing::info!(fovea.run.id = %id, "went on with an interrupted start"),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

async fn remove_blobs(projects: &Projects) -> Result<(), Error> {
    let grace = projects.config.blob_grace;
    let doomed = projects
        .store
        .write_with(Isolation::ReadCommitted, |tx| async move {
            let before = tx.now() - grace;
            store::doom_blobs(&tx, before, SWEEP_MAX).await
        })
        .await?;
    for (workspace, digest) in &doomed {
        if let Ok(hash) = blake3::Hash::from_hex(digest) {
            let key = kit::blobs::BlobKey::new(crate::NAME, *workspace, hash);
            projects.blobs.delete(&key).await?;
        }
        projects
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                store::blob_gone(&tx, *workspace, digest).await
            })
            .await?;
        projects.instruments.blob_removed();
    }
    Ok(())
}

async fn forget_seen(projects: &Projects) -> Result<(), Error> {
    projects
        .store
        .write_with(Isolation::ReadCommitted, |tx| async move {
            let before = tx.now() - TELEMETRY_KEPT_FOR;
            store::forget_seen(&tx, before).await
        })
        .await?;
    Ok(())
}
