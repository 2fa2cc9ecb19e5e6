//! Bytes: images, checkpoints, models. Addressed by their content within a workspace, so that
//! no tenant can probe another's; a clone across workspaces is a copy inside the store.

mod key;
mod sign;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::signer::Signer as _;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::auth::Signer;
use crate::config::Fleet;
use crate::fault::{Fault, Kind};
use crate::id::{Id, Workspace};
use crate::time::Timestamp;

pub use key::{BlobKey, BlobRef};
pub use sign::{Access, BLOBS_PATH, UrlSigner};

/// What is read from a file or sent to the store at a time.
const CHUNK: usize = 1 << 20;
/// The longest a signed URL may be valid.
pub const SIGNED_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The object store, seen by one service. Clones share it.
#[derive(Clone)]
pub struct Blobs(Arc<Inner>);

struct Inner {
    service: String,
    store: Arc<dyn ObjectStore>,
    /// Present where the store itself can sign URLs.
    s3: Option<Arc<AmazonS3>>,
    urls: UrlSigner,
    drafts: PathBuf,
}

impl Blobs {
    /// Opens the store that is configured.
    pub fn open(fleet: &Fleet, service: &str, signer: &Signer) -> Result<Self, Fault> {
        let url = fleet.blob_url.clone();
        let (store, s3): (Arc<dyn ObjectStore>, _) = match url.as_deref() {
            None => (open_folder(&fleet.data.join("blobs"))?, None),
            Some(url) => match url.split_once("://") {
                Some(("file", path)) => (open_folder(Path::new(path))?, None),
                Some(("s3", bucket)) => {
                    let s3 = Arc::new(open_s3(fleet, bucket.trim_end_matches('/'))?);
                    (s3.clone(), Some(s3))
                }
                _ => {
                    let message =
                        format!("fleet.blob_url: '{url}': expected file:///path or s3://bucket");
                    return Err(Fault::new(
                        Kind::Invalid,
                        "BLOB_URL_INVALID",
                        "kit",
                        message,
                    ));
                }
            },
        };
        let drafts = fleet.run_folder().join("drafts");
        std::fs::create_dir_all(&drafts)
            .map_err(|error| Fault::internal(error).with("path", drafts.display()))?;
        let urls = UrlSigner::new(signer);
        Ok(Self(Arc::new(Inner {
            service: service.to_owned(),
            store,
            s3,
            urls,
            drafts,
        })))
    }

    /// Returns the same store as another service sees it, for what is written on its behalf: a
    /// worker's checkpoints belong to `projects`.
    #[must_use]
    pub fn of(&self, service: &str) -> Self {
        let Inner {
            store,
            s3,
            urls,
            drafts,
            ..
        } = &*self.0;
        Self(Arc::new(Inner {
            service: service.to_owned(),
            store: store.clone(),
            s3: s3.clone(),
            urls: urls.clone(),
            drafts: drafts.clone(),
        }))
    }

    /// Stores bytes; they are durable when this returns.
    pub async fn put(&self, workspace: Id<Workspace>, bytes: Bytes) -> Result<BlobRef, Fault> {
        let size_bytes = bytes.len() as u64;
        let key = self.key(workspace, blake3::hash(&bytes));
        if !self.exists(&key).await? {
            let (place, payload) = (path(&key), PutPayload::from_bytes(bytes));
            self.0
                .store
                .put(&place, payload)
                .await
                .map_err(|error| fault(&key, error))?;
        }
        Ok(BlobRef { key, size_bytes })
    }

    /// Stores a file without reading it whole into memory.
    pub async fn put_file(&self, workspace: Id<Workspace>, file: &Path) -> Result<BlobRef, Fault> {
        let failed = |error: std::io::Error| Fault::internal(error).with("path", file.display());
        let hash = {
            let file = file.to_owned();
            let hashing = tokio::task::spawn_blocking(move || {
                let mut hasher = blake3::Hasher::new();
                hasher.update_reader(std::fs::File::open(file)?)?;
                Ok(hasher.finalize())
            });
            hashing.await.map_err(Fault::internal)?.map_err(failed)?
        };
        let key = self.key(workspace, hash);
        let size_bytes = tokio::fs::metadata(file).await.map_err(failed)?.len();
        if !self.exists(&key).await? {
            let mut source = tokio::fs::File::open(file).await.map_err(failed)?;
            let mut target = BufWriter::new(self.0.store.clone(), path(&key));
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = source.read(&mut chunk).await.map_err(failed)?;
                if length == 0 {
                    break;
                }
                target
                    .write_all(&chunk[..length])
                    .await
                    .map_err(|e| write_fault(&key, e))?;
            }
            target.shutdown().await.map_err(|e| write_fault(&key, e))?;
        }
        Ok(BlobRef { key, size_bytes })
    }

    /// Stores a stream of at most `limit` bytes; it is hashed while it is written to a draft.
    pub async fn put_stream<S, E>(
        &self,
        workspace: Id<Workspace>,
        stream: S,
        limit: u64,
    ) -> Result<BlobRef, Fault>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let draft = tempfile::NamedTempFile::new_in(&self.0.drafts).map_err(Fault::internal)?;
        let (file, draft) = draft.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let mut size_bytes = 0_u64;
        let mut stream = std::pin::pin!(stream);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| {
                let message = "the bytes ended before their end";
                Fault::new(Kind::Invalid, "BLOB_CUT_OFF", "kit", message).caused_by(error)
            })?;
            size_bytes += chunk.len() as u64;
            if size_bytes > limit {
                let message = format!("more than the {limit} bytes that are allowed");
                return Err(Fault::new(Kind::Invalid, "BLOB_TOO_LARGE", "kit", message)
                    .with("limit_bytes", limit));
            }
            file.write_all(&chunk).await.map_err(Fault::internal)?;
        }
        file.flush().await.map_err(Fault::internal)?;
        self.put_file(workspace, &draft).await
    }

    /// Returns all bytes of a blob of at most `limit` bytes.
    pub async fn get(&self, key: &BlobKey, limit: u64) -> Result<Bytes, Fault> {
        let found = self
            .0
            .store
            .get(&path(key))
            .await
            .map_err(|error| fault(key, error))?;
        if found.meta.size > limit {
            let message = format!("{key} has {} bytes, {limit} are allowed", found.meta.size);
            return Err(Fault::new(Kind::Invalid, "BLOB_TOO_LARGE", "kit", message));
        }
        found.bytes().await.map_err(|error| fault(key, error))
    }

    /// Returns a blob as a stream.
    pub async fn get_stream(
        &self,
        key: &BlobKey,
    ) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        let found = self
            .0
            .store
            .get(&path(key))
            .await
            .map_err(|error| fault(key, error))?;
        let key = key.clone();
        Ok(found
            .into_stream()
            .map_err(move |error| fault(&key, error))
            .boxed())
    }

    /// Returns the bytes from `start` up to, not including, `end`.
    pub async fn get_range(
        &self,
        key: &BlobKey,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, Fault> {
        let place = path(key);
        self.0
            .store
            .get_range(&place, range)
            .await
            .map_err(|error| fault(key, error))
    }

    /// Writes a blob to a file, complete or not at all.
    pub async fn get_file(&self, key: &BlobKey, target: &Path) -> Result<(), Fault> {
        let failed = |error: std::io::Error| Fault::internal(error).with("path", target.display());
        let folder = target.parent().unwrap_or_else(|| Path::new("."));
        let draft = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let (file, draft) = draft.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let mut stream = self.get_stream(key).await?;
        while let Some(chunk) = stream.try_next().await? {
            file.write_all(&chunk).await.map_err(failed)?;
        }
        file.sync_all().await.map_err(failed)?;
        draft.persist(target).map_err(|error| failed(error.error))
    }

    /// Returns the size of a blob, `None` where there is none.
    pub async fn size(&self, key: &BlobKey) -> Result<Option<u64>, Fault> {
        match self.0.store.head(&path(key)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(fault(key, error)),
        }
    }

    /// Tells whether a blob is there.
    pub async fn exists(&self, key: &BlobKey) -> Result<bool, Fault> {
        Ok(self.size(key).await?.is_some())
    }

    /// Copies a blob into a workspace of this service, inside the store.
    pub async fn copy(&self, source: &BlobRef, to: Id<Workspace>) -> Result<BlobRef, Fault> {
        let key = BlobKey::new(&self.0.service, to, source.key.hash());
        if key != source.key && !self.exists(&key).await? {
            let (from, to) = (path(&source.key), path(&key));
            self.0
                .store
                .copy(&from, &to)
                .await
                .map_err(|error| fault(&source.key, error))?;
        }
        Ok(BlobRef {
            key,
            size_bytes: source.size_bytes,
        })
    }

    /// Deletes a blob; one that is not there is deleted already.
    pub async fn delete(&self, key: &BlobKey) -> Result<(), Fault> {
        match self.0.store.delete(&path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(fault(key, error)),
        }
    }

    /// Returns a URL that reads a blob without an identity, for a while: of S3 itself, or a path
    /// that the gateway serves.
    pub async fn sign_get(
        &self,
        key: &BlobKey,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<String, Fault> {
        self.sign(key, Access::Read, ttl, now).await
    }

    /// Returns a URL that writes the blob of this very content, of at most `max_bytes`.
    ///
    /// S3's own URLs can't bind a size: there the reader checks it.
    pub async fn sign_put(
        &self,
        key: &BlobKey,
        max_bytes: u64,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<String, Fault> {
        self.sign(key, Access::Write { max_bytes }, ttl, now).await
    }

    /// Returns who signs and verifies the paths that the gateway serves.
    pub fn urls(&self) -> &UrlSigner {
        &self.0.urls
    }

    async fn sign(
        &self,
        key: &BlobKey,
        access: Access,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<String, Fault> {
        let ttl = ttl.min(SIGNED_TTL_MAX);
        match &self.0.s3 {
            None => Ok(self.0.urls.sign(key, access, now + ttl)),
            Some(s3) => {
                let url = s3.signed_url(access.method(), &path(key), ttl).await;
                url.map(String::from).map_err(|error| fault(key, error))
            }
        }
    }

    fn key(&self, workspace: Id<Workspace>, hash: blake3::Hash) -> BlobKey {
        BlobKey::new(&self.0.service, workspace, hash)
    }
}

impl std::fmt::Debug for Blobs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Blobs")
            .field("service", &self.0.service)
            .field("store", &self.0.store.to_string())
            .finish_non_exhaustive()
    }
}

fn open_folder(folder: &Path) -> Result<Arc<dyn ObjectStore>, Fault> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Fault::internal(error).with("path", folder.display())
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(error.into()))?;
    let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| failed(error.into()))?;
    // A checkpoint is durable when it was put: the folder of the data must say so too.
    Ok(Arc::new(store.with_fsync(true)))
}

fn open_s3(fleet: &Fleet, bucket: &str) -> Result<AmazonS3, Fault> {
    // The HTTP client is built without a provider of its own; a second call finds it done.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&fleet.s3_region);
    if let Some(endpoint) = &fleet.s3_endpoint {
        let is_plain = endpoint.starts_with("http://");
        builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
    }
    if let Some(id) = &fleet.s3_access_key_id {
        builder = builder.with_access_key_id(id);
    }
    if let Some(secret) = &fleet.s3_secret_access_key {
        builder = builder.with_secret_access_key(secret.expose());
    }
    builder.build().map_err(|error| {
        let message = format!("fleet.blob_url: {error}");
        Fault::new(Kind::Invalid, "BLOB_URL_INVALID", "kit", message)
    })
}

fn path(key: &BlobKey) -> StorePath {
    StorePath::from(key.to_string())
}

fn fault(key: &BlobKey, error: object_store::Error) -> Fault {
    match error {
        object_store::Error::NotFound { .. } => Fault::new(
            Kind::NotFound,
            "BLOB_NOT_FOUND",
            "kit",
            format!("there is no blob {key}"),
        ),
        object_store::Error::Generic { .. } => Fault::new(
            Kind::Unavailable,
            "BLOBS_UNAVAILABLE",
            "kit",
            "the blobs do not answer",
        )
        .caused_by(error),
        error => Fault::internal(error).with("blob", key),
    }
}

fn write_fault(key: &BlobKey, error: std::io::Error) -> Fault {
    Fault::internal(error).with("blob", key)
}
