//! What workers ask for and record. Every call has a fence; a stale one writes nothing.

use std::time::Duration;

use kit::id::{self, Id};
use kit::store::{Isolation, Tx};

use super::{Changed, Projects, change_locked, lock, parse_digest};
use crate::domain::{
    Artifact, Begin, Checkpoint, Finish, Metrics, Model, Move, Outcome, Record, Run, begin, finish,
    record, report_phase, retired,
};
use crate::error::Error;
use crate::store;

/// All a worker needs to train.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The run.
    pub run: Run,
    /// Where to go on, unless it starts anew.
    pub resume_from: Option<Checkpoint>,
    /// The address of that checkpoint's bytes.
    pub resume_url: String,
    /// The best so far, if there is one.
    pub best: Option<Checkpoint>,
    /// The address of its bytes.
    pub best_url: String,
    /// The sequence of the next line of the log.
    pub next_log_sequence: i64,
}

/// Bytes to come.
#[derive(Debug, Clone)]
pub struct BlobAnnounced {
    /// The lease's fence.
    pub fence: i64,
    /// BLAKE3, hex.
    pub digest: String,
    /// Their length.
    pub size_bytes: i64,
}

/// Where announced bytes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedBlob {
    /// To this address.
    Put(String),
    /// They are there already.
    Exists,
}

/// What is durable now.
#[derive(Debug, Clone)]
pub struct RecordCheckpoint {
    /// The lease's fence.
    pub fence: i64,
    /// Finished epochs.
    pub epoch: i32,
    /// Optimiser steps.
    pub step: i64,
    /// BLAKE3 of the bytes, hex.
    pub digest: String,
    /// Their length.
    pub size_bytes: i64,
    /// Compute of the attempt up to here.
    pub committed: Duration,
    /// The newest metrics.
    pub metrics: Metrics,
    /// Whether it is the best of the run so far.
    pub is_best: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct FinishAttempt {
    /// The lease's fence.
    pub fence: i64,
    /// As the worker says.
    pub outcome: Outcome,
    /// For people.
    pub cause: String,
    /// Compute of the attempt that is committed.
    pub committed: Duration,
    /// The newest metrics.
    pub metrics: Metrics,
    /// What was made.
    pub artifacts: Vec<Artifact>,
    /// Finished epochs.
    pub epochs_done: i32,
}

impl Projects {
    /// Begins an attempt, from the newest checkpoint if there is one.
    pub async fn begin_attempt(&self, id: Id<id::Run>, beginning: Begin) -> Result<Begun, Error> {
        let beginning = &beginning;
        let begun = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let locked = lock(&tx, id).await?;
                let resume = store::newest_checkpoint(&tx, id).await?;
                let kind = match &resume {
                    Some(checkpoint) => store::attempt_kind(&tx, id, checkpoint.fence).await?,
                    None => None,
                };
                let run = change_locked(&tx, locked, |run, now| {
                    begin(
                        run,
                        beginning.clone(),
                        resume.as_ref(),
                        kind.as_deref(),
                        now,
                    )
                })
                .await?;
                let next_log_sequence = store::next_sequence(&tx, id).await?;
                let best = store::best_checkpoint(&tx, id).await?;
                Ok((run, resume, best, next_log_sequence))
            })
            .await;
        let (changed, resume_from, best, next_log_sequence) = self.count_stale(begun)?;
        self.committed(&changed);
        let run = changed.after;
        let resume_url = self.checkpoint_url(&run, resume_from.as_ref()).await?;
        let best_url = self.checkpoint_url(&run, best.as_ref()).await?;
        Ok(Begun {
            run,
            resume_from,
            resume_url,
            best,
            best_url,
            next_log_sequence,
        })
    }

    async fn checkpoint_url(
        &self,
        run: &Run,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<String, Error> {
        let Some(checkpoint) = checkpoint else {
            return Ok(String::new());
        };
        let digest = parse_digest("digest", &checkpoint.digest)?;
        let key = self.blob_key(run.workspace_id, digest);
        let (ttl, now) = (self.config.worker_url_ttl, self.clock.now());
        Ok(self.blobs.sign_get(&key, ttl, now).await?)
    }

    /// Takes note of the part of the attempt that is under way.
    pub async fn report_phase(
        &self,
        id: Id<id::Run>,
        fence: i64,
        phase: Move,
    ) -> Result<(), Error> {
        let changed = self.change(id, |run, _| {
            report_phase(run, fence, phase).map(|()| vec![])
        });
        let changed = changed.await;
        self.count_stale(changed).map(drop)
    }

    /// Returns where the bytes of a checkpoint or artifact go.
    pub async fn sign_blob(
        &self,
        id: Id<id::Run>,
        announced: &BlobAnnounced,
    ) -> Result<SignedBlob, Error> {
        let run = self.writing_run(id, announced.fence).await?;
        let size = self.check_size("size_bytes", announced.size_bytes)?;
        let digest = parse_digest("digest", &announced.digest)?;
        self.touch(&run, [announced.digest.as_str()]).await?;
        let key = self.blob_key(run.workspace_id, digest);
        match self.blobs.size(&key).await? {
            Some(found) if found == size => Ok(SignedBlob::Exists),
            Some(found) => Err(Error::BlobSizeDiffers {
                digest: announced.digest.clone(),
                given: size,
                found,
            }),
            None => {
                let (ttl, now) = (self.config.worker_url_ttl, self.clock.now());
                Ok(SignedBlob::Put(
                    self.blobs.sign_put(&key, size, ttl, now).await?,
                ))
            }
        }
    }

    /// Records a checkpoint whose bytes are stored, and lets go of those that it makes needless.
    /// Repeating it returns the same checkpoint.
    pub async fn record_checkpoint(
        &self,
        id: Id<id::Run>,
        command: RecordCheckpoint,
    ) -> Result<Id<id::Checkpoint>, Error> {
        let run = self.writing_run(id, command.fence).await?;
        let blob = (command.digest.as_str(), command.size_bytes);
        self.check_stored(&run, "digest", "size_bytes", blob)
            .await?;
        let command = &command;
        let recorded = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let locked = lock(&tx, id).await?;
                let RecordCheckpoint {
                    fence,
                    step,
                    ref digest,
                    ..
                } = *command;
                locked.run.writing_attempt(fence)?;
                if let Some(known) = store::checkpoint_at(&tx, id, fence, step, digest).await? {
                    return Ok((known.id, None));
                }
                let (checkpoint_id, changed) = record_locked(&tx, locked, command).await?;
                Ok((checkpoint_id, Some(changed)))
            })
            .await;
        let (checkpoint_id, changed) = self.count_stale(recorded)?;
        if let Some(changed) = &changed {
            self.committed(changed);
        }
        Ok(checkpoint_id)
    }

    /// Ends an attempt; a completed one leaves a model. Repeating it changes nothing.
    pub async fn finish_attempt(
        &self,
        id: Id<id::Run>,
        command: FinishAttempt,
    ) -> Result<Run, Error> {
        let ended = store::attempt(self.store.read(), id, command.fence).await?;
        let is_repeated = ended
            .and_then(|attempt| attempt.outcome)
            .is_some_and(|outcome| {
                // A lost attempt was not ended by its worker, which must learn that it was too late.
                outcome != Outcome::Lost
            });
        if is_repeated {
            let found = store::run(self.store.read(), id).await?;
            return found
                .map(|locked| locked.run)
                .ok_or_else(|| Error::no_run(id));
        }
        let run = self.writing_run(id, command.fence).await?;
        if command.outcome == Outcome::Completed {
            for (place, artifact) in command.artifacts.iter().enumerate() {
                let blob = (artifact.digest.as_str(), artifact.size_bytes);
                let field = |name| format!("artifacts[{place}].{name}");
                let (digest, size) = (field("digest"), field("size_bytes"));
                self.check_stored(&run, &digest, &size, blob).await?;
            }
        }
        let command = &command;
        let finished = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let locked = lock(&tx, id).await?;
                finish_locked(&tx, locked, command).await
            })
            .await;
        let changed = self.count_stale(finished)?;
        self.committed(&changed);
        Ok(changed.after)
    }

    /// Returns the run if this fence may write to it now.
    async fn writing_run(&self, id: Id<id::Run>, fence: i64) -> Result<Run, Error> {
        let found = store::run(self.store.read(), id).await?;
        let run = found.ok_or_else(|| Error::no_run(id))?.run;
        let outcome = run.writing_attempt(fence).map(drop);
        self.count_stale(outcome)?;
        Ok(run)
    }

    /// Requires that bytes are in the store as announced, and sees to it that they stay for now.
    async fn check_stored(
        &self,
        run: &Run,
        digest_field: &str,
        size_field: &str,
        (digest, size_bytes): (&str, i64),
    ) -> Result<(), Error> {
        let given = self.check_size(size_field, size_bytes)?;
        let hash = parse_digest(digest_field, digest)?;
        self.touch(run, [digest]).await?;
        match self
            .blobs
            .size(&self.blob_key(run.workspace_id, hash))
            .await?
        {
            Some(found) if found == given => Ok(()),
            Some(found) => Err(Error::BlobSizeDiffers {
                digest: digest.to_owned(),
                given,
                found,
            }),
            None => Err(Error::BlobMissing(digest.to_owned())),
        }
    }

    fn check_size(&self, field: &str, size_bytes: i64) -> Result<u64, Error> {
        let max = self.config.blob_size_max;
        let size = u64::try_from(size_bytes)
            .ok()
            .filter(|size| (1..=max).contains(size));
        size.ok_or_else(|| Error::field(field, format!("is 1 to {max}")))
    }

    async fn touch<const N: usize>(&self, run: &Run, digests: [&str; N]) -> Result<(), Error> {
        let workspace = run.workspace_id;
        let digests = &digests;
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                for digest in digests {
                    if !store::touch_blob(&tx, workspace, digest).await? {
                        return Err(Error::BlobBusy((*digest).to_owned()));
                    }
                }
                Ok(())
            })
            .await
    }

    fn count_stale<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if matches!(outcome, Err(Error::StaleFence { .. })) {
            self.instruments.stale();
        }
        outcome
    }
}

async fn record_locked(
    tx: &Tx,
    locked: store::Locked,
    command: &RecordCheckpoint,
) -> Result<(Id<id::Checkpoint>, Changed), Error> {
    let (run_id, workspace_id) = (locked.run.id, locked.run.workspace_id);
    let now = tx.now();
    let checkpoint = Checkpoint {
        id: Id::new(now),
        run_id,
        fence: command.fence,
        epoch: command.epoch,
        step: command.step,
        digest: command.digest.clone(),
        size_bytes: command.size_bytes,
        is_best: command.is_best,
        created_at: now,
    };
    let change = Record {
        checkpoint_id: checkpoint.id,
        fence: command.fence,
        epoch: command.epoch,
        step: command.step,
        committed: command.committed,
        metrics: command.metrics.clone(),
    };
    let changed = change_locked(tx, locked, |run, now| record(run, &change, now)).await?;
    refer(tx, workspace_id, &checkpoint.digest).await?;
    store::insert_checkpoint(tx, &checkpoint).await?;
    let kept = store::checkpoints(tx, run_id).await?;
    for needless in retired(&kept) {
        store::retire_checkpoint(tx, needless.id).await?;
        store::unrefer_blob(tx, workspace_id, &needless.digest).await?;
    }
    Ok((checkpoint.id, changed))
}

async fn finish_locked(
    tx: &Tx,
    locked: store::Locked,
    command: &FinishAttempt,
) -> Result<Changed, Error> {
    let now = tx.now();
    let change = Finish {
        model_id: Id::new(now),
        fence: command.fence,
        outcome: command.outcome,
        cause: command.cause.clone(),
        committed: command.committed,
        metrics: command.metrics.clone(),
        artifacts: command.artifacts.clone(),
        epochs_done: command.epochs_done,
    };
    let changed = change_locked(tx, locked, |run, now| finish(run, &change, now)).await?;
    let run = &changed.after;
    let Some(model_id) = run.model_id else {
        return Ok(changed);
    };
    let metrics = if command.metrics.is_empty() {
        &run.metrics
    } else {
        &command.metrics
    };
    let model = Model {
        id: model_id,
        workspace_id: run.workspace_id,
        project_id: run.project_id,
        run_id: run.id,
        name: run.name.clone(),
        architecture: run.spec.model.clone(),
        class_names: run.class_names.clone(),
        image_size: run.spec.image_size,
        metrics: metrics.clone(),
        version_id: run.version_id,
        created_at: now,
        artifacts: command.artifacts.clone(),
    };
    store::insert_model(tx, &model).await?;
    for artifact in &model.artifacts {
        refer(tx, run.workspace_id, &artifact.digest).await?;
    }
    Ok(changed)
}

async fn refer(tx: &Tx, workspace: Id<id::Workspace>, digest: &str) -> Result<(), Error> {
    if store::refer_blob(tx, workspace, digest).await? {
        Ok(())
    } else {
        Err(Error::BlobBusy(digest.to_owned()))
    }
}
