//! The RPCs of projects.

use kit::auth::Role;
use kit::id::Id;
use proto::fovea::projects::v1::project_service_server::ProjectService;
use proto::fovea::projects::v1::{
    CreateProjectRequest, CreateProjectResponse, GetProjectRequest, GetProjectResponse,
    ListProjectsRequest, ListProjectsResponse,
};
use tonic::Request;

use super::{Answer, Server, answer, open, page_after, page_cut, page_size, project_message};
use crate::error::Error;
use crate::store;

#[tonic::async_trait]
impl ProjectService for Server {
    async fn create_project(
        &self,
        request: Request<CreateProjectRequest>,
    ) -> Answer<CreateProjectResponse> {
        let (workspace, request) = open(request, Role::Editor)?;
        answer(self.projects.create_project(workspace, &request).await?)
    }

    async fn get_project(&self, request: Request<GetProjectRequest>) -> Answer<GetProjectResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let id = Id::parse_field("project_id", &request.project_id)?;
        let found = store::project(self.projects.store.read(), workspace, id).await?;
        let project = found.ok_or_else(|| Error::NotFound {
            what: "project",
            id: request.project_id,
        })?;
        answer(GetProjectResponse {
            project: Some(project_message(project)),
        })
    }

    async fn list_projects(
        &self,
        request: Request<ListProjectsRequest>,
    ) -> Answer<ListProjectsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let size = page_size(request.page_size)?;
        let after = page_after(&request.page_token)?;
        let sql = self.projects.store.read();
        let mut page = store::list_projects(sql, workspace, after, size + 1).await?;
        let next_page_token = page_cut(&mut page, size, |project| project.id);
        let projects = page.into_iter().map(project_message).collect();
        answer(ListProjectsResponse {
            projects,
            next_page_token,
        })
    }
}
