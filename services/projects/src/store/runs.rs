//! Runs with their attempts and checkpoints.

use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, FromRow, Row, Sql, Tx};
use kit::time::Timestamp;

use super::packed::{broken, json, nanos, pack, small, span, unpack, wish, wish_text};
use crate::domain::{Attempt, Checkpoint, Outcome, Run};

const COLUMNS: &str = "id, workspace_id, project_id, name, version_id, spec, class_names, estimate,
    gpu_type, price_per_hour_micros, cost_cap_micros, hold_micros, idempotency_key,
    request_digest, state, cause, wish, epochs_done, committed_nanos, metrics, model_id,
    is_bit_exact, fence, fence_closed, position, changed_position, created_at, started_at,
    finished_at";

/// A run as it is stored.
#[derive(Debug, Clone)]
pub struct Locked {
    /// The run.
    pub run: Run,
    /// The last position that was handed out.
    pub position: i64,
    /// The position of its newest change that is not telemetry.
    pub changed_position: i64,
    /// The digest of the request that started it.
    pub request_digest: Vec<u8>,
}

impl FromRow for Locked {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let run = Run {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            project_id: row.get("project_id")?,
            name: row.get("name")?,
            version_id: row.get("version_id")?,
            spec: row.json("spec")?,
            class_names: row.json("class_names")?,
            estimate: row.json("estimate")?,
            gpu_type: row.get("gpu_type")?,
            price: row.get("price_per_hour_micros")?,
            cost_cap: row.get("cost_cap_micros")?,
            hold: row.get("hold_micros")?,
            idempotency_key: row
                .get::<Option<String>>("idempotency_key")?
                .unwrap_or_default(),
            state: row.parse("state")?,
            cause: row.get("cause")?,
            wish: wish(row, "wish")?,
            epochs_done: small(row, "epochs_done")?,
            committed: span(row, "committed_nanos")?,
            metrics: unpack(row, "metrics")?,
            model_id: row.get("model_id")?,
            is_bit_exact: row.get("is_bit_exact")?,
            fence: row.get("fence")?,
            fence_closed: row.get("fence_closed")?,
            created_at: row.get("created_at")?,
            started_at: row.get("started_at")?,
            finished_at: row.get("finished_at")?,
            attempt: None,
            replaced: Vec::new(),
        };
        Ok(Self {
            run,
            position: row.get("position")?,
            changed_position: row.get("changed_position")?,
            request_digest: row.get("request_digest")?,
        })
    }
}

impl FromRow for Attempt {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let outcome = row.get::<Option<String>>("outcome")?;
        let outcome = outcome.map(|text| text.parse::<Outcome>());
        Ok(Self {
            id: row.get("id")?,
            fence: row.get("fence")?,
            worker_id: row.get("worker_id")?,
            device: row.get("device")?,
            device_kind: row.get("device_kind")?,
            resumed_from: row.get("resumed_from")?,
            start_step: row.get("start_step")?,
            last_step: row.get("last_step")?,
            committed: span(row, "committed_nanos")?,
            started_at: row.get("started_at")?,
            ended_at: row.get("ended_at")?,
            outcome: outcome
                .transpose()
                .map_err(|problem| broken("outcome", problem))?,
            cause: row.get("cause")?,
        })
    }
}

impl FromRow for Checkpoint {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            run_id: row.get("run_id")?,
            fence: row.get("fence")?,
            epoch: small(row, "epoch")?,
            step: row.get("step")?,
            digest: row.get("digest")?,
            size_bytes: row.get("size_bytes")?,
            is_best: row.get("is_best")?,
            created_at: row.get("created_at")?,
        })
    }
}

/// Stores a run that was just asked for.
pub async fn insert_run(tx: &Tx, run: &Run, request_digest: &[u8]) -> Result<(), Error> {
    let key = Some(run.idempotency_key.clone()).filter(|key| !key.is_empty());
    tx.execute(
        "insert into runs (id, workspace_id, project_id, name, version_id, spec, class_names,
            estimate, gpu_type, price_per_hour_micros, cost_cap_micros, hold_micros,
            idempotency_key, request_digest, state, cause, epochs_done, committed_nanos, metrics,
            is_bit_exact, fence, fence_closed, position, changed_position, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 0, 0,
            $17, $18, 0, 0, 1, 1, $19)",
        params![
            run.id,
            run.workspace_id,
            run.project_id,
            run.name.as_str(),
            run.version_id,
            json(&run.spec),
            json(&run.class_names),
            json(&run.estimate),
            run.gpu_type.as_str(),
            run.price,
            run.cost_cap,
            run.hold,
            key,
            request_digest.to_vec(),
            run.state.name(),
            run.cause.as_str(),
            pack(&run.metrics),
            run.is_bit_exact,
            run.created_at,
        ],
    )
    .await?;
    Ok(())
}

/// Takes a run and the next `positions` of it: nobody else changes it until the transaction ends.
pub async fn lock_run(tx: &Tx, id: Id<id::Run>, positions: i64) -> Result<Option<Locked>, Error> {
    let sql = format!("update runs set position = position + $2 where id = $1 returning {COLUMNS}");
    let locked = tx
        .query_optional::<Locked>(&sql, params![id, positions])
        .await?;
    with_attempt(tx, locked).await
}

/// Returns a run with its newest attempt.
pub async fn run(sql: &Sql, id: Id<id::Run>) -> Result<Option<Locked>, Error> {
    let text = format!("select {COLUMNS} from runs where id = $1");
    let found = sql.query_optional::<Locked>(&text, params![id]).await?;
    with_attempt(sql, found).await
}

/// Returns the run that this key of this workspace made.
pub async fn run_by_key(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    key: &str,
) -> Result<Option<Locked>, Error> {
    let text =
        format!("select {COLUMNS} from runs where workspace_id = $1 and idempotency_key = $2");
    let found = sql
        .query_optional::<Locked>(&text, params![workspace, key])
        .await?;
    with_attempt(sql, found).await
}

async fn with_attempt(sql: &Sql, found: Option<Locked>) -> Result<Option<Locked>, Error> {
    let Some(mut locked) = found else {
        return Ok(None);
    };
    locked.run.attempt = sql
        .query_optional(
            "select * from attempts where run_id = $1 order by fence desc limit 1",
            params![locked.run.id],
        )
        .await?;
    Ok(Some(locked))
}

/// Writes back a locked run. `changed_position` is set where followers shall see the run again.
pub async fn save_run(tx: &Tx, run: &Run, changed_position: Option<i64>) -> Result<(), Error> {
    tx.execute(
        "update runs set state = $2, cause = $3, wish = $4, epochs_done = $5,
            committed_nanos = $6, metrics = $7, model_id = $8, is_bit_exact = $9, fence = $10,
            fence_closed = $11, started_at = $12, finished_at = $13, cost_cap_micros = $14,
            changed_position = coalesce($15, changed_position)
         where id = $1",
        params![
            run.id,
            run.state.name(),
            run.cause.as_str(),
            wish_text(&run.wish),
            i64::from(run.epochs_done),
            nanos(run.committed),
            pack(&run.metrics),
            run.model_id,
            run.is_bit_exact,
            run.fence,
            run.fence_closed,
            run.started_at,
            run.finished_at,
            run.cost_cap,
            changed_position,
        ],
    )
    .await?;
    for attempt in run.replaced.iter().chain(&run.attempt) {
        save_attempt(tx, run.id, attempt).await?;
    }
    Ok(())
}

async fn save_attempt(tx: &Tx, run: Id<id::Run>, attempt: &Attempt) -> Result<(), Error> {
    tx.execute(
        "insert into attempts (id, run_id, fence, worker_id, device, device_kind, resumed_from,
            start_step, last_step, committed_nanos, started_at, ended_at, outcome, cause)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
         on conflict (id) do update set last_step = excluded.last_step,
            committed_nanos = excluded.committed_nanos, ended_at = excluded.ended_at,
            outcome = excluded.outcome, cause = excluded.cause",
        params![
            attempt.id,
            run,
            attempt.fence,
            attempt.worker_id,
            attempt.device.as_str(),
            attempt.device_kind.as_str(),
            attempt.resumed_from,
            attempt.start_step,
            attempt.last_step,
            nanos(attempt.committed),
            attempt.started_at,
            attempt.ended_at,
            attempt.outcome.map(Outcome::name),
            attempt.cause.as_str(),
        ],
    )
    .await?;
    Ok(())
}

/// Removes a run whose start was refused before anybody was told of it.
pub async fn delete_created(tx: &Tx, id: Id<id::Run>) -> Result<u64, Error> {
    let sql = "delete from runs where id = $1 and state = 'created'";
    tx.execute(sql, params![id]).await
}

/// Returns the runs of a workspace, newest first, that come after `after` and, where it is set,
/// are of one project.
pub async fn list_runs(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    project: Option<Id<id::Project>>,
    after: Option<Id<id::Run>>,
    limit: i64,
) -> Result<Vec<Run>, Error> {
    let after = after.unwrap_or(Id::from_bytes([0xff; 16]));
    let rows: Vec<Locked> = match project {
        None => {
            let text = format!(
                "select {COLUMNS} from runs where workspace_id = $1 and id < $2
                 order by id desc limit $3"
            );
            sql.query_all(&text, params![workspace, after, limit])
                .await?
        }
        Some(project) => {
            let text = format!(
                "select {COLUMNS} from runs where workspace_id = $1 and id < $2
                 and project_id = $4 order by id desc limit $3"
            );
            sql.query_all(&text, params![workspace, after, limit, project])
                .await?
        }
    };
    Ok(rows.into_iter().map(|locked| locked.run).collect())
}

/// Returns the runs that are `created` since before this instant, oldest first.
pub async fn created_before(sql: &Sql, before: Timestamp, limit: i64) -> Result<Vec<Run>, Error> {
    let text = format!(
        "select {COLUMNS} from runs where state = 'created' and created_at < $1
         order by created_at limit $2"
    );
    let rows: Vec<Locked> = sql.query_all(&text, params![before, limit]).await?;
    Ok(rows.into_iter().map(|locked| locked.run).collect())
}

/// Asks for the resumption of all runs of a workspace that wait for credit; returns how many.
pub async fn ask_resumptions(tx: &Tx, workspace: Id<id::Workspace>) -> Result<u64, Error> {
    tx.execute(
        "insert into resumptions (run_id, asked_at)
         select id, $2 from runs
         where state = 'paused' and workspace_id = $1 and cause = 'balance'
         on conflict (run_id) do nothing",
        params![workspace, tx.now()],
    )
    .await
}

/// Returns runs whose resumption was asked for, in the order they were made.
pub async fn resumptions(sql: &Sql, limit: i64) -> Result<Vec<Id<id::Run>>, Error> {
    sql.query_all(
        "select run_id from resumptions order by run_id limit $1",
        params![limit],
    )
    .await
}

/// Notes that a resumption was done or refused.
pub async fn forget_resumption(tx: &Tx, run: Id<id::Run>) -> Result<(), Error> {
    tx.execute("delete from resumptions where run_id = $1", params![run])
        .await
        .map(drop)
}

/// Returns all attempts of a run, oldest first.
pub async fn attempts(sql: &Sql, run: Id<id::Run>) -> Result<Vec<Attempt>, Error> {
    let text = "select * from attempts where run_id = $1 order by fence";
    sql.query_all(text, params![run]).await
}

/// Returns the attempt of a run with this fence.
pub async fn attempt(sql: &Sql, run: Id<id::Run>, fence: i64) -> Result<Option<Attempt>, Error> {
    let text = "select * from attempts where run_id = $1 and fence = $2";
    sql.query_optional(text, params![run, fence]).await
}

/// Returns the kind of device that an attempt ran on.
pub async fn attempt_kind(
    sql: &Sql,
    run: Id<id::Run>,
    fence: i64,
) -> Result<Option<String>, Error> {
    let text = "select device_kind from attempts where run_id = $1 and fence = $2";
    sql.query_optional(text, params![run, fence]).await
}

/// Stores a checkpoint.
pub async fn insert_checkpoint(tx: &Tx, checkpoint: &Checkpoint) -> Result<(), Error> {
    tx.execute(
        "insert into checkpoints (id, run_id, fence, epoch, step, digest, size_bytes, is_best,
            created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        params![
            checkpoint.id,
            checkpoint.run_id,
            checkpoint.fence,
            i64::from(checkpoint.epoch),
            checkpoint.step,
            checkpoint.digest.as_str(),
            checkpoint.size_bytes,
            checkpoint.is_best,
            checkpoint.created_at,
        ],
    )
    .await?;
    Ok(())
}

/// Returns the checkpoint that an attempt recorded at this step with these bytes.
pub async fn checkpoint_at(
    sql: &Sql,
    run: Id<id::Run>,
    fence: i64,
    step: i64,
    digest: &str,
) -> Result<Option<Checkpoint>, Error> {
    let text = "select * from checkpoints
                where run_id = $1 and fence = $2 and step = $3 and digest = $4";
    sql.query_optional(text, params![run, fence, step, digest])
        .await
}

/// Returns the checkpoints of a run that are kept, newest first.
pub async fn checkpoints(sql: &Sql, run: Id<id::Run>) -> Result<Vec<Checkpoint>, Error> {
    let text = "select * from checkpoints where run_id = $1 and retired_at is null
                order by fence desc, step desc, id desc";
    sql.query_all(text, params![run]).await
}

/// Returns the checkpoint that a run goes on from.
pub async fn newest_checkpoint(sql: &Sql, run: Id<id::Run>) -> Result<Option<Checkpoint>, Error> {
    let text = "select * from checkpoints where run_id = $1 and retired_at is null
                order by fence desc, step desc, id desc limit 1";
    sql.query_optional(text, params![run]).await
}

/// Returns the newest checkpoint that was recorded as best.
pub async fn best_checkpoint(sql: &Sql, run: Id<id::Run>) -> Result<Option<Checkpoint>, Error> {
    let text = "select * from checkpoints where run_id = $1 and retired_at is null and is_best
                order by fence desc, step desc, id desc limit 1";
    sql.query_optional(text, params![run]).await
}

/// Notes that a checkpoint is no longer needed.
pub async fn retire_checkpoint(tx: &Tx, id: Id<id::Checkpoint>) -> Result<(), Error> {
    let text = "update checkpoints set retired_at = $2 where id = $1";
    tx.execute(text, params![id, tx.now()]).await.map(drop)
}
