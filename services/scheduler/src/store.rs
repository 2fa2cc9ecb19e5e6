//! All SQL of the scheduler.

use std::collections::BTreeMap;

use kit::id::{Id, Job as JobMarker, Lease as LeaseMarker, Run, Worker as WorkerMarker, Workspace};
use kit::store::{Error, FromRow, Migration, Row, Sql};
use kit::{Timestamp, params};

use crate::domain::catalogue::Device;
use crate::domain::job::{Job, Lease, State, Wish};
use crate::domain::placement::Waiting;

/// The schema, in the order it grew.
pub const MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "scheduler",
    include_str!("../migrations/0001_scheduler.sql"),
)];

/// How many of the newest observations of a device type correct an estimate.
const OBSERVATIONS_USED: i64 = 25;
/// How many waiting jobs placement looks at.
const WAITING_MAX: i64 = 10_000;

/// A worker as it is stored.
#[derive(Debug, Clone)]
pub struct Worker {
    pub id: Id<WorkerMarker>,
    pub gpu_type: String,
    pub device: String,
    pub host: String,
    pub flops_per_second: i64,
    pub bandwidth_bytes_per_second: i64,
    pub memory_bytes: i64,
    pub thread_count: i64,
    pub build: String,
    pub registered_at: Timestamp,
    pub last_seen_at: Timestamp,
}

impl FromRow for Worker {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            gpu_type: row.get("gpu_type")?,
            device: row.get("device")?,
            host: row.get("host")?,
            flops_per_second: row.get("flops_per_second")?,
            bandwidth_bytes_per_second: row.get("bandwidth_bytes_per_second")?,
            memory_bytes: row.get("memory_bytes")?,
            thread_count: row.get("thread_count")?,
            build: row.get("build")?,
            registered_at: row.get("registered_at")?,
            last_seen_at: row.get("last_seen_at")?,
        })
    }
}

impl FromRow for Job {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let word = |column: &'static str| -> Result<String, Error> { row.get(column) };
        let unknown = |column: &str, problem: String| Error::Column {
            column: column.into(),
            problem,
        };
        let (state, wish) = (word("state")?, word("wish")?);
        let lease_id: Option<Id<LeaseMarker>> = row.get("lease_id")?;
        let worker_id: Option<Id<WorkerMarker>> = row.get("worker_id")?;
        let deadline: Option<Timestamp> = row.get("lease_deadline")?;
        let fence = row.get("fence")?;
        let lease = match (lease_id, worker_id, deadline) {
            (Some(id), Some(worker_id), Some(deadline)) => Some(Lease {
                id,
                worker_id,
                fence,
                deadline,
            }),
            _ => None,
        };
        Ok(Self {
            id: row.get("id")?,
            run_id: row.get("run_id")?,
            workspace_id: row.get("workspace_id")?,
            gpu_type: row.get("gpu_type")?,
            state: State::parse(&state).ok_or_else(|| unknown("state", state.clone()))?,
            wish: Wish::parse(&wish).ok_or_else(|| unknown("wish", wish.clone()))?,
            fence,
            queued_at: row.get("queued_at")?,
            spec: row.get("spec")?,
            lease,
        })
    }
}

impl FromRow for Waiting {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            job_id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            queued_at: row.get("queued_at")?,
        })
    }
}

/// Writes a worker, or what is new about it.
pub async fn save_worker(sql: &Sql, worker: &Worker) -> Result<(), Error> {
    sql.execute(
        "insert into workers (id, gpu_type, device, host, state, flops_per_second,
             bandwidth_bytes_per_second, memory_bytes, thread_count, build, registered_at, last_seen_at)
         values ($1, $2, $3, $4, 'here', $5, $6, $7, $8, $9, $10, $11)
         on conflict (id) do update set gpu_type = excluded.gpu_type, device = excluded.device,
             host = excluded.host, state = excluded.state,
             flops_per_second = excluded.flops_per_second,
             bandwidth_bytes_per_second = excluded.bandwidth_bytes_per_second,
             memory_bytes = excluded.memory_bytes, thread_count = excluded.thread_count,
             build = excluded.build, last_seen_at = excluded.last_seen_at",
        params![
            worker.id,
            &worker.gpu_type,
            &worker.device,
            &worker.host,
            worker.flops_per_second,
            worker.bandwidth_bytes_per_second,
            worker.memory_bytes,
            worker.thread_count,
            &worker.build,
            worker.registered_at,
            worker.last_seen_at,
        ],
    )
    .await?;
    Ok(())
}

/// Returns a worker.
pub async fn worker(sql: &Sql, id: Id<WorkerMarker>) -> Result<Option<Worker>, Error> {
    sql.query_optional("select * from workers where id = $1", params![id])
        .await
}

/// Notes that a worker was heard of.
pub async fn touch_worker(sql: &Sql, id: Id<WorkerMarker>, now: Timestamp) -> Result<bool, Error> {
    let touched = sql
        .execute(
            "update workers set last_seen_at = $2, state = 'here' where id = $1",
            params![id, now],
        )
        .await?;
    Ok(touched > 0)
}

/// Returns the workers heard of since `since`, oldest first.
pub async fn workers_since(sql: &Sql, since: Timestamp) -> Result<Vec<Worker>, Error> {
    sql.query_all(
        "select * from workers where last_seen_at >= $1 order by registered_at, id",
        params![since],
    )
    .await
}

/// Marks the workers that were last heard of before `before` as gone and returns them.
pub async fn lose_workers(sql: &Sql, before: Timestamp) -> Result<Vec<Worker>, Error> {
    let lost: Vec<Worker> = sql
        .query_all(
            "select * from workers where state = 'here' and last_seen_at < $1 for update",
            params![before],
        )
        .await?;
    for worker in &lost {
        sql.execute(
            "update workers set state = 'gone' where id = $1",
            params![worker.id],
        )
        .await?;
    }
    Ok(lost)
}

/// Writes a job as it is now.
pub async fn save_job(sql: &Sql, job: &Job) -> Result<(), Error> {
    let lease = job.lease.as_ref();
    sql.execute(
        "insert into jobs (id, run_id, workspace_id, gpu_type, state, fence, wish, queued_at,
             spec, lease_id, worker_id, lease_deadline)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         on conflict (id) do update set gpu_type = excluded.gpu_type, state = excluded.state,
             fence = excluded.fence, wish = excluded.wish, queued_at = excluded.queued_at,
             lease_id = excluded.lease_id, worker_id = excluded.worker_id,
             lease_deadline = excluded.lease_deadline",
        params![
            job.id,
            job.run_id,
            job.workspace_id,
            &job.gpu_type,
            job.state.as_str(),
            job.fence,
            job.wish.as_str(),
            job.queued_at,
            job.spec.clone(),
            lease.map(|lease| lease.id),
            lease.map(|lease| lease.worker_id),
            lease.map(|lease| lease.deadline),
        ],
    )
    .await?;
    Ok(())
}

/// Returns the job of a run, locked.
pub async fn job_of_run(sql: &Sql, run_id: Id<Run>) -> Result<Option<Job>, Error> {
    sql.query_optional(
        "select * from jobs where run_id = $1 for update",
        params![run_id],
    )
    .await
}

/// Returns a job, locked.
pub async fn job(sql: &Sql, id: Id<JobMarker>) -> Result<Option<Job>, Error> {
    sql.query_optional("select * from jobs where id = $1 for update", params![id])
        .await
}

/// Returns the job that a lease is or was about, locked.
pub async fn job_of_lease(sql: &Sql, lease_id: Id<LeaseMarker>) -> Result<Option<Job>, Error> {
    sql.query_optional(
        "select jobs.* from jobs join leases on leases.job_id = jobs.id where leases.id = $1
         for update",
        params![lease_id],
    )
    .await
}

/// Returns the leased jobs of a worker, locked.
pub async fn jobs_of_worker(sql: &Sql, worker_id: Id<WorkerMarker>) -> Result<Vec<Job>, Error> {
    sql.query_all(
        "select * from jobs where worker_id = $1 and state = 'leased' for update",
        params![worker_id],
    )
    .await
}

/// Returns the leased jobs whose deadline has passed, locked.
pub async fn overdue_jobs(sql: &Sql, now: Timestamp) -> Result<Vec<Job>, Error> {
    sql.query_all(
        "select * from jobs where state = 'leased' and lease_deadline < $1 for update",
        params![now],
    )
    .await
}

/// Returns what waits for a device type, oldest first.
pub async fn waiting(sql: &Sql, gpu_type: &str) -> Result<Vec<Waiting>, Error> {
    sql.query_all(
        "select id, workspace_id, queued_at from jobs where state = 'queued' and gpu_type = $1
         order by queued_at, id limit $2",
        params![gpu_type, WAITING_MAX],
    )
    .await
}

/// Returns how many jobs wait in all.
pub async fn waiting_count(sql: &Sql) -> Result<i64, Error> {
    sql.query_one(
        "select count(*) from jobs where state = 'queued'",
        params![],
    )
    .await
}

/// Returns how many jobs of each workspace run on a device type.
pub async fn running(sql: &Sql, gpu_type: &str) -> Result<BTreeMap<Id<Workspace>, usize>, Error> {
    let rows: Vec<(Id<Workspace>, i64)> = sql
        .query_all(
            "select workspace_id, count(*) from jobs where state = 'leased' and gpu_type = $1
             group by workspace_id",
            params![gpu_type],
        )
        .await?;
    let count = |count: i64| usize::try_from(count).unwrap_or(0);
    Ok(rows
        .into_iter()
        .map(|(workspace, jobs)| (workspace, count(jobs)))
        .collect())
}

/// Returns a workspace's jobs that haven't ended, oldest first, after the given place.
pub async fn live_jobs(
    sql: &Sql,
    workspace_id: Id<Workspace>,
    after: Option<Id<JobMarker>>,
    limit: i64,
) -> Result<Vec<Job>, Error> {
    let after = after.unwrap_or(Id::from_bytes([0; 16]));
    sql.query_all(
        "select * from jobs where workspace_id = $1 and state <> 'ended' and id > $2
         order by id limit $3",
        params![workspace_id, after, limit],
    )
    .await
}

/// Writes a granted lease into the book.
pub async fn open_lease(sql: &Sql, job: &Job, lease: &Lease, now: Timestamp) -> Result<(), Error> {
    sql.execute(
        "insert into leases (id, job_id, worker_id, fence, granted_at) values ($1, $2, $3, $4, $5)",
        params![lease.id, job.id, lease.worker_id, lease.fence, now],
    )
    .await?;
    Ok(())
}

/// Writes a lease's end into the book; the first end stands.
pub async fn close_lease(
    sql: &Sql,
    lease_id: Id<LeaseMarker>,
    outcome: &str,
    now: Timestamp,
) -> Result<bool, Error> {
    let closed = sql
        .execute(
            "update leases set ended_at = $2, outcome = $3 where id = $1 and ended_at is null",
            params![lease_id, now, outcome],
        )
        .await?;
    Ok(closed > 0)
}

/// Notes once that a worker gave a lease back, and returns the worker.
pub async fn release_lease(
    sql: &Sql,
    lease_id: Id<LeaseMarker>,
    fence: i64,
    now: Timestamp,
) -> Result<Option<Id<WorkerMarker>>, Error> {
    let released = sql
        .execute(
            "update leases set released_at = $3 where id = $1 and fence = $2 and released_at is null",
            params![lease_id, fence, now],
        )
        .await?;
    if released == 0 {
        return Ok(None);
    }
    sql.query_optional(
        "select worker_id from leases where id = $1",
        params![lease_id],
    )
    .await
}

/// What a finished training reached.
#[derive(Debug, Clone)]
pub struct Observation {
    pub gpu_type: String,
    pub model: String,
    pub image_size: i64,
    pub batch: i64,
    pub images: i64,
    pub micros: i64,
    pub observed_over_prior: f64,
}

/// Remembers what a training reached.
pub async fn observe(sql: &Sql, observation: &Observation, now: Timestamp) -> Result<(), Error> {
    sql.execute(
        "insert into observations (gpu_type, model, image_size, batch, images, micros,
             observed_over_prior, at)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        params![
            &observation.gpu_type,
            &observation.model,
            observation.image_size,
            observation.batch,
            observation.images,
            observation.micros,
            observation.observed_over_prior,
            now,
        ],
    )
    .await?;
    Ok(())
}

/// Returns the newest ratios *observed ÷ prior* of a device type.
pub async fn observed(sql: &Sql, gpu_type: &str) -> Result<Vec<f64>, Error> {
    sql.query_all(
        "select observed_over_prior from observations where gpu_type = $1 order by id desc limit $2",
        params![gpu_type, OBSERVATIONS_USED],
    )
    .await
}

impl Worker {
    /// Returns the worker's device as the estimator sees it.
    pub fn as_device(&self) -> Device {
        Device {
            gpu_type: self.gpu_type.clone(),
            display_name: self.device.clone(),
            architecture: self.gpu_type.to_uppercase(),
            memory_bytes: self.memory_bytes.max(0).unsigned_abs(),
            bandwidth_bytes_per_second: self.bandwidth_bytes_per_second as f64,
            flops_per_second: self.flops_per_second as f64,
        }
    }
}
