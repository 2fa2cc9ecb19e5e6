//! Serving gRPC.

use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::Context;
use crate::auth::AuthLayer;
use crate::fault::{Fault, Kind};
use crate::telemetry::ServerLayer;

/// The largest message of a service that doesn't say otherwise; bytes travel as blobs.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// How long calls that are being answered may go on after a service was told to stop.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one call may take; long polls stay below.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
const CALLS_PER_CONNECTION_MAX: u32 = 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves these routes on the service's address until told to stop, with health and reflection
/// beside them. `descriptors` are the encoded file descriptor sets of what is served.
pub async fn serve_grpc(
    context: &Context,
    routes: Routes,
    descriptors: &[&'static [u8]],
) -> Result<(), Fault> {
    let service = context.service();
    let address = context.fleet().listen.get(service).ok_or_else(|| {
        let message = format!("there is no service '{service}'");
        Fault::new(Kind::Invalid, "SERVICE_UNKNOWN", "kit", message)
    })?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| port_fault(&error, address, &format!("fleet.listen.{service}")))?;
    serve_on(context, listener, routes, descriptors).await
}

async fn serve_on(
    context: &Context,
    listener: TcpListener,
    routes: Routes,
    descriptors: &[&'static [u8]],
) -> Result<(), Fault> {
    let service = context.service();
    let address = listener.local_addr().map_err(Fault::internal)?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_service_status("", tonic_health::ServingStatus::Serving)
        .await;
    let mut reflection = tonic_reflection::server::Builder::configure();
    for set in descriptors {
        reflection = reflection.register_encoded_file_descriptor_set(set);
    }
    let reflection = reflection.build_v1().map_err(Fault::internal)?;
    let routes = routes.add_service(health_service).add_service(reflection);

    tracing::info!(service, %address, "serves gRPC");
    let stopping = context.shutdown().clone().cancelled_owned().shared();
    let stopped = {
        let stopping = stopping.clone();
        async move {
            stopping.await;
            health
                .set_service_status("", tonic_health::ServingStatus::NotServing)
                .await;
        }
    };
    let serving = Server::builder()
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .layer(ServerLayer)
        .layer(AuthLayer::new(context.verifier().clone()))
        .add_routes(routes)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped);
    // Streams of followers end only when their readers do: after a grace they are cut.
    let patience = async move {
        stopping.await;
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        served = serving => served.map_err(Fault::internal),
        () = patience => {
            tracing::warn!(service, "cut the calls that did not end in time");
            Ok(())
        }
    }
}

/// Says which port is taken and which key changes it.
pub(crate) fn port_fault(error: &std::io::Error, address: SocketAddr, key: &str) -> Fault {
    let variable = key.to_ascii_uppercase().replace('.', "__");
    let message = match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "{address} is taken by another process: set {key} in fovea.toml or FOVEA_{variable}"
        ),
        _ => format!("{key}: can't listen on {address}: {error}"),
    };
    Fault::new(Kind::Precondition, "PORT_UNAVAILABLE", "kit", message).with("key", key)
}
