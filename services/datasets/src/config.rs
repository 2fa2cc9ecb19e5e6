//! The section `[datasets]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the datasets service can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The largest file that can be uploaded. Default 50GiB.
    #[serde(with = "kit::config::size")]
    pub upload_bytes_max: u64,
    /// How long an upload may take before its parts are thrown away. Default 24h.
    #[serde(with = "kit::config::duration")]
    pub upload_ttl: Duration,
    /// How long signed addresses of images hold. Default 1h.
    #[serde(with = "kit::config::duration")]
    pub url_ttl: Duration,
    /// How long an import may show no sign of life before another process takes it up. Default 30s.
    #[serde(with = "kit::config::duration")]
    pub import_silence: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            upload_bytes_max: 50 << 30,
            upload_ttl: Duration::from_secs(24 * 3600),
            url_ttl: Duration::from_secs(3600),
            import_silence: Duration::from_secs(30),
        }
    }
}
