//! What the scheduler can be asked and told: load, decide, save with the facts, commit.

use std::time::Duration;

use kit::Timestamp;
use kit::id::{Id, Lease as LeaseMarker, Run, Worker as WorkerMarker};
use kit::store::{Store, Tx};
use proto::fovea::fleet::v1::{WorkerLost, WorkerRegistered};
use proto::fovea::jobs::v1::{JobLeased, JobRequeued};

use crate::domain::job::{self, Job, Lease, Queued, Wish};
use crate::domain::placement;
use crate::error::Error;
use crate::store;

/// Takes a run that was queued at `told_at` into the queue.
pub async fn enqueue(tx: &Tx, queued: Queued, told_at: Timestamp) -> Result<(), Error> {
    let known = store::job_of_run(tx, queued.run_id).await?;
    let old_lease = known.as_ref().and_then(|job| job.lease.clone());
    if let Some(job) = job::enqueue(known, &queued, Id::new(tx.now()), told_at) {
        if let Some(lease) = old_lease {
            store::close_lease(tx, lease.id, "drained", tx.now()).await?;
        }
        store::save_job(tx, &job).await?;
    }
    Ok(())
}

/// Asks the worker of a run for something.
pub async fn wish(tx: &Tx, run_id: Id<Run>, wish: Wish) -> Result<(), Error> {
    if let Some(job) = store::job_of_run(tx, run_id)
        .await?
        .and_then(|job| job::wish(job, wish))
    {
        store::save_job(tx, &job).await?;
    }
    Ok(())
}

/// Ends the job of a run that ended or paused at `told_at`.
pub async fn end(tx: &Tx, run_id: Id<Run>, told_at: Timestamp, outcome: &str) -> Result<(), Error> {
    let Some(job) = store::job_of_run(tx, run_id).await? else {
        return Ok(());
    };
    let lease = job.lease.clone();
    if let Some(job) = job::end(job, told_at) {
        if let Some(lease) = lease {
            store::close_lease(tx, lease.id, outcome, tx.now()).await?;
        }
        store::save_job(tx, &job).await?;
    }
    Ok(())
}

/// Introduces a worker. A process that registers holds nothing yet: leases that its predecessor left are ended
/// at once instead of at their deadline.
pub async fn register_worker(store: &Store, worker: &store::Worker) -> Result<(), Error> {
    store
        .write(|tx| async move {
            let is_new = store::worker(&tx, worker.id).await?.is_none();
            store::save_worker(&tx, worker).await?;
            for job in store::jobs_of_worker(&tx, worker.id).await? {
                requeue(&tx, job, "worker_lost").await?;
            }
            if is_new {
                let fact = WorkerRegistered {
                    worker_id: worker.id.to_string(),
                    gpu_type: worker.gpu_type.clone(),
                    host: worker.host.clone(),
                };
                tx.tell(None, worker.id, &fact).await?;
            }
            Ok(())
        })
        .await
}

/// Grants the worker the next job of its device type, if one waits.
pub async fn take_lease(
    store: &Store,
    worker_id: Id<WorkerMarker>,
    duration: Duration,
) -> Result<Option<(Job, Lease)>, Error> {
    store
        .write(|tx| async move {
            let worker = store::worker(&tx, worker_id).await?;
            let worker = worker.ok_or(Error::UnknownWorker { worker_id })?;
            store::touch_worker(&tx, worker_id, tx.now()).await?;
            let waiting = store::waiting(&tx, &worker.gpu_type).await?;
            if waiting.is_empty() {
                return Ok(None);
            }
            let running = store::running(&tx, &worker.gpu_type).await?;
            let Some(next) = placement::order(&waiting, &running).first().copied() else {
                return Ok(None);
            };
            let Some(waiting) = store::job(&tx, next).await? else {
                return Ok(None);
            };
            let leased = job::lease(waiting, Id::new(tx.now()), worker_id, tx.now(), duration)?;
            let lease = leased
                .lease
                .clone()
                .expect("invariant: a leased job has a lease");
            store::save_job(&tx, &leased).await?;
            store::open_lease(&tx, &leased, &lease, tx.now()).await?;
            let fact = JobLeased {
                job_id: leased.id.to_string(),
                run_id: leased.run_id.to_string(),
                worker_id: worker_id.to_string(),
                lease_id: lease.id.to_string(),
                fence: lease.fence,
            };
            tx.tell(Some(leased.workspace_id), leased.id, &fact).await?;
            Ok(Some((leased, lease)))
        })
        .await
}

/// Moves a lease's deadline and returns it with what is wished.
pub async fn extend_lease(
    store: &Store,
    lease_id: Id<LeaseMarker>,
    fence: i64,
    duration: Duration,
) -> Result<(Id<WorkerMarker>, Timestamp, Wish), Error> {
    store
        .write(|tx| async move {
            let known = store::job_of_lease(&tx, lease_id).await?;
            let known = known.ok_or(Error::UnknownLease { lease_id })?;
            let job = job::extend(known, lease_id, fence, tx.now(), duration)?;
            store::save_job(&tx, &job).await?;
            let lease = job.lease.expect("invariant: an extended job has a lease");
            store::touch_worker(&tx, lease.worker_id, tx.now()).await?;
            Ok((lease.worker_id, lease.deadline, job.wish))
        })
        .await
}

/// Takes a lease back from its worker and returns what it was about, the first time. The job stays leased until
/// the run's own fact says how it ended; the deadline catches a worker that gave back without finishing.
pub async fn release_lease(
    store: &Store,
    lease_id: Id<LeaseMarker>,
    fence: i64,
) -> Result<Option<(Job, store::Worker)>, Error> {
    store
        .write(|tx| async move {
            let job = store::job_of_lease(&tx, lease_id).await?;
            let job = job.ok_or(Error::UnknownLease { lease_id })?;
            let Some(holder) = store::release_lease(&tx, lease_id, fence, tx.now()).await? else {
                return Ok(None);
            };
            let worker = store::worker(&tx, holder).await?;
            Ok(worker.map(|worker| (job, worker)))
        })
        .await
}

/// Puts the jobs of workers that fell silent back into the queue and returns how many there were.
pub async fn sweep(store: &Store, silence: Duration) -> Result<usize, Error> {
    store
        .write(|tx| async move {
            let mut requeued = 0;
            for job in store::overdue_jobs(&tx, tx.now()).await? {
                requeue(&tx, job, "worker_lost").await?;
                requeued += 1;
            }
            for worker in store::lose_workers(&tx, tx.now() - silence).await? {
                let fact = WorkerLost {
                    worker_id: worker.id.to_string(),
                };
                tx.tell(None, worker.id, &fact).await?;
            }
            Ok(requeued)
        })
        .await
}

async fn requeue(tx: &Tx, job: Job, cause: &str) -> Result<(), Error> {
    let Some(lease) = job.lease.clone() else {
        return Ok(());
    };
    let Some(job) = job::requeue(job) else {
        return Ok(());
    };
    store::close_lease(tx, lease.id, cause, tx.now()).await?;
    store::save_job(tx, &job).await?;
    let fact = JobRequeued {
        job_id: job.id.to_string(),
        run_id: job.run_id.to_string(),
        fence: lease.fence,
        cause: cause.to_owned(),
    };
    tx.tell(Some(job.workspace_id), job.id, &fact).await?;
    Ok(())
}
