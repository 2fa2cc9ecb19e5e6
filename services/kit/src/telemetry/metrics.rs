//! `/metrics` and `/healthz` of a process, and the kit's own instruments.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram};
use prometheus::{Encoder, TextEncoder};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{REGISTRY, meter};
use crate::fault::Fault;

/// Where Prometheus looks.
pub const METRICS_PATH: &str = "/metrics";
const HEALTH_PATH: &str = "/healthz";

/// Seconds: from a cache hit to a long poll.
const DURATION_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

static SERVER_CALLS: LazyLock<Histogram<f64>> =
    LazyLock::new(|| calls("rpc.server.call.duration", "calls answered"));
static CLIENT_CALLS: LazyLock<Histogram<f64>> =
    LazyLock::new(|| calls("rpc.client.call.duration", "calls made"));
static DEAD: LazyLock<Counter<u64>> = LazyLock::new(|| {
    meter("kit")
        .u64_counter("fovea.facts.dead")
        .with_description("facts that a consumer could not take")
        .build()
});

fn calls(name: &'static str, description: &'static str) -> Histogram<f64> {
    meter("kit")
        .f64_histogram(name)
        .with_unit("s")
        .with_description(description)
        .with_boundaries(DURATION_BUCKETS.to_vec())
        .build()
}

/// Which side of a call is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

pub(super) fn record_call(side: Side, method: &str, code: &'static str, took: Duration) {
    let calls = match side {
        Side::Server => &SERVER_CALLS,
        Side::Client => &CLIENT_CALLS,
    };
    let labels = [
        KeyValue::new("rpc.method", method.to_owned()),
        KeyValue::new("rpc.status_code", code),
    ];
    calls.record(took.as_secs_f64(), &labels);
}

/// Counts facts that a consumer could not take; none at its start, so that the count is served from then on.
pub(crate) fn count_dead(consumer: &str, count: u64) {
    DEAD.add(
        count,
        &[KeyValue::new(
            "messaging.consumer.group.name",
            consumer.to_owned(),
        )],
    );
}

/// Serves `/metrics` and `/healthz` until told to stop. `health` says what is wrong, if anything.
pub async fn serve_metrics(
    service: &str,
    address: SocketAddr,
    health: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> Result<(), Fault> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        crate::service::port_fault(&error, address, &format!("fleet.metrics.{service}"))
    })?;
    let health = Arc::new(health);
    let routes = Router::new().route(METRICS_PATH, get(metrics)).route(
        HEALTH_PATH,
        get(move || {
            let health = health.clone();
            async move {
                match health() {
                    Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                    Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
                }
            }
        }),
    );
    axum::serve(listener, routes)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(Fault::internal)
}

async fn metrics() -> impl IntoResponse {
    let encoder = TextEncoder::new();
    let families = REGISTRY
        .get()
        .map(prometheus::Registry::gather)
        .unwrap_or_default();
    let mut text = Vec::new();
    match encoder.encode(&families, &mut text) {
        Ok(()) => {
            let kind = encoder.format_type().to_owned();
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], text)
        }
        Err(error) => {
            tracing::error!(%error, "could not write the metrics");
            let kind = "text/plain".to_owned();
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(header::CONTENT_TYPE, kind)],
                Vec::new(),
            )
        }
    }
}
