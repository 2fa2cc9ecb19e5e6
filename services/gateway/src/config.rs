//! The section `[gateway]`.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The gateway's own settings; where it listens is in `[fleet]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address under which people reach this installation, such as `https://vision.example`.
    /// With `https` session cookies are marked secure. Default none.
    pub public_url: Option<String>,
    /// Proxies whose `x-forwarded-for` and `x-forwarded-proto` are believed. Default none.
    pub trusted_proxies: Vec<IpAddr>,
    /// Connections that are open at once; more wait to be accepted. Default 4096.
    pub connections: usize,
    /// Requests that are being worked on at once; more are refused. Default 1024.
    pub requests_in_flight: usize,
    /// How long a call by REST may take. Default `30s`.
    #[serde(with = "kit::config::duration")]
    pub request_timeout: Duration,
    /// How long a body may stand still. Default `30s`.
    #[serde(with = "kit::config::duration")]
    pub body_idle_timeout: Duration,
    /// The largest JSON body. Default `4MiB`.
    #[serde(with = "kit::config::size")]
    pub json_bytes_max: u64,
    /// The largest picture to predict on. Default `32MiB`.
    #[serde(with = "kit::config::size")]
    pub picture_bytes_max: u64,
    /// The largest part of an upload. Default `64MiB`.
    #[serde(with = "kit::config::size")]
    pub part_bytes_max: u64,
    /// Parts of uploads that are being received at once; more are refused. Default 64.
    pub parts_in_flight: usize,
    /// Live streams that one workspace may hold open. Default 64.
    pub streams_per_workspace: usize,
    /// How often a quiet stream says that it is alive. Default `15s`.
    #[serde(with = "kit::config::duration")]
    pub heartbeat: Duration,
    /// Wrong keys that one address may try within a minute. Default 30.
    pub failures_per_minute: u32,
    /// How long a key is believed without asking again: a revoked one works no longer than this.
    /// Default `30s`.
    #[serde(with = "kit::config::duration")]
    pub identity_ttl: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            public_url: None,
            trusted_proxies: Vec::new(),
            connections: 4096,
            requests_in_flight: 1024,
            request_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(30),
            json_bytes_max: 4 << 20,
            picture_bytes_max: 32 << 20,
            part_bytes_max: 64 << 20,
            parts_in_flight: 64,
            streams_per_workspace: 64,
            heartbeat: Duration::from_secs(15),
            failures_per_minute: 30,
            identity_ttl: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Tells whether people reach this installation by `https`.
    pub fn is_https(&self) -> bool {
        self.public_url
            .as_deref()
            .is_some_and(|url| url.starts_with("https://"))
    }
}
