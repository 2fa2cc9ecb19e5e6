//! What a process tells about itself: log lines, spans and metrics, and how one trace follows a
//! command through gRPC metadata and facts.
//!
//! [`start`] is called once, in `main`. Without it everything here works and is told to nobody.

mod layer;
mod metrics;
mod trace;

use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::metrics::Meter;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{Fleet, LogFormat};
use crate::fault::{Fault, Kind};

pub use layer::{ClientLayer, ClientTelemetry, ServerLayer, ServerTelemetry};
pub(crate) use metrics::count_dead;
pub use metrics::{METRICS_PATH, serve_metrics};
pub use trace::{current_traceparent, follow_traceparent};
pub(crate) use trace::{process_span, publish_span};

/// How long the last spans and metrics may take to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// What is never worth a line: the exporters would report about themselves without end.
const QUIET: &str = "opentelemetry=off,opentelemetry_sdk=off,h2=warn,hyper=warn,tower=warn,\
                     sqlx=warn,sea_orm=warn,async_nats=warn";

static REGISTRY: OnceLock<prometheus::Registry> = OnceLock::new();

/// Holds the process's telemetry; flush it at the end.
pub struct Telemetry {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
}

/// Starts log lines, spans and metrics for this process. `service` is its name; several services
/// in one process share it.
pub fn start(fleet: &Fleet, service: &str) -> Result<Telemetry, Fault> {
    let resource = Resource::builder()
        .with_service_name(service.to_owned())
        .with_attribute(KeyValue::new("service.namespace", "fovea"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let tracer = tracer_provider(fleet, resource.clone())?;
    let meter = meter_provider(fleet, resource)?;
    global::set_meter_provider(meter.clone());

    let lines = match fleet.log_format {
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .with_target(false)
            .boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(std::io::stderr)
            .boxed(),
    };
    let spans = tracing_opentelemetry::layer()
        .with_location(false)
        .with_threads(false)
        .with_tracer(tracer.tracer("fovea"));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter(&fleet.log_filter)?))
        // Who wants fewer lines still wants whole traces.
        .with(spans.with_filter(filter("info")?))
        .try_init()
        .map_err(Fault::internal)?;
    Ok(Telemetry { tracer, meter })
}

impl Telemetry {
    /// Sends what is left; called last.
    pub async fn stop(self) {
        // Both block, and one of them needs the runtime to go on.
        let flushed = tokio::task::spawn_blocking(move || {
            // Nobody is left who could be told that the collector is away.
            let _ = self.tracer.shutdown_with_timeout(FLUSH_TIMEOUT);
            let _ = self.meter.shutdown_with_timeout(FLUSH_TIMEOUT);
        });
        let _ = tokio::time::timeout(FLUSH_TIMEOUT * 2, flushed).await;
    }
}

/// Returns the meter that makes a domain's instruments: `meter("jobs")`.
///
/// Counters are named without `_total`: Prometheus gets it added.
pub fn meter(domain: &'static str) -> Meter {
    global::meter(domain)
}

fn filter(directives: &str) -> Result<EnvFilter, Fault> {
    EnvFilter::try_new(format!("{QUIET},{directives}")).map_err(|error| {
        let message = format!("fleet.log_filter: {error}");
        Fault::new(Kind::Invalid, "CONFIGURATION_INVALID", "kit", message)
    })
}

fn tracer_provider(fleet: &Fleet, resource: Resource) -> Result<SdkTracerProvider, Fault> {
    let mut provider = SdkTracerProvider::builder().with_resource(resource);
    if let Some(endpoint) = &fleet.otlp_endpoint {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()
            .map_err(bad_endpoint)?;
        provider = provider.with_batch_exporter(exporter);
    }
    Ok(provider.build())
}

fn meter_provider(fleet: &Fleet, resource: Resource) -> Result<SdkMeterProvider, Fault> {
    let registry = REGISTRY.get_or_init(prometheus::Registry::new).clone();
    let reader = opentelemetry_prometheus::exporter()
        .with_registry(registry)
        .build()
        .map_err(Fault::internal)?;
    let mut provider = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_reader(reader);
    if let Some(endpoint) = &fleet.otlp_endpoint {
        let exporter = opentelemetry_otlp::MetricExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()
            .map_err(bad_endpoint)?;
        provider = provider.with_periodic_exporter(exporter);
    }
    Ok(provider.build())
}

fn bad_endpoint(error: impl std::fmt::Display) -> Fault {
    let message = format!("fleet.otlp_endpoint: {error}");
    Fault::new(Kind::Invalid, "CONFIGURATION_INVALID", "kit", message)
}
