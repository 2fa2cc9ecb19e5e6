//! The pictures of dataset versions on this machine's disk, each under the digest of its bytes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use engine::data::{Dataset, Label, Sample, Source};
use futures::{StreamExt as _, TryStreamExt as _};
use kit::fault::Fault;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::datasets::v1::{ReadVersionRequest, Split, VersionFile};
use tokio_util::sync::CancellationToken;

use crate::calls::patiently;
use crate::error::Error;
use crate::transfer::Transfer;

/// Files asked for at a time, and fetched at the same time.
const PAGE: i32 = 500;
const FETCHES_MAX: usize = 8;

/// The cache and how it is filled.
#[derive(Clone)]
pub struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    transfer: Transfer,
}

impl Cache {
    /// Returns the cache in a folder.
    pub fn new(folder: PathBuf, bytes_max: u64, transfer: Transfer) -> Self {
        Self {
            folder,
            bytes_max,
            transfer,
        }
    }

    /// Returns a dataset version ready to train on, fetching what isn't here yet.
    pub async fn fetch(
        &self,
        datasets: &DatasetServiceClient<kit::service::Channel>,
        version_id: &str,
        over: &CancellationToken,
    ) -> Result<Dataset, Error> {
        tokio::fs::create_dir_all(&self.folder)
            .await
            .map_err(Fault::internal)?;
        let mut dataset = Dataset::default();
        let mut page_token = String::new();
        loop {
            let request = ReadVersionRequest {
                version_id: version_id.to_owned(),
                page_size: PAGE,
                page_token: page_token.clone(),
            };
            let page = patiently(over, || {
                let (mut client, request) = (datasets.clone(), request.clone());
                async move { client.read_version(request).await }
            })
            .await?;
            if let Some(version) = page.version {
                dataset.classes = version.class_names;
            }
            let fetches = page.files.clone().into_iter().map(|file| {
                let (cache, over) = (self.clone(), over.clone());
                async move { cache.ensure(&file, &over).await }
            });
            let fetched = futures::stream::iter(fetches).buffered(FETCHES_MAX);
            let paths: Vec<PathBuf> = fetched.try_collect().await?;
            for (file, path) in page.files.into_iter().zip(paths) {
                let split = match file.split() {
                    Split::Train => &mut dataset.train,
                    Split::Val => &mut dataset.val,
                    Split::Test => &mut dataset.test,
                    Split::Unspecified => continue,
                };
                split.push(sample(file, path));
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        let (folder, bytes_max) = (self.folder.clone(), self.bytes_max);
        let in_use: Vec<PathBuf> = [&dataset.train, &dataset.val, &dataset.test]
            .into_iter()
            .flatten()
            .filter_map(|sample| match &sample.source {
                Source::File(path) => Some(path.clone()),
                Source::Bytes(_) => None,
            })
            .collect();
        // A cache that is too big is no reason not to train.
        let trimmed = tokio::task::spawn_blocking(move || trim(&folder, bytes_max, &in_use)).await;
        if let Ok(Err(error)) = trimmed {
            tracing::warn!(%error, "could not trim the picture cache");
        }
        Ok(dataset)
    }

    async fn ensure(&self, file: &VersionFile, over: &CancellationToken) -> Result<PathBuf, Error> {
        let folder = self.folder.join(file.digest.get(..2).unwrap_or("00"));
        let path = folder.join(&file.digest);
        let is_here = tokio::fs::metadata(&path)
            .await
            .is_ok_and(|known| i64::try_from(known.len()) == Ok(file.size_bytes));
        if !is_here {
            tokio::fs::create_dir_all(&folder)
                .await
                .map_err(Fault::internal)?;
            let bytes = self.transfer.get(&file.url, &file.digest, over).await?;
            let target = path.clone();
            let written = tokio::task::spawn_blocking(move || write(&target, &bytes)).await;
            written.map_err(Fault::internal)?.map_err(Fault::internal)?;
        }
        Ok(path)
    }
}

fn sample(file: VersionFile, path: PathBuf) -> Sample {
    let labels = file.annotations.iter().map(|annotation| {
        let bounds = [
            annotation.center_x as f32,
            annotation.center_y as f32,
            annotation.width as f32,
            annotation.height as f32,
        ];
        Label::boxed(annotation.class_id.max(0).unsigned_abs(), bounds)
    });
    Sample {
        labels: labels.collect(),
        name: file.name,
        source: Source::File(path),
    }
}

/// Writes a file that is there whole or not at all.
fn write(target: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut draft, bytes)?;
    draft.persist(target).map_err(|error| error.error)?;
    Ok(())
}

/// Removes the files that were unused longest until the rest fits; those in use stay.
fn trim(folder: &Path, bytes_max: u64, in_use: &[PathBuf]) -> std::io::Result<()> {
    let in_use: std::collections::HashSet<&PathBuf> = in_use.iter().collect();
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for shelf in std::fs::read_dir(folder)? {
        let shelf = shelf?.path();
        if !shelf.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(shelf)? {
            let entry = entry?;
            let known = entry.metadata()?;
            files.push((known.modified()?, known.len(), entry.path()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in files {
        if total <= bytes_max {
            break;
        }
        if !in_use.contains(&path) {
            std::fs::remove_file(&path)?;
            total -= size;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_removes_the_oldest_and_spares_what_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = folder.path().join("ab");
        std::fs::create_dir(&shelf).unwrap();
        let mut paths = Vec::new();
        for (age, name) in ["old-in-use", "old", "new"].iter().enumerate() {
            let path = shelf.join(name);
            write(&path, &[0; 10]).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64 + 1);
            std::fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(at)
                .unwrap();
            paths.push(path);
        }
        trim(folder.path(), 20, &paths[..1]).unwrap();
        assert!(paths[0].exists() && !paths[1].exists() && paths[2].exists());
    }
}
