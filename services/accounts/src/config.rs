//! The section `[accounts]` of `fovea.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What can be configured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a browser session holds. Default `7d`.
    #[serde(with = "kit::config::duration")]
    pub session_ttl: Duration,
    /// How long a one-time sign-in token can be used. Default `10m`.
    #[serde(with = "kit::config::duration")]
    pub sign_in_token_ttl: Duration,
    /// The plan of a workspace that is made without one: `free`, `pro` or `enterprise`. Default `free`.
    pub default_plan: String,
    /// The address of the first workspace's owner. Default `owner@localhost`.
    pub owner_email: String,
    /// How often the minutes at which keys were last used are written. Default `15s`.
    #[serde(with = "kit::config::duration")]
    pub last_used_every: Duration,
    /// How often ended sessions and unused tokens are removed. Default `1h`.
    #[serde(with = "kit::config::duration")]
    pub sweep_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_ttl: Duration::from_secs(7 * 24 * 3600),
            sign_in_token_ttl: Duration::from_secs(10 * 60),
            default_plan: "free".to_owned(),
            owner_email: "owner@localhost".to_owned(),
            last_used_every: Duration::from_secs(15),
            sweep_every: Duration::from_secs(3600),
        }
    }
}
