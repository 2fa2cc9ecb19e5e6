//! Projects, runs and attempts, metrics, logs, checkpoints and models.
//!
//! A run is asked for by a person (`grpc` → `commands::start_run`), placed by the scheduler
//! (`events::on_job_leased`), trained by a worker that reports under the fence of its lease
//! (`commands::begin_attempt` … `finish_attempt`), paid for by what its checkpoints commit, and
//! leaves a model. `domain` decides every step by one table of states; telemetry is kept by
//! `commands::keep_telemetry` and read by `questions` and `follow`.

mod changes;
mod commands;
mod config;
pub mod domain;
mod error;
mod events;
mod follow;
mod grpc;
mod instruments;
mod questions;
mod store;
mod tasks;

use kit::Fault;
use kit::service::{Context, Tasks};
use proto::fovea::models::v1::model_service_server::ModelServiceServer;
use proto::fovea::projects::v1::project_service_server::ProjectServiceServer;
use proto::fovea::runs::v1::run_service_server::RunServiceServer;
use tonic::service::Routes;

use commands::{LOGS, METRICS, PROGRESS, Projects, SAMPLES};
use grpc::Server;

pub use config::Config;
pub use error::Error;

/// The service's name.
pub const NAME: &str = "projects";
/// The durable consumer of telemetry.
const TELEMETRY_CONSUMER: &str = "projects-telemetry";

/// Runs the service until it is told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    kit::bus::install_descriptors(proto::pool().clone());
    let projects = Projects::new(&context).await?;
    let (bus, stop) = (context.bus().clone(), context.shutdown().clone());

    let mut tasks = Tasks::new(context.shutdown());
    tasks.spawn("relay", {
        let (bus, store, stop) = (bus.clone(), projects.store.clone(), stop.clone());
        async move {
            kit::bus::relay(bus, store, stop).await;
            Ok(())
        }
    });
    tasks.spawn("facts", {
        let (bus, projects, stop) = (bus.clone(), projects.clone(), stop.clone());
        async move {
            let store = projects.store.clone();
            let hear = |tx, told| events::on_fact(projects.clone(), tx, told);
            bus.consume(&store, events::CONSUMER, events::filters(), hear, stop)
                .await;
            Ok(())
        }
    });
    tasks.spawn("telemetry", {
        let (projects, stop) = (projects.clone(), stop.clone());
        async move {
            let nouns = [METRICS, LOGS, SAMPLES, PROGRESS];
            let keep = |samples| projects.keep_telemetry(samples, &stop);
            bus.keep_telemetry(TELEMETRY_CONSUMER, &nouns, keep, stop.clone())
                .await;
            Ok(())
        }
    });
    tasks.spawn("sweep", {
        let (projects, stop) = (projects.clone(), stop.clone());
        async move {
            tasks::sweep(projects, stop).await;
            Ok(())
        }
    });
    tasks.spawn("grpc", async move {
        let server = Server::new(projects, stop);
        let routes = Routes::new(RunServiceServer::new(server.clone()))
            .add_service(ProjectServiceServer::new(server.clone()))
            .add_service(ModelServiceServer::new(server));
        kit::service::serve_grpc(&context, routes, &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}
