//! All SQL of inference.

use kit::id::{Endpoint, Id, Model, Revision, Workspace};
use kit::store::{Error, FromRow, Migration, Row, Sql};
use kit::{Timestamp, params};

/// The schema, in the order it grew.
pub const MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "inference",
    include_str!("../migrations/0001_inference.sql"),
)];

/// Where a revision stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Deploying,
    Ready,
    Failed,
}

impl State {
    const ALL: [Self; 3] = [Self::Deploying, Self::Ready, Self::Failed];

    /// Returns how it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deploying => "deploying",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

/// An endpoint as it is stored.
#[derive(Debug, Clone)]
pub struct EndpointRow {
    pub id: Id<Endpoint>,
    pub workspace_id: Id<Workspace>,
    pub name: String,
    pub created_at: Timestamp,
    pub request_count: i64,
    pub error_count: i64,
}

impl FromRow for EndpointRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            name: row.get("name")?,
            created_at: row.get("created_at")?,
            request_count: row.get("request_count")?,
            error_count: row.get("error_count")?,
        })
    }
}

/// A deployed model as it is stored.
#[derive(Debug, Clone)]
pub struct RevisionRow {
    pub id: Id<Revision>,
    pub endpoint_id: Id<Endpoint>,
    pub number: i64,
    pub model_id: Id<Model>,
    pub digest: String,
    pub size_bytes: i64,
    pub class_names: Vec<String>,
    pub image_size: i64,
    pub state: State,
    pub cause: String,
}

impl FromRow for RevisionRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let state: String = row.get("state")?;
        let known = State::ALL.into_iter().find(|known| known.as_str() == state);
        Ok(Self {
            id: row.get("id")?,
            endpoint_id: row.get("endpoint_id")?,
            number: row.get("number")?,
            model_id: row.get("model_id")?,
            digest: row.get("digest")?,
            size_bytes: row.get("size_bytes")?,
            class_names: row.json("class_names")?,
            image_size: row.get("image_size")?,
            state: known.ok_or_else(|| Error::Column {
                column: "state".into(),
                problem: state,
            })?,
            cause: row.get("cause")?,
        })
    }
}

/// Writes a new endpoint.
pub async fn insert_endpoint(sql: &Sql, endpoint: &EndpointRow) -> Result<(), Error> {
    sql.execute(
        "insert into endpoints (id, workspace_id, name, created_at, request_count, error_count)
         values ($1, $2, $3, $4, 0, 0)",
        params![
            endpoint.id,
            endpoint.workspace_id,
            &endpoint.name,
            endpoint.created_at
        ],
    )
    .await?;
    Ok(())
}

/// Returns an endpoint that isn't deleted, by its id.
pub async fn endpoint(sql: &Sql, id: Id<Endpoint>) -> Result<Option<EndpointRow>, Error> {
    sql.query_optional(
        "select * from endpoints where id = $1 and deleted_at is null",
        params![id],
    )
    .await
}

/// Returns an endpoint that isn't deleted, by its name.
pub async fn endpoint_named(
    sql: &Sql,
    workspace_id: Id<Workspace>,
    name: &str,
) -> Result<Option<EndpointRow>, Error> {
    sql.query_optional(
        "select * from endpoints where workspace_id = $1 and name = $2 and deleted_at is null",
        params![workspace_id, name],
    )
    .await
}

/// Returns a workspace's endpoints, newest first, those older than `before`.
pub async fn endpoints(
    sql: &Sql,
    workspace_id: Id<Workspace>,
    before: Option<Id<Endpoint>>,
    limit: i64,
) -> Result<Vec<EndpointRow>, Error> {
    let before = before.unwrap_or(Id::from_bytes([0xff; 16]));
    sql.query_all(
        "select * from endpoints where workspace_id = $1 and deleted_at is null and id < $2
         order by id desc limit $3",
        params![workspace_id, before, limit],
    )
    .await
}

/// Takes an endpoint down; its name becomes free.
pub async fn delete_endpoint(sql: &Sql, id: Id<Endpoint>, now: Timestamp) -> Result<(), Error> {
    sql.execute(
        "update endpoints set deleted_at = $2 where id = $1",
        params![id, now],
    )
    .await?;
    Ok(())
}

/// Adds to an endpoint's counters.
pub async fn count(sql: &Sql, id: Id<Endpoint>, requests: i64, errors: i64) -> Result<(), Error> {
    sql.execute(
        "update endpoints set request_count = request_count + $2, error_count = error_count + $3
         where id = $1",
        params![id, requests, errors],
    )
    .await?;
    Ok(())
}

/// Writes a new revision.
pub async fn insert_revision(
    sql: &Sql,
    revision: &RevisionRow,
    now: Timestamp,
) -> Result<(), Error> {
    let class_names =
        serde_json::to_string(&revision.class_names).expect("invariant: a list of names is JSON");
    sql.execute(
        "insert into revisions (id, endpoint_id, number, model_id, digest, size_bytes, class_names,
             image_size, state, cause, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        params![
            revision.id,
            revision.endpoint_id,
            revision.number,
            revision.model_id,
            &revision.digest,
            revision.size_bytes,
            class_names,
            revision.image_size,
            revision.state.as_str(),
            &revision.cause,
            now,
        ],
    )
    .await?;
    Ok(())
}

/// Returns the newest revision of an endpoint.
pub async fn latest_revision(sql: &Sql, id: Id<Endpoint>) -> Result<Option<RevisionRow>, Error> {
    sql.query_optional(
        "select * from revisions where endpoint_id = $1 order by number desc limit 1",
        params![id],
    )
    .await
}

/// Returns the revision that answers.
pub async fn ready_revision(sql: &Sql, id: Id<Endpoint>) -> Result<Option<RevisionRow>, Error> {
    sql.query_optional(
        "select * from revisions where endpoint_id = $1 and state = 'ready'
         order by number desc limit 1",
        params![id],
    )
    .await
}

/// Returns the oldest revision that is to be deployed.
pub async fn next_deploying(sql: &Sql) -> Result<Option<RevisionRow>, Error> {
    sql.query_optional(
        "select * from revisions where state = 'deploying' order by id limit 1",
        params![],
    )
    .await
}

/// Ends a deployment. False where it had ended already.
pub async fn end_deployment(
    sql: &Sql,
    id: Id<Revision>,
    state: State,
    cause: &str,
) -> Result<bool, Error> {
    let updated = sql
        .execute(
            "update revisions set state = $2, cause = $3 where id = $1 and state = 'deploying'",
            params![id, state.as_str(), cause],
        )
        .await?;
    Ok(updated > 0)
}
