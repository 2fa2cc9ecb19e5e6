//! Models with their artifacts.

use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, FromRow, Row, Sql, Tx};

use super::packed::{json, pack, small, unpack};
use crate::domain::{Artifact, Model};

impl FromRow for Model {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            project_id: row.get("project_id")?,
            run_id: row.get("run_id")?,
            name: row.get("name")?,
            architecture: row.get("architecture")?,
            class_names: row.json("class_names")?,
            image_size: small(row, "image_size")?,
            metrics: unpack(row, "metrics")?,
            version_id: row.get("version_id")?,
            created_at: row.get("created_at")?,
            artifacts: Vec::new(),
        })
    }
}

impl FromRow for Artifact {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            kind: row.get("kind")?,
            file_name: row.get("file_name")?,
            digest: row.get("digest")?,
            size_bytes: row.get("size_bytes")?,
        })
    }
}

/// Stores a model with its artifacts.
pub async fn insert_model(tx: &Tx, model: &Model) -> Result<(), Error> {
    tx.execute(
        "insert into models (id, workspace_id, project_id, run_id, name, architecture,
            class_names, image_size, metrics, version_id, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        params![
            model.id,
            model.workspace_id,
            model.project_id,
            model.run_id,
            model.name.as_str(),
            model.architecture.as_str(),
            json(&model.class_names),
            i64::from(model.image_size),
            pack(&model.metrics),
            model.version_id,
            model.created_at,
        ],
    )
    .await?;
    for (place, artifact) in (0_i64..).zip(&model.artifacts) {
        tx.execute(
            "insert into artifacts (model_id, place, kind, file_name, digest, size_bytes)
             values ($1, $2, $3, $4, $5, $6)",
            params![
                model.id,
                place,
                artifact.kind.as_str(),
                artifact.file_name.as_str(),
                artifact.digest.as_str(),
                artifact.size_bytes,
            ],
        )
        .await?;
    }
    Ok(())
}

/// Returns a model of this workspace with its artifacts.
pub async fn model(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    id: Id<id::Model>,
) -> Result<Option<Model>, Error> {
    let text = "select * from models where id = $1 and workspace_id = $2";
    let found = sql
        .query_optional::<Model>(text, params![id, workspace])
        .await?;
    let Some(mut model) = found else {
        return Ok(None);
    };
    model.artifacts = artifacts(sql, id).await?;
    Ok(Some(model))
}

/// Returns the models of a workspace, newest first, that come after `after` and, where it is set,
/// are of one project.
pub async fn list_models(
    sql: &Sql,
    workspace: Id<id::Workspace>,
    project: Option<Id<id::Project>>,
    after: Option<Id<id::Model>>,
    limit: i64,
) -> Result<Vec<Model>, Error> {
    let after = after.unwrap_or(Id::from_bytes([0xff; 16]));
    let mut models: Vec<Model> = match project {
        None => {
            let text = "select * from models where workspace_id = $1 and id < $2
                        order by id desc limit $3";
            sql.query_all(text, params![workspace, after, limit])
                .await?
        }
        Some(project) => {
            let text = "select * from models where workspace_id = $1 and id < $2
                        and project_id = $4 order by id desc limit $3";
            sql.query_all(text, params![workspace, after, limit, project])
                .await?
        }
    };
    for model in &mut models {
        model.artifacts = artifacts(sql, model.id).await?;
    }
    Ok(models)
}

async fn artifacts(sql: &Sql, model: Id<id::Model>) -> Result<Vec<Artifact>, Error> {
    let text = "select * from artifacts where model_id = $1 order by place";
    sql.query_all(text, params![model]).await
}
