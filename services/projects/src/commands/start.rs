//! Starting a run: check, record, hold the money, queue.
//!
//! The run is recorded before its money is held, so that the hold has a key; it is told to the
//! fleet only when the money is held. Whatever is cut off in between is found by the sweep.

use kit::Amount;
use kit::auth::{Caller, act_for};
use kit::fault::{Fault, Kind};
use kit::id::{self, Id};
use kit::money::PricePerHour;
use kit::store::Isolation;
use proto::fovea::billing::v1::{HoldRequest, ReleaseHoldRequest};
use proto::fovea::datasets::v1::{GetVersionRequest, Version};
use proto::fovea::jobs::v1::{DeviceEstimate, EstimateRunRequest};

use super::project::project_for_run;
use super::{Projects, change_locked, lock};
use crate::domain::{
    Device, Metrics, Recovery, Run, State, TrainSpec, check_name, choose_device, held, recover,
    refused,
};
use crate::error::Error;
use crate::grpc::{estimate_value, spec_message};
use crate::store;

/// The longest key, as for every other command.
const KEY_LENGTH_MAX: usize = 128;

/// What to train, on what, for whom.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// None for the default project.
    pub project_id: Option<Id<id::Project>>,
    /// Empty for a name made from the model and a number.
    pub name: String,
    /// What it learns from.
    pub version_id: Id<id::Version>,
    /// What it trains.
    pub spec: TrainSpec,
    /// Empty for the cheapest that can be used.
    pub gpu_type: String,
    /// The most it may cost; zero for the estimate's upper end.
    pub cost_cap: Amount,
    /// The client's key, or empty.
    pub idempotency_key: String,
    /// The digest of the request: the same key with another is refused.
    pub request_digest: Vec<u8>,
}

impl Projects {
    /// Starts a run. With the same key it returns the run that was started before, and goes on
    /// where that start was cut off.
    pub async fn start_run(&self, caller: &Caller, start: StartRun) -> Result<Run, Error> {
        let workspace = caller.workspace()?;
        check(&start)?;
        if let Some(run) = self.started_before(workspace, &start).await? {
            return self.hold_and_queue(run).await;
        }
        let version = self.version(caller, start.version_id).await?;
        let device = self.device(caller, &start).await?;
        match self.record(workspace, &start, version, device).await {
            Ok(run) => self.hold_and_queue(run).await,
            // Two calls with one key at once: the other one was faster.
            Err(Error::Store(error)) if error.is_duplicate() => {
                match self.started_before(workspace, &start).await? {
                    Some(run) => self.hold_and_queue(run).await,
                    None => Err(error.into()),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn started_before(
        &self,
        workspace: Id<id::Workspace>,
        start: &StartRun,
    ) -> Result<Option<Run>, Error> {
        if start.idempotency_key.is_empty() {
            return Ok(None);
        }
        let key = &start.idempotency_key;
        match store::run_by_key(self.store.read(), workspace, key).await? {
            Some(known) if known.request_digest != start.request_digest => {
                Err(kit::store::Error::KeyReused { key: key.clone() }.into())
            }
            known => Ok(known.map(|known| known.run)),
        }
    }

    async fn version(&self, caller: &Caller, id: Id<id::Version>) -> Result<Version, Error> {
        let request = act_for(
            caller,
            GetVersionRequest {
                version_id: id.to_string(),
            },
        );
        let answer = self
            .datasets
            .clone()
            .get_version(request)
            .await
            .map_err(Fault::from)?;
        let version = answer.into_inner().version;
        version.ok_or_else(|| Error::field("version_id", "names a version that can be trained on"))
    }

    async fn device(&self, caller: &Caller, start: &StartRun) -> Result<Device, Error> {
        let request = EstimateRunRequest {
            version_id: start.version_id.to_string(),
            spec: Some(spec_message(&start.spec)),
            gpu_type: start.gpu_type.clone(),
        };
        let request = act_for(caller, request);
        let answer = self
            .jobs
            .clone()
            .estimate_run(request)
            .await
            .map_err(Fault::from)?;
        let devices = answer.into_inner().devices;
        let devices = devices
            .into_iter()
            .map(device)
            .collect::<Result<Vec<_>, _>>()?;
        choose_device(&devices, &start.gpu_type, start.spec.batch)
    }

    /// Commits the run as `created`.
    async fn record(
        &self,
        workspace_id: Id<id::Workspace>,
        start: &StartRun,
        version: Version,
        device: Device,
    ) -> Result<Run, Error> {
        let (version, device) = (&version, &device);
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let project = project_for_run(&tx, workspace_id, start.project_id).await?;
                let number = store::next_run_number(&tx, project.id).await?;
                let name = match start.name.trim() {
                    "" => format!("{}-{number}", start.spec.model),
                    name => name.to_owned(),
                };
                let now = tx.now();
                let run = Run {
                    id: Id::new(now),
                    workspace_id,
                    project_id: project.id,
                    name,
                    version_id: start.version_id,
                    spec: start.spec.clone(),
                    class_names: version.class_names.clone(),
                    gpu_type: device.gpu_type.clone(),
                    price: device.price,
                    estimate: device.estimate.clone(),
                    cost_cap: start.cost_cap,
                    hold: hold_amount(device, start.cost_cap),
                    idempotency_key: start.idempotency_key.clone(),
                    state: State::Created,
                    cause: String::new(),
                    wish: None,
                    epochs_done: 0,
                    committed: std::time::Duration::ZERO,
                    metrics: Metrics::new(),
                    model_id: None,
                    is_bit_exact: true,
                    fence: 0,
                    fence_closed: 0,
                    created_at: now,
                    started_at: None,
                    finished_at: None,
                    attempt: None,
                    replaced: Vec::new(),
                };
                store::insert_run(&tx, &run, &start.request_digest).await?;
                Ok(run)
            })
            .await
    }

    /// Holds the money of a run that is `created` and queues it; any other stays as it is.
    ///
    /// A hold that is refused for good undoes the start: nobody was told of the run yet. One whose
    /// outcome is unknown leaves it to be gone on with, by the same key or the sweep.
    async fn hold_and_queue(&self, run: Run) -> Result<Run, Error> {
        if run.state != State::Created {
            return Ok(run);
        }
        if let Err(fault) = self.hold(&run, Amount::ZERO).await {
            if is_definite(&fault) {
                let id = run.id;
                self.store
                    .write_with(Isolation::ReadCommitted, |tx| async move {
                        store::delete_created(&tx, id).await
                    })
                    .await?;
            }
            return Err(fault.into());
        }
        self.queue_held(run.id).await
    }

    async fn queue_held(&self, id: Id<id::Run>) -> Result<Run, Error> {
        let changed = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let locked = lock(&tx, id).await?;
                change_locked(&tx, locked, |run, _| match run.state {
                    State::Created => held(run),
                    _ => Ok(Vec::new()),
                })
                .await
            })
            .await?;
        self.committed(&changed);
        if changed.before == State::Created {
            self.instruments.started();
        }
        let run = changed.after;
        if run.state.is_final() {
            // It was ended while its money was being held.
            self.release(&run).await?;
        }
        Ok(run)
    }

    /// Finishes or fails a run that an interrupted start left `created`.
    pub(crate) async fn recover_start(&self, run: Run) -> Result<(), Error> {
        let cause = match recover(&run) {
            Recovery::Finish => match self.hold(&run, Amount::ZERO).await {
                Ok(()) => return self.queue_held(run.id).await.map(drop),
                Err(fault) if is_definite(&fault) => fault.message.clone(),
                Err(fault) => return Err(fault.into()),
            },
            Recovery::Abandon => {
                self.release(&run).await?;
                "the start was interrupted".to_owned()
            }
        };
        let failed = self.change(run.id, |run, now| match run.state {
            State::Created => refused(run, cause.clone(), now),
            _ => Ok(Vec::new()),
        });
        failed.await.map(drop)
    }

    /// Holds a run's money, which is harmless where it is held already. A cap that isn't zero
    /// raises the one it had.
    pub(super) async fn hold(&self, run: &Run, cost_cap: Amount) -> Result<(), Fault> {
        let cap = if cost_cap.is_zero() {
            run.effective_cap()
        } else {
            cost_cap
        };
        let request = HoldRequest {
            workspace_id: run.workspace_id.to_string(),
            run_id: run.id.to_string(),
            gpu_type: run.gpu_type.clone(),
            amount_micros: run.hold.micros(),
            price_per_hour_micros: run.price.micros(),
            cap_micros: cap.micros(),
        };
        self.billing.clone().hold(request).await?;
        Ok(())
    }

    async fn release(&self, run: &Run) -> Result<(), Fault> {
        let request = ReleaseHoldRequest {
            workspace_id: run.workspace_id.to_string(),
            run_id: run.id.to_string(),
        };
        self.billing.clone().release_hold(request).await?;
        Ok(())
    }
}

fn check(start: &StartRun) -> Result<(), Error> {
    start.spec.check()?;
    if !start.name.trim().is_empty() {
        check_name("name", &start.name)?;
    }
    if start.cost_cap.is_negative() {
        return Err(Error::field("cost_cap_micros", "is not below zero"));
    }
    if start.gpu_type.len() > 64 {
        return Err(Error::field("gpu_type", "has at most 64 bytes"));
    }
    let length = start.idempotency_key.chars().count();
    if length > KEY_LENGTH_MAX {
        return Err(kit::store::Error::KeyTooLong {
            max: KEY_LENGTH_MAX,
            length,
        }
        .into());
    }
    Ok(())
}

/// Returns what is set aside at first: the estimate's upper end, never more than the run may
/// cost, and something wherever an hour costs something.
fn hold_amount(device: &Device, cost_cap: Amount) -> Amount {
    let least = Amount::from_micros(i64::from(device.price > PricePerHour::ZERO));
    let high = Amount::from_micros(device.estimate.cost_high_micros).max(least);
    if cost_cap.is_zero() {
        high
    } else {
        high.min(cost_cap)
    }
}

/// Tells whether trying again can't help.
pub(super) fn is_definite(fault: &Fault) -> bool {
    !fault.kind.is_transient() && fault.kind != Kind::Internal
}

fn device(message: DeviceEstimate) -> Result<Device, Error> {
    let estimate = message.estimate.unwrap_or_default();
    Ok(Device {
        gpu_type: message.gpu_type,
        is_offered: message.is_offered,
        is_allowed: message.is_allowed,
        fits: message.fits,
        needed_bytes: message.needed_bytes,
        memory_bytes: message.memory_bytes,
        largest_batch: message.largest_batch,
        estimate: estimate_value(estimate)?,
        price: PricePerHour::from_micros(message.price_per_hour_micros).map_err(Fault::internal)?,
        remark: message.remark,
    })
}
