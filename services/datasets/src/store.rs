//! All SQL of the datasets service.

use kit::id::{Dataset, Id, Image, Import, Upload, Version, Workspace};
use kit::store::{Error, FromRow, Migration, Row, Sql};
use kit::{Timestamp, params};
use prost::Message as _;
use proto::fovea::datasets::v1::{Annotation, ListAnnotationsResponse};
use serde::{Deserialize, Serialize};

use crate::domain::Finding;
use crate::domain::version::{Content, Summary};
use crate::domain::yolo::Split;

/// The schema, in the order it grew.
pub const MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "datasets",
    include_str!("../migrations/0001_datasets.sql"),
)];

/// Expired uploads that are removed at a time.
const EXPIRED_MAX: i64 = 100;

/// An upload as it is stored.
#[derive(Debug, Clone)]
pub struct UploadRow {
    pub id: Id<Upload>,
    pub workspace_id: Id<Workspace>,
    pub file_name: String,
    pub size_bytes: i64,
    pub received_bytes: i64,
    pub expires_at: Timestamp,
}

impl FromRow for UploadRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            file_name: row.get("file_name")?,
            size_bytes: row.get("size_bytes")?,
            received_bytes: row.get("received_bytes")?,
            expires_at: row.get("expires_at")?,
        })
    }
}

/// One part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub offset_bytes: i64,
    pub size_bytes: i64,
    pub digest: String,
}

impl FromRow for Part {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            offset_bytes: row.get("offset_bytes")?,
            size_bytes: row.get("size_bytes")?,
            digest: row.get("digest")?,
        })
    }
}

/// Writes a new upload.
pub async fn insert_upload(sql: &Sql, upload: &UploadRow, now: Timestamp) -> Result<(), Error> {
    sql.execute(
        "insert into uploads (id, workspace_id, file_name, size_bytes, received_bytes, created_at,
             expires_at)
         values ($1, $2, $3, $4, $5, $6, $7)",
        params![
            upload.id,
            upload.workspace_id,
            &upload.file_name,
            upload.size_bytes,
            upload.received_bytes,
            now,
            upload.expires_at,
        ],
    )
    .await?;
    Ok(())
}

/// Returns an upload, locked.
pub async fn upload(sql: &Sql, id: Id<Upload>) -> Result<Option<UploadRow>, Error> {
    sql.query_optional(
        "select * from uploads where id = $1 for update",
        params![id],
    )
    .await
}

/// Adds the next part.
pub async fn append_part(sql: &Sql, id: Id<Upload>, part: &Part) -> Result<(), Error> {
    sql.execute(
        "insert into upload_parts (upload_id, offset_bytes, size_bytes, digest)
         values ($1, $2, $3, $4)",
        params![id, part.offset_bytes, part.size_bytes, &part.digest],
    )
    .await?;
    sql.execute(
        "update uploads set received_bytes = received_bytes + $2 where id = $1",
        params![id, part.size_bytes],
    )
    .await?;
    Ok(())
}

/// Returns an upload's parts in order.
pub async fn parts(sql: &Sql, id: Id<Upload>) -> Result<Vec<Part>, Error> {
    sql.query_all(
        "select offset_bytes, size_bytes, digest from upload_parts where upload_id = $1
         order by offset_bytes",
        params![id],
    )
    .await
}

/// Moves the instant from which on an upload's parts may be thrown away.
pub async fn expire_upload(sql: &Sql, id: Id<Upload>, at: Timestamp) -> Result<(), Error> {
    sql.execute(
        "update uploads set expires_at = $2 where id = $1",
        params![id, at],
    )
    .await?;
    Ok(())
}

/// Tells whether any upload or image of a workspace consists of these bytes.
pub async fn is_used(sql: &Sql, workspace_id: Id<Workspace>, digest: &str) -> Result<bool, Error> {
    let uses: i64 = sql
        .query_one(
            "select (select count(*) from upload_parts join uploads on uploads.id = upload_id
                     where digest = $1 and workspace_id = $2)
                  + (select count(*) from images join versions on versions.id = version_id
                     where images.digest = $1 and workspace_id = $2)",
            params![digest, workspace_id],
        )
        .await?;
    Ok(uses > 0)
}

/// Forgets the parts of an upload.
pub async fn delete_parts(sql: &Sql, id: Id<Upload>) -> Result<(), Error> {
    sql.execute("delete from upload_parts where upload_id = $1", params![id])
        .await?;
    Ok(())
}

/// Returns uploads that expired with parts and that no import is reading.
pub async fn expired_uploads(sql: &Sql, now: Timestamp) -> Result<Vec<UploadRow>, Error> {
    sql.query_all(
        "select * from uploads where expires_at < $1
             and exists (select 1 from upload_parts where upload_id = uploads.id)
             and not exists (select 1 from imports where upload_id = uploads.id
                             and state in ('pending', 'running'))
         order by expires_at limit $2",
        params![now, EXPIRED_MAX],
    )
    .await
}

/// A dataset as it is stored.
#[derive(Debug, Clone)]
pub struct DatasetRow {
    pub id: Id<Dataset>,
    pub workspace_id: Id<Workspace>,
    pub name: String,
    pub created_at: Timestamp,
}

impl FromRow for DatasetRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            name: row.get("name")?,
            created_at: row.get("created_at")?,
        })
    }
}

/// Writes a new dataset.
pub async fn insert_dataset(sql: &Sql, dataset: &DatasetRow) -> Result<(), Error> {
    sql.execute(
        "insert into datasets (id, workspace_id, name, task, created_at)
         values ($1, $2, $3, 'detect', $4)",
        params![
            dataset.id,
            dataset.workspace_id,
            &dataset.name,
            dataset.created_at
        ],
    )
    .await?;
    Ok(())
}

/// Returns a dataset that isn't deleted.
pub async fn dataset(sql: &Sql, id: Id<Dataset>) -> Result<Option<DatasetRow>, Error> {
    sql.query_optional(
        "select * from datasets where id = $1 and deleted_at is null",
        params![id],
    )
    .await
}

/// Returns a workspace's datasets that have a version, newest first, those older than `before`.
pub async fn datasets(
    sql: &Sql,
    workspace_id: Id<Workspace>,
    before: Option<Id<Dataset>>,
    limit: i64,
) -> Result<Vec<DatasetRow>, Error> {
    let before = before.unwrap_or(Id::from_bytes([0xff; 16]));
    sql.query_all(
        "select * from datasets where workspace_id = $1 and deleted_at is null and id < $2
             and exists (select 1 from versions where dataset_id = datasets.id)
         order by id desc limit $3",
        params![workspace_id, before, limit],
    )
    .await
}

/// Takes a dataset out of the lists; its name becomes free.
pub async fn delete_dataset(sql: &Sql, id: Id<Dataset>, now: Timestamp) -> Result<(), Error> {
    sql.execute(
        "update datasets set deleted_at = $2 where id = $1",
        params![id, now],
    )
    .await?;
    Ok(())
}

/// A version as it is stored.
#[derive(Debug, Clone)]
pub struct VersionRow {
    pub id: Id<Version>,
    pub dataset_id: Id<Dataset>,
    pub workspace_id: Id<Workspace>,
    pub number: i64,
    pub class_names: Vec<String>,
    pub splits: Vec<(Split, Summary)>,
    pub digest: String,
    pub created_at: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct SplitText {
    split: String,
    #[serde(flatten)]
    summary: Summary,
}

impl FromRow for VersionRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let splits: Vec<SplitText> = row.json("splits")?;
        Ok(Self {
            id: row.get("id")?,
            dataset_id: row.get("dataset_id")?,
            workspace_id: row.get("workspace_id")?,
            number: row.get("number")?,
            class_names: row.json("class_names")?,
            splits: splits
                .into_iter()
                .filter_map(|text| Some((Split::parse(&text.split)?, text.summary)))
                .collect(),
            digest: row.get("digest")?,
            created_at: row.get("created_at")?,
        })
    }
}

/// Returns the number that the next version of a dataset gets.
pub async fn next_number(sql: &Sql, dataset_id: Id<Dataset>) -> Result<i64, Error> {
    sql.query_one(
        "select coalesce(max(number), 0) + 1 from versions where dataset_id = $1",
        params![dataset_id],
    )
    .await
}

/// Writes a version.
pub async fn insert_version(sql: &Sql, version: &VersionRow) -> Result<(), Error> {
    let splits: Vec<SplitText> = version
        .splits
        .iter()
        .map(|(split, summary)| SplitText {
            split: split.as_str().to_owned(),
            summary: *summary,
        })
        .collect();
    sql.execute(
        "insert into versions (id, dataset_id, workspace_id, number, task, class_names, splits,
             digest, created_at)
         values ($1, $2, $3, $4, 'detect', $5, $6, $7, $8)",
        params![
            version.id,
            version.dataset_id,
            version.workspace_id,
            version.number,
            json(&version.class_names),
            json(&splits),
            &version.digest,
            version.created_at,
        ],
    )
    .await?;
    Ok(())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: lists of names and numbers are JSON")
}

/// Returns a version.
pub async fn version(sql: &Sql, id: Id<Version>) -> Result<Option<VersionRow>, Error> {
    sql.query_optional("select * from versions where id = $1", params![id])
        .await
}

/// Returns the newest version of a dataset.
pub async fn latest_version(sql: &Sql, id: Id<Dataset>) -> Result<Option<VersionRow>, Error> {
    sql.query_optional(
        "select * from versions where dataset_id = $1 order by number desc limit 1",
        params![id],
    )
    .await
}

/// Returns a dataset's versions, newest first, those with a number below `before`.
pub async fn versions(
    sql: &Sql,
    dataset_id: Id<Dataset>,
    before: i64,
    limit: i64,
) -> Result<Vec<VersionRow>, Error> {
    sql.query_all(
        "select * from versions where dataset_id = $1 and number < $2
         order by number desc limit $3",
        params![dataset_id, before, limit],
    )
    .await
}

/// An image of a version as it is stored.
#[derive(Debug, Clone)]
pub struct ImageRow {
    pub id: Id<Image>,
    pub place: i64,
    pub name: String,
    pub split: Split,
    pub width: i64,
    pub height: i64,
    pub size_bytes: i64,
    pub digest: String,
    pub annotations: ListAnnotationsResponse,
}

impl FromRow for ImageRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let refuse = |column: &str, problem: String| Error::Column {
            column: column.to_owned(),
            problem,
        };
        let split: String = row.get("split")?;
        let encoded: Vec<u8> = row.get("annotations")?;
        Ok(Self {
            id: row.get("id")?,
            place: row.get("place")?,
            name: row.get("name")?,
            split: Split::parse(&split).ok_or_else(|| refuse("split", split.clone()))?,
            width: row.get("width")?,
            height: row.get("height")?,
            size_bytes: row.get("size_bytes")?,
            digest: row.get("digest")?,
            annotations: ListAnnotationsResponse::decode(encoded.as_slice())
                .map_err(|error| refuse("annotations", error.to_string()))?,
        })
    }
}

impl ImageRow {
    /// Returns the row of one picture of a version to be.
    pub fn new(place: usize, content: &Content, now: Timestamp) -> Self {
        let annotations = content
            .labels
            .iter()
            .map(|label| Annotation {
                id: Id::<kit::id::Annotation>::new(now).to_string(),
                class_id: i32::try_from(label.class_id).unwrap_or(i32::MAX),
                center_x: label.center_x,
                center_y: label.center_y,
                width: label.width,
                height: label.height,
            })
            .collect();
        Self {
            id: Id::new(now),
            place: i64::try_from(place).unwrap_or(i64::MAX),
            name: content.name.clone(),
            split: content.split,
            width: content.width.into(),
            height: content.height.into(),
            size_bytes: i64::try_from(content.size_bytes).unwrap_or(i64::MAX),
            digest: blake3::Hash::from_bytes(content.digest)
                .to_hex()
                .to_string(),
            annotations: ListAnnotationsResponse { annotations },
        }
    }
}

/// Writes an image of a version.
pub async fn insert_image(
    sql: &Sql,
    version_id: Id<Version>,
    image: &ImageRow,
) -> Result<(), Error> {
    sql.execute(
        "insert into images (id, version_id, place, name, split, width, height, size_bytes, digest,
             annotation_count, annotations)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        params![
            image.id,
            version_id,
            image.place,
            &image.name,
            image.split.as_str(),
            image.width,
            image.height,
            image.size_bytes,
            &image.digest,
            i64::try_from(image.annotations.annotations.len()).unwrap_or(i64::MAX),
            image.annotations.encode_to_vec(),
        ],
    )
    .await?;
    Ok(())
}

/// Returns images of a version, of one split where it is given, those behind the place `after`.
pub async fn images(
    sql: &Sql,
    version_id: Id<Version>,
    split: Option<Split>,
    after: i64,
    limit: i64,
) -> Result<Vec<ImageRow>, Error> {
    match split {
        Some(split) => {
            sql.query_all(
                "select * from images where version_id = $1 and split = $2 and place > $3
                 order by place limit $4",
                params![version_id, split.as_str(), after, limit],
            )
            .await
        }
        None => {
            sql.query_all(
                "select * from images where version_id = $1 and place > $2
                 order by place limit $3",
                params![version_id, after, limit],
            )
            .await
        }
    }
}

/// Returns one image of a version.
pub async fn image(
    sql: &Sql,
    version_id: Id<Version>,
    id: Id<Image>,
) -> Result<Option<ImageRow>, Error> {
    sql.query_optional(
        "select * from images where version_id = $1 and id = $2",
        params![version_id, id],
    )
    .await
}

/// Where an import stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportState {
    Pending,
    Running,
    Completed,
    Failed,
}

impl ImportState {
    const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Completed, Self::Failed];

    /// Returns how it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// An import as it is stored.
#[derive(Debug, Clone)]
pub struct ImportRow {
    pub id: Id<Import>,
    pub workspace_id: Id<Workspace>,
    pub dataset_id: Id<Dataset>,
    pub upload_id: Id<Upload>,
    pub state: ImportState,
    pub skip_faulty: bool,
    pub version_id: Option<Id<Version>>,
    pub findings: Vec<Finding>,
    pub finding_count: i64,
    pub images_done: i64,
    pub images_total: i64,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl FromRow for ImportRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let state: String = row.get("state")?;
        let known = ImportState::ALL
            .into_iter()
            .find(|known| known.as_str() == state);
        Ok(Self {
            id: row.get("id")?,
            workspace_id: row.get("workspace_id")?,
            dataset_id: row.get("dataset_id")?,
            upload_id: row.get("upload_id")?,
            state: known.ok_or_else(|| Error::Column {
                column: "state".into(),
                problem: state,
            })?,
            skip_faulty: row.get("skip_faulty")?,
            version_id: row.get("version_id")?,
            findings: row.json("findings")?,
            finding_count: row.get("finding_count")?,
            images_done: row.get("images_done")?,
            images_total: row.get("images_total")?,
            created_at: row.get("created_at")?,
            finished_at: row.get("finished_at")?,
        })
    }
}

/// Writes a new import.
pub async fn insert_import(sql: &Sql, import: &ImportRow) -> Result<(), Error> {
    sql.execute(
        "insert into imports (id, workspace_id, dataset_id, upload_id, state, skip_faulty, findings,
             finding_count, images_done, images_total, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        params![
            import.id,
            import.workspace_id,
            import.dataset_id,
            import.upload_id,
            import.state.as_str(),
            import.skip_faulty,
            json(&import.findings),
            import.finding_count,
            import.images_done,
            import.images_total,
            import.created_at,
        ],
    )
    .await?;
    Ok(())
}

/// Returns an import.
pub async fn import(sql: &Sql, id: Id<Import>) -> Result<Option<ImportRow>, Error> {
    sql.query_optional("select * from imports where id = $1", params![id])
        .await
}

/// Takes up the oldest import that waits, or whose worker has been silent since `silent_since`.
pub async fn claim_import(
    sql: &Sql,
    silent_since: Timestamp,
    now: Timestamp,
) -> Result<Option<ImportRow>, Error> {
    let claimed: Option<ImportRow> = sql
        .query_optional(
            "select * from imports
             where state = 'pending' or (state = 'running' and claimed_at < $1)
             order by created_at limit 1 for update skip locked",
            params![silent_since],
        )
        .await?;
    if let Some(import) = &claimed {
        sql.execute(
            "update imports set state = 'running', claimed_at = $2 where id = $1",
            params![import.id, now],
        )
        .await?;
    }
    Ok(claimed)
}

/// Shows how far an import is, which is also its sign of life. False where somebody else has it.
pub async fn progress_import(
    sql: &Sql,
    id: Id<Import>,
    done: i64,
    total: i64,
    now: Timestamp,
) -> Result<bool, Error> {
    let updated = sql
        .execute(
            "update imports set images_done = $2, images_total = $3, claimed_at = $4
             where id = $1 and state = 'running'",
            params![id, done, total, now],
        )
        .await?;
    Ok(updated > 0)
}

/// How an import ended.
#[derive(Debug)]
pub struct Ending<'a> {
    pub state: ImportState,
    pub version_id: Option<Id<Version>>,
    pub findings: &'a [Finding],
    pub finding_count: usize,
    pub images: usize,
}

/// Ends an import. False where it had ended already.
pub async fn end_import(
    sql: &Sql,
    id: Id<Import>,
    ending: &Ending<'_>,
    now: Timestamp,
) -> Result<bool, Error> {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let updated = sql
        .execute(
            "update imports set state = $2, version_id = $3, findings = $4, finding_count = $5,
                 images_done = $6, finished_at = $7
             where id = $1 and state = 'running'",
            params![
                id,
                ending.state.as_str(),
                ending.version_id,
                json(&ending.findings),
                count(ending.finding_count),
                count(ending.images),
                now,
            ],
        )
        .await?;
    Ok(updated > 0)
}
