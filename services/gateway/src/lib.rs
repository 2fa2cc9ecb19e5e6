//! The gateway: the one public door of the fleet.
//!
//! A tour, in the order a request takes it:
//!
//! * `server.rs` accepts HTTP/1.1 and HTTP/2 on one port; `http/router.rs` lists every route.
//! * `authenticate.rs` finds out who is calling, `domain.rs` decides whether they may.
//! * `contract.rs` is the contract as the descriptors tell it: owners, roles, REST bindings.
//! * `grpc.rs` passes gRPC calls on by path without decoding them; `http/transcode.rs` turns REST
//!   into the same calls; both sign the caller's identity into the metadata.
//! * Written by hand are only uploads, blobs, sessions, streams of events, pictures as bodies, and
//!   the page, all in `http/`.
//!
//! **Invariant:** nothing is passed on without an identity that this process has signed, and no
//! identity that a client sends gets in.

pub mod authenticate;
pub mod config;
pub mod contract;
pub mod domain;
pub mod error;
pub mod events;
pub mod gateway;
pub mod grpc;
pub mod http;
pub mod server;

use std::sync::Arc;

use kit::{Fault, Kind};
use tokio::net::TcpListener;

pub use config::Config;

/// The service's name.
pub const NAME: &str = "gateway";

/// Serves the public door until told to stop.
pub async fn serve(context: kit::service::Context) -> Result<(), Fault> {
    let address = context.fleet().listen.gateway;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "{address} is taken by another process: set fleet.listen.gateway in fovea.toml \
                 or FOVEA_FLEET__LISTEN__GATEWAY"
            ),
            _ => format!("fleet.listen.gateway: can't listen on {address}: {error}"),
        };
        Fault::new(Kind::Precondition, "PORT_UNAVAILABLE", NAME, message)
    })?;
    serve_on(context, listener).await
}

/// Serves on a listener that is open already.
pub async fn serve_on(context: kit::service::Context, listener: TcpListener) -> Result<(), Fault> {
    let gateway = Arc::new(gateway::Gateway::new(context.clone())?);
    let address = listener.local_addr().map_err(Fault::internal)?;
    tracing::info!(service = NAME, %address, "serves HTTP and gRPC");
    let connections = gateway.config.connections;
    let router = http::router::router(gateway);
    server::serve(listener, router, connections, context.shutdown()).await;
    Ok(())
}
