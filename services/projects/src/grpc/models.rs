//! The RPCs of the model registry.

use kit::auth::Role;
use kit::blobs::BlobKey;
use kit::fault::Fault;
use kit::id::{self, Id};
use proto::fovea::models::v1::model_service_server::ModelService;
use proto::fovea::models::v1::{
    ExportModelRequest, ExportModelResponse, GetModelRequest, GetModelResponse, ListModelsRequest,
    ListModelsResponse,
};
use tonic::Request;

use super::wire::model_message;
use super::{Answer, Server, answer, open, page_after, page_cut, page_size};
use crate::domain::Model;
use crate::error::Error;
use crate::store;

impl Server {
    async fn model(&self, workspace: Id<id::Workspace>, id: &str) -> Result<Model, Error> {
        let parsed = Id::parse_field("model_id", id)?;
        let found = store::model(self.projects.store.read(), workspace, parsed).await?;
        found.ok_or_else(|| Error::NotFound {
            what: "model",
            id: id.to_owned(),
        })
    }
}

#[tonic::async_trait]
impl ModelService for Server {
    async fn get_model(&self, request: Request<GetModelRequest>) -> Answer<GetModelResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let model = self.model(workspace, &request.model_id).await?;
        answer(GetModelResponse {
            model: Some(model_message(model)),
        })
    }

    async fn list_models(&self, request: Request<ListModelsRequest>) -> Answer<ListModelsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let project = Id::parse_optional("project_id", &request.project_id)?;
        let size = page_size(request.page_size)?;
        let after = page_after(&request.page_token)?;
        let sql = self.projects.store.read();
        let mut page = store::list_models(sql, workspace, project, after, size + 1).await?;
        let next_page_token = page_cut(&mut page, size, |model| model.id);
        let models = page.into_iter().map(model_message).collect();
        answer(ListModelsResponse {
            models,
            next_page_token,
        })
    }

    async fn export_model(
        &self,
        request: Request<ExportModelRequest>,
    ) -> Answer<ExportModelResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let model = self.model(workspace, &request.model_id).await?;
        let format = request.format;
        let found = model
            .artifacts
            .iter()
            .find(|artifact| artifact.kind == format);
        let artifact = found.ok_or_else(|| {
            let kinds: Vec<_> = model.artifacts.iter().map(|it| it.kind.as_str()).collect();
            Error::ModelFileMissing {
                format: format.clone(),
                available: kinds.join(", "),
            }
        })?;
        let digest = blake3::Hash::from_hex(&artifact.digest).map_err(Fault::internal)?;
        let key = BlobKey::new(crate::NAME, workspace, digest);
        let (ttl, now) = (
            self.projects.config.export_url_ttl,
            self.projects.clock.now(),
        );
        answer(ExportModelResponse {
            url: self.projects.blobs.sign_get(&key, ttl, now).await?,
            file_name: artifact.file_name.clone(),
            size_bytes: artifact.size_bytes,
            digest: artifact.digest.clone(),
        })
    }
}
