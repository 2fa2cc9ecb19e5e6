//! The section `[projects]` of `fovea.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How this service behaves; every key works as it is on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How often workers are asked to checkpoint at least. Default `5m`.
    #[serde(with = "kit::config::duration")]
    pub checkpoint_interval: Duration,
    /// How long the signed address of a file is valid for people. Default `1h`.
    #[serde(with = "kit::config::duration")]
    pub export_url_ttl: Duration,
    /// How long the signed address of a checkpoint or artifact is valid for workers. Default `6h`.
    #[serde(with = "kit::config::duration")]
    pub worker_url_ttl: Duration,
    /// The largest checkpoint or artifact. Default `16GiB`.
    #[serde(with = "kit::config::size")]
    pub blob_size_max: u64,
    /// How long a run may stay `created` before the sweep finishes or fails it. Default `1m`.
    #[serde(with = "kit::config::duration")]
    pub created_timeout: Duration,
    /// How often the sweeps look. Default `15s`.
    #[serde(with = "kit::config::duration")]
    pub sweep_interval: Duration,
    /// How long bytes that nothing refers to are kept. Default `1h`.
    #[serde(with = "kit::config::duration")]
    pub blob_grace: Duration,
    /// At which size the open tail of a log becomes a blob. Default `256KiB`.
    #[serde(with = "kit::config::size")]
    pub log_segment_size: u64,
    /// How long a follower waits for the last telemetry of a run that has ended. Default `3s`.
    #[serde(with = "kit::config::duration")]
    pub follow_linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            checkpoint_interval: Duration::from_secs(300),
            export_url_ttl: Duration::from_secs(3600),
            worker_url_ttl: Duration::from_secs(6 * 3600),
            blob_size_max: 16 << 30,
            created_timeout: Duration::from_secs(60),
            sweep_interval: Duration::from_secs(15),
            blob_grace: Duration::from_secs(3600),
            log_segment_size: 256 << 10,
            follow_linger: Duration::from_secs(3),
        }
    }
}
