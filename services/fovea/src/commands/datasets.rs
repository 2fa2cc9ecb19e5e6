//! `fovea datasets …`: import, list, look, and make sample data.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use proto::fovea::datasets::v1::{
    CreateUploadRequest, Dataset, GetImportRequest, GetUploadRequest, Import, ImportDatasetRequest,
    ImportState, ListDatasetsRequest, ListImagesRequest, Split, Version,
};
use reqwest::{Method, StatusCode};
use zip::write::SimpleFileOptions;

use super::{NAME_SEARCH_PAGE, Session, is_id};
use crate::cli::Datasets;
use crate::output::{self, Table, line, remark};

/// The size of one upload part.
const PART_BYTES: u64 = 8 << 20;
/// How often a part that didn't arrive is sent again.
const PART_TRIES_MAX: u32 = 5;
/// The pause between looks at an import.
const IMPORT_POLL: Duration = Duration::from_millis(250);
/// Findings that are printed one by one.
const FINDINGS_SHOWN_MAX: usize = 20;

/// Runs one of the commands.
pub async fn run(session: &Session, command: Datasets) -> Result<()> {
    match command {
        Datasets::Import {
            source,
            name,
            into,
            skip_faulty,
        } => {
            let import = import(session, &source, name, into, skip_faulty).await?;
            session.show(&import, print_import)
        }
        Datasets::Ls => list(session).await,
        Datasets::Images {
            dataset,
            split,
            limit,
        } => images(session, &dataset, split.as_deref(), limit).await,
        Datasets::Sample { .. } => bail!("invariant: `datasets sample` needs no fleet"),
    }
}

/// Imports a zip, folder or address and waits for the end; fails with the findings when it is refused.
pub async fn import(
    session: &Session,
    source: &str,
    name: Option<String>,
    into: Option<String>,
    skip_faulty: bool,
) -> Result<Import> {
    let scratch = tempfile::tempdir()?;
    let archive = obtain(session, source, scratch.path()).await?;
    let dataset_id = match &into {
        Some(dataset) => find(session, dataset).await?.id,
        None => String::new(),
    };
    let upload_id = upload(session, &archive).await?;
    let request = ImportDatasetRequest {
        name: if into.is_some() {
            String::new()
        } else {
            name.unwrap_or_else(|| stem(source))
        },
        dataset_id,
        idempotency_key: format!("import-{upload_id}"),
        skip_faulty,
        upload_id,
    };
    let mut datasets = session.fleet.datasets();
    let mut import = datasets
        .import_dataset(request)
        .await?
        .into_inner()
        .import
        .unwrap_or_default();
    let bar = output::bar(0, "importing", false, session.is_json);
    while matches!(import.state(), ImportState::Pending | ImportState::Running) {
        bar.set_length(import.images_total.max(0).unsigned_abs().into());
        bar.set_position(import.images_done.max(0).unsigned_abs().into());
        tokio::time::sleep(IMPORT_POLL).await;
        let request = GetImportRequest {
            import_id: import.id.clone(),
        };
        import = datasets
            .get_import(request)
            .await?
            .into_inner()
            .import
            .unwrap_or_default();
    }
    bar.finish_and_clear();
    if import.state() == ImportState::Failed {
        let findings: Vec<String> = import.findings.iter().map(finding).collect();
        bail!("{source} was not imported\n{}", findings.join("\n"));
    }
    Ok(import)
}

fn finding(finding: &proto::fovea::datasets::v1::Finding) -> String {
    let place = match (finding.file.as_str(), finding.line) {
        ("", _) => String::new(),
        (file, 0) => format!("{file}: "),
        (file, line) => format!("{file}:{line}: "),
    };
    let weight = if finding.is_error { "error" } else { "note" };
    format!(
        "  {weight}: {place}{} [{}]",
        finding.message, finding.reason
    )
}

fn print_import(import: &Import) {
    for text in import.findings.iter().take(FINDINGS_SHOWN_MAX).map(finding) {
        remark(text);
    }
    let shown = FINDINGS_SHOWN_MAX.min(import.findings.len());
    let rest = usize::try_from(import.finding_count)
        .unwrap_or(0)
        .saturating_sub(shown);
    if rest > 0 {
        remark(format!("  … and {rest} more findings"));
    }
    line(format!(
        "imported {} images as dataset {}, version {}",
        import.images_done, import.dataset_id, import.version_id
    ));
}

async fn list(session: &Session) -> Result<()> {
    let request = ListDatasetsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let response = session
        .fleet
        .datasets()
        .list_datasets(request)
        .await?
        .into_inner();
    session.show(&response, |response| {
        let mut table = Table::new(["ID", "NAME", "VERSION", "CLASSES", "TRAIN", "VAL", "TEST"]);
        for dataset in &response.datasets {
            let version = dataset.latest_version.clone().unwrap_or_default();
            let count = |split| image_count(&version, split).to_string();
            table.row([
                dataset.id.clone(),
                dataset.name.clone(),
                version.number.to_string(),
                version.class_names.len().to_string(),
                count(Split::Train),
                count(Split::Val),
                count(Split::Test),
            ]);
        }
        table.print();
    })
}

/// Returns how many images a split of a version has.
pub fn image_count(version: &Version, split: Split) -> i32 {
    version
        .splits
        .iter()
        .filter(|summary| summary.split() == split)
        .map(|s| s.image_count)
        .sum()
}

async fn images(session: &Session, dataset: &str, split: Option<&str>, limit: i32) -> Result<()> {
    let split = match split {
        None => Split::Unspecified,
        Some("train") => Split::Train,
        Some("val") => Split::Val,
        Some("test") => Split::Test,
        Some(other) => bail!("split '{other}' is not one of train, val, test"),
    };
    let request = ListImagesRequest {
        version_id: find_version(session, dataset).await?,
        split: split.into(),
        page_size: limit,
        page_token: String::new(),
    };
    let response = session
        .fleet
        .datasets()
        .list_images(request)
        .await?
        .into_inner();
    session.show(&response, |response| {
        let mut table = Table::new(["ID", "NAME", "SPLIT", "SIZE", "BYTES", "OBJECTS"]);
        for image in &response.images {
            table.row([
                image.id.clone(),
                image.name.clone(),
                image
                    .split()
                    .as_str_name()
                    .trim_start_matches("SPLIT_")
                    .to_lowercase(),
                format!("{}×{}", image.width, image.height),
                output::bytes(image.size_bytes),
                image.annotation_count.to_string(),
            ]);
        }
        table.print();
    })
}

/// Returns the dataset with this id or name.
pub async fn find(session: &Session, text: &str) -> Result<Dataset> {
    let mut datasets = session.fleet.datasets();
    if is_id(text, "ds") {
        let request = proto::fovea::datasets::v1::GetDatasetRequest {
            dataset_id: text.to_owned(),
        };
        return Ok(datasets
            .get_dataset(request)
            .await?
            .into_inner()
            .dataset
            .unwrap_or_default());
    }
    let request = ListDatasetsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let response = datasets.list_datasets(request).await?.into_inner();
    response
        .datasets
        .into_iter()
        .find(|dataset| dataset.name == text)
        .with_context(|| format!("there is no dataset '{text}': `fovea datasets ls` lists them"))
}

/// Returns the version that a text names: an id, or the newest of a dataset.
pub async fn find_version(session: &Session, text: &str) -> Result<String> {
    if is_id(text, "dsv") {
        return Ok(text.to_owned());
    }
    let dataset = find(session, text).await?;
    let version = dataset.latest_version;
    Ok(version
        .with_context(|| format!("dataset '{text}' has no version yet"))?
        .id)
}

fn stem(source: &str) -> String {
    let last = source
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(source);
    let plain = last.split(['?', '#']).next().unwrap_or(last);
    plain.strip_suffix(".zip").unwrap_or(plain).to_owned()
}

/// Returns a zip on this machine: the path itself, a folder packed, or an address fetched.
async fn obtain(session: &Session, source: &str, scratch: &Path) -> Result<PathBuf> {
    if source.starts_with("http://") || source.starts_with("https://") {
        let target = scratch.join("download.zip");
        download(session, source, &target).await?;
        return Ok(target);
    }
    let path = PathBuf::from(source);
    let metadata = std::fs::metadata(&path).with_context(|| source.to_owned())?;
    if !metadata.is_dir() {
        return Ok(path);
    }
    let target = scratch.join("folder.zip");
    let packed = target.clone();
    tokio::task::spawn_blocking(move || pack(&path, &packed)).await??;
    Ok(target)
}

async fn download(session: &Session, url: &str, target: &Path) -> Result<()> {
    let mut response = reqwest::get(url).await?.error_for_status()?;
    let length = response.content_length().unwrap_or(0);
    let bar = output::bar(length, "downloading", true, session.is_json);
    let mut file = File::create(target)?;
    while let Some(chunk) = response.chunk().await? {
        file.write_all(&chunk)?;
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Packs a folder without compressing: pictures are compressed already.
fn pack(folder: &Path, target: &Path) -> Result<()> {
    let mut archive = zip::ZipWriter::new(File::create(target)?);
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(&next)
            .with_context(|| next.display().to_string())?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        entries.sort();
        for path in entries {
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
                archive.start_file(name, options)?;
                std::io::copy(&mut File::open(&path)?, &mut archive)?;
            }
        }
    }
    archive.finish()?;
    Ok(())
}

/// Sends a file in parts and returns the upload's id; goes on where the gateway says it stopped.
async fn upload(session: &Session, path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let total = file.metadata()?.len();
    let mut datasets = session.fleet.datasets();
    let request = CreateUploadRequest {
        file_name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        size_bytes: i64::try_from(total)?,
    };
    let upload = datasets
        .create_upload(request)
        .await?
        .into_inner()
        .upload
        .unwrap_or_default();
    let bar = output::bar(total, "uploading", true, session.is_json);
    let mut offset = u64::try_from(upload.received_bytes)?;
    let mut tries = 0;
    while offset < total {
        let end = total.min(offset + PART_BYTES);
        let mut part = vec![0; usize::try_from(end - offset)?];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut part)?;
        let sent = session
            .fleet
            .http(Method::PUT, &upload.url)
            .header(
                "content-range",
                format!("bytes {offset}-{}/{total}", end - 1),
            )
            .body(part)
            .send()
            .await;
        match sent {
            Ok(response) if response.status().is_success() => {
                offset = end;
                tries = 0;
            }
            Ok(response)
                if response.status().is_client_error()
                    && response.status() != StatusCode::CONFLICT
                    && response.status() != StatusCode::TOO_MANY_REQUESTS =>
            {
                bail!("the upload was refused: {}", response.text().await?);
            }
            failed => {
                tries += 1;
                if tries >= PART_TRIES_MAX {
                    match failed {
                        Ok(response) => bail!("the upload failed: {}", response.text().await?),
                        Err(error) => return Err(error).context("the upload failed"),
                    }
                }
                tokio::time::sleep(Duration::from_millis(200 << tries)).await;
                let request = GetUploadRequest {
                    upload_id: upload.id.clone(),
                };
                let known = datasets.get_upload(request).await?.into_inner().upload;
                offset = u64::try_from(known.unwrap_or_default().received_bytes)?;
            }
        }
        bar.set_position(offset);
    }
    bar.finish_and_clear();
    Ok(upload.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_named_after_its_file() {
        assert_eq!(stem("data/bccd-yolo.zip"), "bccd-yolo");
        assert_eq!(stem("folder/cells/"), "cells");
        assert_eq!(stem("https://host.example/a/cells.zip?x=1"), "cells");
    }
}
