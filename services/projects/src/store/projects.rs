//! Projects.

use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, FromRow, Row, Sql, Tx};

use crate::domain::{DEFAULT_PROJECT, Project};

const SELECT: &str = "select p.id, p.workspace_id, p.name, p.description, p.created_at,
    (select count(*) from runs r where r.project_id = p.id) as run_count from projects p";

impl FromRow for Project {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            name: row.get("name")?,
            description: row.get("description")?,
            created_at: row.get("created_at")?,
            run_count: row.get("run_count")?,
        })
    }
}

/// Stores a project, and tells whether its name was free.
pub async fn insert_project(tx: &Tx, project: &Project) -> Result<bool, Error> {
    let rows = tx
        .execute(
            "insert into projects (id, workspace_id, name, description, run_number, created_at)
             values ($1, $2, $3, $4, 0, $5) on conflict (workspace_id, name) do nothing",
            params![
                project.id,
                project.workspace_id,
                project.name.as_str(),
                project.description.as_str(),
                project.created_at,
            ],
        )
        .await?;
    Ok(rows == 1)
}

/// Returns a project of this workspace.
pub async fn project(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    id: Id<id::Project>,
) -> Result<Option<Project>, Error> {
    let text = format!("{SELECT} where p.id = $1 and p.workspace_id = $2");
    sql.query_optional(&text, params![id, workspace]).await
}

/// Returns the project that runs go to when none is named, if it was needed before.
pub async fn default_project(
    sql: &Sql,
    workspace: Id<id::Workspace>,
) -> Result<Option<Project>, Error> {
    let text = format!("{SELECT} where p.workspace_id = $1 and p.name = $2");
    sql.query_optional(&text, params![workspace, DEFAULT_PROJECT])
        .await
}

/// Returns the projects of a workspace, newest first, that come after `after`.
pub async fn list_projects(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    after: Option<Id<id::Project>>,
    limit: i64,
) -> Result<Vec<Project>, Error> {
    let after = after.unwrap_or(Id::from_bytes([0xff; 16]));
    let text =
        format!("{SELECT} where p.workspace_id = $1 and p.id < $2 order by p.id desc limit $3");
    sql.query_all(&text, params![workspace, after, limit]).await
}

/// Takes the next number for a run of this project.
pub async fn next_run_number(tx: &Tx, id: Id<id::Project>) -> Result<i64, Error> {
    let text = "update projects set run_number = run_number + 1 where id = $1 returning run_number";
    tx.query_one(text, params![id]).await
}
