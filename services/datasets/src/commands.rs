//! What the datasets service can be asked: load, decide, save with the facts, commit.

use std::time::Duration;

use kit::auth::Caller;
use kit::id::{Dataset, Id, Import, Upload, Workspace};
use kit::store::{Store, Tx};
use proto::fovea::datasets::v1::{
    CreateUploadRequest, DatasetCreated, DatasetDeleted, ImportCompleted, ImportDatasetRequest,
    ImportDatasetResponse, ImportFailed, RecordUploadPartRequest,
};

use crate::config::Config;
use crate::domain::Findings;
use crate::domain::version;
use crate::error::Error;
use crate::grpc::proto_import;
use crate::reading::Read;
use crate::store::{self, DatasetRow, Ending, ImageRow, ImportRow, ImportState, Part, UploadRow};

const NAME_LENGTH_MAX: usize = 100;
const FILE_NAME_LENGTH_MAX: usize = 255;
/// How long an upload is kept once it was read: for another try with other settings.
const UPLOAD_KEPT_AFTER: Duration = Duration::from_secs(3600);
/// Hexadecimal digits of a BLAKE3 digest.
const DIGEST_LENGTH: usize = 64;

/// Announces an upload.
pub async fn create_upload(
    store: &Store,
    config: &Config,
    workspace_id: Id<Workspace>,
    request: CreateUploadRequest,
) -> Result<UploadRow, Error> {
    let size = u64::try_from(request.size_bytes).unwrap_or(0);
    if size == 0 || size > config.upload_bytes_max {
        let most = config.upload_bytes_max;
        let rule = format!("{} is not between 1 and {most} bytes", request.size_bytes);
        return Err(Error::Invalid {
            field: "size_bytes",
            rule,
        });
    }
    let file_name = request.file_name.trim();
    if file_name.is_empty() || file_name.chars().count() > FILE_NAME_LENGTH_MAX {
        let rule = format!("a name has 1 to {FILE_NAME_LENGTH_MAX} characters");
        return Err(Error::Invalid {
            field: "file_name",
            rule,
        });
    }
    let now = store.clock().now();
    let upload = UploadRow {
        id: Id::new(now),
        workspace_id,
        file_name: file_name.to_owned(),
        size_bytes: request.size_bytes,
        received_bytes: 0,
        expires_at: now + config.upload_ttl,
    };
    let new = &upload;
    store
        .write(|tx| async move { store::insert_upload(&tx, new, tx.now()).await })
        .await?;
    Ok(upload)
}

/// Records a part that is a blob already. The same part again changes nothing; a gap is refused with the offset at
/// which the upload goes on.
pub async fn record_part(
    store: &Store,
    caller: &Caller,
    request: &RecordUploadPartRequest,
) -> Result<UploadRow, Error> {
    let id: Id<Upload> = Id::parse_field("upload_id", &request.upload_id)?;
    let is_digest = request.digest.len() == DIGEST_LENGTH
        && request.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_digest {
        let rule = "a BLAKE3 digest has 64 hexadecimal digits".to_owned();
        return Err(Error::Invalid {
            field: "digest",
            rule,
        });
    }
    store
        .write(|tx| async move {
            let upload = find_upload(&tx, caller, id).await?;
            if upload.expires_at < tx.now() {
                return Err(Error::UploadExpired);
            }
            let part = Part {
                offset_bytes: request.offset_bytes,
                size_bytes: request.size_bytes,
                digest: request.digest.clone(),
            };
            if part.offset_bytes < upload.received_bytes {
                let known = store::parts(&tx, id).await?;
                if known.contains(&part) {
                    return Ok(upload);
                }
            }
            let expected = upload.received_bytes;
            if part.offset_bytes != expected {
                return Err(Error::WrongOffset {
                    offset: part.offset_bytes,
                    expected,
                });
            }
            let left = upload.size_bytes - expected;
            if part.size_bytes <= 0 || part.size_bytes > left {
                let rule = format!(
                    "{} is not between 1 and the {left} bytes left",
                    part.size_bytes
                );
                return Err(Error::Invalid {
                    field: "size_bytes",
                    rule,
                });
            }
            store::append_part(&tx, id, &part).await?;
            Ok(UploadRow {
                received_bytes: expected + part.size_bytes,
                ..upload
            })
        })
        .await
}

/// Returns an upload that the caller may see.
pub async fn find_upload(
    sql: &kit::store::Sql,
    caller: &Caller,
    id: Id<Upload>,
) -> Result<UploadRow, Error> {
    let upload = store::upload(sql, id).await?;
    let owned = upload.filter(|upload| caller.owns(upload.workspace_id));
    owned.ok_or_else(|| Error::NotFound {
        what: "upload",
        id: id.to_string(),
    })
}

/// Returns a dataset that the caller may see.
pub async fn find_dataset(
    sql: &kit::store::Sql,
    caller: &Caller,
    id: Id<Dataset>,
) -> Result<DatasetRow, Error> {
    let dataset = store::dataset(sql, id).await?;
    let owned = dataset.filter(|dataset| caller.owns(dataset.workspace_id));
    owned.ok_or_else(|| Error::NotFound {
        what: "dataset",
        id: id.to_string(),
    })
}

/// Starts the reading of an upload. Answers again what it answered before under the same key.
pub async fn import_dataset(
    store: &Store,
    caller: &Caller,
    request: &ImportDatasetRequest,
) -> Result<ImportDatasetResponse, Error> {
    let workspace_id = caller.workspace()?;
    let upload_id: Id<Upload> = Id::parse_field("upload_id", &request.upload_id)?;
    let into: Option<Id<Dataset>> = Id::parse_optional("dataset_id", &request.dataset_id)?;
    let name = request.name.trim();
    if into.is_none() && (name.is_empty() || name.chars().count() > NAME_LENGTH_MAX) {
        let rule = format!("a name has 1 to {NAME_LENGTH_MAX} characters");
        return Err(Error::Invalid {
            field: "name",
            rule,
        });
    }
    if into.is_some() && !name.is_empty() {
        let rule = "leave it empty to import into a dataset that is there".to_owned();
        return Err(Error::Invalid {
            field: "name",
            rule,
        });
    }
    let scope = &format!("ImportDataset/{workspace_id}");
    store
        .write(|tx| async move {
            let key = &request.idempotency_key;
            if let Some(answer) = tx.recall(scope, key, request).await? {
                return Ok(answer);
            }
            let upload = find_upload(&tx, caller, upload_id).await?;
            if upload.expires_at < tx.now() {
                return Err(Error::UploadExpired);
            }
            if upload.received_bytes < upload.size_bytes {
                return Err(Error::UploadIncomplete {
                    received: upload.received_bytes,
                    size: upload.size_bytes,
                });
            }
            let dataset_id = match into {
                Some(id) => find_dataset(&tx, caller, id).await?.id,
                None => create_dataset(&tx, workspace_id, name).await?,
            };
            let import = ImportRow {
                id: Id::new(tx.now()),
                workspace_id,
                dataset_id,
                upload_id,
                state: ImportState::Pending,
                skip_faulty: request.skip_faulty,
                version_id: None,
                findings: Vec::new(),
                finding_count: 0,
                images_done: 0,
                images_total: 0,
                created_at: tx.now(),
                finished_at: None,
            };
            store::insert_import(&tx, &import).await?;
            let answer = ImportDatasetResponse {
                import: Some(proto_import(&import)),
            };
            tx.remember(scope, key, request, &answer).await?;
            Ok(answer)
        })
        .await
}

async fn create_dataset(
    tx: &Tx,
    workspace_id: Id<Workspace>,
    name: &str,
) -> Result<Id<Dataset>, Error> {
    let dataset = DatasetRow {
        id: Id::new(tx.now()),
        workspace_id,
        name: name.to_owned(),
        created_at: tx.now(),
    };
    match store::insert_dataset(tx, &dataset).await {
        Ok(()) => Ok(dataset.id),
        Err(error) if error.is_duplicate() => Err(Error::NameTaken {
            name: name.to_owned(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Makes a version of what was read and ends the import.
pub async fn complete_import(store: &Store, import: &ImportRow, read: &Read) -> Result<(), Error> {
    let kept = &read.findings.kept();
    store
        .write(|tx| async move {
            let version = store::VersionRow {
                id: Id::new(tx.now()),
                dataset_id: import.dataset_id,
                workspace_id: import.workspace_id,
                number: store::next_number(&tx, import.dataset_id).await?,
                class_names: read.class_names.clone(),
                splits: version::summarise(&read.contents),
                digest: version::digest(&read.class_names, &read.contents),
                created_at: tx.now(),
            };
            let ending = Ending {
                state: ImportState::Completed,
                version_id: Some(version.id),
                findings: kept,
                finding_count: read.findings.count(),
                images: read.contents.len(),
            };
            if !store::end_import(&tx, import.id, &ending, tx.now()).await? {
                return Ok(());
            }
            store::insert_version(&tx, &version).await?;
            let mut annotation_count = 0;
            for (place, content) in read.contents.iter().enumerate() {
                annotation_count += content.labels.len();
                let image = ImageRow::new(place, content, tx.now());
                store::insert_image(&tx, version.id, &image).await?;
            }
            store::expire_upload(&tx, import.upload_id, tx.now() + UPLOAD_KEPT_AFTER).await?;
            let workspace = Some(import.workspace_id);
            if version.number == 1 {
                let dataset = store::dataset(&tx, import.dataset_id).await?;
                let fact = DatasetCreated {
                    dataset_id: import.dataset_id.to_string(),
                    name: dataset.map(|dataset| dataset.name).unwrap_or_default(),
                };
                tx.tell(workspace, import.dataset_id, &fact).await?;
            }
            let fact = ImportCompleted {
                import_id: import.id.to_string(),
                dataset_id: import.dataset_id.to_string(),
                version_id: version.id.to_string(),
                image_count: i32::try_from(read.contents.len()).unwrap_or(i32::MAX),
                annotation_count: i32::try_from(annotation_count).unwrap_or(i32::MAX),
            };
            tx.tell(workspace, import.id, &fact).await?;
            Ok(())
        })
        .await
}

/// Ends an import that was refused. A dataset that was made for it goes with it, so that nothing has changed.
pub async fn fail_import(
    store: &Store,
    import: &ImportRow,
    findings: &Findings,
) -> Result<(), Error> {
    let kept = &findings.kept();
    store
        .write(|tx| async move {
            let ending = Ending {
                state: ImportState::Failed,
                version_id: None,
                findings: kept,
                finding_count: findings.count(),
                images: 0,
            };
            if !store::end_import(&tx, import.id, &ending, tx.now()).await? {
                return Ok(());
            }
            if store::latest_version(&tx, import.dataset_id)
                .await?
                .is_none()
            {
                store::delete_dataset(&tx, import.dataset_id, tx.now()).await?;
            }
            store::expire_upload(&tx, import.upload_id, tx.now() + UPLOAD_KEPT_AFTER).await?;
            let first = findings.first_error();
            let fact = ImportFailed {
                import_id: import.id.to_string(),
                dataset_id: import.dataset_id.to_string(),
                reason: first.map(|first| first.reason.clone()).unwrap_or_default(),
                message: first.map(|first| first.message.clone()).unwrap_or_default(),
            };
            tx.tell(Some(import.workspace_id), import.id, &fact).await?;
            Ok(())
        })
        .await
}

/// Takes a dataset out of the lists; its versions stay for the runs and models made from them.
pub async fn delete_dataset(store: &Store, caller: &Caller, id: Id<Dataset>) -> Result<(), Error> {
    store
        .write(|tx| async move {
            let dataset = find_dataset(&tx, caller, id).await?;
            store::delete_dataset(&tx, id, tx.now()).await?;
            let fact = DatasetDeleted {
                dataset_id: id.to_string(),
            };
            tx.tell(Some(dataset.workspace_id), id, &fact).await?;
            Ok(())
        })
        .await
}

/// Returns an import that the caller may see.
pub async fn find_import(
    sql: &kit::store::Sql,
    caller: &Caller,
    id: Id<Import>,
) -> Result<ImportRow, Error> {
    let import = store::import(sql, id).await?;
    let owned = import.filter(|import| caller.owns(import.workspace_id));
    owned.ok_or_else(|| Error::NotFound {
        what: "import",
        id: id.to_string(),
    })
}
