//! Projects.

use kit::id::{self, Id};
use kit::store::{Isolation, Tx};
use proto::fovea::projects::v1::{CreateProjectRequest, CreateProjectResponse};

use super::Projects;
use crate::domain::{DEFAULT_PROJECT, Project, check_name, check_text};
use crate::error::Error;
use crate::grpc::project_message;
use crate::{events, store};

impl Projects {
    /// Makes a project. The same key and request get the same answer again.
    pub async fn create_project(
        &self,
        workspace: Id<id::Workspace>,
        request: &CreateProjectRequest,
    ) -> Result<CreateProjectResponse, Error> {
        let name = &check_name("name", &request.name)?;
        check_text("description", &request.description)?;
        let scope = &format!("CreateProject/{workspace}");
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let key = request.idempotency_key.as_str();
                if let Some(answer) = tx.recall(scope, key, request).await? {
                    return Ok(answer);
                }
                let description = request.description.clone();
                let project = new_project(&tx, workspace, name.clone(), description);
                if !store::insert_project(&tx, &project).await? {
                    return Err(Error::ProjectNameTaken(project.name));
                }
                events::tell_project(&tx, &project).await?;
                let project = Some(project_message(project));
                let answer = CreateProjectResponse { project };
                tx.remember(scope, key, request, &answer).await?;
                Ok(answer)
            })
            .await
    }
}

/// Returns the project that a run goes to, and makes the default one when it is first needed.
pub(super) async fn project_for_run(
    tx: &Tx,
    workspace: Id<id::Workspace>,
    id: Option<Id<id::Project>>,
) -> Result<Project, Error> {
    if let Some(id) = id {
        let found = store::project(tx, workspace, id).await?;
        return found.ok_or_else(|| Error::NotFound {
            what: "project",
            id: id.to_string(),
        });
    }
    let description = "Runs that were started without naming a project.".to_owned();
    let project = new_project(tx, workspace, DEFAULT_PROJECT.to_owned(), description);
    if store::insert_project(tx, &project).await? {
        events::tell_project(tx, &project).await?;
        return Ok(project);
    }
    let found = store::default_project(tx, workspace).await?;
    found.ok_or_else(|| Error::NotFound {
        what: "project",
        id: DEFAULT_PROJECT.to_owned(),
    })
}

fn new_project(
    tx: &Tx,
    workspace_id: Id<id::Workspace>,
    name: String,
    description: String,
) -> Project {
    let created_at = tx.now();
    let id = Id::new(created_at);
    Project {
        id,
        workspace_id,
        name,
        description,
        created_at,
        run_count: 0,
    }
}
