//! The section `[billing]` of `fovea.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What can be configured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long money stays set aside for a run that isn't queued. Default `15m`.
    #[serde(with = "kit::config::duration")]
    pub hold_ttl: Duration,
    /// How long a quoted price stays good after the list has changed. Default `1h`.
    #[serde(with = "kit::config::duration")]
    pub quote_ttl: Duration,
    /// How often overdue holds are looked for. Default `30s`.
    #[serde(with = "kit::config::duration")]
    pub sweep_every: Duration,
    /// How often the whole ledger is summed. Default `1m`.
    #[serde(with = "kit::config::duration")]
    pub check_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hold_ttl: Duration::from_secs(15 * 60),
            quote_ttl: Duration::from_secs(3600),
            sweep_every: Duration::from_secs(30),
            check_every: Duration::from_secs(60),
        }
    }
}
