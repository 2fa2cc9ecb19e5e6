//! What runs in the background: imports, and the end of uploads that were never finished.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kit::blobs::{BlobKey, Blobs};
use kit::fault::Fault;
use kit::service::Context;
use kit::store::Store;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, mpsc};

use crate::commands;
use crate::config::Config;
use crate::domain::Findings;
use crate::error::Error;
use crate::reading::{self, Handed};
use crate::store::{self, ImportRow};

/// How often imports are looked for when nobody asked for one: those of a process that died.
const IMPORT_POLL: Duration = Duration::from_secs(5);
/// Pictures between the reader and the blob store.
const HANDED_MAX: usize = 8;
/// How often progress is written.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How often expired uploads are looked for.
const EXPIRY_EVERY: Duration = Duration::from_secs(600);

/// What the background needs.
#[derive(Clone)]
pub struct Background {
    pub context: Context,
    pub store: Store,
    pub config: Config,
    /// Woken when an import is asked for.
    pub asked: Arc<Notify>,
}

impl Background {
    /// Reads imports one after the other until told to stop.
    pub async fn imports(self) -> Result<(), Fault> {
        let shutdown = self.context.shutdown().clone();
        while !shutdown.is_cancelled() {
            let asked = self.asked.notified();
            match self.next().await {
                Ok(Some(import)) => {
                    let read = shutdown.run_until_cancelled(self.run(&import)).await;
                    if let Some(Err(error)) = read {
                        // The import stays claimed and is taken up again once it is taken for silent.
                        let error = kit::fault::chain(&error);
                        tracing::warn!(import = %import.id, error, "an import stopped");
                    }
                }
                Ok(None) => {
                    tokio::select! {
                        () = asked => {}
                        () = tokio::time::sleep(IMPORT_POLL) => {}
                        () = shutdown.cancelled() => {}
                    }
                }
                Err(error) => {
                    let error = kit::fault::chain(&error);
                    tracing::warn!(error, "looks for imports again later");
                    tokio::time::sleep(IMPORT_POLL).await;
                }
            }
        }
        Ok(())
    }

    async fn next(&self) -> Result<Option<ImportRow>, Error> {
        let silence = self.config.import_silence;
        self.store
            .write(|tx| async move {
                Ok(store::claim_import(&tx, tx.now() - silence, tx.now()).await?)
            })
            .await
    }

    async fn run(&self, import: &ImportRow) -> Result<(), Error> {
        let folder = self.context.fleet().data.join("tmp");
        tokio::fs::create_dir_all(&folder)
            .await
            .map_err(Fault::internal)?;
        let archive = tempfile::NamedTempFile::new_in(folder).map_err(Fault::internal)?;
        self.assemble(import, archive.path()).await?;

        let (handed, mut pictures) = mpsc::channel::<Handed>(HANDED_MAX);
        let (path, skip_faulty) = (archive.path().to_owned(), import.skip_faulty);
        let reading =
            tokio::task::spawn_blocking(move || reading::read(&path, skip_faulty, &handed));
        let mut shown = self.context.now();
        while let Some(picture) = pictures.recv().await {
            let stored = self.blobs().put(import.workspace_id, picture.bytes).await?;
            debug_assert_eq!(stored.key.hash().as_bytes(), &picture.digest);
            let now = self.context.now();
            if now.since(shown) >= PROGRESS_EVERY {
                shown = now;
                self.show_progress(import, picture.done, picture.total)
                    .await?;
            }
        }
        match reading.await.map_err(Fault::internal)? {
            Ok(read) => {
                let (images, findings) = (read.contents.len(), read.findings.count());
                commands::complete_import(&self.store, import, &read).await?;
                tracing::info!(import = %import.id, images, findings, "an import completed");
            }
            Err(findings) => self.refuse(import, &findings).await?,
        }
        Ok(())
    }

    async fn refuse(&self, import: &ImportRow, findings: &Findings) -> Result<(), Error> {
        commands::fail_import(&self.store, import, findings).await?;
        let reason = findings
            .first_error()
            .map(|first| first.reason.as_str())
            .unwrap_or_default();
        tracing::info!(import = %import.id, reason, "an import was refused");
        Ok(())
    }

    /// Puts an upload's parts together in a file.
    async fn assemble(&self, import: &ImportRow, target: &Path) -> Result<(), Error> {
        let mut file = tokio::fs::File::create(target)
            .await
            .map_err(Fault::internal)?;
        for part in store::parts(self.store.read(), import.upload_id).await? {
            let hash = blake3::Hash::from_hex(&part.digest).map_err(Fault::internal)?;
            let key = BlobKey::new(crate::NAME, import.workspace_id, hash);
            let mut chunks = self.blobs().get_stream(&key).await?;
            while let Some(chunk) = chunks.next().await {
                file.write_all(&chunk?).await.map_err(Fault::internal)?;
            }
        }
        file.flush().await.map_err(Fault::internal)?;
        Ok(())
    }

    async fn show_progress(
        &self,
        import: &ImportRow,
        done: usize,
        total: usize,
    ) -> Result<(), Error> {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (id, done, total) = (import.id, count(done), count(total));
        let is_mine = self
            .store
            .write(|tx| async move { store::progress_import(&tx, id, done, total, tx.now()).await })
            .await?;
        if !is_mine {
            let id = id.to_string();
            return Err(Error::NotFound {
                what: "running import",
                id,
            });
        }
        Ok(())
    }

    fn blobs(&self) -> &Blobs {
        self.context.blobs()
    }

    /// Throws away the parts of uploads that were never imported, until told to stop.
    pub async fn expiries(self) -> Result<(), Fault> {
        let shutdown = self.context.shutdown().clone();
        let mut tick = tokio::time::interval(EXPIRY_EVERY);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = tick.tick() => {}
            }
            if let Err(error) = self.expire().await {
                let error = kit::fault::chain(&error);
                tracing::warn!(error, "looks for expired uploads again later");
            }
        }
    }

    async fn expire(&self) -> Result<(), Error> {
        for upload in store::expired_uploads(self.store.read(), self.context.now()).await? {
            let parts = store::parts(self.store.read(), upload.id).await?;
            let id = upload.id;
            self.store
                .write(|tx| async move { store::delete_parts(&tx, id).await })
                .await?;
            for part in parts {
                let sql = self.store.read();
                if !store::is_used(sql, upload.workspace_id, &part.digest).await? {
                    let hash = blake3::Hash::from_hex(&part.digest).map_err(Fault::internal)?;
                    self.blobs()
                        .delete(&BlobKey::new(crate::NAME, upload.workspace_id, hash))
                        .await?;
                }
            }
            tracing::info!(upload = %id, "the parts of an upload were thrown away");
        }
        Ok(())
    }
}
