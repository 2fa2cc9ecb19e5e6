//! A fleet of a test's own: a folder, ports, a clock that stands still.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Returns a port that is free and that nobody gets by chance: below the range that the system takes the ports of
/// outgoing connections from (32768 and up on Linux, 49152 in RFC 6335), and never given twice by this process.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u32 = 22_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(2_654_435_761) % COUNT;
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(given < COUNT, "no free port is left");
        let offset = (start + given) % COUNT;
        let port = FIRST + u16::try_from(offset).expect("invariant: the range is in u16");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once_and_are_none_that_a_connection_gets() {
        let ports: Vec<u16> = (0..200).map(|_| free_port()).collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        let Ok(range) = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else {
            return;
        };
        let mut range = range.split_whitespace().map(|end| end.parse().unwrap());
        let range = range.next().unwrap()..=range.next().unwrap();
        assert!(!ports.iter().any(|port| range.contains(port)), "{range:?}");
    }
}
