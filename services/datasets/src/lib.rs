//! Datasets: uploads, imports, immutable versions and what is in them.
//!
//! An upload arrives in parts, each a blob (`commands::record_part`). An import reads the whole archive on a
//! thread of its own (`reading`): `domain` says which archives, layouts, label rows and pictures are taken, and every
//! refusal names file, line and rule. What was read becomes a version in one transaction, or nothing changes.
//!
//! **Invariant:** a version and its images are written once and never updated.

mod commands;
mod config;
mod domain;
mod error;
mod grpc;
mod reading;
mod store;
mod tasks;

use std::sync::Arc;

use kit::fault::Fault;
use kit::service::{Context, Tasks, serve_grpc};
use proto::fovea::datasets::v1::dataset_service_server::DatasetServiceServer;
use tokio::sync::Notify;
use tonic::service::Routes;

pub use config::Config;

/// The service's name.
pub const NAME: &str = "datasets";

/// Serves until told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    let config: Config = context.section()?;
    let store = context.open_store(store::MIGRATIONS).await?;
    let asked = Arc::new(Notify::new());
    let background = tasks::Background {
        context: context.clone(),
        store: store.clone(),
        config: config.clone(),
        asked: asked.clone(),
    };

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
    tasks.spawn("imports", background.clone().imports());
    tasks.spawn("expiries", background.expiries());
    tasks.spawn("grpc", async move {
        let service = grpc::Datasets {
            store,
            blobs: context.blobs().clone(),
            config,
            asked,
        };
        let routes = Routes::new(DatasetServiceServer::new(service));
        serve_grpc(&context, routes, &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}
