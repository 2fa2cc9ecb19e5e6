//! Inference: endpoints that answer with a deployed model.
//!
//! A deployment copies the model's weights into this service's blobs, loads them and looks through the network once
//! (`tasks`); then `Predict` decodes the picture, letterboxes it, runs the engine and suppresses doubles (`models`).
//! Deploying again under the same name makes the next revision; the one before answers until it is ready.

mod commands;
mod config;
mod error;
mod grpc;
mod instruments;
mod models;
mod store;
mod tasks;

use std::sync::Arc;

use kit::fault::Fault;
use kit::service::{Context, Tasks, serve_grpc};
use proto::fovea::endpoints::v1::endpoint_service_server::EndpointServiceServer;
use proto::fovea::models::v1::model_service_client::ModelServiceClient;
use tokio::sync::Notify;
use tonic::service::Routes;

pub use config::Config;

/// The service's name.
pub const NAME: &str = "inference";
/// What a message may have beside its picture.
const MESSAGE_SLACK: usize = 1 << 20;

/// Serves until told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    let config: Config = context.section()?;
    let store = context.open_store(store::MIGRATIONS).await?;
    let models = Arc::new(models::Models::new(
        context.blobs().clone(),
        config.clone(),
    )?);
    let asked = Arc::new(Notify::new());
    let counts = grpc::Counts::default();
    let message_bytes_max = usize::try_from(config.image_bytes_max)
        .unwrap_or(usize::MAX - MESSAGE_SLACK)
        + MESSAGE_SLACK;
    let service = grpc::Endpoints {
        store: store.clone(),
        blobs: context.blobs().clone(),
        config,
        models: models.clone(),
        registry: ModelServiceClient::new(context.channel("projects")?),
        asked: asked.clone(),
        counts: counts.clone(),
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
    tasks.spawn(
        "deployments",
        tasks::deployments(context.clone(), store.clone(), models, asked),
    );
    tasks.spawn("counters", tasks::counters(context.clone(), store, counts));
    tasks.spawn("grpc", async move {
        let service =
            EndpointServiceServer::new(service).max_decoding_message_size(message_bytes_max);
        serve_grpc(&context, Routes::new(service), &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}
