//! One function for each thing the service can be asked: open a transaction, load, decide, save
//! the change with its facts, commit.

mod attempt;
mod project;
mod start;
mod stop;
mod telemetry;

use std::sync::Arc;
use std::time::Duration;

use kit::blobs::{BlobKey, Blobs};
use kit::cache::Cache;
use kit::fault::Fault;
use kit::id::{self, Id};
use kit::service::{Channel, Context};
use kit::store::{Isolation, Store, Tx};
use kit::time::{Clock, Timestamp};
use proto::fovea::billing::v1::billing_service_client::BillingServiceClient;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::jobs::v1::job_service_client::JobServiceClient;
use tokio::sync::Notify;

use crate::changes::Changes;
use crate::config::Config;
use crate::domain::{Fact, Outcome, Run, State};
use crate::error::Error;
use crate::instruments::Instruments;
use crate::store::Locked;
use crate::{NAME, events, store};

pub use attempt::{BlobAnnounced, FinishAttempt, RecordCheckpoint, SignedBlob};
pub use start::StartRun;
pub use telemetry::progress_key;
pub(crate) use telemetry::{LOGS, METRICS, PROGRESS, SAMPLES};

/// The service: what its commands and questions work with. Clones share it.
#[derive(Clone)]
pub struct Projects(Arc<Inner>);

/// What all clones share.
pub struct Inner {
    pub(crate) store: Store,
    pub(crate) blobs: Blobs,
    pub(crate) cache: Cache,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) changes: Changes,
    pub(crate) instruments: Instruments,
    /// Wakes the task that resumes runs for which credit came in.
    pub(crate) credit: Notify,
    datasets: DatasetServiceClient<Channel>,
    jobs: JobServiceClient<Channel>,
    billing: BillingServiceClient<Channel>,
}

impl std::ops::Deref for Projects {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Projects {
    /// Connects the service to what it works with.
    pub async fn new(context: &Context) -> Result<Self, Fault> {
        Ok(Self(Arc::new(Inner {
            store: context.open_store(store::MIGRATIONS).await?,
            blobs: context.blobs().clone(),
            cache: context.cache().clone(),
            clock: context.clock().clone(),
            config: context.section::<Config>()?,
            changes: Changes::new(),
            instruments: Instruments::new(&context.meter("runs")),
            credit: Notify::new(),
            datasets: DatasetServiceClient::new(context.channel("datasets")?),
            jobs: JobServiceClient::new(context.channel("scheduler")?),
            billing: BillingServiceClient::new(context.channel("billing")?),
        })))
    }

    /// Returns a run of this workspace.
    pub async fn run_of(
        &self,
        workspace: Id<id::Workspace>,
        id: Id<id::Run>,
    ) -> Result<Locked, Error> {
        let found = store::run(self.store.read(), id).await?;
        let own = found.filter(|locked| locked.run.workspace_id == workspace);
        own.ok_or_else(|| Error::no_run(id))
    }

    /// Changes a run by one decision in a transaction of its own.
    async fn change<F>(&self, id: Id<id::Run>, decide: F) -> Result<Run, Error>
    where
        F: Fn(&mut Run, Timestamp) -> Result<Vec<Fact>, Error> + Send + Sync,
    {
        let decide = &decide;
        let run = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let locked = lock(&tx, id).await?;
                change_locked(&tx, locked, decide).await
            })
            .await?;
        self.committed(&run);
        Ok(run.after)
    }

    /// Tells followers and instruments of a change that has committed.
    fn committed(&self, changed: &Changed) {
        let Changed {
            before,
            before_committed,
            lost_before,
            after,
        } = changed;
        self.changes.notify(after.id);
        if after.state.is_final() && !before.is_final() {
            self.instruments.ended(after);
        }
        if lost_attempts(after) > *lost_before {
            self.instruments.attempt_lost();
        }
        let grown = after.committed.saturating_sub(*before_committed);
        self.instruments.committed(grown.as_secs_f64());
    }

    fn blob_key(&self, workspace: Id<id::Workspace>, digest: blake3::Hash) -> BlobKey {
        BlobKey::new(NAME, workspace, digest)
    }
}

/// Takes a run for a change.
pub(crate) async fn lock(tx: &Tx, id: Id<id::Run>) -> Result<Locked, Error> {
    store::lock_run(tx, id, 1)
        .await?
        .ok_or_else(|| Error::no_run(id))
}

/// A run after a change, and what instruments want to know of it before.
pub(crate) struct Changed {
    before: State,
    before_committed: Duration,
    lost_before: usize,
    pub(crate) after: Run,
}

/// Decides about a locked run, and saves what changed with its facts.
pub(crate) async fn change_locked<F>(tx: &Tx, locked: Locked, decide: F) -> Result<Changed, Error>
where
    F: FnOnce(&mut Run, Timestamp) -> Result<Vec<Fact>, Error>,
{
    let Locked {
        mut run, position, ..
    } = locked;
    let before = run.clone();
    let facts = decide(&mut run, tx.now())?;
    if run != before || !facts.is_empty() {
        store::save_run(tx, &run, Some(position)).await?;
        for fact in &facts {
            events::tell(tx, &run, fact).await?;
        }
    }
    Ok(Changed {
        before: before.state,
        before_committed: before.committed,
        lost_before: lost_attempts(&before),
        after: run,
    })
}

/// Counts the lost ones among the attempts that a loaded run knows.
fn lost_attempts(run: &Run) -> usize {
    let known = run.replaced.iter().chain(&run.attempt);
    known
        .filter(|attempt| attempt.outcome == Some(Outcome::Lost))
        .count()
}

/// Reads a digest as workers write it: 64 lower-case hexadecimal digits.
fn parse_digest(field: &str, text: &str) -> Result<blake3::Hash, Error> {
    let digest = blake3::Hash::from_hex(text).ok();
    let digest = digest.filter(|digest| digest.to_hex().as_str() == text);
    digest.ok_or_else(|| Error::field(field, "is 64 lower-case hexadecimal digits of BLAKE3"))
}
