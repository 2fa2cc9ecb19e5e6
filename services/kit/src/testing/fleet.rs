//! A fleet of a test's own: a folder, ports, a clock that stands still.

use std::net::{Ipv4Addr, TcpListener};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{TestDatabase, TestNats};
use crate::config::{Config, SERVICES};
use crate::service::Context;
use crate::time::{Clock, Timestamp};

/// When a test's clock begins: 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp::from_seconds(1_767_225_600);

/// Where services under test live. Its contexts share folder, bus, key and clock.
pub struct TestFleet {
    _folder: TempDir,
    config: Config,
    clock: Clock,
}

impl TestFleet {
    /// Returns a fleet on this server, with SQLite.
    pub fn new(nats: &TestNats) -> Self {
        Self::with(nats, "sqlite", "")
    }

    /// Returns a fleet on this server, in this database.
    pub fn in_database(nats: &TestNats, database: &TestDatabase) -> Self {
        Self::with(nats, database.url(), "")
    }

    /// Returns a fleet with more configuration: TOML of services' sections.
    pub fn with(nats: &TestNats, database_url: &str, sections: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test's fleet");
        let ports = |name: &str| {
            let lines = SERVICES.map(|service| format!("{service} = '127.0.0.1:{}'", free_port()));
            format!("[fleet.{name}]\n{}\n", lines.join("\n"))
        };
        let text = format!(
            "[fleet]\ndata = '{}'\nnats_url = '{}'\nfact_retry_pause = '10ms'\ndatabase_url = '{database_url}'\n{}{}{sections}",
            folder.path().display(),
            nats.url(),
            ports("listen"),
            ports("metrics"),
        );
        let config = Config::from_text("the test", &text, [])
            .unwrap_or_else(|problems| panic!("{problems}"));
        Self {
            _folder: folder,
            config,
            clock: Clock::manual(START),
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the clock that all contexts share; only the test moves it.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Starts a context of a service. Another call is another start of the same service: cancel
    /// the first one's `shutdown` before.
    pub async fn context(&self, service: &'static str) -> Context {
        let (config, clock) = (self.config.clone(), self.clock.clone());
        Context::start(config, service, clock, CancellationToken::new())
            .await
            .unwrap_or_else(|fault| panic!("{}", fault.chain()))
    }
}

/// Returns a port that is free right now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener
        .local_addr()
        .expect("invariant: a bound listener has an address")
        .port()
}
