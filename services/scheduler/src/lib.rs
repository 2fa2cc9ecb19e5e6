//! The scheduler: which device trains which run, and what a training would take on each.
//!
//! It owns the GPU catalogue, the workers, the queue, the leases and what trainings were observed to reach.
//! Runs come in as facts (`events`), workers ask for leases (`grpc`), silence ends leases (`tasks`); what may
//! follow what is decided in `domain`.
//!
//! **Invariant:** of all leases of a run, only the one with the highest fence can be extended.

mod commands;
mod config;
mod domain;
mod error;
mod events;
mod grpc;
mod instruments;
mod store;
mod tasks;
mod work;

use std::collections::HashMap;
use std::sync::Arc;

use kit::fault::Fault;
use kit::service::{Context, Tasks, serve_grpc};
use kit::store::Tx;
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use proto::fovea::billing::v1::billing_service_client::BillingServiceClient;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::fleet::v1::fleet_service_server::FleetServiceServer;
use proto::fovea::jobs::v1::job_service_server::JobServiceServer;
use tokio::sync::{Mutex, Notify};
use tonic::service::Routes;

pub use config::Config;
pub use domain::catalogue;

/// The service's name.
pub const NAME: &str = "scheduler";

/// Serves until told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    let config: Config = context.section()?;
    let store = context.open_store(store::MIGRATIONS).await?;
    let queued = Arc::new(Notify::new());
    let scheduler = Arc::new(grpc::Scheduler {
        store: store.clone(),
        clock: context.clock().clone(),
        config: config.clone(),
        queued: queued.clone(),
        shutdown: context.shutdown().clone(),
        datasets: DatasetServiceClient::new(context.channel("datasets")?),
        billing: BillingServiceClient::new(context.channel("billing")?),
        accounts: AccountServiceClient::new(context.channel("accounts")?),
        progress: Mutex::new(HashMap::new()),
    });

    let mut tasks = Tasks::new(context.shutdown());
    tasks.spawn("relay", {
        let (bus, store, stop) = (
            context.bus().clone(),
            store.clone(),
            context.shutdown().clone(),
        );
        async move {
            kit::bus::relay(bus, store, stop).await;
            Ok(())
        }
    });
    tasks.spawn("jobs", {
        let (bus, store, stop) = (
            context.bus().clone(),
            store.clone(),
            context.shutdown().clone(),
        );
        async move {
            let heard = |tx: Tx, told| {
                let queued = queued.clone();
                async move {
                    events::on_fact(tx, told).await?;
                    // Before the commit: a worker that looks too early looks again within a second.
                    queued.notify_waiters();
                    Ok::<_, error::Error>(())
                }
            };
            bus.consume(&store, events::DURABLE, events::filters(), heard, stop)
                .await;
            Ok(())
        }
    });
    tasks.spawn("sweep", {
        let (store, stop) = (store.clone(), context.shutdown().clone());
        async move {
            tasks::sweep(store, config, stop).await;
            Ok(())
        }
    });
    tasks.spawn("grpc", async move {
        let routes = Routes::new(JobServiceServer::new(grpc::Jobs(scheduler.clone())))
            .add_service(FleetServiceServer::new(grpc::Fleet(scheduler)));
        serve_grpc(&context, routes, &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}
