//! Stopping and resuming runs, by people and by money.

use kit::Amount;
use kit::id::{self, Id};
use kit::store::{Isolation, Tx};

use super::start::is_definite;
use super::{Projects, change_locked, lock};
use crate::domain::{
    Fact, Leased, Requeued, Run, State, StopKind, check_resume, exhausted, leased, requeued,
    resume, stop,
};
use crate::error::Error;
use crate::store;

/// Resumptions that are looked at in one go.
const RESUMPTIONS_MAX: i64 = 100;

impl Projects {
    /// Ends a run for good or pauses it; a running one is asked to.
    pub async fn stop_run(
        &self,
        workspace: Id<id::Workspace>,
        id: Id<id::Run>,
        kind: StopKind,
    ) -> Result<Run, Error> {
        self.run_of(workspace, id).await?;
        self.change(id, |run, now| stop(run, kind, now)).await
    }

    /// Holds the money of a paused run anew and puts it back into the queue.
    pub async fn resume_run(
        &self,
        workspace: Id<id::Workspace>,
        id: Id<id::Run>,
        cost_cap: Amount,
    ) -> Result<Run, Error> {
        let run = self.run_of(workspace, id).await?.run;
        check_resume(&run, cost_cap)?;
        self.hold(&run, cost_cap).await?;
        self.change(id, |run, _| resume(run, cost_cap)).await
    }

    /// Resumes the runs for which credit came in, as far as it goes, and returns how many.
    pub(crate) async fn resume_for_credit(&self) -> Result<usize, Error> {
        let mut resumed = 0;
        for id in store::resumptions(self.store.read(), RESUMPTIONS_MAX).await? {
            let Some(locked) = store::run(self.store.read(), id).await? else {
                continue;
            };
            let run = locked.run;
            let waits = run.state == State::Paused && run.cause == "balance";
            if waits {
                match self.hold(&run, Amount::ZERO).await {
                    Ok(()) => {}
                    // Still too little for this one: the next credit asks again.
                    Err(fault) if is_definite(&fault) => {
                        self.forget_resumption(id).await?;
                        continue;
                    }
                    Err(fault) => return Err(fault.into()),
                }
            }
            let run = self
                .store
                .write_with(Isolation::ReadCommitted, |tx| async move {
                    store::forget_resumption(&tx, id).await?;
                    let locked = lock(&tx, id).await?;
                    change_locked(&tx, locked, |run, _| match run.state {
                        State::Paused if run.cause == "balance" => resume(run, Amount::ZERO),
                        _ => Ok(Vec::new()),
                    })
                    .await
                })
                .await?;
            self.committed(&run);
            resumed += usize::from(waits);
        }
        Ok(resumed)
    }

    async fn forget_resumption(&self, id: Id<id::Run>) -> Result<(), Error> {
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                store::forget_resumption(&tx, id).await
            })
            .await?;
        Ok(())
    }

    /// A run used up its money.
    pub(crate) async fn on_exhausted(
        &self,
        tx: &Tx,
        id: Id<id::Run>,
        cause: &str,
    ) -> Result<(), Error> {
        self.hear(tx, id, |run| exhausted(run, cause)).await
    }

    /// A device was granted.
    pub(crate) async fn on_leased(
        &self,
        tx: &Tx,
        id: Id<id::Run>,
        lease: Leased,
    ) -> Result<(), Error> {
        let now = tx.now();
        self.hear(tx, id, |run| Ok(leased(run, lease, now))).await
    }

    /// A lease ended and the job waits again.
    pub(crate) async fn on_requeued(
        &self,
        tx: &Tx,
        id: Id<id::Run>,
        lease: Requeued,
    ) -> Result<(), Error> {
        let now = tx.now();
        self.hear(tx, id, |run| requeued(run, lease, now)).await
    }

    /// Changes a run in the transaction of a fact. One that isn't here is nobody's: a fact about
    /// it must not be heard for ever.
    async fn hear(
        &self,
        tx: &Tx,
        id: Id<id::Run>,
        decide: impl FnOnce(&mut Run) -> Result<Vec<Fact>, Error>,
    ) -> Result<(), Error> {
        let Some(locked) = store::lock_run(tx, id, 1).await? else {
            tracing::warn!(fovea.run.id = %id, "heard a fact about a run that isn't here");
            return Ok(());
        };
        let run = change_locked(tx, locked, |run, _| decide(run)).await?;
        // Followers may look a moment too early; they look again within a second.
        self.committed(&run);
        Ok(())
    }
}
