//! The worker: asks the scheduler for a run, trains it with the engine, records what it came to, and asks again.
//!
//! It is never called. Wishes (pause, cancel, drain) come back with each extension of its lease; checkpoints and
//! endings go to `projects` by gRPC, and only compute up to a recorded checkpoint counts. Metrics, logs and samples
//! travel as telemetry, which may be lost without harm.
//!
//! **Invariant:** nothing durable lives here; any worker can be killed at any moment.

mod attempt;
mod cache;
mod calls;
mod config;
mod device;
mod error;
mod host;
mod telemetry;
mod training;
mod transfer;

use std::time::Duration;

use kit::auth::{Identity, Principal, Role, SignLayer};
use kit::fault::{Fault, Kind};
use kit::id::{Id, Worker as WorkerMarker};
use kit::service::{Channel, Context};
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::fleet::v1::fleet_service_client::FleetServiceClient;
use proto::fovea::fleet::v1::{RegisterWorkerRequest, TakeLeaseRequest, Worker as Description};
use proto::fovea::runs::v1::run_service_client::RunServiceClient;

pub use config::Config;

/// The service's name.
pub const NAME: &str = "worker";

/// How long one question for work waits at the scheduler.
const LEASE_WAIT_SECONDS: i32 = 20;
/// The pause after a failed question.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes and trains runs until told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    let config: Config = context.section()?;
    let folder = config
        .folder
        .clone()
        .unwrap_or_else(|| context.fleet().data.join(NAME));
    let worker_id = device::own_id(&folder, context.now())?;
    let device = device::Device::measure(&config).await?;
    let gateway = context.fleet().service_url("gateway").ok_or_else(|| {
        Fault::new(
            Kind::Invalid,
            "CONFIGURATION_INVALID",
            NAME,
            "there is no gateway's address",
        )
    })?;
    let transfer = transfer::Transfer::new(gateway)?;
    let mut worker = attempt::Worker {
        cache: cache::Cache::new(
            folder.join("pictures"),
            config.cache_bytes,
            transfer.clone(),
        ),
        worker_id: worker_id.to_string(),
        device,
        config,
        heartbeat: Duration::from_secs(10),
        bus: context.bus().clone(),
        clock: context.clock().clone(),
        runs: RunServiceClient::new(channel(&context, worker_id, "projects")?),
        fleet: FleetServiceClient::new(channel(&context, worker_id, "scheduler")?),
        datasets: DatasetServiceClient::new(channel(&context, worker_id, "datasets")?),
        transfer,
        shutdown: context.shutdown().clone(),
    };
    let shutdown = context.shutdown();
    let Some(()) = shutdown.run_until_cancelled(register(&mut worker)).await else {
        return Ok(());
    };
    while !shutdown.is_cancelled() {
        let request = TakeLeaseRequest {
            worker_id: worker.worker_id.clone(),
            wait_seconds: LEASE_WAIT_SECONDS,
        };
        let asked = shutdown
            .run_until_cancelled(worker.fleet.take_lease(request))
            .await;
        match asked {
            None => break,
            Some(Ok(answer)) => {
                if let Some(lease) = answer.into_inner().lease {
                    worker.attempt(lease).await;
                }
            }
            Some(Err(status)) => {
                let fault = Fault::from_status(&status);
                if fault.is("UNKNOWN_WORKER") {
                    let _ = shutdown.run_until_cancelled(register(&mut worker)).await;
                    continue;
                }
                tracing::debug!(error = fault.chain(), "asks for work again");
                let _ = shutdown
                    .run_until_cancelled(tokio::time::sleep(PAUSE))
                    .await;
            }
        }
    }
    Ok(())
}

/// Introduces the worker to the scheduler, as often as it takes.
async fn register(worker: &mut attempt::Worker) {
    loop {
        let described = Description {
            id: worker.worker_id.clone(),
            ..worker.device.description.clone()
        };
        let request = RegisterWorkerRequest {
            worker: Some(described),
        };
        match worker.fleet.register_worker(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                let seconds = answer.heartbeat_seconds.max(1).unsigned_abs();
                worker.heartbeat = Duration::from_secs(seconds.into());
                tracing::info!(
                    worker = answer.worker_id,
                    device = worker.device.description.device,
                    "registered"
                );
                return;
            }
            Err(status) => {
                let error = Fault::from_status(&status).chain();
                tracing::debug!(error, "registers again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Returns a channel to a service with calls signed as this worker.
fn channel(context: &Context, id: Id<WorkerMarker>, service: &str) -> Result<Channel, Fault> {
    let address = context.fleet().service_url(service).ok_or_else(|| {
        let message = format!("there is no address of '{service}'");
        Fault::new(Kind::Invalid, "CONFIGURATION_INVALID", NAME, message)
    })?;
    let identity = Identity {
        principal: Principal::Worker(id),
        role: Role::Worker,
        ..Identity::service(NAME)
    };
    Channel::to(
        &address,
        &SignLayer::with_identity(context.signer().clone(), identity),
    )
}
