//! The contract's side of the datasets service: requests in, commands and queries, answers out.

use std::sync::Arc;

use kit::Timestamp;
use kit::auth::{Caller, Role, caller};
use kit::blobs::{BlobKey, Blobs};
use kit::fault::Fault;
use kit::id::{Id, Workspace};
use kit::store::{Sql, Store};
use proto::fovea::datasets::v1 as api;
use tokio::sync::Notify;
use tonic::{Request, Response, Status};

use crate::commands;
use crate::config::Config;
use crate::domain::yolo::Split;
use crate::error::Error;
use crate::store::{self, DatasetRow, ImageRow, ImportRow, ImportState, UploadRow, VersionRow};

/// Things on a page.
const PAGE_DEFAULT: i64 = 50;
const PAGE_MAX: i64 = 1000;

/// Answers `fovea.datasets.v1.DatasetService`.
pub struct Datasets {
    pub store: Store,
    pub blobs: Blobs,
    pub config: Config,
    /// Wakes the background when an import is asked for.
    pub asked: Arc<Notify>,
}

#[tonic::async_trait]
impl api::dataset_service_server::DatasetService for Datasets {
    async fn create_upload(
        &self,
        request: Request<api::CreateUploadRequest>,
    ) -> Result<Response<api::CreateUploadResponse>, Status> {
        let caller = editor(&request)?;
        let workspace_id = caller.workspace()?;
        let upload = commands::create_upload(
            &self.store,
            &self.config,
            workspace_id,
            request.into_inner(),
        )
        .await?;
        Ok(Response::new(api::CreateUploadResponse {
            upload: Some(proto_upload(&upload)),
        }))
    }

    async fn get_upload(
        &self,
        request: Request<api::GetUploadRequest>,
    ) -> Result<Response<api::GetUploadResponse>, Status> {
        let caller = viewer(&request)?;
        let id = Id::parse_field("upload_id", &request.get_ref().upload_id)?;
        let upload = commands::find_upload(self.store.read(), &caller, id).await?;
        Ok(Response::new(api::GetUploadResponse {
            upload: Some(proto_upload(&upload)),
        }))
    }

    async fn record_upload_part(
        &self,
        request: Request<api::RecordUploadPartRequest>,
    ) -> Result<Response<api::RecordUploadPartResponse>, Status> {
        let caller = caller(&request)?;
        caller.require_service()?;
        caller.require(Role::Editor)?;
        let upload = commands::record_part(&self.store, &caller, request.get_ref()).await?;
        Ok(Response::new(api::RecordUploadPartResponse {
            upload: Some(proto_upload(&upload)),
        }))
    }

    async fn import_dataset(
        &self,
        request: Request<api::ImportDatasetRequest>,
    ) -> Result<Response<api::ImportDatasetResponse>, Status> {
        let caller = editor(&request)?;
        let answer = commands::import_dataset(&self.store, &caller, request.get_ref()).await?;
        self.asked.notify_waiters();
        Ok(Response::new(answer))
    }

    async fn get_import(
        &self,
        request: Request<api::GetImportRequest>,
    ) -> Result<Response<api::GetImportResponse>, Status> {
        let caller = viewer(&request)?;
        let id = Id::parse_field("import_id", &request.get_ref().import_id)?;
        let import = commands::find_import(self.store.read(), &caller, id).await?;
        Ok(Response::new(api::GetImportResponse {
            import: Some(proto_import(&import)),
        }))
    }

    async fn get_dataset(
        &self,
        request: Request<api::GetDatasetRequest>,
    ) -> Result<Response<api::GetDatasetResponse>, Status> {
        let caller = viewer(&request)?;
        let id = Id::parse_field("dataset_id", &request.get_ref().dataset_id)?;
        let dataset = commands::find_dataset(self.store.read(), &caller, id).await?;
        let dataset = Some(self.proto_dataset(&dataset).await?);
        Ok(Response::new(api::GetDatasetResponse { dataset }))
    }

    async fn list_datasets(
        &self,
        request: Request<api::ListDatasetsRequest>,
    ) -> Result<Response<api::ListDatasetsResponse>, Status> {
        let workspace_id = viewer(&request)?.workspace()?;
        let request = request.into_inner();
        let before = Id::parse_optional("page_token", &request.page_token)?;
        let size = page_size(request.page_size);
        let rows = store::datasets(self.store.read(), workspace_id, before, size + 1)
            .await
            .map_err(Error::from)?;
        let (rows, next_page_token) = page(rows, size, |row| row.id.to_string());
        let mut datasets = Vec::with_capacity(rows.len());
        for row in &rows {
            datasets.push(self.proto_dataset(row).await?);
        }
        Ok(Response::new(api::ListDatasetsResponse {
            datasets,
            next_page_token,
        }))
    }

    async fn delete_dataset(
        &self,
        request: Request<api::DeleteDatasetRequest>,
    ) -> Result<Response<api::DeleteDatasetResponse>, Status> {
        let caller = editor(&request)?;
        let id = Id::parse_field("dataset_id", &request.get_ref().dataset_id)?;
        commands::delete_dataset(&self.store, &caller, id).await?;
        Ok(Response::new(api::DeleteDatasetResponse {}))
    }

    async fn get_version(
        &self,
        request: Request<api::GetVersionRequest>,
    ) -> Result<Response<api::GetVersionResponse>, Status> {
        let caller = viewer(&request)?;
        let version =
            find_version(self.store.read(), &caller, &request.get_ref().version_id).await?;
        Ok(Response::new(api::GetVersionResponse {
            version: Some(proto_version(&version)),
        }))
    }

    async fn list_versions(
        &self,
        request: Request<api::ListVersionsRequest>,
    ) -> Result<Response<api::ListVersionsResponse>, Status> {
        let caller = viewer(&request)?;
        let request = request.into_inner();
        let id = Id::parse_field("dataset_id", &request.dataset_id)?;
        let dataset = commands::find_dataset(self.store.read(), &caller, id).await?;
        let before = place(&request.page_token, i64::MAX)?;
        let size = page_size(request.page_size);
        let rows = store::versions(self.store.read(), dataset.id, before, size + 1)
            .await
            .map_err(Error::from)?;
        let (rows, next_page_token) = page(rows, size, |row| row.number.to_string());
        let versions = rows.iter().map(proto_version).collect();
        Ok(Response::new(api::ListVersionsResponse {
            versions,
            next_page_token,
        }))
    }

    async fn list_images(
        &self,
        request: Request<api::ListImagesRequest>,
    ) -> Result<Response<api::ListImagesResponse>, Status> {
        let caller = viewer(&request)?;
        let request = request.into_inner();
        let version = find_version(self.store.read(), &caller, &request.version_id).await?;
        let split = match request.split() {
            api::Split::Unspecified => None,
            api::Split::Train => Some(Split::Train),
            api::Split::Val => Some(Split::Val),
            api::Split::Test => Some(Split::Test),
        };
        let after = place(&request.page_token, -1)?;
        let size = page_size(request.page_size);
        let rows = store::images(self.store.read(), version.id, split, after, size + 1)
            .await
            .map_err(Error::from)?;
        let (rows, next_page_token) = page(rows, size, |row| row.place.to_string());
        let mut images = Vec::with_capacity(rows.len());
        for row in rows {
            let url = self.url(version.workspace_id, &row.digest).await?;
            images.push(proto_image(row, url));
        }
        Ok(Response::new(api::ListImagesResponse {
            images,
            next_page_token,
        }))
    }

    async fn list_annotations(
        &self,
        request: Request<api::ListAnnotationsRequest>,
    ) -> Result<Response<api::ListAnnotationsResponse>, Status> {
        let caller = viewer(&request)?;
        let request = request.into_inner();
        let version = find_version(self.store.read(), &caller, &request.version_id).await?;
        let id = Id::parse_field("image_id", &request.image_id)?;
        let image = store::image(self.store.read(), version.id, id)
            .await
            .map_err(Error::from)?;
        let image = image.ok_or_else(|| Error::NotFound {
            what: "image",
            id: request.image_id.clone(),
        })?;
        Ok(Response::new(image.annotations))
    }

    async fn read_version(
        &self,
        request: Request<api::ReadVersionRequest>,
    ) -> Result<Response<api::ReadVersionResponse>, Status> {
        caller(&request)?.require_worker()?;
        let request = request.into_inner();
        let id = Id::parse_field("version_id", &request.version_id)?;
        let version = store::version(self.store.read(), id)
            .await
            .map_err(Error::from)?;
        let version = version.ok_or_else(|| Error::NotFound {
            what: "version",
            id: request.version_id.clone(),
        })?;
        let after = place(&request.page_token, -1)?;
        let size = page_size(request.page_size);
        let rows = store::images(self.store.read(), version.id, None, after, size + 1)
            .await
            .map_err(Error::from)?;
        let (rows, next_page_token) = page(rows, size, |row| row.place.to_string());
        let mut files = Vec::with_capacity(rows.len());
        for row in rows {
            let url = self.url(version.workspace_id, &row.digest).await?;
            files.push(proto_file(row, url));
        }
        let version = Some(proto_version(&version));
        Ok(Response::new(api::ReadVersionResponse {
            version,
            files,
            next_page_token,
        }))
    }
}

impl Datasets {
    async fn proto_dataset(&self, dataset: &DatasetRow) -> Result<api::Dataset, Error> {
        let latest = store::latest_version(self.store.read(), dataset.id).await?;
        Ok(api::Dataset {
            id: dataset.id.to_string(),
            name: dataset.name.clone(),
            task: api::Task::Detect.into(),
            latest_version: latest.as_ref().map(proto_version),
            created_at: Some(dataset.created_at.into()),
        })
    }

    async fn url(&self, workspace_id: Id<Workspace>, digest: &str) -> Result<String, Fault> {
        let hash = blake3::Hash::from_hex(digest).map_err(Fault::internal)?;
        let key = BlobKey::new(crate::NAME, workspace_id, hash);
        self.blobs
            .sign_get(&key, self.config.url_ttl, self.store.clock().now())
            .await
    }
}

fn viewer<T>(request: &Request<T>) -> Result<Caller, Fault> {
    let caller = caller(request)?;
    caller.require(Role::Viewer)?;
    Ok(caller)
}

fn editor<T>(request: &Request<T>) -> Result<Caller, Fault> {
    let caller = caller(request)?;
    caller.require(Role::Editor)?;
    Ok(caller)
}

/// Returns a version that the caller may see. It outlives its dataset, which runs rely on.
async fn find_version(sql: &Sql, caller: &Caller, text: &str) -> Result<VersionRow, Error> {
    let id = Id::parse_field("version_id", text)?;
    let version = store::version(sql, id).await?;
    let owned = version.filter(|version| caller.owns(version.workspace_id));
    owned.ok_or_else(|| Error::NotFound {
        what: "version",
        id: text.to_owned(),
    })
}

fn page_size(asked: i32) -> i64 {
    match i64::from(asked) {
        0 => PAGE_DEFAULT,
        size => size.clamp(1, PAGE_MAX),
    }
}

/// Cuts rows, of which one more than `size` was asked for, to a page and returns the next one's token.
fn page<T>(mut rows: Vec<T>, size: i64, token: impl Fn(&T) -> String) -> (Vec<T>, String) {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if rows.len() <= size {
        return (rows, String::new());
    }
    rows.truncate(size);
    let next = rows.last().map(token).unwrap_or_default();
    (rows, next)
}

fn place(token: &str, first: i64) -> Result<i64, Error> {
    if token.is_empty() {
        return Ok(first);
    }
    token.parse().map_err(|_| Error::Invalid {
        field: "page_token",
        rule: "give back the next_page_token of the page before".to_owned(),
    })
}

fn proto_upload(upload: &UploadRow) -> api::Upload {
    api::Upload {
        id: upload.id.to_string(),
        file_name: upload.file_name.clone(),
        size_bytes: upload.size_bytes,
        received_bytes: upload.received_bytes,
        url: format!("/v1/uploads/{}", upload.id),
        expires_at: Some(upload.expires_at.into()),
    }
}

/// Returns an import as the contract shows it.
pub fn proto_import(import: &ImportRow) -> api::Import {
    let state = match import.state {
        ImportState::Pending => api::ImportState::Pending,
        ImportState::Running => api::ImportState::Running,
        ImportState::Completed => api::ImportState::Completed,
        ImportState::Failed => api::ImportState::Failed,
    };
    let findings = import.findings.iter().map(|finding| api::Finding {
        reason: finding.reason.clone(),
        file: finding.file.clone(),
        line: i32::try_from(finding.line).unwrap_or(i32::MAX),
        message: finding.message.clone(),
        is_error: finding.is_error,
    });
    api::Import {
        id: import.id.to_string(),
        dataset_id: import.dataset_id.to_string(),
        state: state.into(),
        version_id: import
            .version_id
            .map(|id| id.to_string())
            .unwrap_or_default(),
        findings: findings.collect(),
        finding_count: count(import.finding_count),
        images_done: count(import.images_done),
        images_total: count(import.images_total),
        created_at: Some(import.created_at.into()),
        finished_at: import.finished_at.map(Timestamp::into),
    }
}

fn proto_version(version: &VersionRow) -> api::Version {
    let splits = version
        .splits
        .iter()
        .map(|(split, summary)| api::SplitSummary {
            split: proto_split(*split).into(),
            image_count: count(summary.images.into()),
            annotation_count: count(summary.annotations.into()),
            background_count: count(summary.backgrounds.into()),
        });
    api::Version {
        id: version.id.to_string(),
        dataset_id: version.dataset_id.to_string(),
        number: count(version.number),
        class_names: version.class_names.clone(),
        splits: splits.collect(),
        digest: version.digest.clone(),
        created_at: Some(version.created_at.into()),
        task: api::Task::Detect.into(),
    }
}

fn proto_image(row: ImageRow, url: String) -> api::Image {
    api::Image {
        id: row.id.to_string(),
        annotation_count: i32::try_from(row.annotations.annotations.len()).unwrap_or(i32::MAX),
        name: row.name,
        split: proto_split(row.split).into(),
        width: count(row.width),
        height: count(row.height),
        size_bytes: row.size_bytes,
        digest: row.digest,
        url,
    }
}

fn proto_file(row: ImageRow, url: String) -> api::VersionFile {
    api::VersionFile {
        image_id: row.id.to_string(),
        name: row.name,
        split: proto_split(row.split).into(),
        digest: row.digest,
        size_bytes: row.size_bytes,
        url,
        annotations: row.annotations.annotations,
        width: count(row.width),
        height: count(row.height),
    }
}

fn proto_split(split: Split) -> api::Split {
    match split {
        Split::Train => api::Split::Train,
        Split::Val => api::Split::Val,
        Split::Test => api::Split::Test,
    }
}

fn count(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
