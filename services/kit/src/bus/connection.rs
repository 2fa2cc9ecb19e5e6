//! The connection to NATS and the streams that must be there.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::stream::{Config as StreamConfig, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event};
use tokio::sync::watch;

use super::{
    DEAD_BYTES_MAX, DEAD_ROOT, DUPLICATE_WINDOW, Error, FACT_BYTES_MAX, FACTS, FACTS_DEAD,
    FACTS_KEPT_FOR, FACTS_ROOT, SAMPLE_BYTES_MAX, TELEMETRY, TELEMETRY_KEPT_FOR, TELEMETRY_ROOT,
};
use crate::config::Fleet;

/// The first server that has what we use.
pub const NATS_VERSION_MIN: &str = "2.11.0";
/// How long a starting service waits for its server.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_POLL: Duration = Duration::from_millis(50);
/// The longest pause between two attempts to get a lost server back.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long an answer of JetStream may take.
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection to NATS. Clones share it; it survives restarts of the server.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    service: String,
    client: Client,
    jetstream: Context,
    retry_pause: Duration,
    /// Counts the connections, so that who follows can tell that it was cut off.
    connections: watch::Receiver<u64>,
}

impl Bus {
    /// Connects, refuses a server that is too old, and makes sure of the streams.
    pub async fn connect(fleet: &Fleet, service: &str) -> Result<Self, Error> {
        let url = fleet.nats_url.as_str();
        let (connected, connections) = watch::channel(0);
        let connected = Arc::new(connected);
        let client = ConnectOptions::new()
            .name(format!("fovea-{service}"))
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(Duration::from_secs(10))
            .reconnect_delay_callback(|attempt| {
                let millis = 20 * 2_u64.saturating_pow(attempt.min(16) as u32);
                Duration::from_millis(millis).min(RECONNECT_PAUSE_MAX)
            })
            .event_callback(move |event| {
                let connected = connected.clone();
                async move {
                    log(&event);
                    if matches!(event, Event::Connected) {
                        connected.send_modify(|count| *count += 1);
                    }
                }
            })
            .connect(url)
            .await
            .map_err(|error| Error::nats(format!("connect to {}", without_password(url)), error))?;
        wait_until_connected(&client, url).await?;
        require_version(&client.server_info().version)?;
        let jetstream = jetstream::ContextBuilder::new()
            .timeout(ACK_TIMEOUT)
            .ack_timeout(ACK_TIMEOUT)
            .build(client.clone());
        let (service, retry_pause) = (service.to_owned(), fleet.fact_retry_pause);
        let bus = Self(Arc::new(Inner {
            service,
            client,
            jetstream,
            retry_pause,
            connections,
        }));
        bus.ensure_streams(fleet).await?;
        Ok(bus)
    }

    /// Returns the service that is connected.
    pub fn service(&self) -> &str {
        &self.0.service
    }

    /// Tells whether the server is there right now.
    pub fn is_connected(&self) -> bool {
        self.0.client.connection_state() == State::Connected
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(super) fn jetstream(&self) -> &Context {
        &self.0.jetstream
    }

    /// Returns the first pause before a fact that failed is heard again.
    pub(super) fn retry_pause(&self) -> Duration {
        self.0.retry_pause
    }

    /// Returns what changes whenever the connection stands again.
    pub(super) fn connections(&self) -> watch::Receiver<u64> {
        self.0.connections.clone()
    }

    async fn ensure_streams(&self, fleet: &Fleet) -> Result<(), Error> {
        for config in streams(fleet) {
            let action = format!("make the stream {}", config.name);
            self.jetstream()
                .create_or_update_stream(config)
                .await
                .map_err(|error| Error::nats(action, error))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Bus")
            .field("service", &self.0.service)
            .finish_non_exhaustive()
    }
}

fn streams(fleet: &Fleet) -> [StreamConfig; 3] {
    let limit = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let shared = StreamConfig {
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: fleet.nats_replicas,
        allow_direct: true,
        ..StreamConfig::default()
    };
    [
        StreamConfig {
            name: FACTS.to_owned(),
            description: Some("what became true".to_owned()),
            subjects: vec![format!("{FACTS_ROOT}.>")],
            max_age: FACTS_KEPT_FOR,
            max_bytes: limit(fleet.facts_bytes_max),
            max_message_size: FACT_BYTES_MAX,
            duplicate_window: DUPLICATE_WINDOW,
            ..shared.clone()
        },
        StreamConfig {
            name: FACTS_DEAD.to_owned(),
            description: Some("what a consumer could not take".to_owned()),
            subjects: vec![format!("{DEAD_ROOT}.>")],
            max_age: FACTS_KEPT_FOR,
            max_bytes: DEAD_BYTES_MAX,
            duplicate_window: DUPLICATE_WINDOW,
            ..shared.clone()
        },
        StreamConfig {
            name: TELEMETRY.to_owned(),
            description: Some("metrics, logs, samples; may be thinned".to_owned()),
            subjects: vec![format!("{TELEMETRY_ROOT}.>")],
            max_age: TELEMETRY_KEPT_FOR,
            max_bytes: limit(fleet.telemetry_bytes_max),
            max_message_size: SAMPLE_BYTES_MAX,
            ..shared
        },
    ]
}

async fn wait_until_connected(client: &Client, url: &str) -> Result<(), Error> {
    let connected = async {
        // The state may say so a moment before what the server said of itself is there.
        while client.connection_state() != State::Connected || client.try_server_info().is_none() {
            tokio::time::sleep(CONNECT_POLL).await;
        }
    };
    tokio::time::timeout(CONNECT_PATIENCE, connected)
        .await
        .map_err(|_| Error::Unreachable {
            url: without_password(url),
        })
}

fn require_version(found: &str) -> Result<(), Error> {
    if version(found) >= version(NATS_VERSION_MIN) {
        Ok(())
    } else {
        Err(Error::ServerTooOld {
            found: found.to_owned(),
            minimum: NATS_VERSION_MIN,
        })
    }
}

/// Returns the numbers of `v2.11.0-beta.1`; what is no number counts as zero.
pub(crate) fn version(text: &str) -> [u32; 3] {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']);
    [(); 3].map(|()| parts.next().and_then(|part| part.parse().ok()).unwrap_or(0))
}

fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 < at => {
            format!("{}***{}", &url[..scheme + 3], &url[at..])
        }
        _ => url.to_owned(),
    }
}

fn log(event: &Event) {
    match event {
        Event::Connected => tracing::info!("connected to NATS"),
        Event::Disconnected => tracing::warn!("lost NATS; everything waits until it is back"),
        Event::SlowConsumer(id) => tracing::warn!(subscription = id, "NATS dropped messages"),
        Event::ServerError(error) => tracing::warn!(%error, "NATS refused something"),
        event => tracing::debug!(%event, "NATS"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused_with_what_to_install() {
        assert!(require_version("2.15.1").is_ok());
        assert!(require_version("2.11.0").is_ok());
        let error = require_version("2.9.10").unwrap_err().to_string();
        assert!(
            error.contains("2.9.10") && error.contains("scripts/setup.sh"),
            "{error}"
        );
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(
            without_password("nats://a:b@host:4222"),
            "nats://***@host:4222"
        );
        assert_eq!(without_password("nats://host:4222"), "nats://host:4222");
    }
}
