//! Billing: credits of workspaces, prices of devices, and the double-entry ledger behind them.
//!
//! A run is quoted a price, has money set aside for it, is charged for compute it committed and gets the rest back.
//! `domain` decides, `commands` saves what was decided with its facts in one transaction, `events` hears what runs did,
//! `tasks` gives back overdue holds and sums the ledger.

#![deny(clippy::float_arithmetic)]

mod commands;
mod config;
pub mod domain;
mod error;
mod events;
mod grpc;
mod store;
mod tasks;

use kit::Fault;
use kit::service::{Context, Tasks};
use proto::fovea::billing::v1::billing_service_server::BillingServiceServer;
use tonic::service::Routes;

pub use config::Config;
pub use error::Error;

use commands::Billing;

/// The service's name.
pub const NAME: &str = "billing";

/// Runs the service until it is told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    kit::bus::install_descriptors(proto::pool().clone());
    let config = context.section::<Config>()?;
    let store = context.open_store(store::MIGRATIONS).await?;
    let billing = Billing::new(store.clone(), config, context.channel("accounts")?);
    billing.seed().await?;

    let mut tasks = Tasks::new(context.shutdown());
    let stop = context.shutdown().clone();
    let bus = context.bus().clone();
    tasks.spawn("relay", {
        let (bus, store, stop) = (bus.clone(), store.clone(), stop.clone());
        async move {
            kit::bus::relay(bus, store, stop).await;
            Ok(())
        }
    });
    tasks.spawn("runs", {
        let (bus, store, stop) = (bus.clone(), store.clone(), stop.clone());
        let hold_ttl = billing.config.hold_ttl;
        async move {
            let hear = |tx, told| events::on_run_fact(tx, told, hold_ttl);
            bus.consume(
                &store,
                events::RUNS_CONSUMER,
                events::run_filters(),
                hear,
                stop,
            )
            .await;
            Ok(())
        }
    });
    tasks.spawn("workspaces", async move {
        let filters = events::workspace_filters();
        let hear = events::on_workspace_fact;
        bus.consume(&store, events::WORKSPACES_CONSUMER, filters, hear, stop)
            .await;
        Ok(())
    });
    tasks.spawn("holds", {
        let (billing, context) = (billing.clone(), context.clone());
        async move {
            tasks::expire_holds(billing, context).await;
            Ok(())
        }
    });
    tasks.spawn("ledger", {
        let (billing, context) = (billing.clone(), context.clone());
        async move {
            tasks::check_ledger(billing, context).await;
            Ok(())
        }
    });
    tasks.spawn("grpc", async move {
        let routes = Routes::new(BillingServiceServer::new(billing));
        kit::service::serve_grpc(&context, routes, &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}
